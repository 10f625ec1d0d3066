"""Room that a scan and a purge find on a full disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ops.jobs import reserve, runner
from tests.fakes.node import FakeNode


def full(monkeypatch: pytest.MonkeyPatch, *, bytes_left: int, inodes_left: int = 1000) -> None:
    """As a disk on which so much is left says it; its other numbers are those of this machine."""
    asked = os.statvfs

    def told(path: Path) -> os.statvfs_result:
        state = list(asked(path))
        state[4], state[5], state[7] = bytes_left // state[1], 10**6, inodes_left
        return os.statvfs_result(state)

    monkeypatch.setattr(reserve.os, "statvfs", told)


def test_it_takes_real_room_once_and_lets_it_go_only_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reserve.keep(tmp_path) and reserve.keep(tmp_path)
    kept = reserve.file_in(tmp_path).stat()
    assert kept.st_blocks * 512 >= reserve.BYTES and kept.st_mode & 0o777 == 0o600
    full(monkeypatch, bytes_left=reserve.BYTES)
    assert not reserve.let_go_if_full(tmp_path) and reserve.file_in(tmp_path).exists()
    full(monkeypatch, bytes_left=0)
    assert reserve.let_go_if_full(tmp_path) and not reserve.file_in(tmp_path).exists()
    assert not reserve.let_go_if_full(tmp_path), "there is none any more"


def test_a_disk_without_an_inode_is_full_and_one_with_little_room_gets_no_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reserve.keep(tmp_path)
    full(monkeypatch, bytes_left=reserve.ROOM, inodes_left=0)
    assert reserve.let_go_if_full(tmp_path)
    full(monkeypatch, bytes_left=reserve.ROOM - reserve.BYTES)
    assert not reserve.keep(tmp_path) and not reserve.file_in(tmp_path).exists()


@pytest.mark.parametrize("gives_back", [True, False], ids=["a-purge", "another-job"])
def test_only_a_job_that_gives_room_back_takes_it(node: FakeNode, monkeypatch: pytest.MonkeyPatch, gives_back: bool) -> None:
    order = node.order(seconds=0)
    assert reserve.keep(node.paths.root)
    full(monkeypatch, bytes_left=0)
    monkeypatch.setattr(reserve, "JOBS", frozenset({order.type} if gives_back else ()))
    assert runner.run_here(node.paths, order).state == "succeeded"
    assert reserve.file_in(node.paths.root).exists() is not gives_back
