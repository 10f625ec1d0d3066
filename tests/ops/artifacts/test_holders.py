from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ops.artifacts import holders as holding
from ops.artifacts.holders import Holders
from ops.jobs.errors import OpsError

OPEN = "import sys; held = open(sys.argv[1])"
FOLDER = "import os, sys; held = os.open(sys.argv[1], os.O_RDONLY)"
MAPPED = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
descriptor = os.open(sys.argv[1], os.O_RDONLY)
assert libc.mmap(None, 4096, 1, 1, descriptor, 0) not in (None, ctypes.c_void_p(-1).value)
os.close(descriptor)
"""
CWD = "import os, sys; os.chdir(sys.argv[1])"


@contextmanager
def holding_process(code: str, path: Path) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", f"{code}\nprint('ready', flush=True); sys.stdin.read()", str(path)],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        process.communicate(b"")


@pytest.mark.parametrize("code, name", [(OPEN, "file"), (MAPPED, "file"), (OPEN, "a \n\\012 b"), (MAPPED, "a \n\\012 b"), (FOLDER, "folder"),
                                        (CWD, "folder")], ids=["open", "mapped", "open-odd-name", "mapped-odd-name", "folder", "cwd"])
def test_who_holds_a_file_or_folder_is_told(tmp_path: Path, code: str, name: str):
    path = tmp_path / name
    path.mkdir() if name == "folder" else path.write_bytes(b"x" * 5000)
    holders = Holders(fresh_s=0)
    assert holders.pids(path.stat(), str(path)) == []
    with holding_process(code, path) as pid:
        assert holders.pids(path.stat(), str(path)) == [pid]
        assert holders.words([pid]) == f"open in {holders.name(pid)} (pid {pid})" and "python" in holders.name(pid)
        assert holders.told([pid]) == [{"pid": pid, "name": holders.name(pid), "service": ""}]
        if code == MAPPED:  # an overlay hides the inode: the path is enough
            holders.refresh()
            assert holders.seen(0, 0, str(path)) == [pid] and holders.below(str(tmp_path)) == [pid] and holders.below(str(tmp_path)[:-1]) == []
    assert holders.pids(path.stat(), str(path)) == []


def test_a_running_program_is_held(tmp_path: Path):
    program = tmp_path / "sleeper"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    process = subprocess.Popen([program, "60"])
    try:
        assert Holders().pids(program.stat(), str(program)) == [process.pid]
    finally:
        process.kill()
        process.wait()


def test_it_is_looked_again_only_when_the_last_look_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    looks: list[int] = []
    holders = Holders(fresh_s=3600)
    monkeypatch.setattr(Holders, "refresh", lambda self: looks.append(1) or setattr(self, "_looked_at", float("inf")))
    for _ in range(3):
        holders.pids(tmp_path.stat(), str(tmp_path))
    assert len(looks) == 1


def _process(proc: Path, pid: int, *, state: str = "S", flags: int = 0x400000) -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "stat").write_text(f"{pid} (a b) c) {state} 1 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0\n")


def test_processes_that_could_not_be_looked_into_are_counted_unless_they_hold_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _process(tmp_path, 10)
    _process(tmp_path, 11, state="Z")  # ended
    _process(tmp_path, 12, flags=0x208040)  # the kernel's own
    lists = os.listdir

    def refused(path: str) -> list[str]:
        if str(path).endswith("/fd"):
            raise PermissionError(13, "Permission denied")
        return lists(path)

    monkeypatch.setattr(holding.os, "listdir", refused)
    holders = Holders(proc=str(tmp_path))
    assert holders.hidden == 1 and not holders.complete
    assert "1 process of other users could not be looked into" in str(holders.problem)


def test_hidden_processes_are_no_proof_that_nothing_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_text("22 27 0:21 / /proc rw,relatime - proc proc rw,hidepid=invisible\n")
    monkeypatch.setattr(holding.os, "geteuid", lambda: 1000)
    holders = Holders(proc=str(tmp_path))
    assert not holders.complete and "hidepid" in str(holders.problem)


def test_without_proc_nothing_is_said_to_be_closed(tmp_path: Path):
    with pytest.raises(OpsError, match="which files are open"):
        Holders(proc=str(tmp_path / "none")).refresh()


def test_a_service_is_named_where_it_is_known(tmp_path: Path):
    holders = Holders(service_of=lambda pid: "glm" if pid == os.getpid() else "")
    assert holders.told([os.getpid()])[0]["service"] == "glm"


def test_a_descriptor_that_may_not_be_looked_at_hides_none_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As one of a FUSE mount, which answers not even root."""
    with (tmp_path / "closed").open("w") as closed, (tmp_path / "open").open("w") as held:
        assert closed.fileno() < held.fileno()
        stat, denied = os.stat, f"/proc/{os.getpid()}/fd/{closed.fileno()}"

        def look(path: str, **options: bool) -> os.stat_result:
            if path == denied:
                raise PermissionError(13, "Permission denied")
            return stat(path, **options)

        monkeypatch.setattr(holding.os, "stat", look)
        holders = Holders()
        state = os.fstat(held.fileno())
        assert holders.pids(state, held.name) == [os.getpid()] and not holders.complete
