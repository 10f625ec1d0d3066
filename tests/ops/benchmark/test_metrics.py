"""Every definition, with values worked out by hand. Times are in ms here; the records have ns."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from ops.benchmark import metrics
from ops.benchmark.level_detail import level_detail
from ops.benchmark.metrics import ClientCost, Spread, level_metrics, percentile, steady_window, tokens_between, tpot
from ops.benchmark.request_record import RequestRecord

MS = 1_000_000


def request(slot: int, sent: float, chunks: list[float], *, tokens: int | None = None, kinds: str | None = None, finish: str = "length",
            reasoning: int | None = None, sched: float | None = None, end: float | None = None, **more: object) -> RequestRecord:
    """A request that was sent at `sent` ms and whose chunks came at `chunks` ms."""
    return RequestRecord(
        index=0, slot=slot, t_sched=int((sent if sched is None else sched) * MS), t_send=int(sent * MS),
        t_end=int((end if end is not None else chunks[-1] if chunks else sent) * MS), times=array("q", [int(at * MS) for at in chunks]),
        kinds=kinds or "c" * len(chunks), output_tokens=len(chunks) if tokens is None else tokens, reasoning_tokens=reasoning,
        finish_reason=finish, prompt_tokens=10, **more)  # type: ignore[arg-type]


def failed(slot: int, sent: float, end: float) -> RequestRecord:
    return RequestRecord(index=0, slot=slot, t_sched=int(sent * MS), t_send=int(sent * MS), t_end=int(end * MS), error_kind="http",
                         error="HTTP 503: no")


# Two slots, two requests each, four tokens a request, 100 ms apart, first one after 100 ms.
LEVEL = [
    request(0, 0, [100, 200, 300, 400]),
    request(1, 200, [300, 400, 500, 600]),
    request(0, 400, [500, 600, 700, 800]),
    request(1, 600, [700, 800, 900, 1000]),
]


def test_percentiles_are_interpolated_between_ranks() -> None:
    assert percentile([10.0, 20.0, 30.0, 40.0], 50) == 25.0
    assert percentile([10.0, 20.0, 30.0, 40.0], 90) == pytest.approx(37.0)
    assert percentile([7.0], 99) == 7.0
    assert percentile([], 50) is None


def test_p90_needs_twenty_samples_and_p99_a_hundred() -> None:
    assert (Spread.of(range(19)).p90, Spread.of(range(20)).p90) == (None, pytest.approx(17.1))
    assert (Spread.of(range(99)).p99, Spread.of(range(100)).p99) == (None, pytest.approx(98.01))


def test_latencies_of_the_worked_level() -> None:
    made = level_metrics(LEVEL, value=2, requests=4).as_dict()
    assert (made["ttft_p50_ms"], made["ttfc_p50_ms"], made["e2e_mean_s"], made["icl_p50_ms"], made["tpot_p50_ms"]) == (100, 100, 0.4, 100, 100)
    assert (made["ttft_n"], made["icl_n"], made["interactivity_tok_s_user"]) == (4, 12, 10)


def test_the_steady_window_is_from_all_in_flight_to_the_first_empty_slot() -> None:
    assert steady_window(LEVEL, "closed", 2) == (200 * MS, 800 * MS)  # slot 1 starts at 200; slot 0 ends at 800


def test_throughput_counts_the_tokens_that_fall_into_the_window() -> None:
    made = level_metrics(LEVEL, value=2, requests=4)
    # whole run: 16 tokens in 1.0 s. Steady, 200 to 800 both included: slot 0 has 200 300 400 500 600 700 800, slot 1 300 400 500 600 700 800
    assert made.whole_output_tok_s == pytest.approx(16.0)
    assert made.steady_output_tok_s == pytest.approx(13 / 0.6)
    assert made.output_tok_s == made.steady_output_tok_s
    assert made.whole_requests_s == pytest.approx(4.0)
    assert made.steady_requests_s == pytest.approx(3 / 0.6)  # ends at 400, 600 and 800


def test_without_all_slots_in_flight_there_is_no_steady_window() -> None:
    made = level_metrics(LEVEL, value=3, requests=4)
    assert made.steady_output_tok_s is None and made.output_tok_s == made.whole_output_tok_s and made.as_dict()["window"] == "whole"


def test_tokens_of_one_chunk_share_its_time() -> None:
    speculative = request(0, 0, [100, 200, 300], tokens=9)  # 1 + 4 + 4
    assert tokens_between(speculative, 0, 150 * MS) == 1
    assert tokens_between(speculative, 150 * MS, 250 * MS) == 4
    assert tpot(speculative) == pytest.approx(200 * MS / 8)


def test_usage_in_every_event_says_which_chunk_has_which_tokens() -> None:
    told = request(0, 0, [100, 200, 300], tokens=9, chunk_tokens=[3, 1, 5])
    assert tokens_between(told, 150 * MS, 400 * MS) == 6
    assert tpot(told) == pytest.approx(200 * MS / 6)


def test_a_single_chunk_has_no_tpot() -> None:
    assert tpot(request(0, 0, [100], tokens=5)) is None
    assert tokens_between(request(0, 0, [100], tokens=5), 0, 100 * MS) == 5


def test_reasoning_comes_before_the_first_content() -> None:
    made = level_metrics([request(0, 0, [100, 200, 300], kinds="rrc", reasoning=2)], value=1, requests=1).as_dict()
    assert (made["ttft_p50_ms"], made["ttfc_p50_ms"], made["reasoning_tokens"], made["content_tokens"]) == (100, 300, 2, 1)


def test_errors_are_counted_and_enter_no_latency() -> None:
    made = level_metrics([*LEVEL, failed(0, 800, 5000)], value=2, requests=5)
    assert (made.errors, made.finished, made.error_rate, made.errors_by_kind) == (1, 4, 0.2, {"http": 1})
    assert made.e2e.n == 4 and "errors" in made.marks and made.first_error == "HTTP 503: no"


def test_an_unfinished_request_is_neither_error_nor_measurement() -> None:
    left = RequestRecord(index=4, slot=0, t_sched=800 * MS, t_send=800 * MS, t_end=900 * MS, unfinished=True)
    made = level_metrics([*LEVEL, left], value=2, requests=9)
    assert (made.errors, made.finished, made.unfinished) == (0, 4, 1) and "cut" in made.marks


def test_nothing_measured_is_unknown_and_not_zero() -> None:
    made = level_metrics([failed(0, 0, 10)], value=1, requests=1).as_dict()
    assert [made[name] for name in ("output_tok_s", "e2e_mean_s", "ttft_p50_ms", "output_tokens", "tokens_per_chunk", "spread_p99_p50")] == [None] * 6
    assert level_metrics([], value=1, requests=1).as_dict()["error_rate"] is None


def test_tokens_without_usage_are_marked_as_counted_by_chunks() -> None:
    unknown = request(0, 0, [100, 200])
    unknown.output_tokens = None
    made = level_metrics([unknown], value=1, requests=1)
    assert made.counted_by == "chunks" and "counted by chunks" in made.marks and made.output_tokens == 2
    assert made.as_dict()["tokens_per_chunk"] is None  # not one: nobody said how many


def test_queue_delay_is_from_schedule_to_send() -> None:
    made = level_metrics([request(0, 10, [100], sched=7)], value=1, requests=1).as_dict()
    assert (made["queue_p50_ms"], made["queue_max_ms"], made["e2e_p50_s"]) == (3, 3, 0.09)


def test_a_level_with_few_requests_or_a_narrow_window_is_short() -> None:
    assert "short" in level_metrics(LEVEL, value=2, requests=4).marks
    long = [request(0, 4000 * i, [4000 * i + 100, 4000 * i + 4000]) for i in range(10)]
    assert "short" not in level_metrics(long, value=1, requests=10).marks
    assert "short" in level_metrics(long[:9], value=1, requests=9).marks


def test_a_level_cut_off_while_reasoning_is_marked() -> None:
    made = level_metrics([request(0, 0, [100, 200], kinds="rr")], value=1, requests=1)
    assert made.length_before_content == 1 and "reasoning only" in made.marks


def test_a_server_that_ignores_the_length_is_marked() -> None:
    assert "length not obeyed" in level_metrics(LEVEL, value=2, requests=4, fixed_tokens=5).marks
    assert "length not obeyed" not in level_metrics(LEVEL, value=2, requests=4, fixed_tokens=4).marks
    assert "length not obeyed" in level_metrics(LEVEL, value=2, requests=4, most_tokens=3).marks
    assert "length not obeyed" not in level_metrics(LEVEL, value=2, requests=4, most_tokens=10).marks


def test_chunks_that_come_in_one_read_are_marked_as_bunched() -> None:
    together = level_metrics([request(0, 0, [100, 100, 100, 200])], value=1, requests=1)  # 2 of 3 gaps are 0
    assert together.bunched_share == pytest.approx(2 / 3) and "bunched" in together.marks
    assert "bunched" not in level_metrics(LEVEL, value=2, requests=4).marks


@pytest.mark.parametrize(("lag_ms", "cpu", "bound"), [(4.9, 0.1, False), (5.1, 0.1, True), (0.1, 0.81, True), (None, None, False)])
def test_a_level_is_client_bound_by_lag_above_five_percent_of_the_gap_or_by_cpu(lag_ms: float | None, cpu: float | None, bound: bool) -> None:
    made = level_metrics(LEVEL, value=2, requests=4, client=ClientCost(lag_p99_ms=lag_ms, cpu_share=cpu))
    assert ("client-bound" in made.marks) is bound


def test_the_two_readings_of_the_story() -> None:
    """61 tok/s at 1 and 1,239 at 128: 20.3 times, 15.9 % of linear. P99 within about 5 % of P50."""
    many = [request(slot, 0, [100, 52_800 + 25 * slot]) for slot in range(128)]
    made = level_metrics(many, value=128, requests=128, base_tok_s=61.0).as_dict()
    assert made["scaling_x"] == pytest.approx(made["output_tok_s"] / 61)
    assert made["scaling_efficiency"] == pytest.approx(made["scaling_x"] / 128)
    assert made["spread_p99_p50"] == pytest.approx((52_800 + 25 * 125.73) / (52_800 + 25 * 63.5))


def test_per_gpu_and_per_joule() -> None:
    made = level_metrics(LEVEL, value=2, requests=4, gpu_count=8, power_mean_w=2000.0).as_dict()
    assert made["output_tok_s_per_gpu"] == pytest.approx(13 / 0.6 / 8)
    assert made["tokens_per_joule"] == pytest.approx(13 / 0.6 / 2000)


def test_names_of_times_and_rates_have_their_unit() -> None:
    made = level_metrics(LEVEL, value=2, requests=4).as_dict()
    for name, value in made.items():
        if isinstance(value, float):
            assert name.endswith(("_ms", "_s", "_w", "_share", "_rate", "_x", "_efficiency", "_chunk", "_p50", "_joule", "_user", "_gpu", "_mean",
                                  "value")), name


def test_goodput_counts_requests_that_meet_every_objective_and_leaves_out_what_lacks_a_measurement() -> None:
    records = [request(0, 0, [100, 200]), request(0, 200, [600, 700]), request(0, 700, [800, 1500]), request(0, 1500, [1600])]
    made = level_metrics(records, value=1, requests=4, slos={"ttft_ms": 300, "tpot_ms": 150}).as_dict()
    # the first is good, the second is late, the third slow, the fourth has one token and so no TPOT
    assert (made["goodput_s"], made["goodput_left_out"]) == (pytest.approx(1 / 1.6), 1)
    assert made["slos"] == {"ttft_ms": 300, "tpot_ms": 150}
    assert level_metrics(LEVEL, value=2, requests=4).as_dict()["goodput_s"] is None


def test_failed_requests_are_not_good() -> None:
    made = level_metrics([request(0, 0, [100, 1000]), failed(0, 1000, 2000)], value=1, requests=2, slos={"ttft_ms": 300})
    assert made.goodput_s == pytest.approx(0.5)


def poisson(rate: float, count: int, took_ms: Callable[[int], float]) -> list[RequestRecord]:
    """Requests an even time apart, each with its latency."""
    return [request(i, i * 1000 / rate, [i * 1000 / rate + took_ms(i) / 2, i * 1000 / rate + took_ms(i)]) for i in range(count)]


def test_the_steady_window_of_a_rate_is_from_one_latency_after_the_start_to_the_last_arrival() -> None:
    records = poisson(10, 101, lambda i: 500)
    assert steady_window(records, "open", 10) == (500 * MS, 10_000 * MS)
    made = level_metrics(records, load="open", value=10, requests=101)
    assert (made.offered_s, made.achieved_s) == (pytest.approx(10, rel=0.02), pytest.approx(10, rel=0.02)) and made.concurrency is None
    assert "overloaded" not in made.marks and made.as_dict()["scaling_efficiency"] is None


def test_a_server_that_falls_behind_its_arrivals_is_marked() -> None:
    made = level_metrics(poisson(10, 400, lambda i: 100 + 50 * i), load="open", value=10, requests=400)  # it does 6.7 a second
    assert "overloaded" in made.marks and made.achieved_s == pytest.approx(6.7, rel=0.05)


def test_a_rate_whose_requests_wait_for_a_place_longer_than_all_arrivals_take_is_marked_with_the_rate_that_was_offered() -> None:
    """A hundred in a second; one after the other gets in, for 100 ms each."""
    made = level_metrics([request(0, 100 * i, [100 * i + 50, 100 * i + 100], sched=10 * i) for i in range(101)], load="open", value=100, requests=101)
    assert made.steady_s is None and "overloaded" in made.marks
    assert (made.offered_s, made.achieved_s) == (pytest.approx(101), pytest.approx(10))
    soon = level_metrics([request(i, 10 * i, [10 * i + 50, 10 * i + 2000]) for i in range(101)], load="open", value=100, requests=101)
    assert soon.steady_s is None and "overloaded" not in soon.marks  # it takes two seconds: nobody knows what would come later


def test_latency_from_the_schedule_holds_the_queue_delay() -> None:
    made = level_metrics([request(0, 10, [100], sched=7)], value=1, requests=1).as_dict()
    assert (made["e2e_from_schedule_p50_s"], made["e2e_p50_s"]) == (0.093, 0.09)


def test_a_server_that_counts_no_token_in_spite_of_its_chunks_makes_no_negative_throughput() -> None:
    made = level_metrics([request(0, 0, [100, 200, 300], tokens=0)], value=1, requests=1).as_dict()
    assert (made["output_tokens"], made["whole_output_tok_s"], made["tpot_p50_ms"], made["steady_output_tok_s"]) == (0, 0.0, None, None)


def test_more_gaps_than_are_kept_one_by_one_give_the_same_percentiles(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [request(0, 0, [i * 10 + (i % 7) for i in range(1, 300)])]
    exact = level_metrics(records, value=1, requests=1)
    monkeypatch.setattr(metrics, "GAPS_EXACT", 10)
    counted = level_metrics(records, value=1, requests=1)
    for name in ("mean", "p50", "p90", "p99"):
        assert getattr(counted.icl, name) == pytest.approx(getattr(exact.icl, name), abs=1000)
    assert counted.bunched_share == exact.bunched_share


def test_answers_that_come_whole_are_seen() -> None:
    made = level_metrics([request(0, 0, [500] * 10), request(0, 500, [1000] * 10), request(0, 1000, [1100, 1200, 1300, 1400])], value=1, requests=3)
    assert made.whole_answers_share == pytest.approx(2 / 3)


def test_what_charts_need_is_small_and_whole() -> None:
    left = RequestRecord(index=4, slot=0, t_sched=800 * MS, t_send=800 * MS, t_end=900 * MS, unfinished=True)
    detail = level_detail([*LEVEL, failed(1, 800, 810), left], t0=0, window=(200 * MS, 800 * MS))
    assert [len(detail["ecdf"][name]) for name in ("ttft_ms", "icl_ms", "e2e_s", "tpot_ms")] == [101] * 4
    assert sum(detail["seconds"]["tok_s"]) == sum(record.output_tokens or 0 for record in LEVEL)
    assert (detail["seconds"]["step_s"], detail["seconds"]["from_s"], detail["seconds"]["to_s"]) == (1, 0.2, 0.8)
    assert [row["err"] for row in detail["timeline"]] == ["", "", "", "", "http", "unfinished"]
    assert detail["timeline"][0]["s"] == 0
    assert detail["timeline"][5] == {"q": 800.0, "s": 800.0, "f": None, "c": None, "e": 900.0, "err": "unfinished"}
    empty = level_detail([], t0=0, window=None)
    assert empty["ecdf"]["ttft_ms"] is None and empty["seconds"]["tok_s"] == [] and empty["seconds"]["from_s"] is None


def test_a_level_of_an_hour_has_seconds_in_steps() -> None:
    detail = level_detail([request(0, 0, [1000, 3_600_000], tokens=2)], t0=0, window=None)
    assert detail["seconds"]["step_s"] == 5 and len(detail["seconds"]["tok_s"]) == 721
