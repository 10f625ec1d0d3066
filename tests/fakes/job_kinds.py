"""Kinds of job for tests, and every program of the node with them: `python tests/fakes/job_kinds.py agent|companion|runner|reconcile ...`.

The programs are the real ones; only `ops.jobs.kinds.KINDS` is another table, and each starts the next one through this file.
`params` say what the steps do.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

from ops.agent import companion, supervisor  # noqa: E402
from ops.jobs import commands, kinds, reconcile, runner  # noqa: E402
from ops.jobs.errors import OpsError  # noqa: E402
from ops.jobs.kinds import Kind  # noqa: E402
from ops.jobs.pipeline import Context, Step  # noqa: E402

HERE = [sys.executable, str(Path(__file__).resolve())]


def _first(context: Context) -> str:
    context.facts["first"] = "was here"
    return "first done"


def _undo_first(context: Context) -> str:
    mark = context.paths.root / f"undone-{context.job}"
    if context.params.get("undo_fails"):
        raise OpsError("The undo failed")
    mark.write_text(str(context.facts.get("first")))
    return "put back"


def enough(folder: Path) -> Path:
    """The file that ends step `talk` of the job in `folder`."""
    return folder / "enough"


def _talk(context: Context) -> str:
    """Says something every 50 ms for `seconds`, or until the test has heard enough (`enough`)."""
    end = time.monotonic() + float(context.params.get("seconds", 0.2))
    number = 0
    while time.monotonic() < end and not enough(context.folder).exists():
        number += 1
        context.log(f"line {number}")
        context.sleep(0.05)
    return f"{number} lines"


def _child(context: Context) -> str:
    """Runs a program: `argv` of the params."""
    if argv := context.params.get("argv"):
        commands.run(argv, context=context, on_line=context.log)
    return ""


def _spawn(context: Context) -> str:
    """Starts a service that is not the job's child."""
    from ops.services import spawner

    pid, ticks = spawner.spawn(["/bin/sleep", "120"], env={}, cwd="/", log_path=context.paths.root / "service.log")
    (context.paths.root / "service.pid").write_text(f"{pid} {ticks}")
    return ""


def _steps(context: Context) -> list[Step]:
    if context.params.get("broken") is True or (context.params.get("breaks_undo") and context.facts.get("begun")):
        raise ZeroDivisionError("a bug in the kind itself")
    made = [Step(name="first", title="First", do=_first, undo=_undo_first)]
    if context.params.get("spawn"):
        made.append(Step(name="spawn", title="Spawn", do=_spawn))
    made += [Step(name="child", title="Child", do=_child), Step(name="talk", title="Talk", do=_talk)]
    return made


TEST_KINDS = {
    "restart": Kind(name="restart", title="Test", locks=lambda service, params: [f"service:{params.get('on', 'a')}"], steps=_steps,
                    needs_service=False),
    "redeploy": Kind(name="redeploy", title="Test", locks=lambda service, params: [f"service:{params.get('on', 'a')}"], steps=_steps,
                     needs_service=False),
    "plan": Kind(name="plan", title="Test", locks=lambda service, params: [], steps=_steps, needs_service=False, mutates=False),
}


def use() -> None:
    """Makes this process, and all that it starts, know these kinds only."""
    kinds.KINDS.clear()
    kinds.KINDS.update(TEST_KINDS)
    runner.COMMAND[:] = [*HERE, "runner"]
    reconcile.COMMAND[:] = [*HERE, "reconcile"]
    supervisor.COMMAND[:] = [*HERE, "companion"]


def start_agent(node: str, log: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """The real agent, as the launcher starts it."""
    with log.open("ab") as out:
        return subprocess.Popen([*HERE, "agent", node], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, cwd=REPOSITORY,
                                start_new_session=True)


def main(what: str, *rest: str) -> int:
    use()
    if what == "runner":
        return runner.main(rest[0])
    if what == "reconcile":
        return reconcile.main(rest[0])
    if what == "companion":
        return companion.main(list(rest))
    from ops.agent.celery import app, queue_name

    app.worker_main(["worker", "-Q", queue_name(rest[0]), "--pool", "threads", "--concurrency", "4", "--without-gossip", "--without-mingle",
                     "--loglevel", "INFO"])
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
