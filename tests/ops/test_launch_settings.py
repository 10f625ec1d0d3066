"""Launch settings: what a change makes of them, what it writes, and that no secret leaves the node."""

from __future__ import annotations

import errno
import json
import os
import stat
import uuid
from pathlib import Path
from typing import Any

import pytest

from ops import launch_settings, sealed
from ops.agent.config import NodeConfig, NodePaths
from ops.environments import guard_list
from ops.jobs.errors import BadInput, OpsError, Refused
from ops.jobs.pipeline import Context
from ops.jobs.redact import HIDDEN
from ops.records import ServiceRecord
from ops.services import launch, state
from ops.services.systemd import SystemdManager
from tests.ops.services.test_preflight import built
from tests.ops.services.test_preflight_looks import HELP

FLAGS = ["--port", "8000", "--api-key", "value-of-key", "--max-model-len", "4096"]
ENV = {"HF_TOKEN": "value-of-token", "CUDA_HOME": "/usr/local/cuda", "OMP_NUM_THREADS": "4"}


class Node:
    """A node with one service, and a context for its job."""

    def __init__(self, folder: Path) -> None:
        self.paths = NodePaths(folder / "node").make()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.record = ServiceRecord(name="svc", root=str(self.paths.services / "svc"), model_path="/m", served_model_name="m",
                                    base_url="http://127.0.0.1:8000", flags=list(FLAGS), env=dict(ENV))
        self.file = self.paths.announced / "svc.json"
        self.file.write_text(json.dumps(self.record.as_dict()))
        launch.write(self.record)
        self.config = NodeConfig(name="node", service_roots=[str(self.paths.services)], model_roots=["/m"])

    def run(self, **params: Any) -> str:
        context = Context(job=str(uuid.uuid4()), params=params, paths=self.paths, config=self.config, folder=self.paths.root,
                          emit=lambda type, data: self.events.append((str(type), json.loads(json.dumps(data)))), service=self.record)
        return launch_settings.set_settings(context)

    def seal(self, name: str, value: str, *, service: str = "svc") -> dict[str, dict[str, str]]:
        return {name: {"sealed": sealed.seal(sealed.public_key(self.paths), value, service=service, name=name)}}

    def own(self) -> ServiceRecord:
        return guard_list.own_record(self.paths, "svc")

    def changed(self) -> dict[str, Any]:
        [data] = [data for type, data in self.events if type == "settings.changed"]
        return data

    def launched_with(self) -> tuple[list[str], dict[str, str]]:
        folder = self.record.folder
        return json.loads((folder / "launch.json").read_text())["flags"], json.loads((folder / "env.json").read_text())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_flags_and_variables_come_into_the_record_and_the_launchers_files(node: Node) -> None:
    said = node.run(flags=["--port", "8000", "--api-key", HIDDEN, "--max-model-len", "8192"], before=launch_settings.mark(node.own()),
                    env={"HF_TOKEN": {"keep": True}, "CUDA_HOME": None, **node.seal("OMP_NUM_THREADS", "8"),
                         **node.seal("NEW_TOKEN", "value-of-new")})
    assert said == "flags and 3 variables changed, at the next start"
    flags, env = [*FLAGS[:-1], "8192"], {"HF_TOKEN": "value-of-token", "OMP_NUM_THREADS": "8", "NEW_TOKEN": "value-of-new"}
    assert (node.own().flags, node.own().env) == (flags, env) == node.launched_with()
    data = node.changed()
    assert data["flags"] == {"before": [*FLAGS[:3], HIDDEN, *FLAGS[4:]], "after": [*FLAGS[:3], HIDDEN, "--max-model-len", "8192"]}
    assert data["env"] == [
        {"name": "CUDA_HOME", "change": "removed", "secret": False, "before": "/usr/local/cuda", "after": ""},
        {"name": "NEW_TOKEN", "change": "set", "secret": True, "before": "", "after": ""},
        {"name": "OMP_NUM_THREADS", "change": "changed", "secret": False, "before": "4", "after": "8"}]
    assert data["applies"] == "at the next start" and str(node.file) in data["files"]
    assert "value-of" not in json.dumps(node.events)
    assert stat.S_IMODE(node.file.stat().st_mode) == 0o600


def test_the_rest_of_the_record_stays_as_it_is(node: Node) -> None:
    raw = {**json.loads(node.file.read_text()), "guards": [{"kind": "file_present", "file": "config.json"}], "target_tok_s": [40.0, 50.0]}
    node.file.write_text(json.dumps(raw))
    node.run(flags=["--port", "8000"])
    assert json.loads(node.file.read_text()) == {**raw, "flags": ["--port", "8000"]}


def test_nothing_changed_writes_and_says_nothing(node: Node) -> None:
    at = node.file.stat().st_mtime_ns
    assert node.run(flags=[*FLAGS[:3], HIDDEN, *FLAGS[4:]], env={"HF_TOKEN": {"keep": True}, **node.seal("OMP_NUM_THREADS", "4"), "GONE": None}) \
        == "nothing was changed"
    assert node.events == [] and node.file.stat().st_mtime_ns == at


def test_a_mark_is_another_one_for_another_secret_and_tells_nothing_of_it(node: Node) -> None:
    before = launch_settings.mark(node.own())
    assert before == launch_settings.mark(node.own()) and len(before) == 32
    node.run(env={**node.seal("HF_TOKEN", "another-token")})
    assert launch_settings.mark(node.own()) != before
    elsewhere = ServiceRecord(**{**node.own().as_dict(), "root": str(node.paths.services / "other")})
    assert launch_settings.mark(elsewhere) != launch_settings.mark(node.own())  # keyed by the folder's own random number
    assert stat.S_IMODE((node.record.folder / ".settings-salt").stat().st_mode) == 0o600


def test_settings_that_were_changed_meanwhile_are_not_written_over(node: Node) -> None:
    seen = launch_settings.mark(node.own())
    node.run(flags=["--port", "8000"], before=seen)
    with pytest.raises(OpsError, match="changed meanwhile") as caught:
        node.run(flags=[], before=seen)
    assert caught.value.kind == "changed" and node.own().flags == ["--port", "8000"]


@pytest.mark.parametrize(("params", "match"), [
    ({"flags": ["--api-key", "--port", HIDDEN]}, "stands for something secret|holds"),
    ({"flags": ["--max-model-len", HIDDEN]}, "holds"),
    ({"flags": ["/other/model", "--port", "8000"]}, "is no flag"),
    ({"flags": ["--model", "/other"]}, "not set by a flag"),
    ({"flags": ["--port", "70000"]}, "is no port"),
    ({"flags": ["--x\0"]}, "no argument can hold"),
    ({"flags": "--port 1"}, "list of words"),
    ({"env": {"A B": None, "1A": {"sealed": ""}}}, "cannot be opened"),
    ({"env": {"PLAIN": "value"}}, "sealed for this node"),
    ({"env": {"PLAIN": {"sealed": "x", "more": 1}}}, "sealed for this node"),
    ({"env": {"MISSING": {"keep": True}}}, "cannot be kept"),
    ({"env": []}, "object of names"),
])
def test_what_no_start_can_have_is_refused_and_changes_nothing(node: Node, params: dict[str, Any], match: str) -> None:
    with pytest.raises(OpsError, match=match):
        node.run(**params)
    assert node.own() == node.record and node.events == [] and node.launched_with() == (FLAGS, ENV)


def test_a_value_that_was_sealed_for_another_variable_or_service_is_refused(node: Node) -> None:
    """Whoever had the sealed text of a token could let it be set as a variable that is shown."""
    [token], [elsewhere] = node.seal("HF_TOKEN", "value-of-new").values(), node.seal("CUDA_HOME", "value-of-new", service="other").values()
    for stolen in (token, elsewhere):
        with pytest.raises(OpsError, match="not for the variable `CUDA_HOME` of service `svc`"):
            node.run(env={"CUDA_HOME": stolen, "OMP_NUM_THREADS": None})
    assert node.own() == node.record and node.events == []


@pytest.mark.parametrize("name", ["ROUNDHOUSE_STATE", "SERVICE_INVOCATION", "A=B", "", "1A", "A B", "Ä"])
def test_names_that_a_service_may_not_have_are_refused(node: Node, name: str) -> None:
    with pytest.raises(BadInput):
        node.run(env=node.seal(name, "x"))
    assert node.own() == node.record


def test_a_value_that_holds_the_stand_in_is_not_taken_for_a_value(node: Node) -> None:
    with pytest.raises(BadInput, match="holds"):
        node.run(env={**node.seal("OMP_NUM_THREADS", f"x{HIDDEN}")})
    node.run(env={**node.seal("HF_TOKEN", HIDDEN), **node.seal("A", "1")})  # the value of a secret that is there: it stays
    assert node.own().env["HF_TOKEN"] == "value-of-token"


def test_several_keys_of_one_flag_keep_their_places(node: Node) -> None:
    record = ServiceRecord(**{**node.record.as_dict(), "flags": ["--api-key", "first-key", "second-key", "--hf-token=token-value", "--port", "8000"]})
    made = launch_settings.changed(record, ["--port", "8000", "--hf-token=" + HIDDEN, "--api-key", HIDDEN, HIDDEN], None).record
    assert made.flags == ["--port", "8000", "--hf-token=token-value", "--api-key", "first-key", "second-key"]
    assert launch_settings.changed(record, ["--api-key", HIDDEN], None).record.flags == ["--api-key", "first-key"]


def test_the_address_and_the_served_name_follow_the_flags(node: Node) -> None:
    node.run(flags=["--port", "9001", "--served-model-name", "kimi"])
    assert (node.own().base_url, node.own().served_model_name) == ("http://127.0.0.1:9001", "kimi")
    assert [data["title"] for type, data in node.events if type == "finding"] == [
        "Its address is http://127.0.0.1:9001 from the next start on", "It serves `kimi` from the next start on"]
    node.run(flags=["--port", "9001"])
    assert node.own().served_model_name == "/m"


def test_a_flag_that_the_release_in_use_is_known_not_to_take_is_told_at_once(node: Node) -> None:
    release = built(node.record, {"vllm": "0.16.0"}, HELP)
    node.record.current.symlink_to(release)
    from ops.services.preflight import options

    (node.record.folder / "help.json").write_text(json.dumps({str(release): {
        "key": options._key(release), "names": options.read(HELP).names, "choices": options.read(HELP).choices}}))
    node.run(flags=["--port", "8000", "--max-modellen", "1"])
    [told] = [data for type, data in node.events if type == "finding" and data["level"] != "ok"]
    assert (told["level"], told["subject"]) == ("warning", "settings") and "`--max-model-len`" in told["fix"]


def test_a_variable_that_is_removed_here_while_the_unit_still_sets_it_is_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = {**json.loads(node.file.read_text()), "manager": "systemd", "unit": "vllm.service"}
    node.file.write_text(json.dumps(raw))
    monkeypatch.setattr(SystemdManager, "variables", lambda self: {"PATH": "/usr/bin", "HF_TOKEN": "value-of-unit"})
    node.run(env={"HF_TOKEN": None, "CUDA_HOME": None, **node.seal("OMP_NUM_THREADS", "8")})
    [told] = [data for type, data in node.events if type == "finding"]
    assert (told["level"], told["title"]) == ("warning", "`HF_TOKEN` was removed here, but the unit `vllm.service` still sets it")
    assert "value-of" not in json.dumps(node.events)


class FullDisk:
    """So many writes of these files fail as on a full disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str, times: int) -> None:
        self.names, self.times = names, times
        for module in (launch, launch_settings):
            monkeypatch.setattr(module, "write_file", self.write)

    def write(self, path: Path, content: str, *, mode: int = 0o600) -> None:
        if path.name in self.names and self.times:
            self.times -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        state.write_file(path, content, mode=mode)


@pytest.mark.parametrize("name", ["launch.json", "env.json", "record.json", "svc.json"])
def test_a_file_that_cannot_be_written_leaves_all_as_it_was(node: Node, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    FullDisk(monkeypatch, name, times=1)
    with pytest.raises(OpsError, match="cannot be written") as caught:
        node.run(flags=["--port", "8001"], env={"CUDA_HOME": None})
    assert "No space left" in caught.value.why and caught.value.kind != "half_written"
    assert node.own() == node.record and node.launched_with() == (FLAGS, ENV) and node.events == []
    assert json.loads((node.record.folder / "record.json").read_text()) == node.record.as_dict()


def test_on_a_disk_that_stays_full_the_old_record_counts_and_the_next_start_puts_the_files_right(
        node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_holds", lambda *arguments: False)
    full = FullDisk(monkeypatch, "env.json", times=99)
    with pytest.raises(OpsError, match="cannot be written") as caught:
        node.run(flags=["--port", "8001"])
    assert caught.value.kind == "half_written" and "No space left" in caught.value.why and "could not be put back" in caught.value.why
    assert "a start from here writes the files from it" in caught.value.hint
    assert node.own() == node.record and node.events == []
    full.times = 0
    launch.write(node.own())  # as each start does
    assert node.launched_with() == (FLAGS, ENV)


def test_a_service_outside_of_the_nodes_roots_is_refused(node: Node) -> None:
    node.config = NodeConfig(name="node", service_roots=["/elsewhere"])
    with pytest.raises(Refused):
        node.run(flags=[])


def test_a_service_that_has_no_folder_yet_gets_its_settings_all_the_same(node: Node) -> None:
    raw = {**node.record.as_dict(), "root": str(node.paths.services / "later")}
    node.file.write_text(json.dumps(raw))
    node.run(flags=["--port", "8000"], before=launch_settings.mark(node.own()))
    assert node.own().flags == ["--port", "8000"] and not (node.paths.services / "later").exists()
