from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.artifacts import walk as walking
from ops.artifacts.walk import Frame, walk


class Seen:
    """A visitor that notes what it is told."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: list[str] = []
        self.left: list[str] = []
        self.mounts: list[str] = []
        self.problems: list[tuple[str, str]] = []
        self.descriptors = 0

    def enter(self, frame: Frame) -> bool:
        self.descriptors = max(self.descriptors, len(list(Path("/proc/self/fd").iterdir())))
        return frame.name != "zone"

    def file(self, frame: Frame, name: str, state: os.stat_result) -> None:
        self.files.append(os.path.relpath(f"{frame.path}/{name}", self.root))

    def leave(self, frame: Frame) -> None:
        self.left.append(os.path.relpath(frame.path, self.root))

    def mount(self, frame: Frame, name: str) -> None:
        self.mounts.append(name)

    def unreadable(self, path: str, error: OSError, frame: Frame | None) -> None:
        self.problems.append((os.path.relpath(path, self.root), error.strerror or ""))


def seen(root: Path) -> Seen:
    visitor = Seen(root)
    walk(str(root), visitor)
    return visitor


@pytest.fixture
def pit(tmp_path: Path) -> Iterator[Path]:
    """A folder that may become deeper than Python's own rmtree gets down to."""
    (tmp_path / "pit").mkdir()
    yield tmp_path / "pit"
    subprocess.run(["rm", "-rf", tmp_path / "pit"], check=True)


def deep(root: Path, levels: int, name: str = "d") -> None:
    """A folder in a folder ..., each with a file and an empty folder beside."""
    descriptor = os.open(root, os.O_RDONLY)
    for _ in range(levels):
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
        os.mkdir("beside", dir_fd=descriptor)
        os.mkdir(name, dir_fd=descriptor)
        below = os.open(name, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)


def test_every_file_is_told_once_and_every_folder_after_what_lies_in_it(tmp_path: Path):
    for path in ("a/b/one", "a/two", "three", "zone/secret", "a/-rf\n\udcff"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    found = seen(tmp_path)
    assert sorted(found.files) == ["a/-rf\n\udcff", "a/b/one", "a/two", "three"]
    assert found.left == ["a/b", "a", "."] and found.problems == []


def test_links_are_told_as_files_and_never_followed(tmp_path: Path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "victim").touch()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "folder").symlink_to(tmp_path / "outside")
    assert seen(tmp_path / "root").files == ["folder"]
    (tmp_path / "link").symlink_to(tmp_path)
    for root in (tmp_path / "root" / "folder", tmp_path / "link" / "root"):
        with pytest.raises(OSError):
            walk(str(root), Seen(root))


def test_deep_folders_take_no_more_descriptors_and_no_recursion(pit: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(walking, "OPEN_MOST", 8)
    deep(pit, 300)
    before, limit = len(list(Path("/proc/self/fd").iterdir())), sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 100)
    try:
        found = seen(pit)
    finally:
        sys.setrecursionlimit(limit)
    assert len(found.files) == 300 and len(found.left) == 601 and found.problems == []
    assert found.descriptors - before < 2 * 8 + 8
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_what_lies_deeper_than_any_path_can_name_is_told_and_not_entered(pit: Path):
    deep(pit, 40, name="n" * 200)
    found = seen(pit)
    assert 15 < len(found.files) <= 21 and [why for _, why in found.problems] == ["File name too long"]


def test_a_folder_swapped_for_a_link_while_walking_gives_no_victim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "victim").touch()
    (tmp_path / "root" / "dump").mkdir(parents=True)
    (tmp_path / "root" / "other").mkdir()
    (tmp_path / "root" / "other" / "file").touch()
    opens = os.open

    def swapped(path: str, flags: int, *more: int, dir_fd: int | None = None) -> int:
        if path == "dump" and not (tmp_path / "root" / "dump").is_symlink():
            (tmp_path / "root" / "dump").rename(tmp_path / "aside")
            (tmp_path / "root" / "dump").symlink_to(tmp_path / "outside")
        return opens(path, flags, *more, dir_fd=dir_fd)

    monkeypatch.setattr(walking.os, "open", swapped)
    found = seen(tmp_path / "root")
    assert found.files == ["other/file"] and found.problems == []


def test_a_folder_moved_away_while_it_is_walked_ends_only_its_own_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(walking, "OPEN_MOST", 1)
    for path in ("root/a/b/c/x", "root/a/b/c2/x", "root/a/b/c3/x", "root/z"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "aside").mkdir()

    class Moving(Seen):
        moved = ""

        def enter(self, frame: Frame) -> bool:
            if frame.name.startswith("c") and not self.moved:
                self.moved = frame.name
                Path(frame.path).rename(tmp_path / "aside" / frame.name)
            return True

    found = Moving(tmp_path / "root")
    walk(str(tmp_path / "root"), found)
    assert "z" in found.files and f"a/b/{found.moved}/x" in found.files
    assert found.problems[0] == ("a/b", "A folder in it was moved away while it was looked at")


def test_what_may_not_be_read_is_told_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "closed").mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "file").touch()
    opens = os.open

    def refused(path: str, flags: int, *more: int, dir_fd: int | None = None) -> int:
        if path == "closed":
            raise PermissionError(13, "Permission denied")
        return opens(path, flags, *more, dir_fd=dir_fd)

    monkeypatch.setattr(walking.os, "open", refused)
    found = seen(tmp_path)
    assert found.files == ["open/file"] and found.problems == [("closed", "Permission denied")]


def test_another_file_system_is_not_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted" / "file").touch()
    inode, states = (tmp_path / "mounted").stat().st_ino, os.fstat

    def elsewhere(descriptor: int) -> os.stat_result:
        state = states(descriptor)
        return os.stat_result((*state[:2], state.st_dev + 1, *state[3:])) if state.st_ino == inode else state

    monkeypatch.setattr(walking.os, "fstat", elsewhere)
    found = seen(tmp_path)
    assert found.files == [] and found.mounts == ["mounted"]


def test_what_is_bound_from_the_same_file_system_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for path in ("a b/folder/victim", "a b/file", "a b/mine", "other/file"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    escaped = str(tmp_path / "a b").replace(" ", "\\040")
    table = tmp_path.parent / f"{tmp_path.name}.mountinfo"
    table.write_text("".join(f"36 35 98:0 /x {escaped}/{name} rw shared:1 - ext4 /dev/vda rw\n" for name in ("folder", "file")))
    read = walking.mounts
    assert "proc" in read()["/"]
    monkeypatch.setattr(walking, "mounts", lambda: read(str(table)))
    found = seen(tmp_path)
    assert sorted(found.files) == ["a b/mine", "other/file"] and sorted(found.mounts) == ["file", "folder"]


def test_a_walk_can_be_ended_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(walking, "CHECKED_EACH", 3)
    for number in range(20):
        (tmp_path / str(number)).touch()

    def ended() -> None:
        raise InterruptedError

    before = len(list(Path("/proc/self/fd").iterdir()))
    found = Seen(tmp_path)
    with pytest.raises(InterruptedError):
        walk(str(tmp_path), found, check=ended)
    assert len(found.files) == 2 and len(list(Path("/proc/self/fd").iterdir())) == before
