"""A node needs neither Django nor the console."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def modules() -> list[str]:
    """Every module of ops, but the practice box's stack: that is the source of packages, not of ours."""
    import ops

    return sorted(found.name for found in pkgutil.walk_packages(ops.__path__, "ops.")
                  if not found.name.startswith("ops.practice.stack") and not found.name.endswith("__main__"))


def alone(program: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO", "ROUNDHOUSE"))}
    return subprocess.run([sys.executable, "-c", f"import sys; sys.modules['django'] = None; sys.modules['dashboard'] = None; {program}"],
                          cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)


def test_the_agents_tasks_import_without_django_and_without_a_node() -> None:
    done = alone("import ops.agent.tasks; print('imported')")
    assert (done.stdout, done.stderr) == ("imported\n", "")


def test_every_module_of_ops_imports_without_django() -> None:
    done = alone("import importlib; [importlib.import_module(name) for name in " + repr(modules()) + "]")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["ops.jobs.runner", "ops.jobs.reconcile", "ops.jobs.pipeline"])
def test_who_runs_a_job_knows_no_redis_and_no_celery(module: str) -> None:
    done = alone(f"sys.modules['redis'] = None; sys.modules['celery'] = None; import {module}")
    assert done.returncode == 0, done.stderr
