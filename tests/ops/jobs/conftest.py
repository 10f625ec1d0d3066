"""A node with the test kinds, in this process too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.jobs import kinds, reconcile, runner
from tests.fakes import job_kinds
from tests.fakes.node import FakeNode


@pytest.fixture
def node(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNode]:
    """A node whose runners know the test kinds; nothing of it is left afterwards."""
    monkeypatch.setenv("ROUNDHOUSE_NODE_STATE", str(short_path))
    monkeypatch.setattr(kinds, "KINDS", job_kinds.TEST_KINDS)
    monkeypatch.setattr(runner, "COMMAND", [*job_kinds.HERE, "runner"])
    monkeypatch.setattr(reconcile, "COMMAND", [*job_kinds.HERE, "reconcile"])
    made = FakeNode(short_path)
    yield made
    made.close()
