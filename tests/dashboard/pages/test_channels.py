"""Channels in Settings: admins make, change and remove them; what is wrong stands beside its field."""

from __future__ import annotations

import json
import random
import re
import string
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from dashboard import channel_forms
from dashboard.models import AuditEntry, Channel, Job, Service
from ops import records
from ops.environments import channels, fingerprint, recipe
from ops.jobs.errors import BadInput

pytestmark = pytest.mark.django_db

COMMIT = "0123456789abcdef0123456789abcdef01234567"
# What a person would fill in, by preset; `recipe` needs a file
GOOD: dict[str, dict[str, str]] = {
    "stable": {"name": "stable", "index_url": "public"},
    "nightly": {"name": "nightly", "variant": "cu129", "index_url": "public", "requirements": "vllm\nlmcache>=0.4", "flashinfer": "on",
                "index_strategy": "unsafe-first-match"},
    "commit": {"name": "bisect", "commit": COMMIT, "requirements": "vllm"},
    "wheelhouse": {"name": "cabinet", "wheelhouse": "/srv/wheels", "requirements": "vllm", "prerelease": "on"},
    "index": {"name": "mirror", "index_url": "https://mirror.example.com/simple/", "extra_index_urls": "https://wheels.example.com/a/",
              "index_strategy": "first-index", "exclude_newer": "2026-11-01"},
}


@pytest.fixture
def boss(admin: User) -> Client:
    client = Client()
    client.force_login(admin)
    return client


def add(client: Client, preset: str, **more: Any) -> Any:
    return client.post(f"/settings/channels/new/{preset}/", {**GOOD[preset], **more})


def problems(response: Any) -> dict[str, str]:
    """Field: what stands beside it."""
    return dict(re.findall(r'<span class="problem" id="([\w-]+)-problem">([^<]*)</span>', response.content.decode()))


def test_every_preset_has_a_form_with_its_fields(boss: Client) -> None:
    listed = boss.get("/settings/channels/new/").content.decode()
    for preset in channels.presets():
        assert f"/settings/channels/new/{preset['name']}/" in listed
        body = boss.get(f"/settings/channels/new/{preset['name']}/").content.decode()
        for field in preset["fields"]:
            assert f'id="{field["name"]}"' in body and f'<label for="{field["name"]}"' in body


@pytest.mark.parametrize("preset", sorted(GOOD))
def test_a_channel_is_made_from_a_preset_and_can_be_opened_again(boss: Client, preset: str) -> None:
    response = add(boss, preset)
    name = GOOD[preset]["name"]
    assert (response.status_code, response.url) == (302, f"/settings/channels/{name}/"), problems(response)
    made = records.Channel.from_dict(Channel.objects.get(name=name).record)
    channels.check(made)
    assert not made.practice
    page = boss.get(response.url)
    assert page.status_code == 200 and name in page.content.decode()
    assert name in boss.get("/settings/").content.decode()


@pytest.mark.parametrize("preset", sorted(GOOD))
def test_saving_a_form_as_it_is_changes_nothing(boss: Client, preset: str) -> None:
    add(boss, preset)
    channel = Channel.objects.get()
    form = channel_forms.ChannelForm(channel_forms.preset_of(channel.record) or {}, channel=channel)
    sent = {field.name: field.value if field.kind != "switch" else "on" for field in form.shown() if not field.fixed and field.value is not False}
    assert boss.post(f"/settings/channels/{channel.name}/", sent).status_code == 302
    assert Channel.objects.get().record == channel.record
    assert not AuditEntry.objects.filter(action="channel.edit").exists()


def test_a_change_is_stored_and_told_field_by_field(boss: Client, admin: User) -> None:
    add(boss, "nightly")
    assert boss.post("/settings/channels/nightly/", {"variant": "cu130", "requirements": "vllm", "index_strategy": "first-index"}).status_code == 302
    record = Channel.objects.get().record
    assert (record["variant"], record["index_strategy"], record["extra_index_urls"]) == ("cu130", "first-index",
                                                                                       ["https://wheels.vllm.ai/nightly/cu130"])
    entry = AuditEntry.objects.get(action="channel.edit")
    assert (entry.by, entry.subject) == (admin, "nightly")
    assert entry.data["changed"]["variant"] == {"before": "cu129", "after": "cu130"}
    assert "requirements" in entry.data["changed"] and "name" not in entry.data["changed"]


def test_the_hundreds_of_pins_of_the_stable_channel_are_no_audit_row(boss: Client) -> None:
    add(boss, "stable")
    told = AuditEntry.objects.get(action="channel.create").data
    assert str(told["changed"]["constraints"]["after"]).startswith("sha256:")
    assert len(str(told)) < 20_000


def test_removing_asks_first_and_leaves_jobs_alone(boss: Client, service: Service) -> None:
    add(boss, "wheelhouse")
    asked = boss.get("/settings/channels/cabinet/remove/").content.decode()
    assert "Remove channel cabinet?" in asked and "the only channel for real services" in asked
    assert Channel.objects.exists()
    assert boss.post("/settings/channels/cabinet/remove/").status_code == 302
    assert not Channel.objects.exists()
    assert AuditEntry.objects.get(action="channel.remove").subject == "cabinet"


@pytest.mark.parametrize(("preset", "field", "value"), [
    ("nightly", "name", "Nightly"), ("nightly", "name", "../x"), ("nightly", "name", ""), ("nightly", "name", "new"), ("nightly", "name", "a" * 64),
    ("nightly", "variant", "cu13; rm"), ("nightly", "variant", "--pre"), ("nightly", "index_url", "ftp://a/"), ("nightly", "index_url", "file:///etc"),
    ("nightly", "index_url", "https://me:secret@mirror.example.com/"), ("nightly", "index_url", "https://a/\n--extra-index-url=https://b/"),
    ("nightly", "requirements", "vllm @ https://evil.example/x.whl"), ("nightly", "requirements", "-r /etc/passwd"),
    ("nightly", "requirements", "vllm\n--index-url https://b/"), ("nightly", "index_strategy", "unsafe-best-match"),
    ("nightly", "torch_backend", "$(id)"), ("nightly", "exclude_newer", "yesterday"), ("commit", "commit", "main"), ("commit", "commit", ""),
    ("commit", "commit", COMMIT[:12]), ("wheelhouse", "wheelhouse", "wheels"), ("wheelhouse", "wheelhouse", ""),
    ("wheelhouse", "wheelhouse", "/srv/../etc"), ("index", "extra_index_urls", "https://a.example/\njavascript:alert(1)"),
])
def test_what_cannot_be_is_told_beside_its_field(boss: Client, preset: str, field: str, value: str) -> None:
    response = add(boss, preset, **{field: value})
    assert response.status_code == 400
    assert set(problems(response)) == {field}, problems(response)
    assert not Channel.objects.exists() and not AuditEntry.objects.filter(action="channel.create").exists()


def test_several_wrong_fields_are_told_at_once_and_keep_what_was_typed(boss: Client) -> None:
    response = add(boss, "nightly", name="Nightly", variant="<b>", exclude_newer="soon")
    assert set(problems(response)) == {"name", "variant", "exclude_newer"}
    body = response.content.decode()
    assert 'value="&lt;b&gt;"' in body and 'value="soon"' in body and 'aria-invalid="true"' in body
    assert "3 fields are not right" in body


@pytest.mark.parametrize("commit", ["", "main"])
def test_a_wrong_field_that_is_needed_hides_no_other(boss: Client, commit: str) -> None:
    response = add(boss, "commit", commit=commit, index_url="https://me:secret@mirror.example.com/", variant="x y")
    assert set(problems(response)) == {"commit", "index_url", "variant"}
    assert not Channel.objects.exists()


def test_a_name_that_is_taken_is_refused(boss: Client, channel: Channel) -> None:
    add(boss, "nightly")
    assert set(problems(add(boss, "nightly"))) == {"name"}
    assert set(problems(add(boss, "nightly", name="practice"))) == {"name"}
    assert Channel.objects.count() == 2


def test_a_channel_of_the_practice_box_can_be_looked_at_and_not_changed(boss: Client, channel: Channel) -> None:
    body = boss.get("/settings/channels/practice/").content.decode()
    assert "cannot be changed here" in body and "<form class=\"card" not in body
    for path in ("/settings/channels/practice/", "/settings/channels/practice/remove/"):
        assert boss.post(path, GOOD["wheelhouse"]).status_code == 400
    assert boss.get("/settings/channels/practice/remove/").status_code == 400
    assert Channel.objects.get().record == channel.record


def test_operators_see_channels_and_manage_none(operator: User, boss: Client) -> None:
    add(boss, "wheelhouse")
    client = Client()
    client.force_login(operator)
    body = client.get("/settings/").content.decode()
    assert "cabinet" in body and "Add a channel" not in body and "/settings/channels/" not in body
    for path in ("/settings/channels/new/", "/settings/channels/new/nightly/", "/settings/channels/cabinet/", "/settings/channels/cabinet/remove/"):
        assert client.get(path).status_code == 403, path
        assert client.post(path, GOOD["nightly"]).status_code in (403, 405), path
    assert Channel.objects.count() == 1
    assert not AuditEntry.objects.filter(by=operator, action__startswith="channel.").exists()


def test_a_post_without_its_token_changes_nothing(admin: User, boss: Client) -> None:
    add(boss, "wheelhouse")
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin)
    for path in ("/settings/channels/new/nightly/", "/settings/channels/cabinet/", "/settings/channels/cabinet/remove/"):
        assert client.post(path, GOOD["nightly"]).status_code == 403
    assert Channel.objects.count() == 1


def test_what_is_not_there_is_not_found(boss: Client) -> None:
    for path in ("/settings/channels/new/yearly/", "/settings/channels/nowhere/", "/settings/channels/nowhere/remove/"):
        assert boss.get(path).status_code == 404


def test_a_channel_says_what_a_node_must_allow(boss: Client) -> None:
    add(boss, "nightly", torch_backend="cu129")
    body = boss.get("/settings/channels/nightly/").content.decode()
    assert "https://wheels.vllm.ai/nightly/cu129" in body
    record = Channel.objects.get().record
    assert channel_forms.node_needs(record) == ('index_urls = ["public", "https://wheels.vllm.ai/nightly/cu129", "https://flashinfer.ai/whl/cu129/", '
                                                '"https://flashinfer.ai/whl/", "pytorch"]')


def test_try_it_makes_a_plan_from_the_channel(boss: Client, service: Service, redis_url: str) -> None:
    Service.objects.filter(pk=service.pk).update(practice=False)
    add(boss, "wheelhouse")
    body = boss.get("/settings/channels/cabinet/").content.decode()
    assert "Plan kimi-k25" in body
    boss.post("/services/practice/kimi-k25/plan/", {"channel": "cabinet"})
    assert Job.objects.get().params["channel"] == "cabinet"


@pytest.mark.parametrize("content", [b"", b"not json", b"[]", b"3", b'"x"', b"{}", b"{" * 100_000, b'{"a": 1e999}', b"\xff\xfe\x00", b"x" * 700_001],
                         ids=["empty", "text", "list", "number", "word", "nothing", "deep", "infinite", "bytes", "large"])
def test_a_file_that_is_no_recipe_is_told_beside_its_field(boss: Client, content: bytes) -> None:
    response = boss.post("/settings/channels/new/recipe/", {"name": "r", "recipe": SimpleUploadedFile("recipe.json", content)})
    assert response.status_code == 400
    assert set(problems(response)) == {"recipe"}
    assert not Channel.objects.exists()


def recipe_file(**more: Any) -> SimpleUploadedFile:
    """A recipe as a node gives it, and a hash that fits."""
    told: dict[str, Any] = {"service": "kimi-k25", "packages": {"vllm": "0.16.0"}, **more.pop("fingerprint", {})}
    made = {
        "schema": recipe.SCHEMA, "label": "week 9", "made_at": 1_770_000_000.0, "practice": False,
        "from": {"service": "kimi-k25", "node": "n1", "release": "20260301-000000-0.16.0"},
        "python": {"version": "3.12.1", "implementation": "cpython"}, "platform": {"system": "linux", "machine": "x86_64", "libc": "glibc 2.36"},
        "version": "0.16.0", "packages": [{"name": "vllm", "version": "0.16.0", "file": "vllm-0.16.0-py3-none-any.whl", "sha256": "a" * 64,
                                           "size_bytes": 4000}],
        "channel": {"kind": "wheelhouse", "preset": "wheelhouse", "wheelhouse": "/srv/wheels", "index_url": "", "extra_index_urls": [],
                    "variant": ""},
        "flags": ["--max-model-len", "8192"], "flags_to_set": [], "env": {}, "env_to_set": ["HF_TOKEN"], "env_files": [], "guards": [],
        "reference": {"sweep": None, "warmup": None}, "fingerprint": {**told, "hash": fingerprint.digest(told)}, **more}
    return SimpleUploadedFile("recipe.json", json.dumps({**made, "hash": recipe.digest(made)}).encode())


def test_a_recipe_file_becomes_a_channel_as_it_is(boss: Client) -> None:
    response = boss.post("/settings/channels/new/recipe/", {"name": "week9", "wheelhouse": "/srv/wheels", "recipe": recipe_file()})
    assert response.status_code == 302, problems(response)
    channel = Channel.objects.get()
    assert recipe.read(channel.record["recipe"])["label"] == "week 9"
    assert (channel.record["kind"], channel.record["wheelhouse"], channel.practice) == ("recipe", "/srv/wheels", False)
    assert "week 9" in boss.get(response.url).content.decode()
    # saved again without a file, the recipe that is there stays
    assert boss.post("/settings/channels/week9/", {"index_url": "public"}).status_code == 302
    changed = Channel.objects.get().record
    assert (changed["recipe"], changed["wheelhouse"], changed["index_url"]) == (channel.record["recipe"], "", "public")


def test_a_recipe_of_the_practice_box_stays_with_practice_services(boss: Client) -> None:
    boss.post("/settings/channels/new/recipe/", {"name": "drill", "wheelhouse": "/srv/wheels", "recipe": recipe_file(practice=True)})
    channel = Channel.objects.get()
    assert (channel.practice, channel.announced, channel.record["practice"]) == (True, False, True)
    assert boss.post("/settings/channels/drill/remove/").status_code == 302  # an admin made it, so an admin may remove it


@pytest.mark.parametrize("edit", [{"version": "0.17.0"}, {"flags": [7]}, {"packages": []}, {"extra": 1}, {"schema": "x"}, {"label": ""},
                                  {"fingerprint": {"x": float("inf")}}, {"fingerprint": {"x": "\ud800"}}, {"fingerprint": {"x": "\0"}}])
def test_a_recipe_that_is_not_right_is_told_beside_its_field(boss: Client, edit: dict[str, Any]) -> None:
    upload = recipe_file(**edit)
    upload = SimpleUploadedFile("r.json", upload.read().replace(b"Infinity", b"1e999"))
    response = boss.post("/settings/channels/new/recipe/", {"name": "week9", "recipe": upload})
    assert set(problems(response)) == {"recipe"}
    assert not Channel.objects.exists()


def test_a_recipe_that_was_edited_is_refused(boss: Client) -> None:
    upload = SimpleUploadedFile("r.json", recipe_file().read().replace(b"8192", b"4096"))
    response = boss.post("/settings/channels/new/recipe/", {"name": "week9", "recipe": upload})
    assert "was changed after it was made" in problems(response)["recipe"]


def test_random_values_never_make_a_channel_that_uv_may_not_see(boss: Client) -> None:
    """Whatever is sent: refused beside a field, or a channel that passes every check of its own."""
    chance = random.Random(5)
    letters = string.printable + "\u202e\u2028é`$;|&<>\"'\\"
    seeds = ["https://", "public", "cu129", "vllm", "/srv", "--index-url", "@", "==", "\n", "{commit}", "{variant}", COMMIT, "2026-11-01"]
    for _ in range(250):
        preset = chance.choice(channels.presets())
        sent = {field["name"]: "".join(chance.choice([*seeds, *letters]) for _ in range(chance.randint(0, 6))) for field in preset["fields"]}
        sent |= {name: value for name, value in GOOD.get(preset["name"], {}).items() if chance.random() < 0.7}
        sent["name"] = chance.choice(["fuzz", "fuzz", "".join(chance.choice(letters) for _ in range(8))])
        response = boss.post(f"/settings/channels/new/{preset['name']}/", sent)
        assert response.status_code in (302, 400), (preset["name"], sent)
        if response.status_code == 400:
            assert problems(response) or 'role="alert"' in response.content.decode(), (preset["name"], sent)
        for channel in Channel.objects.all():
            try:
                channels.check(records.Channel.from_dict(channel.record))
            except BadInput as error:
                raise AssertionError((preset["name"], sent)) from error
        Channel.objects.all().delete()
