"""Channels in Settings: admins make, change and remove them; what is wrong stands beside its field."""

from __future__ import annotations

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
from ops.environments import channels
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


def test_a_name_that_is_taken_is_refused(boss: Client, channel: Channel) -> None:
    add(boss, "nightly")
    assert set(problems(add(boss, "nightly"))) == {"name"}
    assert set(problems(add(boss, "nightly", name="practice"))) == {"name"}
    assert Channel.objects.count() == 2


def test_a_practice_channel_can_be_looked_at_and_not_changed(boss: Client, channel: Channel) -> None:
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
