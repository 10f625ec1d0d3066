"""The layout holds: who may import whom, how files are named, and that nothing here knows the machine that it was written on."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
BANNED_NAMES = {"utils.py", "util.py", "helpers.py", "helper.py", "misc.py", "common.py"}
# The field's own word: vLLM services have a manager (process or systemd).
ALLOWED_MANAGERS = {"ops/services/manager.py"}


def tracked(*patterns: str) -> list[Path]:
    """Files that git knows or would take, without those that it ignores."""
    done = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns], cwd=REPOSITORY,
                          capture_output=True, text=True, check=True)
    return [path for name in done.stdout.split("\0") if name and (path := REPOSITORY / name).is_file()]


@cache
def imports(path: Path) -> list[tuple[int, str]]:
    """Every module that a file imports, also inside functions: (line, dotted name with what is taken from it)."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            for name in node.names:
                yield node.lineno, f"{node.module}.{name.name}"


def found_in(folder: str, *banned: str) -> list[str]:
    """`file:line module` of each import of a banned module (or of something below it)."""
    return [f"{path.relative_to(REPOSITORY)}:{line} {module}" for path in tracked(f"{folder}/*.py", folder)
            if path.suffix == ".py" and "ops/practice/stack" not in str(path)
            for line, module in imports(path) if any(f"{module}.".startswith(f"{name}.") for name in banned)]


def test_ops_imports_neither_django_nor_the_dashboard() -> None:
    assert tracked("ops/*.py")
    assert found_in("ops", "django", "dashboard") == []


def test_an_agent_runs_without_django() -> None:
    """`sys.modules["django"] = None` makes an import fail; asking whether it is loaded would mislead, since kombu loads it where installed."""
    program = "import sys; sys.modules['django'] = None; import ops.agent.tasks, ops.jobs.runner, ops.jobs.kinds, ops.redeploy, ops.agent.companion"
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], cwd=REPOSITORY, env=environment, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr


def test_only_the_agent_knows_celery_on_the_node_and_only_streams_knows_redis() -> None:
    known = {"celery": ("ops/agent/celery.py", "ops/agent/tasks.py"), "kombu": ("ops/agent/celery.py", "ops/agent/tasks.py")}
    for module, files in known.items():
        assert [one for one in found_in("ops", module) if not one.startswith(files)] == []
    assert [one for one in found_in("ops", "redis") if not one.startswith(("ops/jobs/streams.py", "ops/agent/"))] == []


def test_views_ask_for_jobs_and_never_record_them() -> None:
    assert found_in("dashboard/views", "dashboard.recorder", "dashboard.reaper", "dashboard.launcher", "celery") == []


def test_the_recorder_knows_no_pages() -> None:
    assert found_in("dashboard/recorder.py", "dashboard.views", "dashboard.forms", "dashboard.charts", "django.http", "django.shortcuts") == []


def test_nothing_but_commands_imports_the_launcher() -> None:
    users = {one.split(":")[0] for one in found_in("dashboard", "dashboard.launcher")}
    assert {user for user in users if not user.startswith("dashboard/launcher/")} <= {
        "dashboard/management/commands/up.py", "dashboard/management/commands/demo_job.py", "dashboard/management/commands/sign_in_link.py"}


@pytest.mark.parametrize("path", ["dashboard/charts.py", "ops/benchmark/metrics.py"])
def test_pure_modules_take_data_and_give_data(path: str) -> None:
    """No input, no output, no clock, no database: the modules are named that such a file has no use for."""
    assert (REPOSITORY / path).exists()
    banned = ("os", "pathlib", "socket", "subprocess", "time", "httpx", "redis", "celery", "django.db", "django.conf", "django.http",
              "dashboard.models", "ops.agent", "ops.jobs.streams", "random")
    assert found_in(path, *banned) == []


def test_file_names_say_the_subject() -> None:
    names = {str(path.relative_to(REPOSITORY)): path.name for path in tracked("ops", "dashboard", "tests", "benchmarks", "static")}
    assert [path for path, name in names.items() if name in BANNED_NAMES] == []
    assert [path for path, name in names.items() if name in {"manager.py", "managers.py"}] == sorted(ALLOWED_MANAGERS)


def test_every_module_postpones_annotations_and_says_what_it_is_for() -> None:
    wrong = []
    for path in tracked("ops/*.py", "dashboard/*.py", "manage.py", ".ci/*.py"):
        text = path.read_text()
        if "ops/practice/stack/" in str(path) or "/migrations/" in str(path) or not text.strip():
            continue
        tree = ast.parse(text)
        future = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
        if not ast.get_docstring(tree) or not (future or len(tree.body) == 1):
            wrong.append(str(path.relative_to(REPOSITORY)))
    assert wrong == []


def test_nothing_knows_the_machine_that_it_was_written_on() -> None:
    """No file names a path of ours, nor a folder beside the repository. (Spelled in pieces, so that this file is not found.)"""
    banned = ["/wo" + "rk/", "/ro" + "ot/", "../sha" + "red", "/home/run" + "ner"]
    found = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # a picture
        found += [f"{path.relative_to(REPOSITORY)}: {word}" for word in banned if word in text]
    assert found == []


def test_a_forbidden_import_is_caught_by_ruff() -> None:
    """TID251 stands guard while one types; the tests above stand guard over it."""
    def codes(name: str) -> str:
        return subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise", "--stdin-filename", name, "-"],
                              input="from django.db import models\n\nfrom dashboard import dispatch\n\nprint(models, dispatch)\n", cwd=REPOSITORY,
                              capture_output=True, text=True, check=False).stdout

    assert codes("ops/jobs/bad.py").count("TID251") == 2
    assert "TID251" not in codes("dashboard/good.py")
