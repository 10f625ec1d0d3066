"""The job `smoke-set`: a service's own smoke questions, and which built-in ones it is not asked, stored as a whole in its record on the node."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ops.agent.config import NodePaths
from ops.environments import guard_list
from ops.jobs import redact
from ops.jobs.errors import BadInput, OpsError
from ops.jobs.pipeline import Context
from ops.records import ServiceRecord
from ops.services import smoke
from ops.services.state import write_file

TESTS_MAX = 50
BYTES_MAX = 256 * 1024  # of all of them as JSON


def set_tests(context: Context) -> str:
    """Params: `tests` (the whole new list of own questions), `without` (names of built-in ones that are not asked), `before` ({"tests", "without"} as
    the person saw them, or null)."""
    name, params = context.the_service.name, context.params
    own = guard_list.own_record(context.paths, name)
    stored = store(context.paths, own, params.get("tests"), params.get("without"), seen=params.get("before"))
    tests, left_out = smoke.suite_of(stored)
    chosen, without = smoke.applicable(tests, stored)
    for one in [*left_out, *without]:
        context.log(f"Not asked: {one.name} ({one.summary})")
    count = len(stored.smoke_tests)
    return f"{count} own {'question' if count == 1 else 'questions'} ({len(own.smoke_tests)} before); {len(chosen)} are asked in all"


def store(paths: NodePaths, own: ServiceRecord, tests: Any, without: Any, *, seen: Any = None) -> ServiceRecord:
    """Makes these the service's questions; gives its record with them. The caller holds the service's lock.

    Raises BadInput for what is no suite, OpsError (kind "changed") if the suite is another one than `seen`, OpsError where the record cannot be
    written. A question that stands in `tests` as it was announced stays as it is, with what was hidden of it.
    """
    shown = announced(own)
    if seen is not None and seen != shown:
        raise OpsError(f"The smoke questions of service `{own.name}` were changed meanwhile", kind="changed",
                       why="Somebody else has set others since they were shown", hint="Look at them as they are now, and change them again")
    check(tests, without)
    chosen = []
    for one in tests:
        if one in shown["tests"]:
            chosen.append(own.smoke_tests[shown["tests"].index(one)])
        elif redact.HIDDEN in json.dumps(one, ensure_ascii=False):
            raise BadInput(f"The question `{one.get('name')}` holds `{redact.HIDDEN}`", hint="Write the text itself",
                           why="That stands for something secret, which only the node knows")
        else:
            chosen.append(one)
    record = replace(own, smoke_tests=chosen, smoke_without=sorted(set(without)))
    if record == own:
        return own
    path = Path(os.path.realpath(paths.announced / f"{own.name}.json"))
    try:
        raw = {**json.loads(path.read_text(encoding="utf-8")), "smoke_tests": record.smoke_tests, "smoke_without": record.smoke_without}
        write_file(path, json.dumps(raw, indent=1, ensure_ascii=False) + "\n", mode=stat.S_IMODE(path.stat().st_mode))
    except (OSError, ValueError) as error:
        raise OpsError(f"`{path}` cannot be written", why=getattr(error, "strerror", None) or str(error)) from error
    return record


def announced(record: ServiceRecord) -> dict[str, Any]:
    """{"tests", "without"} as they leave the node."""
    hidden = redact.hide_in_record({"smoke_tests": record.smoke_tests, "smoke_without": record.smoke_without})
    return {"tests": list(hidden["smoke_tests"]), "without": list(hidden["smoke_without"])}


def check(tests: Any, without: Any) -> None:
    """Raises BadInput for what is no suite: a list of smoke tests, each with a name of its own, and a list of names of built-in ones."""
    if not isinstance(tests, list) or len(tests) > TESTS_MAX:
        raise BadInput(f"A service has a list of own smoke questions, at most {TESTS_MAX}")
    try:
        size = len(json.dumps(tests, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput("Smoke questions must be plain JSON", why=str(error)) from error
    if size > BYTES_MAX:
        raise BadInput(f"The smoke questions are {size:,} bytes long", why=f"A service has at most {BYTES_MAX:,} bytes of them")
    names: set[str] = set()
    for raw in tests:
        test = smoke.SmokeTest.from_dict(raw)
        if test.name in names:
            raise BadInput(f"Two smoke questions are named `{test.name}`", hint="Give each a name of its own")
        names.add(test.name)
    built_in = [test.name for test in smoke.SUITE]
    if not isinstance(without, list | tuple) or not all(isinstance(name, str) for name in without):
        raise BadInput("What is left out must be a list of names")
    if unknown := _unknown(without, built_in):
        raise BadInput(f"There is no built-in smoke question `{unknown[:60]}`", hint=f"Built-in are {', '.join(built_in)}")


def _unknown(names: Sequence[str], known: Sequence[str]) -> str | None:
    return next((name for name in names if name not in known), None)
