from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from ops.environments import fingerprint, plan, recipe, releases
from ops.gpus.source import GpuReading, GpuSnapshot
from ops.jobs.errors import BadInput, Refused
from ops.records import PUBLIC_INDEX, Channel, ServiceRecord
from ops.services import state
from tests.ops.environments.conftest import library, make_wheelhouse

LEVEL = {"concurrency": 8, "requests": 80, "finished": 80, "errors": 0, "output_tok_s": 277.1, "ttft_p50_ms": 210.0, "marks": ["short"], "chunks": 9}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An environment with vllm dev313 and the wheelhouse that it came from; read only."""
    folder = tmp_path_factory.mktemp("recipe")
    wheels, env = make_wheelhouse(folder / "wheels"), folder / "env"
    for arguments in (["venv", "--python", sys.executable, str(env)],
                      ["pip", "install", "--python", str(env / "bin/python"), "--offline", "--no-index", "--find-links", str(wheels),
                       "--link-mode", "copy", "--prerelease", "allow", "vllm==0.16.0rc2.dev313+practice"]):
        subprocess.run([find_uv_bin(), "--quiet", "--no-config", "--no-cache", *arguments], check=True)
    return env, wheels


@pytest.fixture
def service(record: ServiceRecord) -> ServiceRecord:
    return dataclasses.replace(record, flags=["--max-model-len", "131072", "--api-key", "sk-canary-1", "sk-canary-2", "--enable-prefix-caching"],
                               env={"VLLM_USE_V1": "1", "HF_TOKEN": "hf_canary"}, env_files=["-/etc/vllm/kimi.env"])


@pytest.fixture
def good(service: ServiceRecord, built: tuple[Path, Path]) -> Path:
    """A release that Roundhouse built and that passed everything."""
    env, wheels = built
    release = service.releases / "20260101-000000-0.16.0rc2.dev313"
    shutil.copytree(env, release, symlinks=True)
    listed = [{"name": path.name.split("-")[0].replace("_", "-"), "version": path.name.split("-")[1], "file": path.name,
               "sha256": hashlib.sha256(path.read_bytes()).hexdigest()} for path in sorted(wheels.iterdir())
              if "dev344" not in path.name and "0.6.4" not in path.name and "cubin" not in path.name]
    manifest = {"release": release.name, "verified": True, "packages": listed, "channel": Channel(
        name="wheels", kind="wheelhouse", wheelhouse=str(wheels), practice=True).as_dict()}
    (release / releases.MANIFEST).write_text(json.dumps(manifest))
    state.set_last_good(service, release.name)
    return release


def test_a_good_release_becomes_one_file_with_all_that_is_needed(service: ServiceRecord, good: Path):
    made = recipe.make(service, good, label="Kimi on PCIe", reference={"sweep": {"run_id": "r1", "preset": "quick", "at": 5.0, "levels": [LEVEL]}})
    assert {package["name"] for package in made["packages"]} == {"vllm", "flashinfer-python", "torch"}
    assert all(len(package["sha256"]) == 64 and package["file"].endswith(".whl") for package in made["packages"])
    assert made["label"] == "Kimi on PCIe" and made["from"]["release"] == good.name and made["practice"] is True
    assert made["python"]["version"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}") and made["platform"]["machine"]
    assert made["guards"][0]["key"] == "quantization_config.kv_cache_scheme"
    (level,) = made["reference"]["sweep"]["levels"]
    assert level["output_tok_s"] == 277.1 and level["marks"] == ["short"] and "chunks" not in level and level["tpot_p50_ms"] is None
    assert made["fingerprint"]["packages"]["vllm"] == made["version"] == "0.16.0rc2.dev313+practice"


def test_a_level_of_a_rate_keeps_it(service: ServiceRecord, good: Path):
    rate = LEVEL | {"load": "open", "value": 2.5, "concurrency": None}
    made = recipe.make(service, good, reference={"sweep": {"run_id": "r1", "preset": "latency", "at": 5.0, "levels": [LEVEL, rate]}})
    closed, opened = made["reference"]["sweep"]["levels"]
    assert "load" not in closed and (opened["load"], opened["value"], opened["concurrency"]) == ("open", 2.5, None)


def test_secrets_are_left_out_and_named_as_to_be_set(service: ServiceRecord, good: Path):
    made = recipe.make(service, good)
    assert "canary" not in json.dumps(made)
    assert made["flags"] == ["--max-model-len", "131072", "--enable-prefix-caching"] and made["flags_to_set"] == ["--api-key"]
    assert made["env"] == {"VLLM_USE_V1": "1"} and made["env_to_set"] == ["HF_TOKEN"] and made["env_files"] == ["/etc/vllm/kimi.env"]


def test_without_a_label_it_says_the_version(service: ServiceRecord, good: Path):
    assert recipe.make(service, good)["label"] == "vllm 0.16.0rc2.dev313+practice"


def test_the_releases_own_warmup_is_the_reference_if_none_is_given(service: ServiceRecord, good: Path):
    state.add_warmup(service, {"at": 1, "release": good.name, "total_s": 780.5, "cache": "miss", "phases": {"weights": 400}})
    state.add_warmup(service, {"at": 2, "release": "another", "total_s": 1.0, "cache": "hit", "phases": {}})
    assert recipe.make(service, good)["reference"] == {"sweep": None, "warmup": {"total_s": 780.5, "cache": "miss", "phases": {"weights": 400}}}


def test_gpus_come_from_the_good_start_of_that_release(service: ServiceRecord, good: Path):
    gpus = GpuSnapshot(gpus=[GpuReading(index=0, uuid="u", name="RTX PRO 6000")], driver="580.1")
    told = fingerprint.fingerprint(service, release=good, gpus=gpus)
    fingerprint.remember_good_start(service, told, release=good.name, job="j")
    made = recipe.make(service, good)
    assert made["fingerprint"]["gpus"]["driver"] == "580.1" and made["fingerprint"]["hash"] == told["hash"]


def test_only_the_last_good_release_becomes_one_unless_told(service: ServiceRecord, good: Path):
    state.set_last_good(service, "another")
    with pytest.raises(BadInput, match="not the last good one"):
        recipe.make(service, good)
    assert recipe.make(service, good, told_to=True)["from"]["release"] == good.name


def test_an_edited_release_becomes_none(service: ServiceRecord, good: Path):
    (library(good) / "vllm/config.py").write_text("DEBUG = True\n")
    with pytest.raises(BadInput, match="1 file differs"):
        recipe.make(service, good)


def change_manifest(release: Path, edit: Callable[[dict], Any]) -> None:
    manifest = json.loads((release / releases.MANIFEST).read_text())
    edit(manifest)
    (release / releases.MANIFEST).write_text(json.dumps(manifest))


def test_a_release_that_changed_since_it_was_built_becomes_none(service: ServiceRecord, good: Path):
    change_manifest(good, lambda manifest: manifest["packages"][0].update(version="9"))
    with pytest.raises(BadInput, match="not what was built any more"):
        recipe.make(service, good)


def test_an_environment_whose_wheels_are_not_known_becomes_none(service: ServiceRecord, good: Path):
    change_manifest(good, lambda manifest: manifest["packages"][0].update(sha256=None))
    with pytest.raises(BadInput, match="no wheel is known"):
        recipe.make(service, good)
    (good / releases.MANIFEST).unlink()
    with pytest.raises(BadInput, match="no wheel is known"):
        recipe.make(service, good)


def test_reference_numbers_come_out_of_the_nodes_own_runs(service: ServiceRecord, good: Path, tmp_path: Path):
    def run(name: str, **given: Any) -> None:
        (tmp_path / name).mkdir()
        told = {"run_id": name, "preset": "full", "state": "done", "short": False, "practice": True, "started_at": 1.0, "levels": [LEVEL],
                "fingerprint": {"service": service.name, "release": good.name}} | given
        (tmp_path / name / "result.json").write_text(json.dumps(told))

    assert recipe.reference_from(service, good, tmp_path) is None
    run("old")
    run("new", started_at=2.0)
    run("short", started_at=3.0, short=True)
    run("failed", started_at=4.0, state="failed")
    run("other", started_at=5.0, fingerprint={"service": service.name, "release": "another"})
    run("real", started_at=6.0, practice=False)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "result.json").write_text("{")
    found = recipe.reference_from(service, good, tmp_path)
    assert found is not None and found["sweep"]["run_id"] == "new"
    assert recipe.make(service, good, reference=found)["reference"]["sweep"]["levels"][0]["output_tok_s"] == 277.1


def test_reference_numbers_of_a_repeated_sweep_are_its_median(service: ServiceRecord, good: Path, tmp_path: Path):
    def run(name: str, tok_s: float, **given: Any) -> None:
        (tmp_path / name).mkdir()
        level = LEVEL | {"output_tok_s": tok_s, "finished": 40, "errors": 1, "marks": [name]} | given.pop("level", {})
        told = {"run_id": name, "preset": "full", "state": "done", "short": False, "practice": True, "started_at": 1.0, "levels": [level, "none"],
                "group": "g", "fingerprint": {"service": service.name, "release": good.name}} | given
        (tmp_path / name / "result.json").write_text(json.dumps(told))

    run("one", 270.0)
    run("two", 290.0)
    run("three", 100.0, started_at=2.0)
    run("broken-off", 5.0, level={"state": "failed"})
    run("short", 1.0, short=True)
    run("failed", 2.0, state="failed")
    run("of-another-group", 3.0, started_at=0.5, group="h")
    sweep = recipe.make(service, good, reference=recipe.reference_from(service, good, tmp_path))["reference"]["sweep"]
    (level,) = sweep["levels"]
    assert (sweep["run_id"], sweep["runs"], level["output_tok_s"], level["finished"], level["errors"]) == ("three", 4, 270.0, 120, 3)
    assert sorted(level["marks"]) == ["one", "three", "two"] and level["concurrency"] == LEVEL["concurrency"]


# ---- files ----


def test_a_saved_recipe_is_read_again_as_it_was(service: ServiceRecord, good: Path):
    made = recipe.make(service, good, label="Kimi K2.5 / PCIe")
    path = recipe.save(service, made)
    assert path.parent == service.folder / "recipes" and path.stat().st_mode & 0o777 == 0o600 and "kimi-k2.5-pcie" in path.name
    assert recipe.read(path) == made and recipe.save(service, made) == path
    assert recipe.read(json.loads(path.read_text().replace("210.0", "210"))) == made  # what a database or a browser makes of a number


@pytest.fixture
def made(service: ServiceRecord, good: Path) -> dict[str, Any]:
    return recipe.make(service, good, reference={"sweep": {"run_id": "r1", "preset": "quick", "at": 5.0, "levels": [LEVEL]}})


def changed(made: dict[str, Any], path: str, value: Any, *, sealed: bool = True) -> dict[str, Any]:
    other = copy.deepcopy(made)
    *outer, name = path.split(".")
    place: Any = other
    for part in outer:
        place = place[int(part)] if isinstance(place, list) else place[part]
    if isinstance(place, list):
        place[int(name)] = value
    else:
        place[name] = value
    if sealed:
        other["hash"] = recipe.digest(other)
    return other


def test_a_changed_recipe_is_refused(made: dict[str, Any]):
    with pytest.raises(BadInput, match="changed after it was made"):
        recipe.read(changed(made, "packages.0.sha256", "0" * 64, sealed=False))


@pytest.mark.parametrize(("path", "value", "told"), [
    ("schema", "roundhouse.recipe/99", "no recipe"), ("label", "", "label"), ("label", "a\nb", "label"), ("label", "x" * 121, "label"),
    ("made_at", "now", "made_at"), ("made_at", -1, "made_at"), ("practice", 1, "practice"), ("from.service", "../x", "from"),
    ("python.version", "2.7", "python"), ("python.version", "3.12; rm -rf /", "python"), ("platform.machine", "x y", "platform"),
    ("packages", [], "packages"), ("packages.0.name", "-x", "packages"), ("packages.0.name", "Torch", "packages"),
    ("packages.0.name", "x @ file:///etc", "packages"), ("packages.0.version", "1.0 --index-url=x", "packages"),
    ("packages.0.file", "../../x-1-py3-none-any.whl", "packages"), ("packages.0.file", "x.tar.gz", "packages"),
    ("packages.0.file", "torch-9-py3-none-any.whl", "packages"), ("packages.0.sha256", "ABC", "packages"), ("packages.0.size_bytes", -5, "packages"),
    ("packages.0.size_bytes", True, "packages"), ("packages.0.extra", 1, "packages"), ("channel.index_url", "https://user:pw@host/", "channel"),
    ("channel.wheelhouse", "relative", "channel"), ("channel.extra_index_urls", ["file:///x"], "channel"), ("flags", "--x", "flags"),
    ("flags", ["a\0b"], "flags"), ("flags", ["x"] * 501, "flags"), ("flags_to_set", ["rm -rf"], "flags_to_set"), ("env", {"A B": "1"}, "env"),
    ("env", {"ROUNDHOUSE_STATE": "1"}, "env"), ("env", {"A": "x\0"}, "env"), ("env", {"A": 1}, "env"), ("env_to_set", ["1X"], "env_to_set"),
    ("env_files", ["etc/x"], "env_files"), ("guards", [{"kind": "run", "file": "x"}], "guards"), ("guards.0.file", "../../etc/passwd", "guards"),
    ("reference.sweep.levels.0.output_tok_s", "fast", "reference"), ("reference.sweep.levels.0.more", 1, "reference"),
    ("reference.warmup", {"total_s": 1}, "reference"), ("fingerprint.hash", "0" * 64, "fingerprint"), ("fingerprint.driver", "x", "fingerprint"),
    ("version", "9.9", "version is not that"), ("unknown", 1, "unknown field"), ("hash", 5, "hash")])
def test_what_comes_from_elsewhere_is_checked_field_by_field(made: dict[str, Any], path: str, value: Any, told: str):
    with pytest.raises(BadInput) as caught:
        recipe.read(changed(made, path, value, sealed=path != "hash"))
    assert told in caught.value.what


def test_a_package_may_stand_there_once(made: dict[str, Any]):
    with pytest.raises(BadInput, match="twice"):
        recipe.read(changed(made, "packages", [*made["packages"], made["packages"][0]]))


def test_a_field_that_is_missing_is_named(made: dict[str, Any]):
    for name in made:
        with pytest.raises(BadInput):
            recipe.read({key: value for key, value in made.items() if key != name})


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000, '{"schema": NaN}', '{"schema": "roundhouse.recipe/1"}'])
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: str):
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(BadInput):
        recipe.read(tmp_path / "r.json")


def test_a_file_that_is_too_large_or_not_there_is_refused(tmp_path: Path, made: dict[str, Any]):
    with (tmp_path / "r.json").open("wb") as file:
        file.truncate(recipe.FILE_LIMIT + 1)
    for path in (tmp_path / "r.json", tmp_path / "none.json", tmp_path):
        with pytest.raises(BadInput):
            recipe.read(path)
    with pytest.raises(BadInput, match="too large"):
        recipe.read(changed(made, "env", {f"A{number}": "x" * 32_000 for number in range(200)}))


# ---- as a channel ----


def test_as_a_channel_it_takes_wheels_from_where_the_admin_says(made: dict[str, Any], tmp_path: Path):
    offline = recipe.as_channel(made, name="kimi", wheelhouse=str(tmp_path))
    assert (offline.kind, offline.preset, offline.wheelhouse, offline.practice) == ("recipe", "recipe", str(tmp_path), True)
    assert Channel.from_dict(json.loads(json.dumps(offline.as_dict()))).recipe["hash"] == made["hash"]
    online = recipe.as_channel(made, name="kimi", index_url=PUBLIC_INDEX, extra_index_urls=["https://wheels.vllm.ai/nightly/cu129/"])
    assert online.index_strategy == "unsafe-first-match" and online.wheelhouse == ""
    with pytest.raises(BadInput, match="names no index"):
        recipe.as_channel(made, name="kimi")
    with pytest.raises(BadInput):
        recipe.as_channel(changed(made, "label", "x", sealed=False), name="kimi", wheelhouse=str(tmp_path))


def test_a_practice_recipe_never_fits_a_real_service(made: dict[str, Any], service: ServiceRecord):
    version = made["python"]["version"]
    recipe.require_fit(made, service, python_version=version)
    with pytest.raises(Refused, match="does not fit") as caught:
        recipe.require_fit(made, dataclasses.replace(service, practice=False), python_version=version)
    assert caught.value.why == "It comes from a practice service, and this one is real"
    assert recipe.problems(made, service, python_version="3.99.0") == [
        f"It was made for Python {sys.version_info[0]}.{sys.version_info[1]}, and the interpreter is 3.99.0"]


def test_a_plan_tells_what_a_recipe_channel_does_not_bring(made: dict[str, Any], service: ServiceRecord, good: Path, built: tuple[Path, Path]):
    channel = recipe.as_channel(made, name="kimi", wheelhouse=str(built[1]))
    other = dataclasses.replace(service, flags=[])
    findings = plan.make(other, channel).findings
    assert any("other settings" in finding["title"] and "--enable-prefix-caching" in finding["why"] for finding in findings)
    older = changed(made, "python.version", "3.7.1")
    with pytest.raises(Refused, match="does not fit"):
        plan.make(other, recipe.as_channel(older, name="kimi", wheelhouse=str(built[1])))


def test_a_wheel_for_another_machine_does_not_fit(made: dict[str, Any], service: ServiceRecord):
    package = made["packages"][0]
    other = changed(made, "packages.0.file", package["file"].replace("py3-none-any", "py3-none-win_amd64"))
    assert "1 of its wheels do not fit this machine" in recipe.problems(recipe.read(other), service, python_version=made["python"]["version"])[0]


def test_settings_that_a_channel_does_not_bring_are_told(made: dict[str, Any], service: ServiceRecord):
    assert recipe.held_against(made, service) == []
    other = dataclasses.replace(service, flags=["--max-model-len=8192", "--port", "1"], env={}, guards=[])
    assert recipe.held_against(made, other) == [
        "the recipe has the flag --enable-prefix-caching", "the recipe does not have the flag --port",
        "the recipe has --max-model-len 131072, the service 8192", "the recipe sets VLLM_USE_V1=1",
        "--api-key is to be set: the recipe leaves its value out", "HF_TOKEN is to be set: the recipe leaves its value out",
        "the recipe has the guard key_absent of `config.json` (quantization_config.kv_cache_scheme)"]
