from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ops.agent.config import NodeConfig
from ops.environments import channels, outlook, patches, plan, recipe, releases, uv, wheelhouse
from ops.environments.uv import NoSolution
from ops.jobs.errors import BadInput, OpsError, Refused
from ops.jobs.pipeline import Context
from ops.records import Channel, ServiceRecord
from tests.fakes.package_index import package_index
from tests.fakes.wheels import make_wheel
from tests.ops.environments.conftest import channel_of, library, make_wheelhouse


def row(made: plan.Plan, name: str) -> dict:
    return next(package for package in made.packages if package["name"] == name)


def titles(made: plan.Plan, level: str) -> str:
    return "\n".join(f"{finding['title']} | {finding['why']}" for finding in made.findings if finding["level"] == level)


def test_first_plan_takes_the_newest_pre_release(record: ServiceRecord, channel: Channel):
    made = plan.make(record, channel)
    assert made.version == "0.16.0rc2.dev344+practice"
    assert row(made, "vllm")["why"] == "asked for"
    assert row(made, "flashinfer-python")["why"] == "vllm needs it"
    assert {package["change"] for package in made.packages} == {"added"}
    assert made.planned("flashinfer-cubin") is None  # optional, and not in use


def test_plan_completes_the_cubin_in_the_version_that_came_out(record: ServiceRecord, channel: Channel, live: Path):
    made = plan.make(record, channel)
    cubin = row(made, "flashinfer-cubin")
    assert (cubin["old"], cubin["new"], cubin["change"]) == ("0.6.3+practice", "0.6.4+practice", "changed")
    assert cubin["why"] == "coupled, added by Roundhouse"
    assert row(made, "torch")["change"] == "same"
    assert not made.stops and "goes with `flashinfer-python` to 0.6.4" in titles(made, "note")


def test_a_package_that_the_channel_leaves_out_is_not_planned_although_something_needs_it(record: ServiceRecord, tmp_path: Path):
    make_wheel(tmp_path / "wheels", "vllm", "1.0+practice", requires=["torch>=2", "torchvision"])
    make_wheel(tmp_path / "wheels", "torch", "2.10.0+practice", requires=["triton==3"])
    channel = channel_of(tmp_path / "wheels")
    with pytest.raises(plan.NoSolution):
        plan.make(record, channel)
    with_all = dataclasses.replace(channel, without=["torchvision", "triton"])
    made = plan.make(record, with_all)
    assert [package["name"] for package in made.locked] == ["torch", "vllm"] and made.source["without"] == ["torchvision", "triton"]
    assert plan.differences(made, plan.make(record, dataclasses.replace(with_all, without=["torchvision", "triton", "unknown"])))


def test_every_package_has_file_hash_and_size(record: ServiceRecord, channel: Channel, wheels: Path):
    for package in plan.make(record, channel).locked:
        assert (wheels / package["file"]).stat().st_size == package["size_bytes"]
        assert len(package["sha256"]) == 64


def test_with_coupling_off_the_cubin_stays_and_the_plan_says_what_will_happen(record: ServiceRecord, channel: Channel, live: Path):
    made = plan.make(record, channel, coupling=False)
    assert made.planned("flashinfer-cubin") == "0.6.3+practice" and made.planned("flashinfer-python") == "0.6.4+practice"
    assert "will crash at its start" in titles(made, "warning")
    assert not made.stops


def test_a_cubin_that_the_channel_lacks_is_left_out(record: ServiceRecord, live: Path, tmp_path: Path):
    made = plan.make(record, channel_of(make_wheelhouse(tmp_path / "few", cubins=("0.6.3",))))
    assert made.planned("flashinfer-cubin") is None
    assert row(made, "flashinfer-cubin")["change"] == "removed"
    assert "`flashinfer-cubin` will not be in the new release | The channel `practice` has no `flashinfer-cubin` 0.6.4" in titles(made, "warning")


def test_wanted_version_without_its_local_suffix_is_found(record: ServiceRecord, channel: Channel):
    assert plan.make(record, channel, version="0.16.0rc2.dev313").version == "0.16.0rc2.dev313+practice"


def test_a_version_that_is_not_there_says_so(record: ServiceRecord, channel: Channel):
    with pytest.raises(NoSolution) as caught:
        plan.make(record, channel, version="9.9")
    assert caught.value.what == "The channel `practice` has no `vllm` 9.9"


def test_a_conflict_names_both_sides(record: ServiceRecord, channel: Channel):
    asked = dataclasses.replace(channel, requirements=["vllm==0.16.0rc2.dev344", "flashinfer-python==0.6.3"])
    with pytest.raises(NoSolution) as caught:
        plan.make(record, asked)
    assert "needs `flashinfer-python==0.6.4`, but `flashinfer-python==0.6.3" in caught.value.what, caught.value.why
    assert "unsatisfiable" in caught.value.why


def test_a_package_that_nobody_has_says_so(record: ServiceRecord, channel: Channel):
    with pytest.raises(NoSolution) as caught:
        plan.make(record, dataclasses.replace(channel, requirements=["vllm", "no-such-package-here"]))
    assert "no-such-package-here" in caught.value.what


@pytest.mark.parametrize("version", ["-x", "--index-url=http://x", "1\n2", "1;2", "$(id)", "../1", "a @ file:///tmp", "1" * 1000, "1\0"])
def test_bad_versions_are_refused(record: ServiceRecord, channel: Channel, version: str):
    with pytest.raises(BadInput):
        plan.make(record, channel, version=version)


@pytest.mark.parametrize("requirement", ["-r x", "--index-url=http://x", "vllm\n--no-index", "vllm @ file:///tmp/x.whl", "./vllm",
                                         "vllm; python_version<'3'", "vllm" * 100, "vllm\0", "git+https://example.org/x"])
def test_bad_requirements_of_a_channel_are_refused(record: ServiceRecord, channel: Channel, requirement: str):
    with pytest.raises(BadInput):
        plan.make(record, dataclasses.replace(channel, requirements=[requirement]))


def test_practice_wheels_never_go_onto_a_real_node(record: ServiceRecord, channel: Channel):
    with pytest.raises(Refused):
        plan.make(dataclasses.replace(record, practice=False), channel)
    with pytest.raises(Refused):
        plan.make(dataclasses.replace(record, practice=False), dataclasses.replace(channel, practice=False))


def test_a_practice_service_takes_no_real_wheels(record: ServiceRecord, tmp_path: Path):
    folder = tmp_path / "real"
    make_wheel(folder, "vllm", "0.16.0")
    with pytest.raises(Refused):
        plan.make(record, channel_of(folder))


def test_another_cuda_build_is_a_failed_plan(record: ServiceRecord, tmp_path: Path, job_context):
    real = dataclasses.replace(record, practice=False)
    channel = Channel(name="nightly", kind="wheelhouse", wheelhouse=str(tmp_path / "cu"))
    entry = "[console_scripts]\nvllm = vllm:main\n"
    make_wheel(tmp_path / "cu", "vllm", "0.16.0+cu129", files={"vllm/__init__.py": "def main():\n    print('0.16.0+cu129')\n"}, entry_points=entry)
    made = plan.make(real, channel)
    release = releases.build(job_context, real, channel, made)
    releases.verify(job_context, real, release, made)
    releases.switch(real, release)
    make_wheel(tmp_path / "cu", "vllm", "0.17.0+cu130")
    with pytest.raises(BadInput) as caught:
        plan.make(real, channel)
    assert "from cu129 to cu130" in caught.value.what
    assert plan.make(real, channel, options={"allow_variant_change": True}).version == "0.17.0+cu130"


def test_the_interpreter_is_kept_or_chosen(record: ServiceRecord, channel: Channel, live: Path):
    ours = plan.default_uv(record)
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    try:
        other = ours.find_python(here)
    except BadInput:
        pytest.skip("this machine's Python lies nowhere that programs look for one")
    assert plan.make(record, channel).python["path"] == os.path.realpath(live / "bin" / "python")
    chosen = plan.make(record, channel, options={"python": here})
    assert chosen.python == {"path": other, "version": here}
    with pytest.raises(BadInput, match="This machine has no Python"):
        plan.make(record, channel, options={"python": "3.99"})
    for fixed, mode in ((dataclasses.replace(record, environment=str(live), in_place=True), "full"), (record, "restore")):
        with pytest.raises(BadInput, match="interpreter can only be chosen"):
            plan.make(fixed, channel, mode=mode, options={"python": here})


def test_patched_files_are_told(record: ServiceRecord, channel: Channel, live: Path):
    with (library(live) / "vllm" / "model.py").open("a") as file:
        file.write("import torch; torch.save\n")
    made = plan.make(record, channel)
    assert [(found["package"], Path(found["path"]).name, found["change"]) for found in made.patched_files] == [("vllm", "model.py", "changed")]
    assert "1 file differs from what was installed, in `vllm`" in titles(made, "warning")


def test_patched_files_are_shown_with_what_was_edited_and_the_hash_looks_at_the_file_alone(record: ServiceRecord, channel: Channel, live: Path):
    model, extra = library(live) / "vllm" / "model.py", library(live) / "vllm" / "extra.py"
    model.write_text(model.read_text() + "import torch\n" * 3)
    extra.write_text("x = 1\n" * 500)
    made = plan.make(record, channel)
    edited, added = (next(found for found in made.patched_files if found["path"].endswith(name)) for name in ("model.py", "extra.py"))
    assert (edited["added"], edited["removed"]) == (3, 0)
    assert edited["diff"].splitlines()[0].startswith("--- a/") and "+import torch" in edited["diff"]
    assert (added["added"], added["diff_lines"], len(added["diff"].splitlines())) == (500, 503, patches.SHOWN_LINES)
    bare = dataclasses.replace(made, patched_files=[{k: v for k, v in found.items() if k not in plan.SHOWN} for found in made.patched_files])
    assert plan.from_dict(bare.as_dict()).hash == made.hash
    assert plan.differences(made, bare) == []


def test_a_guard_that_does_not_hold_stops(record: ServiceRecord, channel: Channel):
    Path(record.model_path, "config.json").write_text('{"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}')
    made = plan.make(record, channel)
    assert "A guard does not hold" in made.stops[0]["title"]
    assert not made.guards[0]["holds"]


def test_the_same_input_gives_the_same_hash(record: ServiceRecord, channel: Channel, live: Path):
    one, other = plan.make(record, channel), plan.make(record, channel)
    assert plan.same_build(one, other) and plan.differences(one, other) == []
    assert plan.same_build(one, plan.from_dict({**one.as_dict(), "estimate": {"warmup_s": 3}}))


@pytest.mark.parametrize("change", ["edit", "guard", "wheel", "coupling", "version"])
def test_the_hash_follows_what_decides_the_build(record: ServiceRecord, live: Path, tmp_path: Path, change: str):
    channel = channel_of(make_wheelhouse(tmp_path / "own"))
    before = plan.make(record, channel)
    options: dict = {}
    if change == "edit":
        (library(live) / "vllm" / "config.py").write_text("DEBUG = True \n")
    elif change == "guard":
        Path(record.model_path, "config.json").write_text("{}")
    elif change == "wheel":
        make_wheel(tmp_path / "own", "torch", "2.10.0+practice", files={"torch/__init__.py": "other = 1\n"})
    elif change == "coupling":
        options = {"coupling": False}
    else:
        options = {"version": "0.16.0rc2.dev313"}
    after = plan.make(record, channel, **options)
    assert not plan.same_build(before, after)
    told = "; ".join(plan.differences(before, after))
    assert {"edit": "vllm/config.py", "guard": str(Path(record.model_path, "config.json")), "wheel": "`torch` 2.10.0+practice is another file",
            "coupling": "the coupling choice", "version": "`vllm` was"}[change] in told


def test_a_plan_that_was_changed_on_its_way_is_refused(record: ServiceRecord, channel: Channel):
    raw = plan.make(record, channel).as_dict()
    raw["packages"][0]["sha256"] = "0" * 64
    with pytest.raises(BadInput, match="changed after it was made"):
        plan.from_dict(raw)


def test_a_plan_holds_what_a_purge_could_delete_and_a_scan_that_fails_is_a_note(record: ServiceRecord, channel: Channel):
    def fails() -> dict[str, Any]:
        raise OpsError("The preview cannot be written", why="No space left on device")

    nobody, failed = plan.make(record, channel), plan.make(record, channel, leftovers=fails)
    assert nobody.cleanup == failed.cleanup == outlook.no_cleanup()
    assert "Leftovers could not be looked for: The preview cannot be written | No space left" in titles(failed, "note")
    found = {"scan": "s", "digest": "d", "kinds": [{"kind": "debug-tensor"}], "listed": [], "problems": ["`/a` cannot be read"]}
    made = plan.make(record, channel, leftovers=lambda: found)
    assert made.cleanup == found
    assert plan.same_build(nobody, made)  # leftovers decide nothing of the build
    before = {name: value for name, value in nobody.as_dict().items() if name != "cleanup"}
    assert plan.from_dict({**before, "artifacts": []}).cleanup == outlook.no_cleanup()  # as nodes told it before there were scans


def test_no_room_on_the_disk_stops(record: ServiceRecord, channel: Channel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outlook, "SPARE_BYTES", 1 << 60)
    made = plan.make(record, channel)
    assert "There is not enough disk" in made.stops[0]["title"]
    assert made.disk["needed_bytes"] > 0 and not made.disk["estimate"]


def test_what_was_installed_by_hand_is_told(record: ServiceRecord, channel: Channel, live: Path, tmp_path: Path):
    make_wheel(tmp_path / "more", "lmcache", "0.4")
    subprocess.run([uv.uv_package.find_uv_bin(), "pip", "install", "-q", "--no-config", "--offline", "--no-index", "--find-links",
                    str(tmp_path / "more"), "--cache-dir", str(tmp_path / "c"), "--python", str(live / "bin" / "python"), "lmcache"], check=True)
    made = plan.make(record, channel)
    assert row(made, "lmcache")["change"] == "removed"
    assert "Installed by hand, and not in the new release: `lmcache`" in titles(made, "warning")


def test_uv_sees_no_configuration_from_outside(record: ServiceRecord, channel: Channel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("UV_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_EXCLUDE_NEWER", "2001-01-01")
    monkeypatch.setenv("UV_CONSTRAINT", str(tmp_path / "nothing"))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert plan.make(record, channel).version == "0.16.0rc2.dev344+practice"


# Restoring: the versions of today, from pristine wheels


def edit(live: Path) -> Path:
    file = library(live) / "vllm" / "model.py"
    file.write_text(file.read_text() + "import torch\n")
    return file


def test_restoring_installs_the_edited_packages_anew_and_keeps_every_version(record: ServiceRecord, channel: Channel, live: Path):
    edit(live)
    (library(live) / "torch" / "stray.py").write_text("x = 1\n")
    made = plan.make(record, channel, mode="restore")
    assert (made.mode, made.restore, made.edited) == ("restore", ["vllm"], ["vllm"])
    assert made.version == "0.16.0rc2.dev313+practice" and {package["change"] for package in made.packages} == {"same"}
    assert row(made, "vllm")["why"] == "its files were edited: installed anew" and row(made, "torch")["why"] == "copied as it is"
    assert len(row(made, "vllm")["sha256"]) == len(row(made, "torch")["sha256"]) == 64  # the manifest knows the one that is copied
    assert made.download_bytes == 0 and made.rollback["possible"] and not made.stops
    assert plan.from_dict(made.as_dict()).hash == made.hash


def test_a_patched_release_gets_both_ways_with_what_they_cost(record: ServiceRecord, channel: Channel, live: Path):
    edit(live)
    made = plan.make(record, channel)
    restore, full = made.ways
    assert (restore["mode"], restore["possible"], restore["download_bytes"], restore["packages"], restore["files"]) == ("restore", True, 0, 1, 1)
    assert (full["mode"], full["possible"], full["download_bytes"], full["packages"]) == ("full", True, 0, len(made.locked))
    assert made.edited == ["vllm"] and made.restore == []
    assert plan.make(record, channel, mode="restore").ways[1]["download_bytes"] is None


def test_a_release_without_edits_has_no_ways(record: ServiceRecord, channel: Channel, live: Path):
    assert plan.make(record, channel).ways == []


def test_a_missing_file_is_restored_too(record: ServiceRecord, channel: Channel, live: Path):
    (library(live) / "torch" / "__init__.py").unlink()
    assert plan.make(record, channel, mode="restore").restore == ["torch"]


def test_a_channel_that_lost_the_wheel_cannot_restore_and_says_so(record: ServiceRecord, live: Path, tmp_path: Path):
    edit(live)
    folder = make_wheelhouse(tmp_path / "later")
    next(folder.glob("vllm-*dev313*")).unlink()
    with pytest.raises(NoSolution, match=r"does not have `vllm==0\.16\.0rc2\.dev313\+practice`"):
        plan.make(record, channel_of(folder), mode="restore")
    restore, full = plan.make(record, channel_of(folder)).ways
    assert not restore["possible"] and "does not have" in restore["why"] and full["possible"]


def test_another_wheel_under_the_same_name_does_not_restore(record: ServiceRecord, live: Path, tmp_path: Path):
    edit(live)
    folder = make_wheelhouse(tmp_path / "other")
    make_wheel(folder, "vllm", "0.16.0rc2.dev313+practice", requires=["torch>=2"])
    with pytest.raises(BadInput, match="another file under the name of `vllm`"):
        plan.make(record, channel_of(folder), mode="restore")


def test_restoring_needs_a_release_and_chooses_no_version(record: ServiceRecord, channel: Channel):
    with pytest.raises(BadInput, match="no release whose files could be restored"):
        plan.make(record, channel, mode="restore")


def test_restoring_takes_no_version_and_no_other_mode_is_known(record: ServiceRecord, channel: Channel, live: Path):
    with pytest.raises(BadInput, match="no other can be chosen"):
        plan.make(record, channel, mode="restore", version="0.16.0rc2.dev344")
    with pytest.raises(BadInput, match="no mode"):
        plan.make(record, channel, mode="half")


# In place


def test_in_place_tells_the_copy_that_leads_back(record: ServiceRecord, channel: Channel, live: Path):
    there = dataclasses.replace(record, environment=str(live), in_place=True)
    made = plan.make(there, channel)
    assert made.in_place and made.rollback["possible"] and not made.stops
    assert made.rollback["backup"] == f"{live}.roundhouse-{made.release}" and made.rollback["backup_bytes"] > 0
    assert any(finding.get("about") == "rollback" and finding["level"] == "note" for finding in made.findings)
    beside = plan.make(record, channel)
    assert not plan.same_build(made, beside) and "in place" in "; ".join(plan.differences(made, beside))
    assert beside.rollback == {"possible": True, "backup": None, "backup_bytes": None, "why": "The release in use stays as it is"}


def test_without_room_for_the_copy_there_is_no_rollback_and_the_plan_says_why(record: ServiceRecord, channel: Channel, live: Path,
                                                                               monkeypatch: pytest.MonkeyPatch):
    there = dataclasses.replace(record, environment=str(live), in_place=True)
    needed = plan.make(there, channel)
    room = outlook.SPARE_BYTES + needed.disk["needed_bytes"] + needed.disk["cache_bytes"]
    monkeypatch.setattr(outlook.os, "statvfs", lambda path: SimpleNamespace(f_bavail=room // 512 + 1, f_frsize=512))
    made = plan.make(there, channel)
    assert not made.rollback["possible"] and made.rollback["backup"] is None and "no room for a copy" in made.rollback["why"]
    assert "No rollback" in titles(made, "warning") and not made.stops


def test_without_permission_for_the_copy_there_is_no_rollback(record: ServiceRecord, channel: Channel, live: Path, monkeypatch: pytest.MonkeyPatch):
    there = dataclasses.replace(record, environment=str(live), in_place=True)
    real = os.access
    monkeypatch.setattr(outlook.os, "access", lambda path, mode: Path(path) != live.parent and real(path, mode))
    made = plan.make(there, channel)
    assert not made.rollback["possible"] and "cannot be written to" in made.rollback["why"]
    monkeypatch.setattr(outlook.os, "access", lambda path, mode: Path(path) != live and real(path, mode))
    assert "cannot be changed" in plan.make(there, channel).stops[0]["title"]


def test_an_environment_of_the_record_is_the_one_in_use_before_anything_is_adopted(record: ServiceRecord, channel: Channel, live: Path):
    record.current.unlink()
    there = dataclasses.replace(record, environment=str(live), in_place=True)
    made = plan.make(there, channel)
    assert made.current == "adopted" and row(made, "vllm")["old"] == "0.16.0rc2.dev313+practice"


def test_in_place_stays_where_the_node_allows_it(record: ServiceRecord, channel: Channel, live: Path, wheels: Path):
    there = dataclasses.replace(record, environment=str(live), in_place=True)
    allowed = NodeConfig(name="n", practice=True, wheelhouse_roots=[str(wheels)], environment_roots=[str(live.parent)])
    assert plan.make(there, channel, config=allowed).in_place
    with pytest.raises(Refused, match="environment to be changed in place"):
        plan.make(there, channel, config=dataclasses.replace(allowed, environment_roots=["/opt"]))


# What was wanted is what comes out


def real(record: ServiceRecord, folder: Path, job_context: Context, version: str, **others: str) -> ServiceRecord:
    """A service that is no practice one, and runs that vllm."""
    service = dataclasses.replace(record, practice=False)
    wheel_of_vllm(folder, version)
    for name, number in others.items():
        make_wheel(folder, name.replace("_", "-"), number)
    asked = [f"vllm=={version}", *(f"{name.replace('_', '-')}=={number}" for name, number in others.items())]
    first = Channel(name="first", kind="wheelhouse", wheelhouse=str(folder), requirements=asked)
    made = plan.make(service, first)
    release = releases.build(job_context, service, first, made)
    releases.verify(job_context, service, release, made)
    releases.switch(service, release)
    return service


def wheel_of_vllm(folder: Path, version: str, requires: tuple[str, ...] = ()) -> None:
    make_wheel(folder, "vllm", version, requires=requires, entry_points="[console_scripts]\nvllm = vllm:main\n",
               files={"vllm/__init__.py": f"def main():\n    print('{version}')\n"})


def test_a_pre_release_that_an_older_stable_one_would_replace_is_a_failed_plan(record: ServiceRecord, tmp_path: Path, job_context: Context):
    service = real(record, tmp_path / "old", job_context, "0.11.1rc8.dev14")
    wheel_of_vllm(tmp_path / "new", "0.11.0")
    channel = Channel(name="house", kind="wheelhouse", wheelhouse=str(tmp_path / "new"))
    with pytest.raises(BadInput) as caught:
        plan.make(service, channel)
    assert caught.value.what == "`vllm` is the pre-release 0.11.1rc8.dev14 today, and the channel `house` would replace it by the stable 0.11.0"
    assert plan.make(service, channel, version="0.11.0").version == "0.11.0"
    wheel_of_vllm(tmp_path / "new", "0.11.1")
    assert "goes from the pre-release 0.11.1rc8.dev14 to the stable 0.11.1" in titles(plan.make(service, channel), "note")


def nightly(first: str, last: str, **fields: Any) -> Channel:
    return Channel(**{"name": "nightly", "kind": "index", "preset": "nightly", "index_url": last, "extra_index_urls": [first],
                      "index_strategy": "unsafe-first-match", **fields})


def test_a_nightly_that_a_stable_release_would_replace_is_a_failed_plan(record: ServiceRecord, tmp_path: Path):
    service = dataclasses.replace(record, practice=False)
    make_wheel(tmp_path / "nightly", "vllm", "0.34.0rc1.dev5+gabc1234", tag="cp38-abi3-win_amd64")  # the machine can use none of them
    wheel_of_vllm(tmp_path / "public", "0.33.0")
    with package_index(tmp_path / "nightly") as first, package_index(tmp_path / "public") as last:
        with pytest.raises(BadInput) as caught:
            plan.make(service, nightly(first.url, last.url))
        assert caught.value.what == "Wanted a nightly of `vllm`, but the channel `nightly` gives the stable 0.33.0"
    wheel_of_vllm(tmp_path / "public", "0.34.0rc2")
    with (package_index(tmp_path / "nightly") as first, package_index(tmp_path / "public") as last,
          pytest.raises(BadInput, match=r"gives 0\.34\.0rc2 from another index")):
        plan.make(service, nightly(first.url, last.url))


def test_a_nightly_comes_from_its_index_and_the_rest_falls_through(record: ServiceRecord, tmp_path: Path):
    """The final release of another CUDA is the higher version, and is not taken; cuda-python is in both indexes, in the wanted version in one."""
    service = dataclasses.replace(record, practice=False)
    wheel_of_vllm(tmp_path / "nightly", "0.16.0rc2.dev344+gabc1234.cu129", ("cuda-python>=13", "torch"))
    make_wheel(tmp_path / "nightly", "cuda-python", "12.9")
    wheel_of_vllm(tmp_path / "public", "0.16.0")
    make_wheel(tmp_path / "public", "cuda-python", "13.0")
    make_wheel(tmp_path / "public", "torch", "2.10.0")
    with package_index(tmp_path / "nightly") as first, package_index(tmp_path / "public") as last:
        made = plan.make(service, nightly(first.url, last.url, variant="cu129"))
        assert (made.version, made.planned("cuda-python")) == ("0.16.0rc2.dev344+gabc1234.cu129", "13.0")
        assert row(made, "vllm")["index"] == first.url and row(made, "torch")["index"] == last.url
        with pytest.raises(NoSolution) as caught:
            plan.make(service, nightly(first.url, last.url, index_strategy="first-index"))
    assert caught.value.what == "`vllm` needs `cuda-python>=13`, but the channel `nightly` has only `cuda-python==12.9`"
    assert "unsafe-first-match" in caught.value.hint and "best-match" not in str(caught.value)  # uv's own advice would take another CUDA


@pytest.mark.parametrize("version, fine", [("0.16.0rc2.dev344+g01234567", True), ("0.16.0", True), ("0.16.0rc2.dev344+gfffffff", False)])
def test_a_commits_build_must_be_of_that_commit(record: ServiceRecord, tmp_path: Path, version: str, fine: bool):
    wheel_of_vllm(tmp_path / "commit", version)
    make_wheel(tmp_path / "public", "torch", "2.10.0")
    with package_index(tmp_path / "commit") as first, package_index(tmp_path / "public") as last:
        channel = nightly(first.url, last.url, preset="commit", commit="0123456789abcdef0123456789abcdef01234567")
        if fine:
            assert plan.make(dataclasses.replace(record, practice=False), channel).version == version
            return
        with pytest.raises(BadInput, match="of another commit"):
            plan.make(dataclasses.replace(record, practice=False), channel)


@pytest.mark.parametrize("wheels, sentence", [
    ({"vllm": "0.17.0+cu130"}, "Wanted the build cu129, but the channel `house` gives `vllm` 0.17.0+cu130, which is cu130"),
    ({"vllm": "0.17.0"}, "Wanted the build cu129, but the channel `house` gives `vllm` 0.17.0, which names no build"),
    ({"vllm": "0.17.0+cu129", "torch": "2.10.0+cu130"}, "Wanted the build cu129, but the channel `house` gives `torch` 2.10.0+cu130, which is cu130"),
    ({"vllm": "0.17.0+cu129", "torch": "2.10.0", "nvidia-nccl-cu13": "2.28"},
     "Wanted the build cu129, but the channel `house` gives libraries for CUDA 13: `nvidia-nccl-cu13`"),
    ({"vllm": "0.17.0+cu129", "torch": "2.10.0+cu129", "nvidia-nccl-cu12": "2.28"}, "")])
def test_the_channels_cuda_build_is_asserted(record: ServiceRecord, tmp_path: Path, wheels: dict[str, str], sentence: str):
    for name, version in wheels.items():
        make_wheel(tmp_path / "house", name, version)
    channel = Channel(name="house", kind="wheelhouse", wheelhouse=str(tmp_path / "house"), requirements=list(wheels), variant="cu129")
    service = dataclasses.replace(record, practice=False)
    if not sentence:
        assert plan.make(service, channel).version == "0.17.0+cu129"
        return
    with pytest.raises(BadInput) as caught:
        plan.make(service, channel)
    assert caught.value.what == sentence


def test_another_cuda_of_the_libraries_is_told(record: ServiceRecord, tmp_path: Path, job_context: Context):
    service = real(record, tmp_path / "old", job_context, "0.16.0", torch="2.9.1", nvidia_nccl_cu12="2.27")
    for name, version in (("vllm", "0.17.0"), ("torch", "2.10.0"), ("nvidia-nccl-cu13", "2.28")):
        make_wheel(tmp_path / "new", name, version)
    channel = Channel(name="house", kind="wheelhouse", wheelhouse=str(tmp_path / "new"), requirements=["vllm", "torch", "nvidia-nccl-cu13"])
    assert "CUDA would change from 12 to 13" in titles(plan.make(service, channel), "warning")


# Locks, recipes


def locked_channel(folder: Path, *, wrong: str = "", **fields: Any) -> Channel:
    lines = []
    for wheel in sorted(folder.glob("*.whl")):
        name, version = wheel.name.split("-")[:2]
        digest = "0" * 64 if name == wrong else wheelhouse.sha256(wheel)
        lines.append(f"{name.replace('_', '-')}=={version} --hash=sha256:{digest}")
    return Channel(**{"name": "stable", "kind": "wheelhouse", "preset": "stable", "wheelhouse": str(folder), "constraints": lines, **fields})


def test_a_locked_channel_gives_its_own_versions_and_files(record: ServiceRecord, tmp_path: Path):
    folder = tmp_path / "locked"
    wheel_of_vllm(folder, "0.25.1", ("torch",))
    make_wheel(folder, "torch", "2.11.0")
    channel = locked_channel(folder)
    wheel_of_vllm(folder, "0.26.0", ("torch",))
    service = dataclasses.replace(record, practice=False)
    made = plan.make(service, channel)
    assert (made.version, made.planned("torch")) == ("0.25.1", "2.11.0")
    with pytest.raises(BadInput, match=r"Wanted `vllm` 0\.26\.0, but the channel `stable` is pinned to 0\.25\.1"):
        plan.make(service, channel, version="0.26.0")
    with pytest.raises(BadInput, match=r"`torch` 2\.11\.0 of channel `stable` is another file than the lock names"):
        plan.make(service, dataclasses.replace(channel, constraints=[line.replace(line[-64:], "0" * 64) if line.startswith("torch") else line
                                                                     for line in channel.constraints]))
    make_wheel(folder, "extra", "1.0")
    assert "does not name `extra`" in titles(plan.make(service, dataclasses.replace(channel, requirements=["vllm", "extra"])), "note")


def test_a_recipe_is_built_exactly(record: ServiceRecord, wheels: Path, tmp_path: Path):
    rows = [{"name": name, "version": version, "sha256": wheelhouse.sha256(next(wheels.glob(f"{name.replace('-', '_')}-{version}-*")))}
            for name, version in (("vllm", "0.16.0rc2.dev313+practice"), ("flashinfer-python", "0.6.3+practice"), ("torch", "2.10.0+practice"))]
    channel = Channel(name="recipe", kind="recipe", wheelhouse=str(wheels), requirements=[], recipe={"packages": rows}, practice=True)
    made = plan.make(record, channel)
    assert {package["name"]: package["new"] for package in made.locked} == {one["name"]: one["version"] for one in rows}
    assert {package["why"] for package in made.packages} == {"in the recipe"}
    wrong = dataclasses.replace(channel, recipe={"packages": [rows[0] | {"sha256": "0" * 64}, *rows[1:]]})
    with pytest.raises(BadInput, match="is another file than the recipe names"):
        plan.make(record, wrong)
    for bad in ({"packages": []}, {"packages": [rows[0] | {"sha256": None}]}, {"packages": [rows[0] | {"name": "-x"}]}, {"packages": ["x"]},
                {"x": 1}):
        with pytest.raises(BadInput):
            plan.make(record, dataclasses.replace(channel, recipe=bad))


def test_a_recipe_made_of_a_release_is_a_channel_elsewhere(record: ServiceRecord, wheels: Path, live: Path, tmp_path: Path):
    releases.mark_good(record, live.name)
    made = recipe.make(record, live)
    channel = channels.make("recipe", name="recipe", recipe=made, wheelhouse=str(wheels), practice=True)
    elsewhere = dataclasses.replace(record, root=str(tmp_path / "elsewhere" / "services" / "kimi"))
    drawn = plan.make(elsewhere, channel)
    assert [(package["name"], package["new"], package["sha256"]) for package in drawn.locked] == [
        (package["name"], package["version"], package["sha256"]) for package in made["packages"]]
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps(made))
    node = NodeConfig(name="n", practice=True, wheelhouse_roots=[str(wheels)])
    assert channels.parse(f"recipe:{file}", config=node).wheelhouse == str(wheels)  # where it was built from
    made["packages"][0]["sha256"] = "0" * 64
    with pytest.raises(BadInput, match="changed after it was made"):
        channels.make("recipe", name="recipe", recipe=made, wheelhouse=str(wheels))


# What it costs, and what its hash is over


def test_the_download_is_unknown_where_the_index_does_not_tell_and_nothing_from_the_cache(record: ServiceRecord, wheels: Path, tmp_path: Path):
    with package_index(wheels) as index:
        channel = Channel(name="local", kind="index", index_url=index.url, practice=True)
        first = plan.make(record, channel)
        assert first.download_bytes is None and first.disk["needed_bytes"] is None
        assert "How much disk the release needs is not known" in titles(first, "note")
        lock = tmp_path / "lock.txt"
        lock.write_text(releases.lock_text(first))
        plan.default_uv(record).fetch(lock, channel, first.python["path"])
        again = plan.make(record, channel)
        assert again.download_bytes == 0 and again.disk["needed_bytes"] > 0 and again.disk["cache_bytes"] == 0
        assert plan.same_build(first, again)


def test_the_public_index_tells_what_is_to_be_downloaded(record: ServiceRecord):
    channel = Channel(name="public", kind="index", index_url="public", requirements=["idna==3.7", "packaging==24.0"], prerelease=False)
    made = plan.make(dataclasses.replace(record, practice=False), channel)
    assert made.download_bytes == sum(package["size_bytes"] for package in made.packages) > 100_000
    assert made.disk["needed_bytes"] == plan.UNPACKED_FACTOR * made.download_bytes and made.disk["estimate"]


@pytest.mark.parametrize("change", [
    {"extra_index_urls": ["http://127.0.0.1:1/a", "http://127.0.0.1:1/b"]}, {"extra_index_urls": []}, {"index_strategy": "unsafe-first-match"},
    {"arguments": {"exclude-newer": "2030-01-01"}}, {"prerelease": False}, {"index_url": "public"}, {"constraints": ["torch==2.10.0"]},
    {"variant": "cu129"}])
def test_the_hash_is_over_all_that_the_channel_decides(change: dict[str, Any], record: ServiceRecord, channel: Channel):
    made = plan.make(record, channel)
    base = Channel(name="c", kind="index", index_url="https://index.example", extra_index_urls=["http://127.0.0.1:1/b", "http://127.0.0.1:1/a"])
    one, other = (dataclasses.replace(made, source=plan._source(each)) for each in (base, dataclasses.replace(base, **change)))
    assert plan._hash(one) != plan._hash(other)
    assert plan.differences(one, other)


def test_an_index_that_does_not_answer_fails_the_plan_with_its_name(record: ServiceRecord, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(uv.ENVIRONMENT, "UV_HTTP_RETRIES", "0")
    with pytest.raises(OpsError) as caught:
        plan.make(record, Channel(name="gone", kind="index", index_url="http://127.0.0.1:9/simple", practice=True))
    assert caught.value.kind == "index_unreachable" and "channel `gone`" in caught.value.what


def test_a_plan_asks_uv_for_no_more_than_it_needs(record: ServiceRecord, channel: Channel, live: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[list[str]] = []
    real_run = uv.Uv._run

    def run(self: uv.Uv, arguments: list[str], *rest: Any, **named: Any) -> None:
        asked.append(arguments)
        real_run(self, arguments, *rest, **named)

    monkeypatch.setattr(uv.Uv, "_run", run)
    plan.make(record, channel)  # the cubin is completed: the base, whether it is there, with it, why each package is in it
    assert [arguments[:2] for arguments in asked] == [["pip", "compile"]] * 4
    asked.clear()
    plan.make(record, dataclasses.replace(channel, requirements=["vllm==0.16.0rc2.dev344", "flashinfer-cubin==0.6.4"]))
    assert len(asked) == 2
