"""What makes levels comparable, and what is compared."""

from __future__ import annotations

from typing import Any

import pytest

from ops.benchmark.comparing.keys import TITLES, differences, level_key, shown, sweep_key
from tests.ops.benchmark.comparing.documents import SETTINGS, level, run


def named(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What differs between the first levels of two runs."""
    return [name for name, _, _ in differences(level_key(one, one["levels"][0]), level_key(other, other["levels"][0]))]


def test_model_release_and_address_are_compared_and_not_part_of_the_key() -> None:
    one = run(level(), fingerprint={"release": "r1", "model": {"quantization": {"bits": 4}}})
    other = run(level(), model="other", settings={"model": "other", "base_url": "http://127.0.0.1:2", "seed": 9}, fingerprint={"release": "r2"})
    assert named(one, other) == []
    assert sweep_key(one["settings"]) == sweep_key(other["settings"])


@pytest.mark.parametrize(("settings", "name"), [
    ({"max_tokens": 512}, "max_tokens"), ({"output_mode": "natural"}, "output_mode"), ({"prompt_words": 500}, "input"),
    ({"prompt_tokens": 512}, "input"), ({"prompt_source": "file", "prompt_sha256": "ab" * 32}, "input"), ({"temperature": 0.6}, "temperature"),
    ({"reasoning": "off"}, "reasoning"), ({"endpoint_kind": "completions"}, "endpoint_kind"), ({"extra_body": {"top_p": 0.9}}, "sampling"),
    ({"burst": True}, "start")], ids=lambda value: value if isinstance(value, str) else "")
def test_what_was_asked_for_is_part_of_the_key(settings: dict[str, Any], name: str) -> None:
    asked = {"burst": False} | SETTINGS
    one, other = run(level(), settings=asked), run(level(), settings=asked | settings)
    assert named(one, other) == [name]
    assert sweep_key(one["settings"]) != sweep_key(other["settings"])


def test_levels_are_no_part_of_a_sweeps_key_but_the_kind_of_load_is() -> None:
    assert sweep_key(SETTINGS | {"concurrencies": [4], "requests": [9], "repeats": 3}) == sweep_key(SETTINGS)
    assert sweep_key(SETTINGS | {"load": "open", "rates": [2.0]}) != sweep_key(SETTINGS)


def test_a_setting_that_was_not_there_yet_is_its_default() -> None:
    now = SETTINGS | {"endpoint_kind": "chat", "load": "closed", "prompt_source": "synthetic", "reasoning": "", "max_in_flight": None, "burst": False,
                      "prompt_sha256": "", "prompt_tokens": None}
    assert sweep_key(SETTINGS) == sweep_key(now)
    assert sweep_key(SETTINGS | {"temperature": 0}) == sweep_key(SETTINGS)


def test_counting_source_and_number_of_gpus_are_the_levels_own() -> None:
    assert named(run(level()), run(level(counted_by="chunks", gpu_count=4))) == ["counted_by", "gpu_count"]


def test_a_rate_and_a_concurrency_of_the_same_number_are_two_loads() -> None:
    assert "load" in named(run(level(8)), run(level(8) | {"load": "open", "concurrency": None}))


def test_what_one_side_does_not_say_is_not_known_to_be_equal() -> None:
    told = run(level(gpu_count=None), settings={"gpu_count": None})
    assert named(run(level()), told) == ["gpu_count"]
    assert shown("gpu_count", None) == "not reported"


def test_of_an_import_the_measured_lengths_stand_for_those_asked_for() -> None:
    def imported(tokens: float) -> dict[str, Any]:
        return run(level(prompt_tokens_mean=tokens, output_tokens=12_800), origin="imported", tool="vllm bench serve") | {"settings": {}}

    assert named(imported(1000), imported(1020)) == []
    assert named(imported(1000), imported(128)) == ["prompt_tokens_mean"]
    assert level_key(imported(1000), imported(1000)["levels"][0])["endpoint_kind"] is None


def test_every_part_of_a_key_has_a_title() -> None:
    assert set(level_key(run(level()), level())) == set(TITLES)


def test_a_document_of_nonsense_has_a_key_all_the_same() -> None:
    deep: Any = {}
    for _ in range(500):
        deep = {"a": deep}
    told = run(level(value=8, prompt_words=float("inf"), temperature="hot"), settings={"extra_body": deep, "burst": 7, "max_tokens": [1]})
    assert level_key(told, told["levels"][0])["temperature"] is None
    assert len(sweep_key(told["settings"])) == 64
