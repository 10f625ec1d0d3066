"""The release in use when it is damaged, or gone: that is when a redeploy is needed most."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest

from ops.environments import integrity, plan, releases
from ops.jobs.errors import BadInput
from ops.jobs.pipeline import Context
from ops.records import Channel, ServiceRecord


def warned(made: plan.Plan) -> bool:
    return any(found["level"] == "warning" and "is no environment any more" in found["title"] for found in made.findings)


@pytest.mark.parametrize("lost", ["lib", "pyvenv.cfg", "everything"])
def test_a_full_plan_can_be_built_whatever_is_left_of_the_release_in_use(record: ServiceRecord, channel: Channel, live: Path, job_context: Context,
                                                                        lost: str) -> None:
    python = plan.interpreter(live)
    for name in [lost] if lost != "everything" else [path.name for path in live.iterdir()]:
        path = live / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    made = plan.make(record, channel)
    assert made.current == live.name
    if lost == "lib":
        assert warned(made) and {package["change"] for package in made.packages} == {"added"}
    assert made.python["path"] == python["path"] and (lost != "lib" or made.python == python)  # as the manifest has it
    release = releases.build(job_context, record, channel, made)
    releases.verify(job_context, record, release, made)
    releases.switch(record, release)
    assert integrity.check(record.current).clean


def test_an_interpreter_that_was_noted_is_taken_only_if_it_runs(record: ServiceRecord, channel: Channel, live: Path) -> None:
    shutil.rmtree(live / "lib")
    manifest = json.loads((live / releases.MANIFEST).read_text())
    for python in ({"path": "/no/such/python", "version": "3.9.1"}, {"path": "bin/python", "version": "3.9.1"}, {"path": 7}, "x", None):
        (live / releases.MANIFEST).write_text(json.dumps({**manifest, "python": python}))
        assert plan.make(record, channel).python == plan.interpreter(None)
    (live / releases.MANIFEST).write_text('{"torn')
    assert plan.make(record, channel).python == plan.interpreter(None)


def test_an_adopted_environment_that_is_gone_is_replaced_by_a_release(record: ServiceRecord, channel: Channel, live: Path, tmp_path: Path) -> None:
    env = tmp_path / "env"
    shutil.copytree(live, env, symlinks=True)
    adopted = dataclasses.replace(record, root=str(tmp_path / "node" / "services" / "other"), name="other", environment=str(env))
    releases.adopt(adopted)
    shutil.rmtree(env)
    assert releases.current(adopted) is None
    made = plan.make(adopted, channel)
    assert warned(made) and made.current == "adopted"


def test_restoring_and_changing_in_place_need_what_is_there(record: ServiceRecord, channel: Channel, live: Path, tmp_path: Path) -> None:
    shutil.rmtree(live / "lib")
    with pytest.raises(BadInput, match="is no Python environment"):
        plan.make(record, channel, mode="restore")
    with pytest.raises(BadInput, match="is no Python environment"):
        plan.make(dataclasses.replace(record, environment=os.path.realpath(live), in_place=True), channel)
