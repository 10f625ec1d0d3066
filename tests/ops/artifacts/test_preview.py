from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ops.artifacts.found import Artifact, Choice
from ops.artifacts.kinds import Kind
from ops.artifacts.preview import Header, Preview, PreviewWriter, Row
from ops.jobs.errors import BadInput, OpsError

KIND = Kind(name="dump", title="Dumps", one="dump", leftover="Written and forgotten", keeping="Nothing", places=["/data"], patterns=["*.dump"])
HOSTILE = "/data/-rf \n\udcff<b>\u202e.dump"


def artifact(number: int, path: str = "/data/a.dump", *, unit: str = "file", state: str = "offered") -> Artifact:
    return Artifact(number, "dump", unit, path, 4096, 1, 1_700_000_000_123_456_789, 1000, "ada", 7, 8, state, "Because", [], "glm")


def row(path: str = "", kind: str = "file") -> Row:
    return Row(path, kind, 7, 8, 1_700_000_000_123_456_789, 11, 4096, 1000, 1_700_000_001_000_000_000)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "p.jsonl"
    with PreviewWriter(path, Header.now("n1", ["/data"], [KIND])) as writer:
        writer.add(artifact(1, HOSTILE), row())
        for name, kind in (("deep/\udcfe", "file"), ("deep", "folder"), ("link", "link"), ("", "folder")):
            writer.add_row(row(name, kind))
        writer.add(artifact(2, "/data/cache", unit="folder", state="kept"))
        writer.add(artifact(3, "/data/release", unit="folder"))
        writer.finish({"files": 3})
    return path


def test_what_was_written_comes_back_with_every_byte_of_its_names(written: Path):
    with Preview.open(written) as preview:
        found = [(one, None if tree is None else list(tree)) for one, tree in preview.artifacts()]
        assert [one for one, _ in found] == [artifact(1, HOSTILE), artifact(2, "/data/cache", unit="folder", state="kept"),
                                             artifact(3, "/data/release", unit="folder")]
        assert [tree and [one.path for one in tree] for _, tree in found] == [[""], ["deep/\udcfe", "deep", "link", ""], None]
        assert (preview.count, preview.rows, preview.summary, preview.header.node) == (3, 4, {"files": 3}, "n1")
        assert preview.kinds["dump"] == KIND and preview.size_bytes == written.stat().st_size
    assert written.stat().st_mode & 0o777 == 0o600


def test_a_choice_gives_what_it_takes_and_trees_can_be_read_later_and_twice(written: Path):
    with Preview.open(written) as preview:
        assert [one.number for one, _ in preview.artifacts(Choice(kinds=["dump"], without=[1]))] == [3]
        trees = [tree for _, tree in preview.artifacts() if tree is not None]
        assert [len(tree) for tree in trees] == [1, 4]
        assert list(trees[1]) == list(trees[1])


def _cut(raw: bytes) -> bytes:
    return raw[:-20]


def _cut_at_a_line(raw: bytes) -> bytes:
    return b"".join(raw.splitlines(keepends=True)[:-1])


def _changed(raw: bytes) -> bytes:
    return raw.replace(b'"kept"', b'"offe"')


def _appended(raw: bytes) -> bytes:
    return raw + raw.splitlines(keepends=True)[1]


def _nothing(raw: bytes) -> bytes:
    return b""


def _another_format(raw: bytes) -> bytes:
    return raw.replace(b"roundhouse.preview/1", b"roundhouse.preview/2")


def _deep(raw: bytes) -> bytes:
    return raw.splitlines(keepends=True)[0] + b"[" * 100_000 + b"\n"


def _binary(raw: bytes) -> bytes:
    return bytes(range(256)) * 50


@pytest.mark.parametrize("change", [_cut, _cut_at_a_line, _changed, _appended, _nothing, _another_format, _deep, _binary])
def test_a_preview_that_was_cut_or_changed_is_refused(written: Path, change):
    written.write_bytes(change(written.read_bytes()))
    with pytest.raises(BadInput) as told:
        Preview.open(written)
    assert "Scan again" in told.value.hint


def test_no_file_a_link_and_one_that_others_may_write_are_refused(written: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(written)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "none", tmp_path / "link", tmp_path / "pipe", tmp_path):
        with pytest.raises(BadInput):
            Preview.open(path)
    written.chmod(0o666)
    with pytest.raises(BadInput, match="somebody else"):
        Preview.open(written)


@pytest.mark.parametrize("path", ["/data/../etc/shadow", "data/a", "/data//a", "/data/a\0", "/data/.", "/data/..", "/data/./a", "/data/",
                                  "/", "//data"])
def test_a_path_that_leads_elsewhere_is_refused_even_in_a_preview_with_a_right_digest(tmp_path: Path, path: str):
    with PreviewWriter(tmp_path / "p.jsonl", Header.now("n1", [], [KIND])) as writer:
        writer.add(artifact(1, path), row())
        writer.finish({})
    with Preview.open(tmp_path / "p.jsonl") as preview, pytest.raises(BadInput):
        list(preview.artifacts())


@pytest.mark.parametrize("path", ["/data/.cache", "/data/..a", "/.../a.", "/data/ ."])
def test_a_name_with_dots_leads_nowhere_else(tmp_path: Path, path: str):
    with PreviewWriter(tmp_path / "p.jsonl", Header.now("n1", [], [KIND])) as writer:
        writer.add(artifact(1, path), row())
        writer.finish({})
    with Preview.open(tmp_path / "p.jsonl") as preview:
        assert [found.path for found, _ in preview.artifacts()] == [path]


def _twice(first: bytes, second: bytes) -> list[bytes]:
    return [first, first, second]


def _in_another_order(first: bytes, second: bytes) -> list[bytes]:
    return [second, first]


def _in_one_line(first: bytes, second: bytes) -> list[bytes]:
    return [first.rstrip() + b"," + second]


def _divided(first: bytes, second: bytes) -> list[bytes]:
    return [first[:20] + b"\n", first[20:], second]


def _empty_lists(first: bytes, second: bytes) -> list[bytes]:
    return [first, b'["artifact"],[]\n', second]


@pytest.mark.parametrize("forge", [_twice, _in_another_order, _in_one_line, _divided, _empty_lists])
def test_lines_that_no_scan_writes_are_refused_even_with_a_right_digest(tmp_path: Path, forge):
    with PreviewWriter(tmp_path / "p.jsonl", Header.now("n1", [], [KIND])) as writer:
        writer.add(artifact(1), row())
        writer.add(artifact(2, "/data/b.dump"), row())
        writer._lines[-2:] = forge(*writer._lines[-2:])
        writer.finish({})
    with Preview.open(tmp_path / "p.jsonl") as preview, pytest.raises(BadInput):
        list(preview.artifacts())


@pytest.mark.parametrize("path", ["../a", "/a", "a/../../b", "./a", "a//b", "a\0"])
def test_an_entry_outside_of_its_folder_is_refused(tmp_path: Path, path: str):
    with PreviewWriter(tmp_path / "p.jsonl", Header.now("n1", [], [KIND])) as writer:
        writer.add_row(row(path))
        writer.add(artifact(1, unit="folder"))
        writer.finish({})
    with Preview.open(tmp_path / "p.jsonl") as preview, pytest.raises(BadInput):
        [list(tree) for _, tree in preview.artifacts() if tree is not None]


def test_an_unfinished_preview_leaves_nothing(tmp_path: Path):
    with pytest.raises(RuntimeError), PreviewWriter(tmp_path / "p.jsonl", Header.now("n1", [], [KIND])) as writer:
        writer.add(artifact(1), row())
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ops.artifacts.preview.os.write", full)
    with pytest.raises(OpsError, match="cannot be written") as told, PreviewWriter(tmp_path / "p.jsonl", Header.now("n1", [], [KIND])) as writer:
        writer.finish({})
    assert told.value.why == "No space left on device" and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("summary", [{}, {"kinds": None, "problems": []}, {"kinds": [[]], "problems": []}, {"kinds": [], "problems": [7]},
                                     {"kinds": [{"kind": "dump"}], "problems": []}], ids=range(5))
def test_a_summary_that_somebody_made_is_told_before_it_is_shown(tmp_path: Path, summary: dict[str, object]):
    with PreviewWriter(tmp_path / "p", Header.now("n1", [], [KIND])) as writer:
        writer.finish(summary)
    with Preview.open(tmp_path / "p") as preview, pytest.raises(BadInput, match="is no preview"):
        preview.check_summary()


@pytest.mark.parametrize("at", ["1e400", "NaN", "-1", "1e30"])
def test_a_time_that_no_calendar_has_is_refused(tmp_path: Path, at: str):
    with PreviewWriter(tmp_path / "p", Header.now("n1", [], [KIND])) as writer:
        writer._lines[0] = re.sub(rb'"at": [0-9.]+', f'"at": {at}'.encode(), writer._lines[0])
        writer.finish({})
    with pytest.raises(BadInput, match="is no preview"):
        Preview.open(tmp_path / "p")


def test_a_preview_that_is_cut_while_it_is_read_is_told_and_gives_no_short_tree(tmp_path: Path):
    path = tmp_path / "p.jsonl"
    with PreviewWriter(path, Header.now("n1", [], [KIND])) as writer:
        for number in range(5000):
            writer.add_row(row(f"{number:05}"))
        writer.add_row(row("", "folder"))
        writer.add(artifact(1, "/data/cache", unit="folder"))
        writer.finish({})
    with Preview.open(path) as preview:
        (_, tree), = preview.artifacts()
        assert tree is not None and len(list(tree)) == 5001
        raw = path.read_bytes()
        os.truncate(path, raw.index(b"\n", len(raw) // 2) + 1)
        for read in (lambda: list(tree), lambda: list(preview.artifacts())):
            with pytest.raises(BadInput, match="is no preview"):
                read()


@pytest.mark.parametrize("forge", [lambda line: line.replace(b",4096,1,", b"," + b"9" * 4300 + b",1,"),
                                   lambda line: line.replace(b",4096,1,", b",-1,1,"), lambda line: b""], ids=["endless", "negative", "left out"])
def test_numbers_that_no_scan_writes_are_refused(tmp_path: Path, forge):
    with PreviewWriter(tmp_path / "p.jsonl", Header.now("n1", [], [KIND])) as writer:
        writer.add(artifact(1), row())
        before = writer._lines[-1]
        writer._lines[-1] = forge(before)
        assert writer._lines[-1] != before
        writer.finish({})
    with Preview.open(tmp_path / "p.jsonl") as preview, pytest.raises(BadInput):
        list(preview.artifacts())
