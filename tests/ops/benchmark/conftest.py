"""The measuring rig for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.paced_server import compile_rig


@pytest.fixture(scope="session")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled paced server."""
    return compile_rig(tmp_path_factory.mktemp("rig"))
