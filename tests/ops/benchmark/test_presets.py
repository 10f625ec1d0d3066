"""What may be asked for, and what is refused before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from ops.benchmark import presets
from ops.benchmark.presets import LevelPlan, SweepSettings
from ops.jobs.errors import BadInput

URL = "http://127.0.0.1:8000"


def test_quick_is_the_look_after_a_redeploy() -> None:
    made = presets.settings("quick", base_url=URL, model="m")
    assert (made.concurrencies, made.max_tokens, made.requests, made.level_seconds) == ([1, 8, 32, 128], 64, [2, 16, 64, 256], 10.0)
    assert made.short


def test_story_has_the_storys_levels_and_enough_requests() -> None:
    made = presets.settings("story", base_url=URL, model="m")
    assert (made.concurrencies, made.max_tokens) == ([1, 2, 4, 8, 16, 32, 64, 128], 512)
    assert made.requests == [10, 20, 40, 80, 160, 160, 320, 640] and not made.short


def test_overrides_take_their_place_and_requests_follow_the_levels() -> None:
    made = presets.settings("custom", base_url=URL + "/v1", model="m", concurrencies=[32, 2], requests=50, max_tokens=None)
    assert (made.requests, made.max_tokens, made.base_url) == ([50, 50], 128, URL)
    assert made.levels() == [LevelPlan("closed", 2, 50), LevelPlan("closed", 32, 50)]
    assert presets.settings("custom", base_url=URL, model="m", concurrencies=[20]).requests == [100]


def test_settings_survive_json() -> None:
    made = presets.settings("quick", base_url=URL, model="m", gpu_count=8)
    assert SweepSettings.from_dict(made.as_dict()) == made


def test_the_size_says_requests_tokens_and_minutes_before_the_start() -> None:
    size = presets.settings("custom", base_url=URL, model="m", concurrencies=[1, 8], requests=10, max_tokens=100, level_seconds=30.0,
                            drain_seconds=30.0).size()
    assert (size["requests"], size["output_tokens"], size["minutes"], size["minutes_from"]) == (20 + 2 + 16, 3800, 2.0, "upper bound")
    assert size["input_tokens"] == 38 * 98  # 24 + 48 words, 1.35 tokens each


def test_the_size_is_estimated_from_earlier_levels_where_there_are_some() -> None:
    made = presets.settings("custom", base_url=URL, model="m", concurrencies=[1, 8], requests=80, max_tokens=200, level_seconds=300.0)
    history = [{"load": "closed", "value": 1, "e2e_mean_s": 1.0, "max_tokens": 100}, {"load": "closed", "value": 16, "e2e_mean_s": 3.0}]
    size = presets.size(made, history)
    assert size["minutes_from"] == "earlier levels"
    assert [level["minutes"] for level in size["levels"]] == [pytest.approx((80 + 1 + 2) * 2 / 60), pytest.approx((10 + 1 + 2) * 3 / 60)]
    assert presets.size(made, history[:1])["levels"][1]["minutes_from"] == "upper bound"  # 8 is too far from 1


def test_latency_under_load_is_an_open_loop_with_objectives() -> None:
    made = presets.settings("latency", base_url=URL, model="m")
    assert (made.load, made.rates, made.concurrencies, made.requests) == ("open", [0.5, 1.0, 2.0, 4.0, 8.0], [], [30, 60, 120, 240, 480])
    assert made.slos and [plan.name for plan in made.levels()][:2] == ["0.5 requests/s", "1 requests/s"]
    assert presets.settings("latency", base_url=URL, model="m", concurrencies=[4]).load == "closed"


def test_shuffled_levels_keep_their_order_over_repeats() -> None:
    made = presets.settings("story", base_url=URL, model="m", order="shuffled")
    again = presets.settings("story", base_url=URL, model="m", order="shuffled", seed=99)
    assert [plan.value for plan in made.levels()] == [plan.value for plan in again.levels()] != made.concurrencies
    assert {plan.value: plan.requests for plan in made.levels()}[128] == 640


@pytest.mark.parametrize(("overrides", "word"), [
    ({"concurrencies": [0]}, "Concurrency 0"), ({"concurrencies": [4096]}, "Concurrency 4096"), ({"concurrencies": []}, "nothing"),
    ({"concurrencies": [True]}, "whole number"), ({"concurrencies": list(range(1, 18))}, "at most 16"), ({"concurrencies": [2, 2]}, "only once"),
    ({"requests": [1, 2, 3]}, "3 request counts"), ({"requests": 100_000}, "Requests of a level"), ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 10**6}, "max_tokens"), ({"level_seconds": -1.0}, "level_seconds"), ({"level_seconds": float("nan")}, "level_seconds"),
    ({"concurrencies": list(range(1, 17)), "level_seconds": 3600.0}, "minutes"), ({"output_mode": "random"}, "output mode"),
    ({"extra_body": {"stream": False}}, "extra_body"), ({"rates": [0.0]}, "Rates are numbers"), ({"rates": [1.0, 1.0]}, "only once"),
    ({"rates": [1234.567, 1234.568]}, "only once"),
    ({"rates": [1.0], "concurrencies": [2]}, "not concurrencies"), ({"slos": {"itl_ms": 1}}, "no SLO `itl_ms`"), ({"slos": {"ttft_ms": -1}}, "SLO"),
    ({"repeats": 0}, "repeats"), ({"reasoning": "on", "endpoint_kind": "completions"}, "chat template"), ({"prompt_source": "file"}, "path"),
    ({"extra_body": {"x": float("nan")}}, "sent as JSON"), ({"extra_body": {"x": "\ud800"}}, "sent as JSON"),
    ({"prompt_tokens": 5}, "prompt_tokens"), ({"endpoint_kind": "embeddings"}, "Unknown endpoint"), ({"load": "bursty"}, "Unknown load"),
    ({"speed": 3}, "no field `speed`"), ({"request_timeout_s": "1"}, "request_timeout_s"),
])
def test_what_is_beyond_the_limits_is_refused(overrides: dict[str, Any], word: str) -> None:
    with pytest.raises(BadInput, match=word):
        presets.settings("custom", base_url=URL, model="m", **overrides)


def test_an_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(BadInput) as told:
        presets.settings("fast", base_url=URL, model="m")
    assert "quick, story, capacity, latency, custom" in told.value.hint
