from __future__ import annotations

import csv
import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ops.artifacts import manifest as manifests
from ops.artifacts.found import Artifact, Entry
from ops.artifacts.manifest import INTERRUPTED, Manifest, ManifestWriter, read, to_csv, to_json
from ops.jobs.errors import BadInput, OpsError

ENTRY = Entry(1, "/tmp/a.pt", "debug-tensor", 8192, 1, 1_700_000_000_000_000_000, "llm", "Written by debug code", "deleted", "", 8192, 1, "kimi")
HOSTILE = [os.fsdecode(b"/tmp/\xff.pt"), "/tmp/new\nline.pt", "/tmp/-rf \u202e<b>.pt", "=1+1", '/tmp/"a,b".pt']


def artifact(number: int, path: str = "") -> Artifact:
    return Artifact(number, ENTRY.kind, "file", path or f"/tmp/{number}.pt", ENTRY.size_bytes, 1, ENTRY.mtime_ns, 0, ENTRY.owner, 1, number,
                    "offered", ENTRY.reason, service=ENTRY.service)


def entry(number: int) -> Entry:
    return replace(ENTRY, number=number, path=f"/tmp/{number}.pt")


def test_a_manifest_reads_back_what_was_told_with_its_head_and_its_result(tmp_path: Path):
    told = [replace(ENTRY, number=number, path=path) for number, path in enumerate(HOSTILE, 1)]
    with ManifestWriter(tmp_path / "m.jsonl", scan="job-1", digest="d" * 64, node="gpu01") as writer:
        assert writer.announce([artifact(1, HOSTILE[0]), artifact(2, HOSTILE[1])])
        for one in told:
            writer.add(one)
        writer.finish({"freed_bytes": 3})
    assert (tmp_path / "m.jsonl").stat().st_mode & 0o777 == 0o600 and writer.problem == ""
    with Manifest(tmp_path / "m.jsonl") as kept:
        assert list(kept.entries()) == told and kept.finished and kept.result == {"freed_bytes": 3}
        assert (kept.scan, kept.digest, kept.node) == ("job-1", "d" * 64, "gpu01") and kept.at is not None


def test_what_became_known_later_counts(tmp_path: Path):
    with ManifestWriter(tmp_path / "m.jsonl") as writer:
        writer.add(entry(1))
        writer.add(entry(2))
        writer.amend(replace(entry(1), why="python opened it", freed_bytes=0))
        assert writer.entries == 2
    assert [(one.number, one.why) for one in read(tmp_path / "m.jsonl")] == [(1, "python opened it"), (2, "")]


def test_of_a_purge_that_was_killed_the_one_that_was_next_may_be_gone(tmp_path: Path):
    writer = ManifestWriter(tmp_path / "m.jsonl")
    writer.announce([artifact(number) for number in (1, 2, 3)])
    writer.add(entry(1))
    told = list(read(tmp_path / "m.jsonl"))  # as another process finds it: nothing waits to be written
    assert [(one.number, one.result, one.why) for one in told] == [(1, "deleted", ""), (2, "partly", INTERRUPTED)]
    writer.close()


def test_of_a_purge_whose_machine_went_down_all_that_were_named_may_be_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Their lines may never have reached the disk."""
    with ManifestWriter(tmp_path / "m.jsonl") as writer:
        writer.announce([artifact(number) for number in (1, 2, 3)])
        writer.add(entry(1))
    monkeypatch.setattr(manifests, "boot_id", lambda: "another")
    assert [(one.number, one.result) for one in read(tmp_path / "m.jsonl")] == [(1, "deleted"), (2, "partly"), (3, "partly")]


def test_a_torn_last_line_is_left_out(tmp_path: Path):
    with ManifestWriter(tmp_path / "m.jsonl") as writer:
        writer.add(entry(1))
        writer.add(entry(2))
    path = tmp_path / "m.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    assert [one.number for one in read(path)] == [1]


def test_a_line_that_found_no_room_is_written_whole_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    writer, write, room = ManifestWriter(tmp_path / "m.jsonl"), os.write, [20]

    def little_room(file: int, data: bytes) -> int:
        if room == [0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data) if not room else write(file, bytes(data)[:room[0]]) + (room.__setitem__(0, 0) or 0)

    monkeypatch.setattr(manifests.os, "write", little_room)
    writer.add(entry(1))
    assert writer.full and writer.problem == "No space left on device" and list(read(tmp_path / "m.jsonl")) == []
    assert not writer.announce([artifact(2)])
    room.clear()
    writer.add(entry(2))
    writer.close()
    assert writer.problem == "" and list(read(tmp_path / "m.jsonl")) == [entry(1), entry(2)]


def test_a_manifest_is_never_written_over(tmp_path: Path):
    (tmp_path / "m.jsonl").write_text("an older one")
    (tmp_path / "link").symlink_to("m.jsonl")
    for name in ("m.jsonl", "link", "no/folder"):
        with pytest.raises(OpsError) as refused:
            ManifestWriter(tmp_path / name)
        assert "Nothing is deleted without one" in refused.value.hint
    assert (tmp_path / "m.jsonl").read_text() == "an older one"


@pytest.mark.parametrize("text", ["", "{}", "[]", "x", '{"format": "roundhouse.preview/1"}', "[" * 5000], ids=range(6))
def test_what_is_no_manifest_is_refused(tmp_path: Path, text: str):
    (tmp_path / "m.jsonl").write_text(text + "\n")
    with pytest.raises(BadInput):
        list(read(tmp_path / "m.jsonl"))


@pytest.mark.parametrize("line", ["[]", '{"entry":[1]}', '{"entry":{}}', '{"next":[[1,2]]}', '{"other":[]}', "x"])
def test_a_manifest_with_a_line_of_another_form_is_refused(tmp_path: Path, line: str):
    with ManifestWriter(tmp_path / "m.jsonl") as writer:
        writer.add(entry(1))
    with (tmp_path / "m.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(BadInput):
        list(read(tmp_path / "m.jsonl"))


def test_a_table_has_a_row_each_and_no_cell_is_a_formula():
    told = [replace(ENTRY, number=number, path=path, owner="=cmd") for number, path in enumerate(HOSTILE, 1)]
    head, *rows = csv.reader("".join(to_csv(told, at=1_700_000_060.0)).splitlines())
    assert head[:4] == ["number", "path", "kind", "service"] and len(rows) == len(HOSTILE)
    row = dict(zip(head, rows[0], strict=True))
    assert (row["path"], row["size_bytes"], row["age_s"], row["last_change"], row["result"]) == ("/tmp/\\xff.pt", "8192", "60",
                                                                                               "2023-11-14T22:13:20+00:00", "deleted")
    assert [one[1] for one in rows] == ["/tmp/\\xff.pt", "/tmp/new\\x0aline.pt", "/tmp/-rf \\xe2\\x80\\xae<b>.pt", "'=1+1", '/tmp/"a,b".pt']
    assert not any(cell.lstrip().startswith(("=", "+", "-", "@")) for one in rows for cell in one)


def test_json_holds_the_head_and_a_row_each():
    made = json.loads("".join(to_json([entry(1), entry(2)], at=1_700_000_060.0, head={"scan": "job-1", "result": None})))
    assert made["scan"] == "job-1" and [row["number"] for row in made["entries"]] == [1, 2]
    assert made["entries"][0]["age_s"] == 60 and made["entries"][0]["reason"] == "Written by debug code"
    assert json.loads("".join(to_json([]))) == {"entries": []}


def test_each_line_says_its_own_path_whatever_was_announced(tmp_path: Path):
    with ManifestWriter(tmp_path / "m.jsonl") as writer:
        assert writer.announce([artifact(1, "/tmp/a"), artifact(1, "/tmp/b"), artifact(2, "/tmp/b")])
        told = [replace(ENTRY, number=number, path=path) for number, path in ((1, "/tmp/a"), (1, "/tmp/b"), (2, "/tmp/b"), (3, "/tmp/c"))]
        for one in told:
            writer.add(one)
        writer.finish({})
    assert list(read(tmp_path / "m.jsonl")) == told
