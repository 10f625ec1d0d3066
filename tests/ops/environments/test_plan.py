from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ops.environments import patches, plan, releases
from ops.environments.uv import NoSolution
from ops.jobs.errors import BadInput, Refused
from ops.records import Channel, ServiceRecord
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


def test_artifacts_of_the_service_are_listed(record: ServiceRecord, channel: Channel, tmp_path: Path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "layer0.pt").write_bytes(b"x" * 10)
    (scratch / "notes.txt").write_text("mine")
    made = plan.make(dataclasses.replace(record, artifact_roots=[str(scratch)]), channel)
    assert [(Path(found["path"]).name, found["size_bytes"], found["safe"]) for found in made.artifacts] == [("layer0.pt", 10, True)]


def test_no_room_on_the_disk_stops(record: ServiceRecord, channel: Channel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plan, "SPARE_BYTES", 1 << 60)
    made = plan.make(record, channel)
    assert "There is not enough disk" in made.stops[0]["title"]
    assert made.disk["needed_bytes"] > 0 and not made.disk["estimate"]


def test_what_was_installed_by_hand_is_told(record: ServiceRecord, channel: Channel, live: Path, wheels: Path, tmp_path: Path):
    import subprocess

    make_wheel(tmp_path / "more", "lmcache", "0.4")
    import uv

    subprocess.run([uv.find_uv_bin(), "pip", "install", "-q", "--no-config", "--offline", "--no-index", "--find-links", str(tmp_path / "more"),
                    "--cache-dir", str(tmp_path / "c"), "--python", str(live / "bin" / "python"), "lmcache"], check=True)
    made = plan.make(record, channel)
    assert row(made, "lmcache")["change"] == "removed"
    assert "Installed by hand, and not in the new release: `lmcache`" in titles(made, "warning")


def test_uv_sees_no_configuration_from_outside(record: ServiceRecord, channel: Channel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("UV_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_EXCLUDE_NEWER", "2001-01-01")
    monkeypatch.setenv("UV_CONSTRAINT", str(tmp_path / "nothing"))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert plan.make(record, channel).version == "0.16.0rc2.dev344+practice"
