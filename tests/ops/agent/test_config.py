"""The state folder is private, and nobody else's folder is made so."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ops.agent.config import NodePaths, make_private
from ops.jobs.errors import BadInput


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("inside", [(), ("lost+found",), ("secret_key", "other"), ("practice",)])
def test_a_folder_that_is_new_or_ours_is_made_private(tmp_path: Path, inside: tuple[str, ...]) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(0o755)
    for name in inside:
        (folder / name).touch()
    make_private(folder)
    make_private(tmp_path / "new" / "state")
    assert mode(folder) == mode(tmp_path / "new" / "state") == 0o700


def test_a_folder_with_other_things_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)
    (home / "letters").touch()
    with pytest.raises(BadInput, match="holds other things"):
        make_private(home)
    assert mode(home) == 0o755
    home.chmod(0o700)
    make_private(home)


def test_the_state_folder_is_private_also_when_the_node_is_there_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("ROUNDHOUSE_NODE_STATE", raising=False)
    before = os.umask(0)
    try:
        paths = NodePaths.default().make()
    finally:
        os.umask(before)
    assert mode(tmp_path / "state") == mode(paths.root) == mode(paths.jobs) == 0o700
