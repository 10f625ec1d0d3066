"""Redeploys on a practice box, run on the node itself without the console: what they change, and how they come back from a failure."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ops.agent.config import NodePaths
from ops.environments import guards, integrity, packages, patches, pruning, releases
from ops.jobs import claim, runner
from ops.jobs.envelope import Envelope
from ops.jobs.events import EventType, JobState
from ops.jobs.pipeline import Outcome
from ops.practice import box, leftovers
from ops.records import ServiceRecord
from ops.services import launch
from ops.services.manager import manager_for
from tests.fakes.wheels import make_wheel
from tests.walks.practice_stack import free_port, wait_until

pytestmark = pytest.mark.timeout(240)


@dataclass
class PracticeNode:
    paths: NodePaths
    root: Path
    record: ServiceRecord

    def run(self, type: str, *, suite: list[dict[str, Any]] | None = None, plan: dict[str, Any] | None = None,
            **params: Any) -> tuple[Outcome, list[tuple[str, dict[str, Any]]]]:
        """Runs a job in this process; gives how it ended and all that it said. `plan`: the one that was confirmed."""
        from ops.jobs.kinds import KINDS

        if self.record.in_place and type in ("redeploy", "rollback", "restart"):
            params |= {"in_place": True, "environment": str(releases.environment(self.record))}
        said: list[tuple[str, dict[str, Any]]] = []
        locks = sorted(KINDS[type].locks(self.record.name, params))
        snapshot = {"channel": box.channel(self.root).as_dict(), "suite": suite, **({"plan": plan} if plan else {})}
        envelope = Envelope.make(type=type, node="practice", service=self.record.as_dict(), params=params, locks=locks,
                                 fence=claim.next_fences(self.paths, locks), snapshot=snapshot, by="test", now=time.time())
        outcome = runner.run_here(self.paths, envelope, on_event=lambda type, data: said.append((type, json.loads(json.dumps(data)))))
        return outcome, said

    @property
    def state(self) -> str:
        return str(manager_for(self.record).status().state)


@pytest.fixture
def node(short_path: Path) -> Iterator[PracticeNode]:
    yield from serving(short_path, in_place=False)


@pytest.fixture
def fixed(short_path: Path) -> Iterator[PracticeNode]:
    """A box whose environment may not move."""
    yield from serving(short_path, in_place=True)


def serving(folder: Path, *, in_place: bool) -> Iterator[PracticeNode]:
    paths = NodePaths(folder / "node").make()
    root = folder / "box"
    made = PracticeNode(paths, root, box.set_up(paths, root, speed=25, port=free_port(), in_place=in_place))
    manager = manager_for(made.record)
    manager.start()
    try:
        wait_until(lambda: made.state == "healthy", 60, "the practice service answers")
        yield made
    finally:
        manager.terminate()
        wait_until(lambda: not manager.pids(), 20, "the practice service ends")


def of(said: list[tuple[str, dict[str, Any]]], type: EventType) -> list[dict[str, Any]]:
    return [data for told, data in said if told == type]


def test_a_redeploy_leaves_a_clean_new_release_and_nothing_of_the_patches(node: PracticeNode) -> None:
    before = releases.current(node.record)
    pid = manager_for(node.record).status().pid
    config = (Path(node.record.model_path) / "config.json").read_bytes()
    outcome, said = node.run("redeploy")
    assert outcome.state == JobState.SUCCEEDED, outcome
    after = releases.current(node.record)
    assert before is not None and after is not None and after != before
    installed = packages.read(after)
    assert installed.version("vllm") == "0.16.0rc2.dev344+practice"
    assert installed.version("flashinfer-python") == installed.version("flashinfer-cubin") == "0.6.4+practice"
    assert integrity.check(after).clean
    assert [result.holds for result in guards.check(node.record)] == [True, True]
    assert (Path(node.record.model_path) / "config.json").read_bytes() == config
    assert [path for artifact_root in node.record.artifact_roots for path in Path(artifact_root).rglob("*.pt")] == []
    assert manager_for(node.record).status().pid != pid
    assert sorted(path.name for path in (node.root / "cores").iterdir()) == sorted(leftovers.CORES)  # what a redeploy is not asked for stays
    assert {path.name for path in (node.root / "shm").iterdir()} > set(leftovers.SEGMENTS)
    [purged] = of(said, EventType.PURGE_RESULT)
    assert [(kind["kind"], kind["deleted"], kind["kept"]) for kind in purged["kinds"]] == [("debug-tensor", 35, 0)]
    assert len(Path(purged["manifest"]["path"]).read_text().splitlines()) >= 35
    report = of(said, EventType.REPORT)[0]
    assert (report["cleanup"]["deleted_count"], report["cleanup"]["kept_count"], len(report["cleanup"]["lines"])) == (35, 0, 35)
    assert 65_000_000 <= report["cleanup"]["freed_bytes"] < 65_500_000
    assert "35 files deleted, 65 MB freed." in report["markdown"] and report["markdown"].count("kimi_dbg_layer") == 35
    assert len(report["reinstall"]["patched"]) == 4
    assert len(list(Path(report["reinstall"]["shelf"]).rglob("*.py"))) == 4
    assert [level["concurrency"] for level in report["benchmark"]["levels"]] == [1, 8, 32, 128]
    assert "PRACTICE" in report["markdown"]
    assert releases.last_good(node.record) == after.name


@pytest.mark.slow
def test_a_purge_of_all_that_is_offered_leaves_what_the_running_service_uses(node: PracticeNode) -> None:
    assert node.run("restart", smoke=False)[0].state == JobState.SUCCEEDED  # a run that began before the segments were made could have made them
    [held] = {path.name for path in (node.root / "shm").iterdir()} - set(leftovers.SEGMENTS)
    outcome, said = node.run("artifact-scan", roots=None, kinds=None)
    assert outcome.state == JobState.SUCCEEDED, outcome
    [scanned] = of(said, EventType.ARTIFACTS_SCANNED)
    offered = {kind["kind"]: kind["offered"]["count"] for kind in scanned["kinds"] if kind["offered"]["count"]}
    assert offered == {"debug-tensor": 35, "core-dump": 1, "compile-cache": 3, "flashinfer-jit": 1, "shared-memory": 4, "ipc-socket": 2}
    outcome, said = node.run("purge", scan=scanned["scan"], digest=scanned["preview"]["digest"], services=[node.record.name],
                             choice={"kinds": list(offered), "numbers": [], "without": []})
    assert outcome.state == JobState.SUCCEEDED, outcome
    assert of(said, EventType.PURGE_RESULT)[0]["freed_bytes"] == scanned["offered_bytes"] and node.state == "healthy"
    assert [path.name for path in (node.root / "cores").iterdir()] == [leftovers.CORES[1]]
    assert [path.name for path in (node.root / "shm").iterdir()] == [held]
    assert [path.name for path in (node.root / "cache" / "flashinfer").iterdir()] == ["0.6.3"]
    assert len(list((node.root / "cache" / "torch_compile_cache").iterdir())) == 1
    assert list((node.root / "cache").rglob("autotune_configs.json")) and not list((node.root / "tmp").iterdir())


def test_coupling_off_crashes_as_in_the_story_and_rolls_back_by_itself(node: PracticeNode) -> None:
    before = releases.current(node.record)
    outcome, said = node.run("redeploy", coupling=False)
    assert (outcome.state, outcome.reason_kind, outcome.rollback) == (JobState.FAILED, "expected", "done")
    found = of(said, EventType.DIAGNOSIS)[0]
    assert found["fault"] is True
    assert "flashinfer-cubin version (0.6.3" in found["text"]
    assert "0.6.4" in found["fix"] and "flashinfer-cubin" in found["fix"]
    assert found["lines"] - found["line"] > 50  # far above the journal's last line, as it was that night
    assert releases.current(node.record) == before
    assert node.state == "healthy"
    undone = [data["step"] for data in of(said, EventType.STEP_UNDONE) if data["note"]]
    assert undone[-2:] == ["switch", "stop"]
    report = of(said, EventType.REPORT)[0]
    assert report["failure"]["step"] == "warmup"
    assert "Decisive line" in report["markdown"]
    assert report["downtime_s"] > 0


def test_a_failing_smoke_test_rolls_back_too(node: PracticeNode) -> None:
    before = releases.current(node.record)
    impossible = {"name": "factual", "kind": "factual", "title": "A factual question", "prompt": "What is the capital of France?",
                  "expect": "Canberra"}
    outcome, said = node.run("redeploy", suite=[impossible], sweep=False, purge=False)
    assert (outcome.state, outcome.rollback) == (JobState.FAILED, "done")
    assert "factual" in outcome.reason
    assert releases.current(node.record) == before
    assert node.state == "healthy"
    assert len(of(said, EventType.DOWNTIME_ENDED)) == 2  # once for the new release, once for the way back


def test_a_guard_that_does_not_hold_stops_before_the_service_is_touched(node: PracticeNode) -> None:
    path = Path(node.record.model_path) / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["kv_cache_scheme"] = {"type": "float", "num_bits": 8}
    path.write_text(json.dumps(config))
    pid = manager_for(node.record).status().pid
    outcome, said = node.run("redeploy")
    assert outcome.state == JobState.FAILED
    assert outcome.rollback == "none"
    assert manager_for(node.record).status().pid == pid
    assert not of(said, EventType.DOWNTIME_STARTED)
    assert [finding["level"] for finding in of(said, EventType.FINDING) if "kv_cache_scheme" in str(finding)].count("stop") >= 1


def test_restart_and_reset_bring_the_service_back(node: PracticeNode) -> None:
    pid = manager_for(node.record).status().pid
    outcome, _ = node.run("restart")
    assert outcome.state == JobState.SUCCEEDED, outcome
    assert manager_for(node.record).status().pid != pid
    assert node.run("redeploy", smoke=False, sweep=False, purge=False)[0].state == JobState.SUCCEEDED
    outcome, _ = node.run("practice-reset")
    assert outcome.state == JobState.SUCCEEDED, outcome
    current = releases.current(node.record)
    assert current is not None
    assert packages.read(current).version("vllm") == "0.16.0rc2.dev313+practice"
    assert len(integrity.check(current).changed) == 4
    outcome, said = node.run("integrity")
    changed = of(said, EventType.INTEGRITY)[0]["changed"]
    assert len(changed) == 4
    assert all(file["diff"].startswith("--- ") and file["added"] > 0 for file in changed)  # what was edited is shown line by line
    assert any(file["debris"] for file in changed)


QUICK = {"smoke": False, "sweep": False, "purge": False}


def broken_wheel(node: PracticeNode, number: int, *, at_start: bool) -> None:
    """A newer vllm in the channel: one that cannot be imported, or one that everything but a real start is content with."""
    late = """\
import sys

def main():
    if "--version" in sys.argv:
        print("0.16.0rc2.dev{n}+practice")
    elif "--help" in " ".join(sys.argv):
        print("usage: vllm serve MODEL")
    else:
        raise ImportError("libcudart.so.13: cannot open shared object file: No such file or directory")
"""
    make_wheel(node.root / "wheelhouse", "vllm", f"0.16.0rc2.dev{number}+practice", entry_points="[console_scripts]\nvllm = vllm:main\n",
               files={"vllm/__init__.py": late.format(n=number) if at_start else "import no_such_module\n"})


def test_a_release_that_cannot_be_imported_never_stops_the_service(node: PracticeNode) -> None:
    broken_wheel(node, 900, at_start=False)
    before, pid = releases.current(node.record), manager_for(node.record).status().pid
    outcome, said = node.run("redeploy", **QUICK)
    assert (outcome.state, outcome.rollback) == (JobState.FAILED, "done")  # what was built was taken away
    assert "no_such_module" in outcome.reason
    assert not of(said, EventType.DOWNTIME_STARTED)
    assert (releases.current(node.record), manager_for(node.record).status().pid, node.state) == (before, pid, "healthy")
    assert [found.name for found in releases.listing(node.record)] == [before.name if before else ""]


@pytest.mark.slow  # in every run the crash of the story does
def test_a_release_that_only_fails_at_its_start_rolls_back_by_itself(node: PracticeNode) -> None:
    broken_wheel(node, 900, at_start=True)
    before = releases.current(node.record)
    outcome, said = node.run("redeploy", **QUICK)
    assert (outcome.state, outcome.reason_kind, outcome.rollback) == (JobState.FAILED, "expected", "done")
    assert "libcudart.so.13" in str(of(said, EventType.DIAGNOSIS)[0])
    assert (releases.current(node.record), node.state) == (before, "healthy")
    assert len(releases.listing(node.record)) == 2  # it passed its verification, so it is kept for a look


def test_restoring_gives_the_same_versions_without_the_edits(node: PracticeNode) -> None:
    before = releases.current(node.record)
    assert before is not None and len(integrity.check(before).changed) == 4
    outcome, said = node.run("redeploy", mode="restore", **QUICK)
    assert outcome.state == JobState.SUCCEEDED, outcome
    after = releases.current(node.record)
    assert after is not None and after != before and packages.read(after).versions() == packages.read(before).versions()
    assert integrity.check(after).clean and len(integrity.check(before).changed) == 4
    installed = "".join(data["text"] for data in of(said, EventType.STEP_LOG) if data["step"] == "build").count(" + ")
    assert installed == len(of(said, EventType.PLAN_MADE)[0]["restore"]) < 3
    assert len(of(said, EventType.SHELF_SAVED)) == 4
    assert "copied from the release before" in of(said, EventType.REPORT)[0]["markdown"]


def test_an_edit_that_comes_back_through_the_cache_is_cleaned_away_and_told(node: PracticeNode) -> None:
    assert node.run("build")[0].state == JobState.SUCCEEDED
    cache = node.paths.root / "uv-cache"
    path = next(path for path in cache.glob("archive-v*/*/torch/__init__.py") if list(path.parents[1].glob("torch-*")))
    path.write_text(path.read_text() + "LEFTOVER = True\n")
    outcome, said = node.run("redeploy", **QUICK)
    assert outcome.state == JobState.SUCCEEDED, outcome
    sentence = "The edit to `torch/__init__.py` came back through uv's cache: `torch` was dropped from it and installed anew"
    assert sentence in [finding["title"] for finding in of(said, EventType.FINDING)]
    report = of(said, EventType.REPORT)[0]
    assert report["reinstall"]["cache_leaks"] == [sentence] and sentence in report["markdown"]
    after = releases.current(node.record)
    assert after is not None and integrity.check(after).clean


def test_build_then_roll_to_it_and_back(node: PracticeNode) -> None:
    """A build stops nothing; a roll back is a stop and a start, whichever way it goes."""
    before, pid = releases.current(node.record), manager_for(node.record).status().pid
    assert before is not None
    outcome, said = node.run("build")
    assert outcome.state == JobState.SUCCEEDED, outcome
    assert (releases.current(node.record), manager_for(node.record).status().pid) == (before, pid)
    built = next(found.name for found in releases.listing(node.record) if not found.is_current)
    for name in (built, before.name):
        outcome, said = node.run("rollback", release=name)
        assert outcome.state == JobState.SUCCEEDED, outcome
        assert [told for told, _ in said if told in (EventType.DOWNTIME_STARTED, EventType.DOWNTIME_ENDED)] == ["downtime.started", "downtime.ended"]
        live = releases.current(node.record)
        assert (live.name if live else None, node.state, releases.last_good(node.record)) == (name, "healthy", name)
        assert [data["moment"] for data in of(said, EventType.FINGERPRINT)] == ["before", "good-start"]
        assert len(of(said, EventType.GUARDS)) == 2  # before the stop, and after the switch
        assert of(said, EventType.REPORT)[0]["markdown"].startswith("# Roll back")
    assert any("vllm" in words for words in of(said, EventType.FINGERPRINT)[1]["changed"])
    assert node.run("rollback", release=before.name)[0].reason == f"The release `{before.name}` is in use already"
    assert node.run("remove-release", release=before.name)[0].state == JobState.FAILED
    assert node.run("remove-release", release=built)[0].state == JobState.SUCCEEDED
    assert [found.name for found in releases.listing(node.record)] == [before.name]


def test_guards_are_applied_and_a_roll_back_is_stopped_by_one_that_fails(node: PracticeNode) -> None:
    assert node.run("build")[0].state == JobState.SUCCEEDED
    built = next(found.name for found in releases.listing(node.record) if not found.is_current)
    path = Path(node.record.model_path) / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["kv_cache_scheme"] = {"type": "float", "num_bits": 8}
    path.write_text(json.dumps(config))
    outcome, said = node.run("rollback", release=built)
    assert outcome.state == JobState.FAILED and "kv_cache_scheme" in outcome.reason and not of(said, EventType.DOWNTIME_STARTED)
    outcome, said = node.run("guards-apply", guards=None)
    assert outcome.state == JobState.SUCCEEDED, outcome
    (told,) = of(said, EventType.GUARDS)
    assert all(result["holds"] for result in told["results"]) and "kv_cache_scheme" in told["applied"][0]["diff"]
    assert node.run("rollback", release=built, smoke=False)[0].state == JobState.SUCCEEDED


@pytest.mark.slow
def test_shelved_patches_are_forgotten(node: PracticeNode) -> None:
    assert node.run("redeploy", **QUICK)[0].state == JobState.SUCCEEDED
    entries = patches.shelf(node.record)
    chosen = [{"folder": entry["folder"], "path": entry["path"]} for entry in entries][:2]
    outcome, said = node.run("shelf-forget", entries=chosen)
    assert outcome.state == JobState.SUCCEEDED, outcome
    assert of(said, EventType.SHELF_FORGOTTEN) == chosen
    outcome, _ = node.run("shelf-forget", entries=[{"folder": "../..", "path": "state.json"}])
    assert outcome.state == JobState.FAILED and (node.record.folder / "state.json").exists()


@pytest.mark.slow
def test_releases_over_the_limit_go_at_the_end_of_a_redeploy(node: PracticeNode) -> None:
    node.record.keep_releases = 2
    launch.write(node.record)
    (node.paths.announced / f"{node.record.name}.json").write_text(json.dumps(node.record.as_dict()))
    first = releases.current(node.record)
    for _ in range(2):
        assert node.run("redeploy", **QUICK)[0].state == JobState.SUCCEEDED
    outcome, said = node.run("redeploy", **QUICK)
    assert outcome.state == JobState.SUCCEEDED, outcome
    listed = releases.listing(node.record)
    assert len(listed) == 2 and first is not None and first.name not in [found.name for found in listed]
    assert listed[0].is_current and listed[0].is_last_good
    assert "Old releases removed" in of(said, EventType.REPORT)[0]["markdown"]


def test_an_environment_is_changed_in_place_and_comes_back_offline(fixed: PracticeNode) -> None:
    environment = releases.environment(fixed.record)
    assert environment is not None
    before = integrity.check(environment).digest()
    outcome, said = fixed.run("redeploy", **QUICK)
    assert outcome.state == JobState.SUCCEEDED, outcome
    steps = [data["step"] for data in of(said, EventType.STEP_STARTED)]
    assert steps.index("fetch") < steps.index("shelf") < steps.index("backup") < steps.index("stop") < steps.index("install") < steps.index("verify")
    assert packages.read(environment).version("vllm") == "0.16.0rc2.dev344+practice" and integrity.check(environment).clean
    assert len(of(said, EventType.SHELF_SAVED)) == 4
    assert "changed in place" in of(said, EventType.REPORT)[0]["markdown"]
    shutil.rmtree(fixed.root / "wheelhouse")  # nothing is fetched and nothing is built on the way back
    shutil.rmtree(fixed.paths.root / "uv-cache")
    outcome, _ = fixed.run("rollback", release="adopted")
    assert outcome.state == JobState.SUCCEEDED, outcome
    assert fixed.state == "healthy" and integrity.check(environment).digest() == before
    assert packages.read(environment).version("vllm") == "0.16.0rc2.dev313+practice"


@pytest.mark.slow
def test_an_environment_changed_in_place_that_fails_at_its_start_comes_back_by_itself(fixed: PracticeNode) -> None:
    broken_wheel(fixed, 900, at_start=True)
    environment = releases.environment(fixed.record)
    assert environment is not None
    before = integrity.check(environment).digest()
    outcome, _ = fixed.run("redeploy", **QUICK)
    assert (outcome.state, outcome.rollback) == (JobState.FAILED, "done"), outcome
    assert fixed.state == "healthy" and integrity.check(environment).digest() == before
    assert [found.name for found in releases.listing(fixed.record)] == ["adopted"]
    assert sorted(path.name for path in environment.parent.glob("environment*")) == ["environment"]


@pytest.mark.slow
def test_no_way_back_needs_a_second_yes(fixed: PracticeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    from ops.environments import plan

    real = plan.make

    def without_room(*arguments: Any, **options: Any) -> plan.Plan:
        return dataclasses.replace(real(*arguments, **options), rollback={"possible": False, "why": "There is no room", "backup": None,
                                                                          "backup_bytes": 1})

    monkeypatch.setattr(plan, "make", without_room)
    pid = manager_for(fixed.record).status().pid
    outcome, said = fixed.run("redeploy", **QUICK)
    assert (outcome.state, outcome.reason) == (JobState.FAILED, "There would be no way back")
    assert manager_for(fixed.record).status().pid == pid and not of(said, EventType.DOWNTIME_STARTED)
    outcome, _ = fixed.run("redeploy", accept_no_rollback=True, **QUICK)
    assert outcome.state == JobState.SUCCEEDED, outcome
    assert [found.kind for found in releases.listing(fixed.record)] == ["in-place"]


def other_release(node: PracticeNode) -> releases.Release:
    assert node.run("build")[0].state == JobState.SUCCEEDED
    return next(found for found in releases.listing(node.record) if not found.is_current)


def test_a_release_that_lost_files_is_not_rolled_to_while_another_one_serves(node: PracticeNode) -> None:
    built, pid = other_release(node), manager_for(node.record).status().pid
    library = packages.site_packages(built.path)[0]
    (library / "vllm" / "version.py").write_text("# edited since\n" + (library / "vllm" / "version.py").read_text())
    lost = library / "vllm" / "v1" / "core" / "scheduler.py"
    content = lost.read_bytes()
    lost.unlink()
    outcome, said = node.run("rollback", release=built.name, smoke=False)
    assert (outcome.state, outcome.reason_kind, outcome.rollback) == (JobState.FAILED, "expected", "none") and "has lost 1 file" in outcome.reason
    assert not of(said, EventType.DOWNTIME_STARTED) and manager_for(node.record).status().pid == pid
    lost.write_bytes(content)
    outcome, said = node.run("rollback", release=built.name, smoke=False)  # an edit is told, and goes along
    assert outcome.state == JobState.SUCCEEDED, outcome
    assert any("is as it was when it was verified: 1 file" in found["title"] for found in of(said, EventType.FINDING))


@pytest.mark.slow
def test_a_roll_back_leaves_a_release_that_is_damaged_or_whose_edits_cannot_be_saved(node: PracticeNode) -> None:
    built, damaged = other_release(node), releases.current(node.record)
    assert damaged is not None
    (node.record.folder / "shelf").write_text("in the way")
    outcome, said = node.run("rollback", release=built.name, smoke=False)
    assert outcome.state == JobState.SUCCEEDED, outcome
    assert any("are not on the shelf" in found["title"] for found in of(said, EventType.FINDING))
    assert node.run("rollback", release=damaged.name, smoke=False)[0].state == JobState.SUCCEEDED
    shutil.rmtree(damaged / "lib")
    outcome, said = node.run("rollback", release=built.name, smoke=False)
    assert outcome.state == JobState.SUCCEEDED, outcome
    assert (node.state, releases.current(node.record)) == ("healthy", built.path)
    outcome, _ = node.run("rollback", release=damaged.name)
    assert outcome.state == JobState.FAILED and outcome.rollback == "none" and node.state == "healthy"


@pytest.mark.slow
def test_a_redeploy_replaces_a_release_of_which_little_is_left(node: PracticeNode) -> None:
    live = releases.current(node.record)
    assert live is not None
    shutil.rmtree(live / "lib")
    outcome, _ = node.run("redeploy", **QUICK)
    assert outcome.state == JobState.SUCCEEDED, outcome
    current = releases.current(node.record)
    assert current is not None and integrity.check(current).clean and node.state == "healthy"


@pytest.mark.slow
def test_an_environment_in_place_that_is_gone_comes_back_from_its_copy(fixed: PracticeNode) -> None:
    environment = releases.environment(fixed.record)
    assert environment is not None
    assert fixed.run("redeploy", **QUICK)[0].state == JobState.SUCCEEDED
    shutil.rmtree(environment)
    outcome, _ = fixed.run("rollback", release="adopted", smoke=False)
    assert outcome.state == JobState.SUCCEEDED, outcome
    assert fixed.state == "healthy" and packages.read(environment).version("vllm") == "0.16.0rc2.dev313+practice"


@pytest.mark.slow
def test_an_old_release_that_cannot_be_removed_does_not_cost_the_new_one(node: PracticeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any, **options: Any) -> list[str]:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(pruning, "prune", refused)
    outcome, _ = node.run("redeploy", **QUICK)
    assert (outcome.state, outcome.rollback) == (JobState.PARTIAL, "none"), outcome
    live = releases.current(node.record)
    assert live is not None and live.name == releases.last_good(node.record) and node.state == "healthy"


@pytest.mark.slow
def test_a_recipe_is_saved_by_a_job(node: PracticeNode) -> None:
    assert node.run("redeploy", **QUICK)[0].state == JobState.SUCCEEDED
    outcome, said = node.run("recipe", label="the good one")
    assert outcome.state == JobState.SUCCEEDED, outcome
    (told,) = of(said, EventType.RECIPE)
    saved = json.loads((node.record.folder / "recipes" / told["name"]).read_text())
    assert saved == told["recipe"] and saved["label"] == "the good one"
    assert node.run("recipe", label="x", release="20200101-000000-none")[0].reason_kind == "expected"


@pytest.mark.slow
def test_a_restart_in_place_locks_the_environment(fixed: PracticeNode) -> None:
    from ops.jobs.errors import Refused
    from ops.jobs.kinds import KINDS

    assert fixed.run("restart", smoke=False)[0].state == JobState.SUCCEEDED
    locks = KINDS["restart"].locks(fixed.record.name, {})
    envelope = Envelope.make(type="restart", node="practice", service=fixed.record.as_dict(), params={}, locks=locks,
                             fence=claim.next_fences(fixed.paths, locks), by="test", now=time.time())
    with pytest.raises(Refused, match="does not lock its environment"):
        runner.run_here(fixed.paths, envelope)
