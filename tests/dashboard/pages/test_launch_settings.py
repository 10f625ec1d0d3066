"""Launch settings in a form: what is typed, the difference that is shown, what the job is given; and that no page holds a secret."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from django.test import Client
from nacl.public import PrivateKey, SealedBox

from dashboard.models import AuditEntry, Job, Node, Service
from tests.dashboard.pages import factory
from tests.dashboard.pages import service_data as ran
from tests.dashboard.pages.reading import form_with, text

SERVICE = "/services/practice/kimi-k25/"
PAGE = f"{SERVICE}launch/"
CANARY = "canary-7f1-not-in-any-page"


@pytest.fixture
def visitor(member: Client) -> Client:
    """An operator: launch settings are theirs to change."""
    return member


@pytest.fixture
def service(story: factory.Story) -> Service:
    Node.objects.update(facts={**story.the_node.facts, "settings_key": ran.SETTINGS_KEY})
    Service.objects.filter(name="kimi-k25").update(launch=ran.LAUNCH)
    return Service.objects.get(name="kimi-k25")


def typed(visitor: Client, step: str = "preview", page: Any = None, **changed: Any) -> Any:
    """The form of a page with some fields changed, sent. `new`: pairs of name and value."""
    fields = form_with(page or visitor.get(PAGE), "flags")
    for name, value in changed.pop("new", {}).items():
        place = fields["new-name"].index("")
        fields["new-name"][place], fields["new-value"][place] = name, value
    return visitor.post(PAGE, {**fields, **{name.replace("__", ":"): value for name, value in changed.items()}, "step": step})


def opened(env: dict[str, Any], name: str) -> str:
    service, variable, value = SealedBox(PrivateKey(ran.SEED)).decrypt(base64.b64decode(env[name]["sealed"])).rstrip(b"\0").decode().split("\0")
    assert (service, variable) == ("kimi-k25", name)
    return value


def test_the_page_of_the_service_leads_to_the_form(visitor: Client, service: Service) -> None:
    assert f'href="{PAGE}"' in visitor.get(SERVICE).content.decode()
    seen = text(visitor.get(PAGE))
    assert "--max-model-len 131072" in seen and "--override-generation-config '{\"temperature\": 0.6}'" in seen and "-/etc/vllm/kimi.env" in seen


def test_a_form_that_was_left_alone_changes_nothing(visitor: Client, service: Service) -> None:
    odd = {"BELL": "a\a\u202eb", "LINES": "one\r\ntwo\n", "SPACES": "  x ", "LAST": "\nfirst line empty"}
    Service.objects.update(launch={**ran.LAUNCH, "env": {**ran.LAUNCH["env"], **odd}, "flags": [*ran.LAUNCH["flags"], "--api-key", "[redacted]"]})
    answer = typed(visitor)
    assert answer.status_code == 400 and "Nothing is changed" in answer.content.decode()


def test_flags_are_shown_as_a_difference_and_saved(visitor: Client, service: Service, redis_url: str) -> None:
    page = typed(visitor, flags="vllm serve /data/models/Kimi-K2.5-NVFP4 --tensor-parallel-size 8 \\\r\n --max-model-len 65536 --port 8123")
    seen = text(page)
    assert "− --max-model-len 131072 + --max-model-len 65536" in seen and "− --reasoning-parser kimi_k2" in seen
    assert "Its address is http://127.0.0.1:8123 from the next start on" in seen and "apply at the next start" in seen and not Job.objects.exists()
    answer = visitor.post(PAGE, {**form_with(page, "flags"), "step": "save"})
    job = Job.objects.get()
    assert answer.url == f"/jobs/{job.number}/" and job.type == "settings-set"
    flags = ["--tensor-parallel-size", "8", "--max-model-len", "65536", "--port", "8123"]
    assert job.params == {"flags": flags, "env": {}, "before": ran.LAUNCH["mark"]}


def test_variables_are_set_kept_and_removed_and_no_page_holds_a_secret(visitor: Client, service: Service, redis_url: str) -> None:
    page = typed(visitor, value__VLLM_API_KEY=CANARY, value__CUDA_HOME="/usr/local/cuda", remove="HF_TOKEN",
                 new={"WANDB_API_KEY": f"{CANARY}-2", "NCCL_DEBUG": "WARN"})
    seen = text(page)
    for words in ("CUDA_HOME changed /usr/local/cuda-13.0 /usr/local/cuda", "HF_TOKEN removed", "NCCL_DEBUG set WARN", "VLLM_API_KEY changed secret",
                  "WANDB_API_KEY set secret", "Flags stay as they are"):
        assert words in " ".join(seen.replace(" secret: its", " secret").split()), words
    again = visitor.post(PAGE, {**form_with(page, "flags"), "step": "edit"})
    page = typed(visitor, page=again)
    assert not any(CANARY in one.content.decode() for one in (page, again))
    visitor.post(PAGE, {**form_with(page, "flags"), "step": "save"})
    env = Job.objects.get().params["env"]
    assert set(env) == {"VLLM_API_KEY", "CUDA_HOME", "HF_TOKEN", "WANDB_API_KEY", "NCCL_DEBUG"} and env["HF_TOKEN"] is None
    assert [opened(env, name) for name in ("VLLM_API_KEY", "WANDB_API_KEY", "CUDA_HOME", "NCCL_DEBUG")] == [
        CANARY, f"{CANARY}-2", "/usr/local/cuda", "WARN"]
    assert CANARY not in str(list(Job.objects.values())) + str(list(AuditEntry.objects.values()))


def test_a_value_that_looks_secret_is_sealed_whatever_its_name_and_can_be_typed_anew(visitor: Client, service: Service, redis_url: str) -> None:
    page = typed(visitor, value__CUDA_HOME=f"https://anna:{CANARY}@host/", new={"PROXY": f"https://anna:{CANARY}@host/"})
    again = visitor.post(PAGE, {**form_with(page, "flags"), "step": "edit"})
    fields = form_with(again, "flags")
    assert CANARY not in page.content.decode() + again.content.decode() and fields["value:CUDA_HOME"] == [""] and fields["sealed:CUDA_HOME"]
    page = typed(visitor, page=again, **{"new-value": ["https://host/", "", ""]})
    visitor.post(PAGE, {**form_with(page, "flags"), "step": "save"})
    env = Job.objects.get().params["env"]
    assert (opened(env, "CUDA_HOME"), opened(env, "PROXY")) == (f"https://anna:{CANARY}@host/", "https://host/")


def test_a_value_counts_for_the_name_that_it_was_typed_for_alone(visitor: Client, service: Service, redis_url: str) -> None:
    page = typed(visitor, new={"MY_TOKEN": CANARY})
    again = visitor.post(PAGE, {**form_with(page, "flags"), "step": "edit"})
    renamed = typed(visitor, page=again, **{"new-name": ["MY_OTHER_TOKEN", "", ""]})
    assert renamed.status_code == 400 and "Type its value again: it was sealed for the name" in renamed.content.decode()
    page = typed(visitor, page=renamed, **{"new-value": [f"{CANARY}-2", "", ""]})
    visitor.post(PAGE, {**form_with(page, "flags"), "step": "save"})
    env = Job.objects.get().params["env"]
    assert list(env) == ["MY_OTHER_TOKEN"] and opened(env, "MY_OTHER_TOKEN") == f"{CANARY}-2"


@pytest.mark.parametrize(("changed", "said"), [
    ({"flags": "--x $HOME"}, "Line 1"), ({"flags": "--api-key sk-canary-7f1-not-in-any-page"}, "holds a secret"),
    ({"flags": "--model other"}, "The model is not set by a flag"), ({"flags": "--port 99999"}, "is no port"),
    ({"new": {"1BAD": "x"}}, "is not a name of a variable"), ({"new": {"ROUNDHOUSE_STATE": "x"}}, "may not have the variable"),
    ({"new": {"": "value"}}, "Name it"), ({"new": {"NCCL_P2P_DISABLE": "0"}}, "There is one of this name above"),
    ({"new": {"A": "x" * 40_000}}, "longer than"), ({"base": "another"}, "changed since this form was opened"), ({"base": ""}, "required"),
])
def test_what_no_start_can_have_is_told_at_its_field_before_anything_is_done(visitor: Client, service: Service, changed: Any, said: str) -> None:
    for step in ("preview", "save"):
        answer = typed(visitor, step, value__VLLM_API_KEY=CANARY, **changed)
        assert answer.status_code == 400 and said in answer.content.decode() and "Nothing was changed" in answer.content.decode()
        assert CANARY not in answer.content.decode()
    assert not Job.objects.exists()


def test_more_rows_keep_what_was_typed(visitor: Client, service: Service) -> None:
    page = typed(visitor, "more", flags="--x $HOME", new={"NCCL_DEBUG": "WARN", "MY_TOKEN": CANARY})
    fields = form_with(page, "flags")
    assert fields["flags"] == ["--x $HOME"] and fields["new-name"] == ["NCCL_DEBUG", "MY_TOKEN", "", "", "", ""]
    assert CANARY not in page.content.decode() and fields["new-sealed"][1] and page.status_code == 200


def test_without_its_nodes_word_nothing_can_be_changed(visitor: Client, service: Service) -> None:
    Service.objects.update(launch={})
    assert "has not told these settings yet" in text(visitor.get(PAGE))
    assert visitor.post(PAGE, {"flags": "--x", "base": "", "step": "save"}).status_code == 400


def test_without_the_nodes_key_no_value_can_be_set(visitor: Client, service: Service) -> None:
    Node.objects.update(facts={})
    assert "variables can be removed, but none can be set" in text(visitor.get(PAGE))
    answer = typed(visitor, value__CUDA_HOME="/x")
    assert answer.status_code == 400 and "has not told the key" in answer.content.decode()
    assert "NCCL_P2P_DISABLE removed" in text(typed(visitor, remove="NCCL_P2P_DISABLE"))


def test_a_unit_with_a_command_of_its_own_is_told(visitor: Client, service: Service) -> None:
    Service.objects.update(record={**service.record, "manager": "systemd", "unit": "vllm-kimi.service"},
                           unit={**ran.UNIT, "launcher_installed": False})
    assert "These settings do nothing yet" in text(visitor.get(PAGE)) and "they do nothing" in text(typed(visitor, flags="--port 1"))
