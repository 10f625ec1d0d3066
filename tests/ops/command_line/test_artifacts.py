"""Leftovers from the command line: kinds, a scan, its preview, a purge of what was chosen of it; without a node, and on a practice node."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ops.artifacts import kinds, manifest
from ops.artifacts import purge as purging
from ops.command_line import artifacts
from ops.command_line.main import main
from ops.jobs import claim
from tests.ops.command_line.run import error_of, ops
from tests.ops.command_line.said import Said
from tests.ops.command_line.test_jobs import Box, end_of_box, make_box

DAY = 86400
HOSTILE = (b"-rf.pt", b"new\nline.pt", b"no\xfftext.pt", "\u202egnp.pt".encode(), b"\x1b[2Jclear.pt", b"x" * 252 + b".pt")


class Machine:
    """A machine that is no node, and a folder of it with leftovers: 3 tensors, a young one, a core dump and an older one, 2 traces."""

    def __init__(self, folder: Path, run: Callable[..., Said]) -> None:
        self.root, self.preview, self._run = folder / "scratch", folder / "preview.jsonl", run
        for number in range(3):
            self.make(f"layer{number}.pt", 3 * DAY, 300_000)
        self.make("young.pt", 5, 5000)
        self.make("core.4711", 20 * DAY, 900_000)
        self.make("core.4712", 2 * DAY, 900_000)
        for number in range(2):
            self.make(f"vllm/vllm-instance-a/VLLM_TRACE_FUNCTION_for_process_{number}.log", 9 * DAY, 90_000)

    def make(self, name: str | bytes, age_s: float, size: int) -> None:
        path = self.root / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\0" * size)
        os.utime(path, (time.time() - age_s,) * 2)

    def run(self, *arguments: str) -> Said:
        return self._run("artifacts", *arguments)

    def scan(self, *more: str) -> dict[str, Any]:
        said = self.run("scan", "--root", str(self.root), "--out", str(self.preview), "--json", *more)
        assert said.code == 0, said.err
        return said.json

    def show(self, *more: str) -> list[dict[str, Any]]:
        return list(self.run("show", str(self.preview), "--json", *more).json["artifacts"])

    def number(self, name: str) -> str:
        return str(next(one["number"] for one in self.show() if one["path"].endswith(name)))

    def purge(self, *more: str) -> Said:
        return self.run("purge", str(self.preview), *more)

    @property
    def left(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*") if not path.is_dir()}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Machine:
    monkeypatch.setenv("ROUNDHOUSE_NODE_STATE", "/nonexistent")

    def run(*arguments: str) -> Said:
        code = main(arguments)
        return Said(code, *capsys.readouterr())

    return Machine(tmp_path, run)


CHOSEN = {"layer0.pt", "layer1.pt", "layer2.pt"}
TRACES = {f"vllm/vllm-instance-a/VLLM_TRACE_FUNCTION_for_process_{number}.log" for number in range(2)}


# ---- kinds ----


def test_kinds_are_listed_and_told_in_full(machine: Machine) -> None:
    told = machine.run("kinds", "--json").json["kinds"]
    assert [one["name"] for one in told] == [kind.name for kind in kinds.builtin()]
    assert all(name in machine.run("kinds").out for name in ("debug-tensor", "shared-memory", "uv-cache"))
    full = machine.run("kinds", "--kind", "rendezvous").out
    assert "vllm_dist_{hex:32}" in full and "unchanged for 1 h" in full and "keeping" in full


def test_kinds_of_ones_own_are_checked_then_scanned_for(machine: Machine, tmp_path: Path) -> None:
    own = {"name": "profile", "title": "Profiles", "one": "profile", "leftover": "Looked at once", "keeping": "Nothing",
           "places": [str(machine.root)], "patterns": ["*.prof"], "min_age_s": 3600, "offered": False}
    file, bad = tmp_path / "kinds.json", tmp_path / "bad.json"
    file.write_text(json.dumps([own]))
    bad.write_text(json.dumps([{**own, "patterns": ["*"]}]))
    machine.make("a.prof", DAY, 1000)
    found = machine.scan("--kinds", str(file), "--kind", "profile")["kinds"]
    assert [(one["kind"], one["own"], one["optional"]["count"]) for one in found] == [("profile", True, 1)]
    assert machine.purge("--kind", "profile").code == 0 and "a.prof" not in machine.left
    for arguments, words in ((("--kinds", str(bad)), "takes every file"), (("--kinds", "/nonexistent"), "cannot be read"),
                             (("--kind", "nope"), "no kind of leftover called `nope`")):
        said = machine.run("kinds", *arguments)
        assert said.code == 2 and words in said.err


# ---- scan and show ----


def test_a_scan_tells_kinds_sizes_and_states_and_leaves_a_preview(machine: Machine) -> None:
    said = machine.run("scan", "--root", str(machine.root), "--out", str(machine.preview))
    assert said.code == 0 and machine.preview.stat().st_mode & 0o777 == 0o600
    lines = said.out.splitlines()
    assert any(re.match(r"core-dump +offered +1 +1 +901 kB +20 d +20 d +The memory of", line) for line in lines), said.out
    assert any(re.match(r"core-dump +kept +1 .* \(1\)$", line) for line in lines)
    assert any(re.match(r"tmp-tensor +optional +3 +3 +\d+ kB +3 d +3 d ", line) for line in lines)
    assert f"purge {machine.preview} --all-offered" in said.out and "--kind NAME" in said.out
    told = machine.run("scan", "--root", str(machine.root), "--out", f"{machine.preview}2", "--json", "--kind", "function-trace").json
    assert [one["kind"] for one in told["kinds"]] == ["function-trace"] and told["offered_bytes"] == told["kinds"][0]["offered"]["size_bytes"] > 0


def test_what_cannot_be_scanned_is_told_before_anything_is_looked_at(machine: Machine, tmp_path: Path) -> None:
    link, file = tmp_path / "link", tmp_path / "there"
    link.symlink_to(machine.root)
    file.touch()
    root = ("--root", str(machine.root))
    for code, words, arguments in (
            (2, "Which folder is to be looked at?", ("--out", "p")), (2, "is there already", (*root, "--out", str(file))),
            (2, "there is no folder", (*root, "--out", f"{tmp_path}/a/b")), (1, "is a link", ("--root", str(link), "--out", "p")),
            (1, "can be no root", ("--root", "/", "--out", "p")), (1, "There is no folder", ("--root", f"{tmp_path}/gone", "--out", "p")),
            (2, "no kind of leftover", (*root, "--kind", "x", "--out", "p"))):
        said = machine.run("scan", *arguments)
        assert said.code == code and words in said.err and said.out == "", said.err
    assert not Path("p").exists() and file.read_bytes() == b""


def test_roots_that_can_be_none_are_told_and_the_others_are_scanned(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(machine.root)
    bad = ("/", "/home", str(tmp_path / "link"), f"{tmp_path}/gone")
    said = machine.run("scan", "--root", str(machine.root), *(word for root in bad for word in ("--root", root)), "--out", str(machine.preview))
    assert said.code == 1 and said.out.count("note: A folder that was named was not looked into: ") == len(bad), said.out
    assert "core-dump" in said.out and machine.preview.exists()


def test_hostile_names_come_through_every_command_as_plain_text(machine: Machine, tmp_path: Path) -> None:
    for name in HOSTILE:
        machine.make(name, 2 * DAY, 1000)
    machine.scan()
    shown = machine.run("show", str(machine.preview), "--limit", "0", "--sort", "path").out
    dry = machine.purge("--kind", "tmp-tensor", "--dry-run").out
    for text in (shown, dry):
        assert "new\\x0aline.pt" in text and "no\\xfftext.pt" in text and "\\x1b[2Jclear.pt" in text and "-rf.pt" in text
        assert all(character.isprintable() for line in text.splitlines() for character in line)
    assert machine.purge("--kind", "tmp-tensor", "--manifest", str(tmp_path / "m.csv")).code == 0
    assert machine.left == TRACES | {"young.pt", "core.4711", "core.4712"}
    with (tmp_path / "m.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 9 and {row["result"] for row in rows} == {"deleted"}


def test_a_preview_is_shown_by_kind_state_and_order(machine: Machine) -> None:
    machine.scan()
    oldest = machine.show("--sort", "age", "--limit", "1")[0]
    assert oldest["path"].endswith("core.4711")
    assert {one["path"].rpartition("/")[2] for one in machine.show("--state", "kept")} == {"core.4712", "young.pt"}
    said = machine.run("show", str(machine.preview), "--kind", "tmp-tensor", "--limit", "2")
    assert "2 of 4 listed; --limit 0 lists all" in said.out and "core-dump" not in said.out
    sizes = [one["size_bytes"] for one in machine.show()]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) == 8
    for arguments, words in ((("--kind", "nope"), "knows no kind `nope`"), (("--limit", "-1"), "--limit -1")):
        said = machine.run("show", str(machine.preview), *arguments)
        assert said.code == 2 and words in said.err


# ---- purge ----


def test_nothing_is_deleted_without_a_choice(machine: Machine) -> None:
    machine.scan()
    before = machine.left
    said = machine.purge()
    assert said.code == 2 and "Nothing was chosen" in said.err and said.out == ""
    assert "tmp-tensor" in said.err and "function-trace" in said.err and "core-dump" in said.err
    for words, arguments in (("knows no kind `nope`", ("--kind", "nope")), ("no artifact 99", ("--only", "99")), ("no artifact 0", ("--only", "0")),
                             ("cannot be chosen", ("--only", machine.number("core.4712"))),
                             ("Nothing of the kind `rendezvous` can be chosen", ("--kind", "rendezvous")), ("Nothing was chosen", ("--without", "1")),
                             ("is there already", ("--all-offered", "--manifest", str(machine.preview)))):
        said = machine.purge(*arguments)
        assert said.code == 2 and words in said.err, said.err
    assert machine.left == before


def test_a_dry_run_says_exactly_what_the_purge_then_deletes(machine: Machine) -> None:
    machine.scan()
    before, choice = machine.left, ("--all-offered", "--only", machine.number("layer1.pt"))
    plain, told = machine.purge(*choice, "--dry-run"), machine.purge(*choice, "--dry-run", "--json").json
    assert plain.code == 0 and "Nothing was deleted" in plain.out and machine.left == before
    promised = {one["path"].removeprefix(f"{machine.root}/") for one in told["artifacts"]}
    assert promised == {"core.4711", "layer1.pt"} | TRACES and told["chosen"]["count"] == 4
    done = machine.purge(*choice, "--json").json
    assert machine.left == before - promised
    assert (done["deleted"]["count"], done["freed_bytes"], done["kept"]["count"]) == (4, told["chosen"]["size_bytes"], 0)


def test_what_changed_since_the_preview_stays_and_is_told(machine: Machine, tmp_path: Path) -> None:
    machine.scan()
    machine.make("layer0.pt", 1, 300_001)
    (machine.root / "layer1.pt").unlink()
    said = machine.purge("--kind", "tmp-tensor", "--manifest", str(tmp_path / "m.json"))
    assert said.code == 1 and machine.left >= {"layer0.pt", "core.4711"} and "layer2.pt" not in machine.left
    assert "kept 1: " in said.out and "layer0.pt" in said.out and "1 of 3 artifacts deleted" in said.out
    rows = json.loads((tmp_path / "m.json").read_text())["entries"]
    assert {row["path"].rpartition("/")[2]: row["result"] for row in rows} == {"layer0.pt": "kept", "layer1.pt": "gone", "layer2.pt": "deleted"}


def test_without_leaves_one_of_a_kind_and_a_manifest_stays_beside_the_preview(machine: Machine, tmp_path: Path) -> None:
    machine.scan()
    said = machine.purge("--kind", "tmp-tensor", "--without", machine.number("layer2.pt"))
    assert said.code == 0 and machine.left & CHOSEN == {"layer2.pt"}
    beside = [path for path in tmp_path.iterdir() if path.name.startswith("preview.jsonl.manifest-")]
    assert len(beside) == 1 and beside[0].stat().st_mode & 0o777 == 0o600


def test_a_manifest_file_that_a_full_disk_refuses_hides_nothing_of_what_was_deleted(machine: Machine, tmp_path: Path,
                                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Iterator[str]:
        yield "number,path\n"
        raise OSError(errno.ENOSPC, "No space left on device")

    machine.scan()
    monkeypatch.setattr(manifest, "to_csv", refused)
    said = machine.purge("--kind", "tmp-tensor", "--manifest", str(tmp_path / "m.csv"))
    assert said.code == 1 and "3 of 3 artifacts deleted" in said.out and "No space left on device" in said.err
    whole = re.search(r"Manifest: (\S+)", said.out)
    assert whole is not None and Path(whole[1]).stat().st_size and f"The manifest is whole in {whole[1]}" in said.err
    assert not (tmp_path / "m.csv").exists(), "a half one would pass for the whole"


def test_a_purge_is_only_made_of_a_preview_that_a_scan_wrote(machine: Machine, tmp_path: Path) -> None:
    machine.scan()
    before, whole = machine.left, machine.preview.read_bytes()
    other = tmp_path / "other.jsonl"
    for content in (b"", b"{}\n", whole[:-20], whole.replace(b"layer0.pt", b"young0.pt"), whole.replace(b'"offered"', b'"kept"', 1)):
        other.write_bytes(content)
        other.chmod(0o600)
        said = machine.run("purge", str(other), "--all-offered")
        assert said.code == 1 and "no preview of a scan" in said.err, said.err
    assert machine.run("purge", f"{tmp_path}/gone", "--all-offered").code == 1 and machine.left == before


def test_an_interrupted_purge_ends_between_files_and_writes_its_manifest(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    @contextmanager
    def second_look() -> Iterator[Callable[[], bool]]:
        def pressed() -> bool:
            nonlocal asked
            asked += 1
            return asked > 2

        yield pressed

    machine.scan()
    monkeypatch.setattr(artifacts, "interruptible", second_look)
    monkeypatch.setattr(purging, "CHECKED_EVERY_S", 0)
    said = machine.purge("--kind", "tmp-tensor", "--manifest", str(tmp_path / "m.csv"))
    assert said.code == 130 and "Interrupted" in said.out and 0 < len(machine.left & CHOSEN) < 3
    assert len((tmp_path / "m.csv").read_text().splitlines()) >= 2


def test_an_open_file_and_a_bound_socket_are_kept_with_who_has_them(machine: Machine) -> None:
    with (machine.root / "layer0.pt").open("rb") as held:
        machine.scan()
        kept = [one for one in machine.show("--state", "kept") if one["path"].endswith("layer0.pt")]
        assert kept[0]["open_by"][0]["pid"] == os.getpid() and f"pid {os.getpid()}" in kept[0]["why"]
        assert held.readable()
    name = "0b8f6c1e-5d0a-4c39-9c55-6b1f1f1a7d02"
    with socket.socket(socket.AF_UNIX) as bound:
        folder = os.open(machine.root, os.O_RDONLY)
        bound.bind(f"/proc/self/fd/{folder}/{name}")
        os.close(folder)
    os.utime(machine.root / name, (1e9, 1e9))
    found = machine.run("scan", "--root", str(machine.root), "--out", f"{machine.preview}2", "--json", "--kind", "ipc-socket").json["kinds"][0]
    assert sum(found[state]["count"] for state in ("offered", "kept")) == 1


def test_errors_are_the_same_on_both_streams(tmp_path: Path) -> None:
    assert error_of("artifacts", "show", str(tmp_path / "gone"))["kind"] == "bad_input"
    assert all("--json" in ops("artifacts", name, "--help").stdout for name in ("kinds", "scan", "show", "purge"))


# ---- on a node ----


@pytest.fixture(scope="module")
def practice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    made = make_box(tmp_path_factory.mktemp("a"))
    yield made
    end_of_box(made.record)


def test_on_a_node_a_scan_and_a_purge_are_jobs_with_their_locks(practice: Box, tmp_path: Path) -> None:
    preview, tmp = tmp_path / "p.jsonl", practice.root / "tmp"
    found = practice.json("artifacts", "scan", "--kind", "debug-tensor", "--out", str(preview))
    assert found["kinds"][0]["offered"]["count"] == 35 and practice.types(found["job"])[-1] == "job.finished"
    unasked = practice.json("artifacts", "scan", "--kind", "debug-tensor", "--no-open-check", "--out", f"{preview}2")
    assert unasked["open_checked"] is False and any("not looked at which files are open" in problem for problem in unasked["problems"])
    assert re.search(rf" root +{practice.record.name} +{tmp}/", ops("artifacts", "show", str(preview)).stdout)
    choice = ("--all-offered",)
    (practice.paths.previews / "0.jsonl").symlink_to("gone")  # as one that another scan tidies away at that moment
    lock = f"service:{practice.record.name}"
    held = claim.lock_all(practice.paths, [lock])
    try:
        busy = practice.run("artifacts", "purge", str(preview), *choice)
        assert busy.returncode == 1 and lock in busy.stderr, busy.stderr
    finally:
        claim.release(held)
    assert len(list(tmp.glob("*.pt"))) == 35
    done = practice.json("artifacts", "purge", str(preview), *choice)
    assert (done["state"], done["deleted"]["count"], list(tmp.glob("*.pt"))) == ("succeeded", 35, [])
    assert Path(done["manifest"]["path"]).stat().st_size > 0 and "purge.result" in practice.types(done["job"])
