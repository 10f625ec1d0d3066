from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ops.environments import channels, coupling, packages, uv
from ops.jobs.errors import OpsError
from ops.records import Channel


def findings(python: str, *, cubin: str | None = None, cache: str | None = None, **options) -> list[coupling.CouplingFinding]:
    versions = {"flashinfer-python": python, "flashinfer-cubin": cubin, "flashinfer-jit-cache": cache}
    return coupling.findings({name: version for name, version in versions.items() if version}, **options)


def test_the_mismatch_of_the_story_is_fatal():
    (found,) = findings("0.6.4", cubin="0.6.3")
    assert found.level == "stop"
    assert found.title == "Packages do not agree: `flashinfer-python` is 0.6.4, `flashinfer-cubin` is 0.6.3"
    assert found.packages == {"flashinfer-python": "0.6.4", "flashinfer-cubin": "0.6.3"}


@pytest.mark.parametrize("python, cubin, cache", [("0.6.4", "0.6.4", None), ("0.6.4", None, None), ("0.6.4+practice", "0.6.4+practice", None),
                                                  ("0.6.4", None, "0.6.4+cu130"), ("0.6.16.post3", "0.6.16.post3", "0.6.16.post3+cu129")])
def test_versions_that_agree_have_no_finding(python: str, cubin: str | None, cache: str | None):
    assert findings(python, cubin=cubin, cache=cache) == []


def test_without_the_leader_nothing_can_disagree():
    assert coupling.findings({"flashinfer-cubin": "0.6.3"}) == []


@pytest.mark.parametrize("python, level", [("0.6.4", "stop"), ("0.6.18.post1", "stop"), ("0.7.0.post1", "stop"), ("0.7.2", "stop"),
                                           ("0.7.2.post1", "warning"), ("0.7.2.post1+cu130", "warning"), ("0.7.4", "warning"), ("1.0", "warning")])
def test_a_cubin_mismatch_is_fatal_until_0_7_2(python: str, level: str):
    assert [found.level for found in findings(python, cubin="0.6.13")] == [level]


@pytest.mark.parametrize("python", ["0.6.4", "0.7.2.post1", "0.7.4"])
def test_a_jit_cache_mismatch_is_always_fatal(python: str):
    assert [found.level for found in findings(python, cache="0.6.13+cu130")] == ["stop"]


def test_post_releases_are_another_version():
    assert len(findings("0.6.16.post3", cubin="0.6.16")) == 1


def test_installing_is_offered_only_where_the_channel_has_the_wheel():
    asked = []

    def available(name: str, version: str) -> bool:
        asked.append((name, version))
        return version == "0.6.4"

    (there,) = findings("0.6.4", cubin="0.6.3", available=available)
    assert there.fix == "Install `flashinfer-cubin==0.6.4`, then start the service again"
    assert there.action == {"do": "install", "package": "flashinfer-cubin", "version": "0.6.4"}
    (gone,) = findings("0.6.14", cubin="0.6.13", available=available)
    assert gone.action["do"] == "remove" and "The channel has no `flashinfer-cubin==0.6.14`" in gone.fix
    assert asked == [("flashinfer-cubin", "0.6.4"), ("flashinfer-cubin", "0.6.14")]


def test_without_knowing_the_channel_the_offer_is_to_remove():
    (found,) = findings("0.6.4", cubin="0.6.3")
    assert found.action == {"do": "remove", "package": "flashinfer-cubin", "version": ""}


def test_the_bypass_variable_makes_it_a_warning():
    assert [found.level for found in findings("0.6.4", cubin="0.6.3", env={"FLASHINFER_DISABLE_VERSION_CHECK": "1"})] == ["warning"]


def test_every_rule_has_a_source():
    assert all(member.sources and member.without for rule in coupling.rules() for member in rule.members)
    assert all(pinned.sources and pinned.otherwise and pinned.level in ("stop", "warning") for pinned in coupling.pins())


# What METADATA asks


def environment(folder: Path, requires: dict[str, list[str]], python: str = "3.11.7", **versions: str) -> packages.EnvironmentPackages:
    """An environment with metadata alone, as `packages.read` finds it."""
    library = folder / "lib" / "python3.11" / "site-packages"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    (folder / "pyvenv.cfg").write_text(f"version_info = {python}\n")
    for name, version in versions.items():
        info = library / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = "".join(f"Requires-Dist: {one}\n" for one in requires.get(name, []))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n{lines}\n")
    return packages.read(folder)


VLLM = {"vllm": ["torch==2.10.0", "transformers>=4.56.0,<5", 'torch==2.4.0; python_version < "3.8"', 'torch==9.9; extra == "dev"', "none at all ?"]}


def test_the_torch_that_vllms_metadata_pins_is_wanted(tmp_path: Path):
    (found,) = coupling.findings(environment(tmp_path, VLLM, vllm="0.17.1", torch="2.11.0", transformers="4.57.0"))
    assert found.level == "stop"
    assert found.title == "`vllm` 0.17.1 needs `torch==2.10.0`, but 2.11.0 is installed"
    assert found.action == {"do": "redeploy", "package": "torch", "version": "2.10.0"} and "undefined symbol" in found.why


def test_a_local_suffix_does_not_break_the_pin(tmp_path: Path):
    assert coupling.findings(environment(tmp_path, VLLM, vllm="0.17.1", torch="2.10.0+cu129", transformers="4.56.0")) == []


def test_transformers_out_of_its_range_is_a_warning(tmp_path: Path):
    (found,) = coupling.findings(environment(tmp_path, VLLM, vllm="0.17.1", torch="2.10.0", transformers="5.1.0"))
    assert found.level == "warning"
    assert found.title == "`vllm` 0.17.1 needs `transformers<5,>=4.56.0`, but 5.1.0 is installed"
    assert found.action == {"do": "redeploy", "package": "transformers", "version": ""}


def test_a_torch_that_is_gone_is_told(tmp_path: Path):
    (found,) = coupling.findings(environment(tmp_path, VLLM, vllm="0.17.1", transformers="4.56.0"))
    assert found.title == "`vllm` 0.17.1 needs `torch==2.10.0`, but it is not installed" and found.packages["torch"] == ""


def test_the_pinned_torch_is_offered_where_the_channel_has_it(tmp_path: Path):
    there = environment(tmp_path, VLLM, vllm="0.17.1", torch="2.11.0", transformers="4.57.0")
    (found,) = coupling.findings(there, available=lambda name, version: (name, version) == ("torch", "2.10.0"))
    assert found.action == {"do": "install", "package": "torch", "version": "2.10.0"}
    (found,) = coupling.findings(there, available=lambda name, version: None)
    assert found.action["do"] == "redeploy"


def test_markers_are_those_of_the_environments_interpreter(tmp_path: Path):
    asks = {"vllm": ['torch==2.9.0; python_version < "3.12"', 'torch==2.10.0; python_version >= "3.12"']}
    assert coupling.findings(environment(tmp_path / "a", asks, python="3.11.7", vllm="1", torch="2.9.0")) == []
    (found,) = coupling.findings(environment(tmp_path / "b", asks, python="3.13.1", vllm="1", torch="2.9.0"))
    assert "torch==2.10.0" in found.title


# What is offered


def test_flashinfers_own_index_is_named_where_it_may_help():
    def nowhere(name: str, version: str) -> bool:
        return False

    (found,) = findings("0.6.14", cubin="0.6.13", available=nowhere, indexes=["public"])
    assert found.action["do"] == "remove" and "an admin may add FlashInfer's own index (https://flashinfer.ai/whl/)" in found.fix
    (found,) = findings("0.6.14", cubin="0.6.13", available=nowhere, indexes=["https://flashinfer.ai/whl/", "public"])
    assert found.action["do"] == "remove" and "FlashInfer's own index included" in found.fix
    (found,) = findings("0.6.14", cubin="0.6.13", available=lambda name, version: None, indexes=["public"])
    assert found.action["do"] == "remove" and "A plan looks up" in found.fix


def test_the_fix_is_looked_up_in_the_public_index(tmp_path: Path):
    public = Channel(name="public", kind="index", index_url="public", prerelease=False)
    ours = uv.Uv(cache=tmp_path / "cache")

    def has(name: str, version: str) -> bool:
        try:
            return bool(ours.lock([f"{name}=={version}"], public, python=sys.executable, no_deps=True))
        except uv.NoSolution:
            return False

    available = channels.availability(has)
    (there,) = findings("0.6.4", cubin="0.6.3", available=available, indexes=["public"])
    assert there.action == {"do": "install", "package": "flashinfer-cubin", "version": "0.6.4"}
    for newer in ("0.6.14", "0.6.16.post3", "0.7.2.post1"):
        (gone,) = findings(newer, cubin="0.6.13", available=available, indexes=["public"])
        assert gone.action["do"] == "remove" and f"has no `flashinfer-cubin=={newer}`" in gone.fix
    (cache,) = findings("0.6.4", cache="0.6.3+cu129", available=available, indexes=["public"])
    assert cache.action["do"] == "remove" and cache.action["package"] == "flashinfer-jit-cache"


def test_an_index_that_does_not_answer_leaves_it_unknown():
    asked = []

    def has(name: str, version: str) -> bool:
        asked.append(name)
        raise OpsError("no answer", kind="index_unreachable")

    available = channels.availability(has)
    assert available("flashinfer-cubin", "0.6.4") is None and available("flashinfer-cubin", "0.6.4") is None
    assert asked == ["flashinfer-cubin"]
