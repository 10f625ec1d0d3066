"""The same node as the jobs' tests have."""

from __future__ import annotations

from tests.ops.jobs.conftest import node

__all__ = ["node"]
