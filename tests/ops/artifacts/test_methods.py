from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ops.artifacts import kinds, methods
from ops.artifacts.conditions import Conditions
from ops.artifacts.found import Artifact, Entry
from ops.artifacts.holders import Holders
from ops.artifacts.methods import measure
from ops.artifacts.places import Never, Place, Places
from ops.environments import releases
from ops.environments.uv import Uv
from ops.jobs.errors import Cancelled, OpsError
from ops.records import ServiceRecord
from ops.services import state
from tests.ops.artifacts.test_purge import in_own_mounts

KINDS = {kind.name: kind for kind in kinds.builtin()}
FAILED, OLD, UV = KINDS["failed-build"], KINDS["old-release"], KINDS["uv-cache"]


@pytest.fixture
def record(tmp_path: Path) -> ServiceRecord:
    root = tmp_path / "node" / "services" / "kimi"
    root.mkdir(parents=True)
    return ServiceRecord(name="kimi", root=str(root), model_path=str(tmp_path / "model"), served_model_name="kimi", base_url="http://127.0.0.1:9")


@pytest.fixture
def of(record: ServiceRecord) -> Conditions:
    made = [Place("releases", str(record.releases), "kimi", "", ("kimi",))]
    return Conditions(None, None, [record], None, places=Places(made, Never()))


def release(record: ServiceRecord, day: int, *, verified: bool = True, unfinished: bool = False, manifest: bool = True) -> Path:
    folder = record.releases / f"202601{day:02}-000000-0.1"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    (folder / "big").write_bytes(b"x" * 100_000)
    if manifest:
        (folder / releases.MANIFEST).write_text(json.dumps({"release": folder.name, "verified": verified, "version": "0.1"}))
    if unfinished:
        (folder / releases.MARKER).write_text("{}")
    return folder


def found(kind: kinds.Kind, record: ServiceRecord, of: Conditions) -> dict[str, Artifact]:
    place = Place("releases", str(record.releases), "kimi", "", ("kimi",))
    return {Path(artifact.path).name: artifact for artifact in methods.find(kind, place, conditions=of)}


def take(artifact: Artifact, kind: kinds.Kind, of: Conditions, said: list[str] | None = None) -> Entry:
    return methods.purge(artifact, kind, conditions=of, log=(said if said is not None else []).append)


@pytest.fixture
def seven(record: ServiceRecord) -> dict[int, Path]:
    """Day 1: old. 2: the last good one. 3: old. 4: the way back (day 5 was in use before). 6: in use. 7: newer, never came into use."""
    made = {day: release(record, day) for day in range(1, 8)}
    releases.switch(record, made[5])
    releases.switch(record, made[6])
    releases.mark_good(record, made[2])
    state.change(record, lambda known: known.update(previous=made[4].name))
    return made


def test_old_releases_are_a_choice_and_the_ways_back_are_kept_with_why(record: ServiceRecord, of: Conditions, seven: dict[int, Path]) -> None:
    listed = found(OLD, record, of)
    assert {int(name[6:8]): artifact.state for name, artifact in listed.items()} == {
        1: "optional", 2: "kept", 3: "optional", 4: "kept", 5: "kept", 6: "kept", 7: "optional"}
    why = {int(name[6:8]): artifact.why for name, artifact in listed.items()}
    assert why[6] == "It is in use"
    assert why[2].startswith("It is the last good one")
    assert why[4].startswith("It was in use before")
    assert why[5].endswith("the way back")
    assert why[1] == OLD.keeping
    one = listed[seven[1].name]
    assert (one.files, one.size_bytes >= 100_000, one.service) == (3, True, "kimi")
    assert found(FAILED, record, of) == {}


def test_a_chosen_old_release_goes_whole_and_the_others_stay(record: ServiceRecord, of: Conditions, seven: dict[int, Path]) -> None:
    artifact, said = found(OLD, record, of)[seven[1].name], list[str]()
    entry = take(artifact, OLD, of, said)
    assert (entry.result, entry.freed_bytes, entry.deleted_files) == ("deleted", artifact.size_bytes, 3)
    assert entry.reason == OLD.leftover, "the manifest says why it was a leftover, not what keeping it was worth"
    assert not seven[1].exists()
    assert all(seven[day].exists() for day in range(2, 8))
    assert seven[1].name in said[-1]
    assert take(artifact, OLD, of).result == "gone"


def test_a_release_that_came_into_use_since_it_was_listed_stays(record: ServiceRecord, of: Conditions, seven: dict[int, Path]) -> None:
    listed = found(OLD, record, of)
    releases.switch(record, seven[3])
    entry = take(listed[seven[3].name], OLD, of)
    assert (entry.result, entry.why) == ("kept", "It is in use")
    assert (seven[3] / "bin" / "python").exists()


def test_a_release_that_was_changed_or_replaced_since_it_was_listed_stays(record: ServiceRecord, of: Conditions, seven: dict[int, Path]) -> None:
    listed = found(OLD, record, of)
    (seven[1] / "edited.py").touch()
    assert take(listed[seven[1].name], OLD, of).why == "It was changed since it was listed"
    seven[3].rename(record.releases / "20260120-000000-0.1")
    release(record, 3)
    assert take(listed[seven[3].name], OLD, of).why == "Another release has its name now"
    assert seven[3].exists()


def test_failed_builds_are_offered_and_what_is_being_built_or_is_not_ours_stays(record: ServiceRecord, of: Conditions) -> None:
    live = release(record, 1)
    releases.switch(record, live)
    made = {"unfinished": release(record, 2, unfinished=True, manifest=False), "unverified": release(record, 3, verified=False),
            "building": release(record, 4, unfinished=True, manifest=False), "foreign": release(record, 5, manifest=False)}
    (record.releases / ".removing-20260101-000000-0.0-ab12cd34").mkdir()
    with (made["building"] / releases.MARKER).open() as marker:
        fcntl.flock(marker, fcntl.LOCK_EX)
        listed = found(FAILED, record, of)
        assert {name: artifact.state for name, artifact in listed.items()} == {
            made["unfinished"].name: "offered", made["unverified"].name: "offered", made["building"].name: "kept",
            ".removing-20260101-000000-0.0-ab12cd34": "offered"}
        assert listed[made["building"].name].why == "It is being built"
        assert listed[made["unverified"].name].why == "It never passed its verification"
        assert [take(artifact, FAILED, of).result for artifact in listed.values()].count("deleted") == 3
    assert sorted(path.name for path in record.releases.iterdir()) == [live.name, made["building"].name, made["foreign"].name]
    assert found(OLD, record, of)[made["foreign"].name].why == "Roundhouse did not make it, as far as it can tell"


def test_a_build_that_was_verified_meanwhile_is_no_failed_one(record: ServiceRecord, of: Conditions) -> None:
    folder = release(record, 2, verified=False)
    artifact = found(FAILED, record, of)[folder.name]
    releases.mark_verified(folder)
    assert take(artifact, FAILED, of).result == "kept"
    assert folder.exists()


def test_the_environment_that_was_here_before_is_no_leftover(record: ServiceRecord, of: Conditions, tmp_path: Path) -> None:
    theirs = tmp_path / "venv"
    (theirs / "bin").mkdir(parents=True)
    record.releases.mkdir()
    releases.point(record.releases / releases.ADOPTED, theirs)
    assert found(OLD, record, of) == found(FAILED, record, of) == {}


def test_edits_that_cannot_be_saved_keep_a_release(record: ServiceRecord, of: Conditions, seven: dict[int, Path],
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **options: Any) -> int:
        raise OpsError("The edits cannot be saved", why="No space left on device")

    monkeypatch.setattr("ops.environments.patches.keep_edits", full)
    entry = take(found(OLD, record, of)[seven[1].name], OLD, of)
    assert (entry.result, entry.why) == ("kept", "The edits cannot be saved: No space left on device")
    assert seven[1].exists()


def test_a_release_of_which_a_process_has_something_open_or_works_in_stays(record: ServiceRecord, of: Conditions, seven: dict[int, Path]) -> None:
    failed = release(record, 9, unfinished=True)
    of.holders = Holders()
    with subprocess.Popen([sys.executable, "-c", "import sys; held = open(sys.argv[1]); print(flush=True); input()", seven[1] / "big"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader, \
            subprocess.Popen(["cat"], stdin=subprocess.PIPE, cwd=failed / "bin") as worker:
        assert reader.stdout is not None and reader.stdout.readline()
        for kind, folder, process in ((OLD, seven[1], reader), (FAILED, failed, worker)):
            artifact = found(kind, record, of)[folder.name]
            assert artifact.state == "kept" and artifact.why.startswith("Something in it is open in ") and f"(pid {process.pid})" in artifact.why
            assert [one["pid"] for one in artifact.open_by] == [process.pid]
            artifact.state = "optional"
            assert take(artifact, kind, of).result == "kept"
        reader.communicate(b"\n")
        worker.communicate(b"")
    assert seven[1].exists() and failed.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_failed_build_with_a_file_of_another_user_stays(record: ServiceRecord, of: Conditions) -> None:
    failed = release(record, 9, unfinished=True)
    os.chown(failed / "big", 65534, 65534)
    artifact = found(FAILED, record, of)[failed.name]
    assert artifact.state == "kept" and artifact.why.startswith("Something in it belongs to another user") and artifact.why.endswith(": big")
    artifact.state = "offered"
    assert take(artifact, FAILED, of).result == "kept" and (failed / "big").exists()


_BOUND = """
import subprocess, sys
from pathlib import Path
from ops.artifacts.conditions import Conditions
from ops.artifacts.places import Never, Place, Places
from ops.environments import releases
from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from tests.ops.artifacts.test_methods import FAILED, found, release, take
root = Path(sys.argv[1]) / "services" / "kimi"
record = ServiceRecord(name="kimi", root=str(root), model_path="/m", served_model_name="kimi", base_url="http://127.0.0.1:9")
of = Conditions(None, None, [record], None, places=Places([Place("releases", str(record.releases), "kimi", "", ("kimi",))], Never()))
failed, victims = release(record, 9, unfinished=True), Path(sys.argv[1]) / "victims"
victims.mkdir()
(victims / "weights").touch()
clean = found(FAILED, record, of)[failed.name]
subprocess.run(["mount", "--bind", victims, failed / "bin"], check=True)
print(found(FAILED, record, of)[failed.name].why)
print(take(clean, FAILED, of).why)
try:
    releases.take_away(failed)
except OpsError as error:
    print(error.what.removeprefix(f"`{failed}` "), failed.exists(), (victims / "weights").exists())
"""


def test_what_is_mounted_in_a_release_is_never_deleted_with_it(tmp_path: Path) -> None:
    assert in_own_mounts(_BOUND, tmp_path).splitlines() == [
        "Something is mounted in it: bin", "Something is mounted in it: bin", "is not removed: something is mounted in it True True"]


def test_a_search_can_be_cancelled_between_releases(record: ServiceRecord, of: Conditions, seven: dict[int, Path]) -> None:
    def stop() -> None:
        raise Cancelled("scan")

    with pytest.raises(Cancelled):
        list(methods.find(OLD, Place("releases", str(record.releases), "kimi"), conditions=of, check=stop))


# uv's cache

WHEELS = "wheels-v8"  # of the uv that is a dependency


def cache_in(folder: Path) -> Path:
    """A cache with one archive that an entry links to, one that nothing does, and a bucket of an older uv."""
    cache = folder / "uv-cache"
    for name, size in (("archive-v0/linked/a.py", 10_000), ("archive-v0/dangling/b.py", 200_000), ("wheels-v0/old.msgpack", 50_000)):
        path = cache / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    entry = cache / WHEELS / "pypi" / "a"
    entry.mkdir(parents=True)
    (entry / "1.0-py3-none-any").symlink_to(cache / "archive-v0" / "linked")
    (cache / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n")
    return cache


def test_uv_takes_from_its_cache_what_was_estimated_and_nothing_else(record: ServiceRecord, of: Conditions, tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    (artifact,) = methods.find(UV, Place("uv-cache", str(cache), "kimi"), conditions=of)
    assert (artifact.state, artifact.files) == ("optional", 2)
    assert artifact.why.startswith("An estimate: uv itself decides what goes")
    entry = take(artifact, UV, of)
    assert entry.result == "deleted", entry.why
    assert entry.freed_bytes == artifact.size_bytes
    assert (cache / "archive-v0" / "linked" / "a.py").exists()
    assert not (cache / "archive-v0" / "dangling").exists()
    assert list(methods.find(UV, Place("uv-cache", str(cache), "kimi"), conditions=of)) == []
    assert take(artifact, UV, of).result == "kept"


def test_a_cache_that_is_not_the_one_that_was_listed_is_left_alone(record: ServiceRecord, of: Conditions, tmp_path: Path,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cache_in(tmp_path)
    (artifact,) = methods.find(UV, Place("uv-cache", str(cache), "kimi"), conditions=of)
    monkeypatch.setattr(Uv, "prune", lambda self: pytest.fail("uv was run"))
    cache.rename(tmp_path / "elsewhere")
    assert take(artifact, UV, of).result == "gone"
    cache.symlink_to(tmp_path / "elsewhere")
    assert take(artifact, UV, of).why == "Another folder lies there now"


def _stranger(cache: Path) -> None:
    (cache / "models").mkdir()


def _no_cache(cache: Path) -> None:
    (cache / "CACHEDIR.TAG").unlink()


def _linked_bucket(cache: Path) -> None:
    (cache / "sdists-v9").symlink_to(cache.parent)


@pytest.mark.parametrize("change, why", [
    (_stranger, "It holds `models`, which is not uv's, and uv would delete that as well"),
    (_no_cache, "It is no cache of uv: it holds no CACHEDIR.TAG"),
    (_linked_bucket, "It holds `sdists-v9`, which is not uv's, and uv would delete that as well")])
def test_uv_is_not_let_loose_on_a_folder_that_holds_more_than_its_cache(record: ServiceRecord, of: Conditions, tmp_path: Path,
                                                                        monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None],
                                                                        why: str) -> None:
    cache = cache_in(tmp_path)
    (artifact,) = methods.find(UV, Place("uv-cache", str(cache), "kimi"), conditions=of)
    monkeypatch.setattr(Uv, "prune", lambda self: pytest.fail("uv was run"))
    change(cache)
    assert take(artifact, UV, of).why == why
    assert [(one.state, one.why) for one in methods.find(UV, Place("uv-cache", str(cache), "kimi"), conditions=of)] == [("kept", why)]


def test_a_cache_into_which_a_build_fetches_or_that_uv_works_in_stays(record: ServiceRecord, of: Conditions, tmp_path: Path,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cache_in(tmp_path)
    (artifact,) = methods.find(UV, Place("uv-cache", str(cache), "kimi"), conditions=of)
    monkeypatch.setattr(Uv, "prune", lambda self: pytest.fail("uv was run"))
    with Uv(cache=cache)._folder_in_cache():
        assert take(artifact, UV, of).why == "A build fetches into it right now"
    of.holders = Holders()
    with (cache / ".lock").open("w"):
        assert take(artifact, UV, of).why.startswith("Something in it is open in ")


def test_a_uv_that_fails_is_told_and_the_cache_is_kept(record: ServiceRecord, of: Conditions, tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    (artifact,) = methods.find(UV, Place("uv-cache", str(cache_in(tmp_path)), "kimi"), conditions=of)

    def fails(self: Uv) -> None:
        raise OpsError("uv ended with exit code 2", why="disk full")

    monkeypatch.setattr(Uv, "prune", fails)
    assert (take(artifact, UV, of).result, take(artifact, UV, of).why) == ("kept", "uv ended with exit code 2: disk full")


def test_a_file_with_a_name_elsewhere_gives_nothing_back(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    (inside / "deep").mkdir(parents=True)
    outside.mkdir()
    (inside / "own").write_bytes(b"x" * 8192)
    (inside / "twice").write_bytes(b"x" * 8192)
    (inside / "deep" / "again").hardlink_to(inside / "twice")
    (inside / "shared").write_bytes(b"x" * 8192)
    (outside / "shared").hardlink_to(inside / "shared")
    (inside / "link").symlink_to(outside)
    found = measure.folder(inside)
    given_back = [inside, inside / "deep", inside / "own", inside / "twice", inside / "link"]
    assert (found.files, found.size_bytes) == (5, sum(path.lstat().st_blocks * 512 for path in given_back))
