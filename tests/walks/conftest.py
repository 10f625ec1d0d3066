"""What walks through the whole product begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.walks.practice_stack import PracticeStack, practice_stack


@pytest.fixture
def stack(short_path: Path) -> Iterator[PracticeStack]:
    """Console, agent and a practice service that answers 20 times as fast as the published figures."""
    with practice_stack(short_path, speed=20) as made:
        yield made
