"""Several runs of one sweep, and two servers in turn."""

from __future__ import annotations

from typing import Any

import pytest

from ops.benchmark import presets, repeats
from ops.benchmark.results import SweepResult
from ops.jobs.errors import OpsError
from tests.fakes.scripted_server import good_stream, response, scripted


def settings(url: str, **overrides: Any) -> presets.SweepSettings:
    return presets.settings("custom", base_url=url, model="m", **{"concurrencies": [1, 2], "requests": 2, "max_tokens": 2, "warmup_per_slot": 0.0,
                                                                 "burst": True, "seed": 1, **overrides})


def nothing(type: str, data: dict[str, Any]) -> None:
    """Events are not what is looked at here."""


def test_repeats_share_a_group_and_the_order_of_levels_but_no_prompt() -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    with scripted(lambda n, body: good_stream(2)) as server:
        results = repeats.run_repeats(settings(server.url, repeats=3, order="shuffled", concurrencies=[1, 2, 3]),
                                      emit=lambda type, data: events.append((str(type), data)))
        sent = [body["messages"][0]["content"] for _, body in server.requests if body]
    assert len(sent) == len(set(sent)) == 18
    assert len({result.group for result in results}) == 1 and [result.group_index for result in results] == [0, 1, 2]
    assert [result.settings["seed"] for result in results] == [1, 1001, 2001]
    assert len({tuple(level["value"] for level in result.levels) for result in results}) == 1
    assert len({result.sweep_key for result in results}) == 1 and results[0].sweep_key
    started = [data for type, data in events if type == "sweep.started"]
    assert [(data["group"], data["group_index"], data["repeats"]) for data in started] == [(results[0].group, i, 3) for i in range(3)]


def test_more_runs_of_a_group_continue_it_with_new_prompts() -> None:
    with scripted(lambda n, body: good_stream(2)) as server:
        one, = repeats.run_repeats(settings(server.url), emit=nothing, group="g", group_from=3)
    assert (one.group, one.group_index, one.settings["seed"]) == ("g", 3, 3001)


def test_two_servers_are_measured_in_turn() -> None:
    assert repeats.order(3) == [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (1, 2)]  # A B B A A B
    order: list[str] = []
    with scripted(lambda n, body: good_stream(2)) as a, scripted(lambda n, body: good_stream(2)) as b:
        names = {a.url: "A", b.url: "B"}
        of_a, of_b = repeats.interleaved(settings(a.url), settings(b.url), 3, emit=nothing,
                                         finished=lambda result: order.append(names[result.base_url]))
    assert "".join(order) == "ABBAAB" and len(of_a) == len(of_b) == 3
    assert len({run.group for run in of_a}) == 1 and of_a[0].group != of_b[0].group


def test_a_run_that_cannot_be_measured_ends_the_repeats_and_says_what_is_kept() -> None:
    done: list[SweepResult] = []

    def chat(number: int, body: dict[str, Any]) -> list[Any]:
        return good_stream(2) if number <= 4 else [response(500, {"error": {"message": "EngineCore died"}})]

    with scripted(chat) as server, pytest.raises(OpsError) as told:
        repeats.run_repeats(settings(server.url, repeats=3), emit=nothing, finished=done.append)
    assert len(done) == 1 and "EngineCore died" in told.value.why and "1 of 3 runs were measured before" in told.value.hint


def test_cancel_ends_after_the_run_that_was_going_on() -> None:
    done: list[SweepResult] = []
    with scripted(lambda n, body: good_stream(2)) as server:
        results = repeats.run_repeats(settings(server.url, repeats=5), emit=nothing, cancel=lambda: len(done) >= 2, finished=done.append)
    assert [result.state for result in results] == ["done", "done"]
