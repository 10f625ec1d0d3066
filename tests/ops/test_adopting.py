"""The jobs that adopt a unit, on a node's own folder: what they read, what they refuse, and what is there when they are done."""

from __future__ import annotations

import json
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ops.agent.config import NodePaths
from ops.jobs import claim, runner
from ops.jobs.envelope import Envelope
from ops.jobs.errors import Busy, Refused
from ops.jobs.events import EventType, JobState
from ops.jobs.journal import journal_path
from ops.jobs.kinds import KINDS
from ops.jobs.pipeline import Outcome
from ops.records import ServiceRecord
from ops.services import unit_files
from tests.ops.services.test_adoption import make_environment

SECRET = "hf_canary0123456789abcdef"
UNIT = """[Service]
User=UID
Environment=VLLM_LOGGING_LEVEL=INFO "HF_TOKEN=SECRET" CUDA_VISIBLE_DEVICES=0,1
ExecStart=/usr/bin/numactl --membind=0 ENV/bin/vllm serve MODEL --port 8001 --tensor-parallel-size 2 --api-key sk-in-the-arguments-0123456789
"""


@dataclass
class Host:
    """A host with a unit and its environment, and a node whose node.toml allows them."""

    root: Path
    paths: NodePaths

    def write(self, text: str = UNIT, **instead: str) -> None:
        for word, value in {"UID": str(os.getuid()), "SECRET": SECRET, "ENV": str(self.root / "env"), "MODEL": str(self.model), **instead}.items():
            text = text.replace(word, value)
        (self.root / "units" / "vllm.service").write_text(text)

    @property
    def model(self) -> Path:
        return self.root / "models" / "kimi"

    def allow(self, **more: Any) -> None:
        lines = {"name": "gpu01", "service_roots": [str(self.paths.services)], "model_roots": [str(self.root / "models")],
                 "units": ["vllm.service"], **more}
        self.paths.node_toml.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items()))

    def run(self, type: str, **params: Any) -> tuple[Outcome, list[dict[str, Any]]]:
        """Runs a job here, with its locks and its journal; gives how it ended and what it said of the unit."""
        said: list[dict[str, Any]] = []
        locks = sorted(KINDS[type].locks(None, params))
        envelope = Envelope.make(type=type, node="gpu01", service=None, params=params, locks=locks, fence=claim.next_fences(self.paths, locks),
                                 by="ada", now=time.time())
        outcome = runner.run_here(self.paths, envelope, on_event=lambda type, data: said.append(data) if type == EventType.ADOPTION else None)
        self.journal = journal_path(self.paths, envelope.job).read_text()
        return outcome, said

    def look(self, **params: Any) -> dict[str, Any]:
        outcome, (told,) = self.run("adopt", **{"unit": "vllm", **params})
        assert outcome.state == JobState.SUCCEEDED, outcome
        return told

    def make_service(self, told: dict[str, Any], **instead: Any) -> tuple[Outcome, list[dict[str, Any]]]:
        """As the console asks for it: what was read, by its hash."""
        params = {**told["asked"], "name": told["record"]["name"], "hash": told["hash"], "record": told["record"], "drop_in": told["drop_in"]["text"]}
        return self.run("adopt-apply", **{**params, **instead})

    @property
    def stored(self) -> Path:
        return self.paths.announced / "vllm.json"

    def files(self) -> dict[str, bytes]:
        """All that is not the node's own."""
        return {str(path): path.read_bytes() for path in self.root.rglob("*") if path.is_file() and self.paths.root not in path.parents}


@pytest.fixture
def host(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(short_path, NodePaths(short_path / "node").make())
    make_environment(short_path / "env")
    made.model.mkdir(parents=True)
    (made.model / "config.json").write_text("{}")
    (short_path / "units").mkdir()
    monkeypatch.setattr(unit_files, "SYSTEM_PATH", (str(short_path / "units"),))
    made.write()
    made.allow()
    return made


def level(told: dict[str, Any], word: str) -> list[str]:
    return [finding["title"] for finding in told["findings"] if finding["level"] == word]


def test_looking_tells_all_and_changes_nothing_but_the_job(host: Host) -> None:
    before = host.files()
    told = host.look()
    assert (told["record"]["name"], told["record"]["environment"], told["record"]["gpus"]) == ("vllm", str(host.root / "env"), [0, 1])
    assert told["asked"] == {"unit": "vllm", "name": "", "environment": "", "in_place": False, "manager": "systemd"}
    assert told["stored"] is None and not told["adopted_before"] and not level(told, "stop")
    assert f"ExecStart=/usr/bin/numactl --membind=0 {host.paths.services}/vllm/launch" in told["drop_in"]["text"]
    assert told["node_toml"] == [] and host.files() == before
    assert list(host.paths.announced.iterdir()) == [] and list(host.paths.services.iterdir()) == []


def test_no_secret_of_the_unit_leaves_the_node(host: Host) -> None:
    host.make_service(host.look())
    for text in (host.journal, json.dumps(host.look()), host.journal):
        assert "canary" not in text and "sk-in-the-arguments" not in text and "[redacted]" in text
    record = json.loads(host.stored.read_text())
    assert record["env"]["HF_TOKEN"] == SECRET and stat.S_IMODE(host.stored.stat().st_mode) == 0o600


def test_what_was_looked_at_becomes_a_service_and_doing_it_again_changes_nothing(host: Host) -> None:
    before = host.files()
    told = host.look()
    outcome, (done,) = host.make_service(told)
    assert outcome.state == JobState.SUCCEEDED and done["stored"] == str(host.stored), outcome
    record = ServiceRecord.from_dict(json.loads(host.stored.read_text()))
    assert record.current.resolve() == (host.root / "env").resolve() and (record.folder / "launch").exists()
    assert host.files() == before
    content, changed = host.stored.read_text(), host.stored.stat().st_mtime_ns
    again = host.look()
    assert again["adopted_before"] and host.make_service(again)[0].state == JobState.SUCCEEDED
    assert (host.stored.read_text(), host.stored.stat().st_mtime_ns) == (content, changed)
    assert claim.lock_all(host.paths, ["service:vllm"], patience_s=0) is not None


@pytest.mark.parametrize(("change", "words"), [
    ({"8001": "8002"}, "`base_url` was \"http://127.0.0.1:8001\", is \"http://127.0.0.1:8002\""),
    ({"SECRET": "hf_another0123456789abcdef"}, "hidden here, as it is secret"),
    ({"--membind=0": "--membind=1"}, "in front of the launcher"),
])
def test_a_unit_that_changed_since_is_not_adopted(host: Host, change: dict[str, str], words: str) -> None:
    told = host.look()
    host.write(**change)
    outcome, said = host.make_service(told)
    assert (outcome.state, outcome.error["kind"]) == (JobState.FAILED, "differs"), outcome
    assert words in outcome.error["why"] and "canary" not in host.journal and "another0123" not in host.journal
    assert said == [] and not host.stored.exists()


def test_a_hash_that_nobody_told_adopts_nothing(host: Host) -> None:
    told = host.look()
    for made_up in ("", "0" * 64, None, 7, told["hash"][:-1]):
        assert host.make_service(told, hash=made_up)[0].state == JobState.FAILED
    assert not host.stored.exists()


def test_the_hash_cannot_be_made_elsewhere(host: Host, tmp_path: Path) -> None:
    """Another node's key gives another hash of the same record: guesses at a secret cannot be tried out on it."""
    first = host.look()["hash"]
    key = host.paths.root / "adoption.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    key.rename(tmp_path / "key")
    assert host.look()["hash"] != first
    key.write_bytes((tmp_path / "key").read_bytes())
    assert host.look()["hash"] == first
    key.write_bytes(b"")
    assert "holds no key" in host.run("adopt", unit="vllm")[0].reason


def test_limits_of_the_node_are_told_and_hold(host: Host) -> None:
    host.allow(units=[], model_roots=[])
    told = host.look()
    assert told["node_toml"] == [f'model_roots = ["{host.root}/models"]', 'units = ["vllm.service"]']
    outcome, _ = host.make_service(told)
    assert outcome.state == JobState.FAILED and "does not allow service `vllm`" in outcome.reason and "units = " in outcome.error["why"]
    assert not host.stored.exists() and list(host.paths.services.iterdir()) == []
    host.allow()
    assert host.make_service(told)[0].state == JobState.SUCCEEDED, "the record is what it was"


def test_an_environment_named_by_hand_must_be_allowed(host: Host) -> None:
    other = make_environment(host.root / "other" / "env", "0.18.0")
    told = host.look(environment=str(other))
    assert told["record"]["environment"] == str(other) and told["node_toml"] == [f'environment_roots = ["{host.root}/other"]']
    assert "does not allow the environment that was named by hand" in level(told, "warning")[0]
    assert host.make_service(told)[0].state == JobState.FAILED and not host.stored.exists()
    host.allow(environment_roots=[str(host.root / "other")])
    told = host.look(environment=str(other), in_place=True, name="kimi")
    assert told["node_toml"] == [] and told["record"]["in_place"] is True
    assert host.make_service(told)[0].state == JobState.SUCCEEDED and (host.paths.announced / "kimi.json").exists()


def test_what_forbids_it_is_found_and_applies_nothing(host: Host) -> None:
    host.write(MODEL="/nowhere/at/all")
    told = host.look()
    assert "/nowhere/at/all" in level(told, "stop")[0]
    outcome, _ = host.make_service(told)
    assert outcome.state == JobState.FAILED and "cannot be adopted" in outcome.reason and not host.stored.exists()


def test_a_unit_that_is_not_there_is_told(host: Host) -> None:
    outcome, said = host.run("adopt", unit="no-such")
    assert (outcome.state, outcome.reason_kind, said) == (JobState.FAILED, "expected", []) and "There is no unit `no-such.service`" in outcome.reason


@pytest.mark.parametrize("params", [
    {}, {"unit": ""}, {"unit": "../vllm"}, {"unit": "/etc/systemd/system/vllm.service"}, {"unit": "-H"}, {"unit": "vllm;id"}, {"unit": "vllm\n"},
    {"unit": "vllm.socket"}, {"unit": "$(id)"}, {"unit": ["vllm"]}, {"unit": "vllm@"}, {"unit": "vllm", "name": "../x"},
    {"unit": "vllm", "name": "Kimi"}, {"unit": "vllm", "environment": "env"}, {"unit": "vllm", "environment": "/" + "x" * 2000},
    {"unit": "vllm", "environment": "/a\0b"}, {"unit": "vllm", "in_place": "yes"}, {"unit": "vllm", "manager": "docker"}])
def test_an_order_of_another_form_is_refused(host: Host, params: dict[str, Any]) -> None:
    outcome, said = host.run("adopt", **params)
    assert (outcome.state, outcome.reason_kind, said) == (JobState.FAILED, "expected", []), outcome


def test_it_waits_for_no_lock_to_look_and_for_the_services_own_to_adopt(host: Host) -> None:
    told = host.look()
    held = claim.lock_all(host.paths, ["service:vllm"])
    try:
        assert host.look()["hash"] == told["hash"]
        with pytest.raises(Busy, match="service:vllm"):
            host.make_service(told)
    finally:
        claim.release(held)


def test_a_practice_node_says_why_not(host: Host) -> None:
    host.allow(practice=True)
    outcome, said = host.run("adopt", unit="vllm")
    assert (outcome.state, said) == (JobState.FAILED, []) and "`gpu01` is a practice node" in outcome.reason
    assert "never mixes" in outcome.error["why"] and "ROUNDHOUSE_STATE" in outcome.error["hint"]


def test_what_is_too_long_for_a_page_is_told(host: Host) -> None:
    host.write(UNIT.replace("--port 8001", "--port 8001 --x " + "y" * 200_000))
    outcome, said = host.run("adopt", unit="vllm")
    assert (outcome.state, said) == (JobState.FAILED, []) and "too long to be shown" in outcome.reason


def test_another_service_of_that_name_stays(host: Host) -> None:
    assert host.make_service(host.look())[0].state == JobState.SUCCEEDED
    told = host.look(manager="process")
    assert "There is a service `vllm` already" in level(told, "stop")[0]
    before = host.stored.read_text()
    assert host.make_service(told)[0].state == JobState.FAILED and host.stored.read_text() == before


@pytest.mark.parametrize("name", ["", None, "../x", "a b"])
def test_an_order_without_the_name_of_a_service_is_none(host: Host, name: str | None) -> None:
    told = host.look()
    with pytest.raises(Refused, match="not a lock's name"):
        host.make_service(told, name=name)
    assert not host.stored.exists()
