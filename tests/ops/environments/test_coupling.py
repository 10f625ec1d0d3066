from __future__ import annotations

import pytest

from ops.environments import coupling


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
