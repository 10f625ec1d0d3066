from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ops.artifacts import kinds as kinds_of
from ops.artifacts import scan as scanning
from ops.artifacts import walk as walking
from ops.artifacts.found import Artifact
from ops.artifacts.holders import Holders
from ops.artifacts.kinds import NEVER_BESIDE, Kind
from ops.artifacts.places import NAMED, Never, Place, Places
from ops.artifacts.preview import Header, Preview, PreviewWriter
from ops.artifacts.recognise import Picker, Pickers
from ops.artifacts.scan import ScanResult, scan


def kind(name: str, *patterns: str, places: tuple[str, ...] = ("scratch",), **more: Any) -> Kind:
    return Kind(name=name, title=f"{name}s", one=name, leftover="Written and forgotten", keeping="Saves a minute", places=list(places),
                patterns=list(patterns), **more)


TENSOR = kind("tensor", "*.pt")
CACHE = kind("cache", "cache/*", unit="folder")


class Verdicts:
    """Stands for conditions: what it says of a path by its name."""

    def __init__(self, **whys: str) -> None:
        self.whys, self.holders = whys, None
        self.asked: list[tuple[str, str, int | None]] = []

    def verdict(self, kind: Kind, artifact_path: str, *, stat: os.stat_result, service: str = "", folder_newest_ns: int | None = None) -> str | None:
        self.asked.append((Path(artifact_path).name, service, folder_newest_ns))
        return self.whys.get(Path(artifact_path).stem)


class Scanned:
    """A scan and what its preview says."""

    def __init__(self, result: ScanResult, preview: Path) -> None:
        self.result = result
        with Preview.open(preview) as opened:
            self.all = [(artifact, None if tree is None else list(tree)) for artifact, tree in opened.artifacts()]
            assert opened.summary == json.loads(json.dumps(result.as_dict()))

    def __getitem__(self, name: str) -> Artifact:
        return next(artifact for artifact, _ in self.all if Path(artifact.path).name == name)

    @property
    def names(self) -> list[str]:
        return sorted(Path(artifact.path).name for artifact, _ in self.all)

    def kind(self, name: str) -> dict[str, Any]:
        return next(row for row in self.result.kinds if row["kind"] == name)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def write(path: Path, size: int = 100, *, age_s: float = 60) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    when = time.time() - age_s
    os.utime(path, (when, when))
    return path


def look(root: Path, *kinds: Kind, places: list[Place] | None = None, never: Never | None = None, **more: Any) -> Scanned:
    where = Places(places or [Place("scratch", str(root), service="glm")], never or Never())
    path = root.parent / "preview.jsonl"
    with PreviewWriter(path, Header.now("n1", [str(root)], list(kinds))) as writer:
        result = scan(where, list(kinds), preview=writer, **{"open_check": False, **more})
        writer.finish(result.as_dict())
    return Scanned(result, path)


def du(path: Path) -> int:
    return int(subprocess.run(["du", "-s", "-B1", path], capture_output=True, text=True, check=True).stdout.split()[0])


# What is found


def test_files_are_found_by_kind_with_what_identifies_them_and_their_allocated_bytes(root: Path):
    path = write(root / "layers" / "0" / "attn.pt", 5000, age_s=3600)
    with (root / "sparse.pt").open("wb") as file:
        file.truncate(1 << 30)
    os.utime(root / "sparse.pt", (1, 1))
    write(root / "notes.txt")
    found = look(root, TENSOR)
    assert found.names == ["attn.pt", "sparse.pt"]
    state, one = path.stat(), found["attn.pt"]
    assert (one.path, one.size_bytes, one.files, one.mtime_ns, one.uid, one.device, one.inode) == (
        str(path), state.st_blocks * 512, 1, state.st_mtime_ns, state.st_uid, state.st_dev, state.st_ino)
    assert (one.state, one.why, one.service, one.open_by) == ("offered", TENSOR.leftover, "glm", [])
    assert found["sparse.pt"].size_bytes == 0
    rows = {Path(artifact.path).name: tree for artifact, tree in found.all}
    assert [(row.path, row.type, row.length) for row in rows["attn.pt"] or []] == [("", "file", 5000)]
    assert found.result.files == 3 and found.result.size_bytes == du(root)
    assert found.result.offered_bytes == found.result.choosable_bytes == one.size_bytes


def test_names_that_nobody_expects_are_found_as_they_are(root: Path):
    names = ["-rf.pt", "a\nb.pt", "\udcff\udcfe.pt", "n" * 252 + ".pt", "<b>&\u202e.pt", " .pt"]
    for name in names:
        write(root / name)
    found = look(root, TENSOR)
    assert found.names == sorted(names)
    assert json.dumps(found.result.as_dict()).isascii() and "\\xff\\xfe.pt" in {Path(one.as_dict()["path"]).name for one, _ in found.all}


def test_of_two_kinds_that_fit_the_first_is_taken_and_depth_counts(root: Path):
    for name in ("a.pt", "one/b.pt", "one/two/c.pt"):
        write(root / name)
    found = look(root, kind("shallow", "*.pt", depth=1), kind("named", "c.*", "b.*"))
    assert {Path(one.path).name: one.kind for one, _ in found.all} == {"a.pt": "shallow", "b.pt": "shallow", "c.pt": "named"}


def test_every_path_is_recognised_exactly_as_its_kind_says():
    """The quick way, against `Kind.fits` asked of each kind in turn: names made of the patterns themselves, and of pieces of them."""
    kinds = [*kinds_of.builtin(), kind("odd", "?", "a?c", "*x*", "[!a]z", "d/*/e.?", "*", depth=2)]
    pieces = [part.replace("*", star).replace("[0-9]", "7").replace("[0-9a-f]", "b").replace("?", "q")
              for one in kinds for pattern in one.patterns for part in pattern.split("/") for star in ("", "x1")]
    choose = random.Random(5)
    place = Place("p", "/p")
    for unit, kind_of_file in (("folder", "regular"), ("file", "regular"), ("file", "socket")):
        some = [one for one in kinds if one.unit == unit and one.file_type == kind_of_file]
        pickers = Pickers()
        for one in some:
            pickers.look_for(some, one, place)
        for _ in range(3000):
            parts = [choose.choice(pieces) or "_" for _ in range(choose.randint(1, 5))]
            picker: Picker = pickers.of(pickers.begin(place))
            for part in parts[:-1]:
                picker = pickers.of(picker.below(part))
            names = picker.folders if unit == "folder" else picker.files if kind_of_file == "regular" else picker.sockets
            match = names.first(parts[-1])
            assert (match and match.kind) == next((one for one in some if one.fits("/".join(parts))), None), parts


def test_places_inside_of_one_another_are_walked_once(root: Path):
    write(root / "a.pt", 5000)
    write(root / "inner" / "b.pt", 9000)
    write(root / "inner" / "deep.bin", 100)
    inner = kind("inner", "*.bin", places=("inner",))
    places = [Place("inner", str(root / "inner"), service="llama"), Place("scratch", str(root)), Place("twice", str(root / "inner"))]
    found = look(root, TENSOR, inner, kind("twice", "x", places=("twice",)), places=places)
    assert found.names == ["a.pt", "b.pt", "deep.bin"] and found["deep.bin"].service == "llama"
    assert found.result.files == 3 and found.result.size_bytes == du(root)
    assert [(row["path"], row["files"]) for row in found.result.places] == [(str(root), 3), (str(root / "inner"), 2), (str(root / "inner"), 2)]


def test_a_hard_link_is_counted_once_and_kept(root: Path):
    write(root / "a.pt", 8000)
    (root / "b.pt").hardlink_to(root / "a.pt")
    found = look(root, TENSOR)
    assert sorted(one.size_bytes for one, _ in found.all) == [0, 8192] and {one.state for one, _ in found.all} == {"kept"}
    assert found.result.size_bytes == du(root) and found.kind("tensor")["why_kept"] == [
        {"why": "It has several names (hard links)", "count": 2, "size_bytes": 8192}]


def test_sockets_are_no_files_and_files_no_sockets(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(root)  # a socket's name is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("ipc-1")
    write(root / "ipc-2")
    os.mkfifo(root / "ipc-3")
    (root / "ipc-4").symlink_to("ipc-1")
    os.utime(root / "ipc-1", (1, 1))
    assert look(root, kind("socket", "ipc-*", file_type="socket")).names == ["ipc-1"]
    assert look(root, kind("file", "ipc-*")).names == ["ipc-2"]


@pytest.mark.parametrize("beside", NEVER_BESIDE)
def test_a_model_an_environment_or_a_hub_cache_is_never_entered(root: Path, beside: str):
    write(root / "model" / "original" / "consolidated.pt")
    write(root / "model" / "pytorch_model.pt")
    (root / "model" / beside).symlink_to("anything")
    write(root / "a.pt")
    assert look(root, TENSOR, kind("folder", "model", unit="folder")).names == ["a.pt"]
    inside = look(root / "model", TENSOR)
    assert inside.names == [] and f"`{beside}`" in inside.result.places[0]["problem"]


def test_where_everybody_may_write_nobody_shuts_a_cleanup_out_with_one_file(root: Path):
    write(root / "a.pt")
    write(root / "config.json")
    assert look(root, TENSOR).names == []
    root.chmod(0o1777)
    assert look(root, TENSOR).names == ["a.pt"]
    write(root / "tokenizer.json")
    assert look(root, TENSOR).names == []
    if os.geteuid() == 0:
        os.chown(root / "tokenizer.json", 65534, 65534)
        assert look(root, TENSOR).names == ["a.pt"]


def test_in_a_folder_that_no_record_knows_the_ending_of_a_name_offers_nothing(root: Path):
    write(root / "checkpoint.pt")
    found = look(root, TENSOR, places=[Place("scratch", str(root), why=NAMED)])
    assert found["checkpoint.pt"].state == "optional" and "checkpoint" in found["checkpoint.pt"].why


def test_zones_are_never_entered_under_any_name(root: Path):
    write(root / "zone" / "a.pt")
    write(root / "b.pt")
    never = Never()
    never.add(root / "zone", "The models of glm")
    (root / "zone").rename(root / "moved")
    assert look(root, TENSOR, never=never).names == ["b.pt"]


# Why something is kept


def test_what_a_condition_says_is_why_it_is_kept(root: Path):
    write(root / "a.pt", 5000)
    write(root / "b.pt", 100)
    write(root / "cache" / "h1" / "f", age_s=7200)
    conditions = Verdicts(a="The service glm runs", h1="Used by glm")
    found = look(root, TENSOR, CACHE, conditions=conditions)
    assert {(Path(one.path).name, one.state, one.why) for one, _ in found.all} == {
        ("a.pt", "kept", "The service glm runs"), ("b.pt", "offered", TENSOR.leftover), ("h1", "kept", "Used by glm")}
    newest = (root / "cache" / "h1" / "f").stat().st_mtime_ns
    assert set(conditions.asked) == {("a.pt", "glm", None), ("b.pt", "glm", None), ("h1", "glm", newest)}
    assert found.kind("tensor")["kept"]["count"] == 1 and found.result.offered_bytes == 4096


def test_what_is_worth_keeping_is_never_offered(root: Path):
    write(root / "a.pt", 5000)
    found = look(root, kind("tensor", "*.pt", offered=False))
    assert (found["a.pt"].state, found["a.pt"].why) == ("optional", "Saves a minute")
    assert (found.result.offered_bytes, found.result.choosable_bytes) == (0, 8192)


def test_files_of_others_are_kept_unless_the_kind_says_so(root: Path):
    write(root / "a.pt")
    write(root / "cache" / "h" / "f")
    other = os.geteuid() + 1
    found = look(root, TENSOR, CACHE, owner_uid=other)
    assert found["a.pt"].state == found["h"].state == "kept"
    assert "belongs to another user (" in found["a.pt"].why and "belongs to another user (" in found["h"].why
    assert look(root, kind("tensor", "*.pt", any_owner=True), owner_uid=other)["a.pt"].state == "offered"


def test_what_a_process_has_open_is_kept_and_named(root: Path):
    write(root / "a.pt")
    write(root / "cache" / "h1" / "deep" / "f")
    write(root / "cache" / "h2" / "f")
    code = "import os, sys; os.chdir(sys.argv[1]); held = open(sys.argv[2]); print('ready', flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code, str(root / "cache" / "h1" / "deep"), str(root / "a.pt")], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        found = look(root, TENSOR, CACHE, open_check=True)
    finally:
        process.communicate(b"")
    assert found["a.pt"].state == "kept" and f"(pid {process.pid})" in found["a.pt"].why and found["a.pt"].open_by[0]["pid"] == process.pid
    assert found["h1"].state == "kept" and found["h1"].why.startswith("Something in it is open in") and found["h2"].state == "offered"
    assert found.kind("cache")["why_kept"][0]["why"] == "Something in it is open in a process"
    assert found.result.open_checked is Holders().complete


def test_a_scan_that_could_not_look_into_all_processes_says_so(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Holders, "complete", False)
    monkeypatch.setattr(Holders, "problem", "3 processes were not seen")
    found = look(root, TENSOR, open_check=True).result
    assert not found.open_checked and found.problems == ["3 processes were not seen"] and not found.partial
    assert not look(root, TENSOR, open_check=False).result.open_checked


def test_a_file_that_grows_while_the_scan_runs_is_kept(root: Path, monkeypatch: pytest.MonkeyPatch):
    write(root / "a.pt")
    write(root / "cache" / "h" / "f")
    refreshed = scanning._Scan.look_again

    def growing(self: Any, *, at_once: bool = False) -> None:
        for path in (root / "a.pt", root / "cache" / "h" / "f"):
            with path.open("ab") as file:
                file.write(b"more")
            os.utime(path, ns=(self._started_ns + 1, self._started_ns + 1))
        refreshed(self, at_once=at_once)

    monkeypatch.setattr(scanning._Scan, "look_again", growing)
    found = look(root, TENSOR, CACHE)
    assert found["a.pt"].state == found["h"].state == "kept" and "written to while the scan ran" in found["a.pt"].why


# Folders


def test_a_folder_is_one_artifact_with_all_that_is_in_it_and_its_rows_add_up(root: Path):
    write(root / "cache" / "h1" / "kernel.so", 9000, age_s=7200)
    newest = write(root / "cache" / "h1" / "x" / "y" / "a.pt", 100, age_s=3600)
    write(root / "cache" / "h2" / "f", 100)
    found = look(root, TENSOR, CACHE)
    assert found.names == ["h1", "h2"]
    one, rows = next((artifact, tree) for artifact, tree in found.all if artifact.path.endswith("h1"))
    assert (one.unit, one.files, one.mtime_ns) == ("folder", 2, newest.stat().st_mtime_ns)
    assert one.size_bytes == du(root / "cache" / "h1") == sum(row.size_bytes for row in rows or [])
    paths = [row.path for row in rows or []]
    assert sorted(paths) == ["", "kernel.so", "x", "x/y", "x/y/a.pt"] and paths[-1] == ""
    assert paths.index("x/y/a.pt") < paths.index("x/y") < paths.index("x")
    assert found.kind("cache")["offered"]["files"] == 3


def test_an_empty_folder_is_an_artifact_too(root: Path):
    (root / "cache" / "h").mkdir(parents=True)
    os.utime(root / "cache" / "h", (5, 5))
    assert (look(root, CACHE)["h"].files, look(root, CACHE)["h"].mtime_ns) == (0, 5_000_000_000)


def test_a_link_in_a_folder_is_told_and_counts_nothing(root: Path, tmp_path: Path):
    write(root / "cache" / "h" / "f", 100)
    write(tmp_path / "outside" / "victim", 9000)
    (root / "cache" / "h" / "link").symlink_to(tmp_path / "outside")
    found = look(root, CACHE)
    assert found["h"].files == 1 and found["h"].state == "offered" and "1 link or special file in it will stay" in found["h"].why
    assert {row.type for _, rows in found.all for row in rows or []} == {"file", "link", "folder"}


def test_in_a_folder_that_services_share_the_owner_tells_which_one_it_came_from(root: Path):
    write(root / "a.pt")
    shared = Place("scratch", str(root), services=("glm", "kimi"))
    for users, service in (({"glm": os.geteuid(), "kimi": 4711}, "glm"), ({"glm": os.geteuid(), "kimi": os.geteuid()}, ""),
                           ({"glm": os.geteuid(), "kimi": None}, ""), ({}, "")):
        where = Places([shared], Never(), users=users)
        path = root.parent / f"preview-{len(users)}-{service}-{users.get('kimi')}.jsonl"
        with PreviewWriter(path, Header.now("n1", [], [TENSOR])) as writer:
            result = scan(where, [TENSOR], preview=writer, open_check=False)
            writer.finish(result.as_dict())
        assert Scanned(result, path)["a.pt"].service == service


def test_folders_that_stay_around_a_link_are_not_counted_as_given_back(root: Path):
    write(root / "cache" / "h" / "gone" / "f", 100)
    write(root / "cache" / "h" / "x" / "y" / "f", 100)
    (root / "cache" / "h" / "x" / "link").symlink_to("y")
    found = look(root, CACHE)
    artifact, rows = found.all[0]
    goes = du(root / "cache" / "h" / "gone") + du(root / "cache" / "h" / "x" / "y")
    assert artifact.size_bytes == goes == sum(row.size_bytes for row in rows or [])


def _hard_linked(folder: Path) -> None:
    (folder.parent.parent / "elsewhere").hardlink_to(folder / "f")


def _model_inside(folder: Path) -> None:
    write(folder / "model" / "config.json")


def test_a_folder_with_something_mounted_in_it_is_kept(root: Path, monkeypatch: pytest.MonkeyPatch):
    write(root / "cache" / "h" / "x" / "f")
    monkeypatch.setattr(walking, "mounts", lambda: {str(root / "cache" / "h"): frozenset({"x"})})
    found = look(root, CACHE)
    assert found["h"].state == "kept" and found["h"].why == "Something is mounted in it: x" and found["h"].files == 0


@pytest.mark.parametrize("change, why", [(_hard_linked, "has several names (hard links): f"), (_model_inside, "hub cache: model")])
def test_a_folder_that_cannot_go_as_a_whole_is_kept(root: Path, change, why: str):
    write(root / "cache" / "h" / "f")
    change(root / "cache" / "h")
    found = look(root, CACHE)
    assert found["h"].state == "kept" and why in found["h"].why


# The whole


def test_the_largest_of_each_kind_are_listed_and_all_are_in_the_preview(root: Path):
    for number in range(12):
        write(root / f"{number:02}.pt", 4096 * (number % 6 + 1))
    found = look(root, TENSOR, listed=3)
    assert [one.size_bytes for one in found.result.listed] == [24576, 24576, 20480] and len(found.all) == 12
    assert [one.number for one, _ in found.all] == list(range(1, 13))
    row = found.kind("tensor")
    assert (row["listed"], row["offered"]["count"], row["offered"]["size_bytes"]) == (3, 12, sum(one.size_bytes for one, _ in found.all))
    assert row["offered"]["oldest_ns"] == min(one.mtime_ns for one, _ in found.all)


def test_the_largest_folders_are_those_that_hold_it_themselves(root: Path):
    write(root / "a" / "b" / "c" / "big.bin", 3_000_000)
    write(root / "a" / "small.bin", 5000)
    write(root / "d" / "middle.bin", 900_000)
    paths = [row["path"] for row in look(root, TENSOR).result.largest]
    assert paths[:3] == [str(root), str(root / "a" / "b" / "c"), str(root / "d")] and str(root / "a" / "b") not in paths


def test_a_place_that_is_not_there_or_a_link_is_told_and_the_others_are_looked_into(root: Path, tmp_path: Path):
    write(root / "a.pt")
    (tmp_path / "link").symlink_to(root)
    write(tmp_path / "file")
    places = [Place("scratch", str(path)) for path in (tmp_path / "none", tmp_path / "link", tmp_path / "file", root)]
    found = look(root, TENSOR, places=places)
    assert found.names == ["a.pt"] and found.result.partial
    problems = {Path(row["path"]).name: row["problem"] for row in found.result.places}
    assert problems["none"] == "It is not there" and "a link lies on the way" in problems["link"] and "no folder" in problems["file"]
    assert len(found.result.problems) == 3 and found.result.vanished == [str(tmp_path / "none")]
    assert not look(root, TENSOR, places=[places[0]]).result.partial


def test_what_may_not_be_read_makes_the_scan_partial_and_a_folder_around_it_stays(root: Path, monkeypatch: pytest.MonkeyPatch):
    for path in ("closed/a.pt", "closed2/a.pt", "open/b.pt", "cache/h/closed/f"):
        write(root / path)
    opens = os.open

    def refused(path: str, flags: int, *more: int, dir_fd: int | None = None) -> int:
        if str(path).startswith("closed"):
            raise PermissionError(13, "Permission denied")
        return opens(path, flags, *more, dir_fd=dir_fd)

    monkeypatch.setattr(walking.os, "open", refused)
    found = look(root, TENSOR, CACHE)
    assert found.result.partial and found.names == ["b.pt", "h"] and found["h"].state == "kept"
    assert found.result.problems[-1].startswith("3 folders and files could not be looked at: Permission denied (")


def test_progress_is_told_and_a_scan_can_be_ended(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(walking, "CHECKED_EACH", 10)
    monkeypatch.setattr(scanning, "TOLD_EVERY_S", 0)
    for number in range(35):
        (root / f"{number}.pt").touch()
    told: list[tuple[int, str]] = []
    look(root, TENSOR, progress=lambda files, folder: told.append((files, folder)))
    assert told == [(9, str(root)), (19, str(root)), (29, str(root))]

    def ended() -> None:
        raise InterruptedError

    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(InterruptedError):
        look(root, TENSOR, check=ended)
    assert len(list(Path("/proc/self/fd").iterdir())) == before and not list(root.parent.glob(".*.part"))


def test_what_other_methods_found_is_numbered_and_counted(root: Path):
    write(root / "a.pt")
    release = kind("release", "*", places=("releases",), unit="folder", method="release", offered=False)
    other = Artifact(0, "release", "folder", "/srv/releases/r1", 500, 7, 5, 0, "root", 1, 2, "optional", "An old one")
    found = look(root, TENSOR, release, found=[other])
    assert [(one.number, one.kind) for one, _ in found.all] == [(1, "tensor"), (2, "release")] or [
        (one.number, one.kind) for one, _ in found.all] == [(1, "release"), (2, "tensor")]
    assert found.result.choosable_bytes == 4096 + 500 and found.kind("release")["optional"]["files"] == 7


@pytest.mark.slow
def test_a_folder_of_many_entries_takes_no_memory_for_each(root: Path, tmp_path: Path):
    """One flat folder, all artifacts, and the same as one folder artifact: the largest resident set hardly grows from 2,000 to 100,000 files."""
    code = """
import resource, sys
from pathlib import Path
from ops.artifacts.places import NAMED, Never, Place, Places
from ops.artifacts.preview import Header, PreviewWriter
from ops.artifacts.scan import scan
from tests.ops.artifacts.test_scan import kind
kinds = [kind("dump", "*.bin") if sys.argv[2] == "file" else kind("dump", "flat", unit="folder")]
with PreviewWriter(Path(sys.argv[3]), Header.now("n", [], kinds)) as writer:
    scan(Places([Place("scratch", sys.argv[1])], Never()), kinds, preview=writer, open_check=False, listed=100)
    writer.finish({})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    peaks: dict[tuple[str, int], int] = {}
    (root / "flat").mkdir()
    for count in (2_000, 100_000):
        for number in range(len(list((root / "flat").iterdir())), count):
            (root / "flat" / f"{number:07}.bin").touch()
        for unit in ("file", "folder"):
            ran = subprocess.run([sys.executable, "-c", code, str(root), unit, str(tmp_path / "p.jsonl")], capture_output=True, text=True, check=True)
            peaks[unit, count] = int(ran.stdout)
    assert peaks["file", 100_000] - peaks["file", 2_000] < 8_000 and peaks["folder", 100_000] - peaks["folder", 2_000] < 8_000  # KB
