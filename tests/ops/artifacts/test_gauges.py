"""How full the disks are: one gauge a file system, and nothing claimed that is not known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ops.agent.config import NodeConfig, NodePaths
from ops.artifacts import gauges


def test_folders_of_one_file_system_are_one_gauge_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    [told] = gauges.read([(str(tmp_path / "a"), "models"), (str(tmp_path), "leftovers"), (str(tmp_path), "models"), (str(tmp_path / "gone"), "x")])
    state = os.statvfs(tmp_path)
    assert told["what"] == "models, leftovers"
    assert told["total_bytes"] == state.f_blocks * state.f_frsize and 0 < told["used_bytes"] <= told["total_bytes"]
    assert told["free_bytes"] <= told["total_bytes"] - told["used_bytes"]
    assert os.stat(told["path"]).st_dev == tmp_path.stat().st_dev  # noqa: PTH116
    assert told["inodes"] is None or 0 <= told["inodes_free"] <= told["inodes"]


def test_what_cannot_be_asked_is_unknown_and_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str) -> os.statvfs_result:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "statvfs", refused)
    told = gauges.read([(str(tmp_path), "models"), ("x\0y", "a name that cannot be")])
    assert [gauge["what"] for gauge in told] == ["models", "a name that cannot be"]
    assert {gauge[name] for gauge in told for name in ("total_bytes", "used_bytes", "free_bytes", "inodes", "inodes_free")} == {None}


def test_the_gauges_of_a_node_are_of_its_state_its_models_and_shared_memory(tmp_path: Path) -> None:
    told = gauges.of_node(NodeConfig(name="n1", model_roots=[str(tmp_path)]), NodePaths(tmp_path))
    assert any("Roundhouse" in gauge["what"] for gauge in told)
    assert len({gauge["path"] for gauge in told}) == len(told)
