"""Making the practice box, finding it again, and putting it back to its first day, also after being killed half way."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ops import smoke_set
from ops.agent.config import NodeConfig, NodePaths
from ops.environments import guard_list, guards, integrity, packages, releases
from ops.jobs.errors import BadInput, OpsError
from ops.practice import box, hand_patches, leftovers
from ops.records import Channel, ServiceRecord
from ops.services import state

from .conftest import PracticeBox

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def own_box(tmp_path: Path) -> PracticeBox:
    """A box that the test may change."""
    paths = NodePaths(tmp_path / "node")
    return PracticeBox(paths, tmp_path / "box", box.set_up(paths, tmp_path / "box", speed=1.0, port=18998))


def assert_first_day(made: PracticeBox) -> None:
    """All that the story begins with, and nothing else."""
    record = made.record
    assert [entry.name for entry in record.releases.iterdir()] == [made.release.name]
    assert [release.name for release in releases.listing(record) if release.is_current] == [made.release.name]
    assert state.last_good(record) == made.release.name
    installed = packages.read(made.release)
    assert {name: installed.version(name) for name in ("vllm", "flashinfer-python", "flashinfer-cubin")} == {
        "vllm": "0.16.0rc2.dev313+practice", "flashinfer-python": "0.6.3+practice", "flashinfer-cubin": "0.6.3+practice"}
    report = integrity.check(made.release)
    library = packages.site_packages(made.release)[0].relative_to(made.release)
    assert {finding.path for finding in report.changed} == {str(library / name) for name in hand_patches.PATCHES}
    assert (report.missing, report.extra) == ([], [])
    assert all(result.holds for result in guards.check(record))
    files = [path for path in (made.root / "tmp").iterdir() if path.is_file()]
    assert len(files) == 35 and {path.suffix for path in files} == {".pt"}
    assert sum(path.stat().st_size for path in files) == 65_000_000
    assert sorted(path.name for path in (made.root / "tmp").iterdir() if path.is_socket()) == sorted(leftovers.SOCKETS)
    assert sorted(path.name for path in (made.root / "shm").iterdir()) == sorted(leftovers.SEGMENTS)
    assert sorted(path.name for path in (made.root / "cache" / "torch_compile_cache").iterdir()) == sorted(leftovers.STALE_GRAPHS)
    others = sum(path.stat().st_blocks * 512 for name in leftovers.OTHERS for path in (made.root / name).rglob("*") if path.is_file())
    assert 3_000_000 < others < 8_000_000


def test_the_box_is_as_the_story_begins(practice_box: PracticeBox) -> None:
    assert_first_day(practice_box)


def test_the_record_is_announced_and_the_nodes_limits_allow_it(practice_box: PracticeBox) -> None:
    record = ServiceRecord.from_dict(json.loads((practice_box.paths.announced / "kimi-k25.json").read_text()))
    assert record == practice_box.record
    assert record.env == {"PRACTICE_BOX": str(practice_box.root)}
    config = NodeConfig.load(practice_box.paths.node_toml)
    assert (config.name, config.practice, config.gpu_source, config.practice_root) == ("practice", True, "practice", str(practice_box.root))
    config.require_inside(record.root, config.service_roots, "service folder")
    config.require_inside(record.model_path, config.model_roots, "model folder")
    config.require_inside(record.artifact_roots[0], config.artifact_roots, "artifact folder")
    for name in leftovers.OTHERS:
        config.require_inside(practice_box.root / name, config.artifact_roots, "artifact folder")


def test_the_channel_installs_from_the_wheelhouse(practice_box: PracticeBox) -> None:
    channel = Channel.from_dict(box.channel(practice_box.root).as_dict())
    assert (channel.name, channel.kind, channel.practice) == ("practice", "wheelhouse", True)
    assert list(Path(channel.wheelhouse).glob("vllm-*.whl"))


def test_the_patched_files_can_be_imported(practice_box: PracticeBox) -> None:
    modules = [name.removesuffix(".py").replace("/", ".") for name in hand_patches.PATCHES]
    program = f"import {', '.join(modules)}"
    done = subprocess.run([practice_box.release / "bin" / "python", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = (packages.site_packages(practice_box.release)[0] / "vllm/model_executor/models/deepseek_v2.py").read_text()
    assert text.count("torch.save(") == 3


def test_the_leftovers_are_no_pickles_and_some_days_old(practice_box: PracticeBox) -> None:
    for name in leftovers.names():
        path = practice_box.root / "tmp" / name
        with path.open("rb") as file:
            head = file.read(64)
        assert head.startswith(b"PK\x03\x04")
        assert b"data.pkl" not in head
        assert 24 * 3600 < time.time() - path.stat().st_mtime < 7 * 24 * 3600


def test_set_up_again_leaves_a_redeployed_box_as_it_is(own_box: PracticeBox) -> None:
    record = own_box.record
    other = record.releases / "20300101-000000-other"
    shutil.copytree(own_box.release, other, symlinks=True)
    releases.switch(record, other)
    (own_box.root / "tmp" / leftovers.names()[0]).unlink()
    before = {path: path.stat().st_mtime_ns for path in own_box.root.rglob("*") if path.is_file()}
    assert box.set_up(own_box.paths, own_box.root, speed=1.0, port=18998) == record
    assert record.current.resolve() == other
    after = {path: path.stat().st_mtime_ns for path in own_box.root.rglob("*") if path.is_file() and path.name != "ready.json"}
    assert after.items() <= before.items()


def test_set_up_with_another_port_moves_the_service_there(own_box: PracticeBox) -> None:
    record = box.set_up(own_box.paths, own_box.root, speed=3.0, port=18997)
    assert record.base_url == "http://127.0.0.1:18997"
    assert json.loads((record.folder / "launch.json").read_text())["flags"] == record.flags
    assert box.settings(own_box.root) == {"speed": 3.0, "port": 18997, "faults": {}, "in_place": False}


def test_reset_brings_the_first_day_back(own_box: PracticeBox) -> None:
    record = own_box.record
    first = own_box.release
    other = record.releases / "20300101-000000-other"
    shutil.copytree(first, other, symlinks=True)
    releases.switch(record, other)
    shutil.rmtree(own_box.root / "tmp")
    (own_box.model / "config.json").write_text("{}")
    (own_box.root / "cache" / "torch_compile_cache" / "0123456789").mkdir()
    shutil.rmtree(own_box.root / "cores")
    shelf = record.folder / "shelf"
    shelf.mkdir()
    (shelf / "kept.patch").write_text("typed by hand")
    assert box.reset(own_box.paths, own_box.root) == record
    assert_first_day(own_box)
    assert not first.exists()
    assert (shelf / "kept.patch").read_text() == "typed by hand"


def test_a_reset_killed_at_any_moment_ends_well_when_it_is_called_again(own_box: PracticeBox) -> None:
    program = ("import sys; from pathlib import Path; from ops.agent.config import NodePaths; from ops.practice import box; "
               "print('begun', flush=True); box.reset(NodePaths(Path(sys.argv[1])), Path(sys.argv[2]))")
    moments = random.Random(7)
    for _ in range(4):
        child = subprocess.Popen([sys.executable, "-c", program, str(own_box.paths.root), str(own_box.root)], cwd=REPOSITORY, stdout=subprocess.PIPE,
                                 start_new_session=True)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(moments.uniform(0.0, 0.5))
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        current = own_box.record.current
        assert (current / "bin" / "vllm").exists()  # at no moment does the link point at something that is not whole
    box.set_up(own_box.paths, own_box.root, speed=1.0, port=18998)
    assert_first_day(own_box)


def test_a_half_made_box_is_made_anew(own_box: PracticeBox) -> None:
    (own_box.root / "ready.json").unlink()
    shutil.rmtree(own_box.release / "lib")
    box.set_up(own_box.paths, own_box.root, speed=1.0, port=18998)
    assert_first_day(own_box)


def test_a_box_in_place_is_an_adopted_environment_that_may_not_move(tmp_path: Path) -> None:
    paths, root = NodePaths(tmp_path / "node"), tmp_path / "box"
    record = box.set_up(paths, root, speed=1.0, port=18998, in_place=True)
    assert (record.in_place, record.environment) == (True, str(root / "environment"))
    assert record.current.resolve() == root / "environment"
    assert [release.name for release in releases.listing(record)] == ["adopted"]
    assert state.last_good(record) == "adopted"
    assert len(integrity.check(root / "environment").changed) == len(hand_patches.PATCHES)
    assert integrity.check(root / "environment").extra == []
    config = NodeConfig.load(paths.node_toml)
    config.require_inside(record.environment, config.environment_roots, "environment")
    assert box.set_up(paths, root, speed=1.0, port=18998) == record  # it stays so until somebody says otherwise
    assert box.reset(paths, root) == record
    assert [release.name for release in releases.listing(record)] == ["adopted"]


def test_a_box_goes_from_in_place_to_beside_and_back(own_box: PracticeBox) -> None:
    before = own_box.record
    in_place = box.set_up(own_box.paths, own_box.root, speed=1.0, port=18998, in_place=True)
    assert in_place.current.resolve() == own_box.root / "environment"
    (own_box.root / "environment.roundhouse-20260101-000000-old").mkdir()
    assert box.set_up(own_box.paths, own_box.root, speed=1.0, port=18998, in_place=False) == before
    assert_first_day(own_box)
    assert list(own_box.root.glob("environment*")) == []


@pytest.mark.parametrize(("changes", "words"), [
    ({"speed": 0}, "speed"), ({"port": 70000}, "no port"), ({"faults": {"explode": True}}, "no fault `explode`"),
    ({"colour": 1}, "no setting `colour`"),
])
def test_settings_that_cannot_be_are_refused(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        box.write_settings(tmp_path, **changes)
    assert not (tmp_path / "box.json").exists()


def test_settings_change_one_by_one(tmp_path: Path) -> None:
    box.write_settings(tmp_path, speed=20)
    box.write_settings(tmp_path, faults={"crash_at": "load"})
    assert box.settings(tmp_path) == {"speed": 20, "port": None, "faults": {"crash_at": "load"}, "in_place": False}


def test_a_folder_without_a_box_has_no_settings(tmp_path: Path) -> None:
    with pytest.raises(OpsError, match="no practice box"):
        box.settings(tmp_path)


def test_guards_and_questions_that_people_set_stay_until_a_reset(own_box: PracticeBox) -> None:
    def stored() -> list[dict[str, Any]]:
        return list(json.loads((own_box.paths.announced / "kimi-k25.json").read_text())["guards"])

    first = stored()
    for chosen in ([{"kind": "file_present", "file": "config.json", "key": "", "value": None}], []):
        guard_list.store(own_box.paths, "kimi-k25", chosen)
        assert box.set_up(own_box.paths, own_box.root, speed=2.0, port=18997).guards == stored() == chosen
    (own_box.paths.announced / "kimi-k25.json").write_text("no record")
    assert box.set_up(own_box.paths, own_box.root, port=18997).guards == stored() == first
    asked = [{"name": "greets", "title": "Greets", "prompt": "Say hello.", "kind": "contains", "expect": "hello"}]
    smoke_set.store(own_box.paths, box.set_up(own_box.paths, own_box.root, port=18997), asked, ["tool"])
    again = box.set_up(own_box.paths, own_box.root, port=18997)
    assert ([test["name"] for test in again.smoke_tests], again.smoke_without) == (["greets"], ["tool"])
    guard_list.store(own_box.paths, "kimi-k25", [])
    box.reset(own_box.paths, own_box.root)
    assert stored() == first
