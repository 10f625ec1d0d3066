"""The trap that uv's hard links set, on the real uv, and a redeploy that does not fall into it.

An edit in an installed file is an edit in uv's cache: `--force-reinstall`, a new environment and a way back to that version bring it back, and
no tool says so. `python -m benchmarks.cache_leak` prints the same as a table.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.cache_leak import adopted
from ops.environments import integrity, patches
from ops.jobs.events import JobState
from ops.records import Channel
from tests.fakes.package_index import Index, package_index
from tests.fakes.real_node import RealNode, real_node
from tests.fakes.small_vllm import make_small_vllm
from tests.fakes.uv_cache_leak import CASES, EDIT, PACKAGE, Case, Trap, make_wheels

LAYER = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/{PACKAGE}/layer.py"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_wheels(tmp_path_factory.mktemp("wheels"))
    for version in ("1.0", "2.0"):
        make_small_vllm(folder, version, requires=[f"{PACKAGE}=={version}", "bystander"])
    return folder


@pytest.fixture
def index(wheels: Path) -> Iterator[Index]:
    with package_index(wheels) as made:
        yield made


@pytest.fixture
def trap(tmp_path: Path, index: Index) -> Trap:
    made = Trap(tmp_path / "person", index)
    made.first_day()
    if made.file().stat().st_nlink == 1:
        pytest.skip("uv copies or clones on this file system: an edit does not reach its cache here")
    return made


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.words)
def test_what_an_edit_survives(trap: Trap, case: Case) -> None:
    if case.build:
        trap.first_day(*case.build)
    case.act(trap)
    assert trap.edited(case.look) is not case.clean


def test_uv_itself_sees_nothing(trap: Trap) -> None:
    trap.install("--force-reinstall")
    assert trap.edited()
    assert "compatible" in trap.uv("pip", "check", "--python", trap.root / "env" / "bin" / "python")
    assert [found.path for found in integrity.check(trap.root / "env").changed] == [LAYER]  # RECORD knows


def test_the_same_command_is_clean_where_the_index_sends_the_file_again(tmp_path: Path, wheels: Path) -> None:
    with package_index(wheels, answers_304=False) as index:
        trap = Trap(tmp_path / "person", index)
        trap.first_day()
        trap.install("--force-reinstall")
        assert not trap.edited()


# A redeploy, from a cache that holds the edit


def channel(index: Index) -> Channel:
    return Channel(name="own", kind="index", index_url=index.url)


@pytest.fixture
def node(short_path: Path, index: Index) -> Iterator[RealNode]:
    with real_node(short_path, index_urls=[index.url]) as made:
        yield made


def wheels_fetched(index: Index) -> list[str]:
    """Names of the packages whose wheel was sent since the last look."""
    sent = [line.rsplit("/", 1)[1].split("-")[0] for line in index.asked if " 200 /files/" in line]
    index.asked.clear()
    return sorted(set(sent))


def test_a_redeploy_of_an_edited_environment_drops_exactly_the_edited_package_from_the_cache(node: RealNode, index: Index) -> None:
    trap = Trap(node.root / "person", index, cache=node.cache)
    adopted(node, trap)
    assert wheels_fetched(index) == ["bystander", PACKAGE, "vllm"]
    told = node.run("redeploy", channel(index), version="1.0", sweep=False, smoke=False, purge=False)
    assert told.outcome.state == JobState.SUCCEEDED, told.outcome
    assert node.state == "healthy"
    assert node.current.name != "adopted"
    assert EDIT not in (node.current / LAYER).read_text()
    assert integrity.check(node.current).clean
    assert wheels_fetched(index) == [PACKAGE]  # the others came from the cache, as they should

    trap.make("next")  # and whoever comes next to that cache gets clean files
    trap.install(env="next")
    assert not trap.edited("next")
    assert trap.edited("env")  # what was adopted is not written to: the edit is still where it was typed
    assert [EDIT in Path(saved).read_text() for saved in (node.record.folder / "shelf").rglob("layer.py")] == [True]  # and is on the shelf


def test_an_edit_that_came_back_through_the_cache_is_told_in_one_sentence(node: RealNode, index: Index) -> None:
    """The environment in use is clean: somebody edited another one, which shares the cache."""
    adopted(node, Trap(node.root / "person", index, cache=node.cache), live_is_edited=False)
    assert integrity.check(node.current).clean
    told = node.run("redeploy", channel(index), version="1.0", sweep=False, smoke=False, purge=False)
    assert told.outcome.state == JobState.SUCCEEDED, told.outcome
    assert integrity.check(node.current).clean
    sentences = [finding["title"] for finding in told.findings if "cache" in finding["title"]]
    assert len(sentences) == 1
    assert PACKAGE in sentences[0] and "layer.py" in sentences[0] and "came back through uv's cache" in sentences[0]


@pytest.mark.slow
def test_a_redeploy_in_place_is_clean_and_its_way_back_has_the_edit_as_it_was(node: RealNode, index: Index) -> None:
    adopted(node, Trap(node.root / "person", index, cache=node.cache))
    node.change(in_place=True)
    told = node.run("redeploy", channel(index), version="1.0", sweep=False, smoke=False, purge=False)
    assert told.outcome.state == JobState.SUCCEEDED, told.outcome
    assert node.state == "healthy"
    env = node.root / "person" / "env"
    assert node.current.resolve() == env
    assert integrity.check(env).clean
    back = node.run("rollback", release="adopted", smoke=False)
    assert back.outcome.state == JobState.SUCCEEDED, back.outcome
    assert node.current.name == "adopted" and node.state == "healthy"
    assert EDIT in (env / LAYER).read_text()  # exactly what was there before


def test_a_roll_back_to_the_version_that_was_edited_is_clean(node: RealNode, index: Index) -> None:
    """Up to 2.0 and back to 1.0 with uv alone brings the edit of 1.0 back."""
    adopted(node, Trap(node.root / "person", index, cache=node.cache))
    assert node.run("redeploy", channel(index), version="2.0", sweep=False, smoke=False, purge=False).outcome.state == JobState.SUCCEEDED
    back = node.run("redeploy", channel(index), version="1.0", sweep=False, smoke=False, purge=False)
    assert back.outcome.state == JobState.SUCCEEDED, back.outcome
    assert EDIT not in (node.current / LAYER).read_text()
    assert integrity.check(node.current).clean


def test_the_shelf_says_what_was_edited_in_an_environment_whose_wheels_nobody_wrote_down(node: RealNode, index: Index) -> None:
    """Adopted, from a cache that is not ours, and on its way to another version: the channel is asked for the old wheel."""
    adopted(node, Trap(node.root / "person", index))
    assert node.run("redeploy", channel(index), version="2.0", sweep=False, smoke=False, purge=False).outcome.state == JobState.SUCCEEDED
    shelved = next(told for told in patches.shelf(node.record) if told["path"] == LAYER)
    diff = patches.view(node.record, shelved["folder"], LAYER)["diff"]
    assert [line[1:] for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")] == [EDIT.strip("\n")]


@pytest.mark.slow
def test_the_demonstration_that_the_documentation_names_runs() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks.cache_leak"], cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True,
                          timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("every file of the new release is as its wheel has it") == 2
    assert "came back through uv's cache" in done.stdout
