"""A sweep against the measuring rig, whose streams tell the truth, and against servers that go wrong."""

from __future__ import annotations

import re
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ops.benchmark import load, presets, sweep
from ops.benchmark.beside import GpuSample
from ops.benchmark.results import SweepResult, read_level
from ops.jobs.errors import BadInput, OpsError
from tests.fakes.paced_server import paced
from tests.fakes.scripted_server import (
    CLOSE,
    DONE,
    STREAM_END,
    STREAM_HEAD,
    chunk,
    event,
    good_stream,
    response,
    scripted,
    usage,
)

Events = list[tuple[str, dict[str, Any]]]


def measure(url: str, *, model: str = "paced", events: Events | None = None, folder: Path | None = None, cancel: Any = lambda: False,
            gpus: Any = None, **overrides: Any) -> SweepResult:
    kept = [] if events is None else events
    given = {"concurrencies": [4], "requests": 8, "max_tokens": 20, "warmup_per_slot": 0.5, "burst": True, "seed": 1, **overrides}
    settings = presets.settings("custom", base_url=url, model=model, **given)
    return sweep.run(settings, emit=lambda type, data: kept.append((str(type), data)), cancel=cancel, runs_folder=folder, gpus=gpus)


def test_chunks_are_exact_and_times_close_to_the_servers_truth(rig: Path, tmp_path: Path) -> None:
    with paced(rig, rate=50, ttft_ms=30, reasoning=5) as url:
        result = measure(url, folder=tmp_path)
    level = result.levels[0]
    assert (level["finished"], level["errors"], level["output_tokens"], level["reasoning_tokens"], level["chunks"]) == (8, 0, 160, 40, 160)
    # 20 chunks, 20 ms apart, the first after 30 ms; a loaded machine adds, never takes away
    assert 30 <= level["ttft_p50_ms"] < 45
    assert level["ttfc_p50_ms"] == pytest.approx(level["ttft_p50_ms"] + 100, rel=0.1)
    assert level["tpot_p50_ms"] == pytest.approx(20, rel=0.05)
    assert level["e2e_p50_s"] == pytest.approx(0.41, rel=0.1)
    assert level["output_tok_s"] == pytest.approx(4 * 20 / 0.41, rel=0.15)
    head, records = read_level(tmp_path / result.run_id / "c4.npz")
    assert head["concurrency"] == 4 and len(records) == 8 and all(record.kinds == "r" * 5 + "c" * 15 for record in records)


def test_stamps_are_within_milliseconds_of_the_servers_own(rig: Path) -> None:
    """The rig writes into each token when it left: the same clock as ours."""
    import asyncio

    from ops.benchmark.chat_client import ChatClient

    with paced(rig, rate=100, ttft_ms=10) as url:
        record, stream = asyncio.run(ChatClient(url, "paced").complete({"max_tokens": 30, "stream_options": {"include_usage": True}}))
    left = [int(token, 16) for token in stream.content.split()]
    assert len(left) == len(record.times) == 30 and record.ok
    assert all(at >= sent for at, sent in zip(record.times, left, strict=True))
    assert statistics.median(at - sent for at, sent in zip(record.times, left, strict=True)) < 3_000_000


@pytest.mark.parametrize("faults", [{"split": 1}, {"ping": 1}, {"role": 2}, {"sync": 1}, {"pad": 3000}])
def test_forms_of_a_stream_do_not_change_what_is_counted(rig: Path, faults: dict[str, int]) -> None:
    with paced(rig, rate=200, ttft_ms=5, **faults) as url:
        level = measure(url).levels[0]
    assert (level["finished"], level["errors"], level["chunks"]) == (8, 0, 160)


def test_several_tokens_in_a_chunk_are_tokens_not_chunks(rig: Path) -> None:
    with paced(rig, rate=100, ttft_ms=5, per_chunk=4) as url:
        level = measure(url).levels[0]
    assert (level["output_tokens"], level["chunks"], level["tokens_per_chunk"]) == (160, 40, 4.0)


@pytest.mark.parametrize(("fault", "kind"), [("fail_every", "http"), ("cut_every", "cut")])
def test_failed_requests_are_classified_and_leave_the_rest_whole(rig: Path, fault: str, kind: str) -> None:
    with paced(rig, rate=200, ttft_ms=5, **{fault: 4}) as url:
        result = measure(url, warmup_per_slot=0.0)
    level = result.levels[0]
    assert (level["finished"], level["errors_by_kind"], level["chunks"]) == (6, {kind: 2}, 120)
    assert result.state == "done" and "errors" in level["marks"] and any("2 of 8 requests failed" in text for text in result.warnings)


def test_a_stalled_stream_times_out(rig: Path) -> None:
    with paced(rig, rate=200, ttft_ms=5, stall_every=4, stall_ms=60_000) as url:
        level = measure(url, warmup_per_slot=0.0, request_timeout_s=0.6).levels[0]
    assert level["errors_by_kind"] == {"timeout": 2}


def test_events_are_told_as_the_contract_says(rig: Path) -> None:
    events: Events = []
    with paced(rig, rate=50, ttft_ms=5) as url:
        result = measure(url, events=events, concurrencies=[1, 2], requests=3, max_tokens=40,
                         gpus=lambda: [GpuSample(0, 100.0, 80.0, 2**30), GpuSample(1, 150.0)])
    names = [type for type, _ in events]
    assert names[0] == "sweep.started" and names[-1] == "sweep.finished"
    assert names.count("sweep.level_started") == names.count("sweep.level_finished") == 2
    seconds = [data for type, data in events if type == "sweep.level_second" and data["concurrency"] == 1]
    assert [data["second"] for data in seconds] == [1, 2, 3]
    assert {"run_id", "load", "value", "concurrency", "second", "output_tok_s", "in_flight", "finished", "errors", "ttft_p50_ms", "icl_p50_ms",
            "e2e_mean_s", "e2e_p50_s", "icl_p99_ms", "throughput_so_far_tok_s", "server", "gpus", "power_w", "tokens_per_joule"} <= set(seconds[0])
    assert seconds[0]["gpus"][1] == {"index": 1, "power_w": 150.0, "utilization": None, "used_bytes": None} and seconds[0]["server"] is None
    assert seconds[-1]["tokens_per_joule"] == pytest.approx(seconds[-1]["throughput_so_far_tok_s"] / 250.0)
    assert seconds[0]["output_tok_s"] == pytest.approx(50, rel=0.15) and seconds[0]["power_w"] == 250.0
    assert seconds[0]["finished"] == 1 and seconds[0]["e2e_mean_s"] == pytest.approx(0.785, rel=0.1)
    assert seconds[-1]["finished"] == 3 and seconds[-1]["in_flight"] == 0
    assert events[0][1]["concurrencies"] == [1, 2] and events[0][1]["requests"] == [3, 3] and events[0][1]["short"] is True
    assert events[-1][1]["result"] == result.without_detail()
    level = result.levels[0]
    assert level["power_mean_w"] == pytest.approx(250.0) and level["energy_j"] == pytest.approx(250.0 * level["steady_s"])
    assert [gpu["used_bytes_max"] for gpu in level["gpus"]] == [2**30, None] and level["server"] is None
    assert level["tokens_per_joule"] == pytest.approx(level["output_tok_s"] / 250.0)
    assert (result.levels[0]["scaling_x"], result.levels[1]["scaling_x"]) == (1.0, pytest.approx(2, rel=0.2))


def test_a_result_survives_json_and_prints_as_a_table(rig: Path) -> None:
    with paced(rig, rate=500, ttft_ms=2) as url:
        result = measure(url)
    assert SweepResult.from_dict(result.as_dict()) == result
    lines = result.to_markdown_table().splitlines()
    assert lines[0].startswith("| concurrency | output tok/s |") and len(lines) == 3 and "n/a" in lines[2]


def test_the_time_limit_ends_a_level_and_keeps_what_ended(rig: Path) -> None:
    with paced(rig, rate=50, ttft_ms=5) as url:
        began = time.monotonic()
        result = measure(url, requests=1000, level_seconds=1.5)
        took = time.monotonic() - began
    level = result.levels[0]
    assert level["stopped"] == "time" and 8 <= level["finished"] < 20 and level["unfinished"] == 0 and took < 6
    assert result.state == "done"


def test_requests_that_outlast_the_limit_are_unfinished_and_no_errors(rig: Path) -> None:
    with paced(rig, rate=2, ttft_ms=5) as url:
        result = measure(url, warmup_per_slot=0.0, level_seconds=0.3, drain_seconds=0.2)
    level = result.levels[0]
    assert (level["unfinished"], level["errors"], level["finished"], level["output_tok_s"]) == (4, 0, 0, None)


def test_cancel_keeps_what_was_measured(rig: Path, tmp_path: Path) -> None:
    events: Events = []

    def pressed() -> bool:
        return any(type == "sweep.level_second" and data["finished"] > 0 for type, data in events)

    with paced(rig, rate=100, ttft_ms=5) as url:
        result = measure(url, events=events, folder=tmp_path, requests=2000, concurrencies=[4, 8], cancel=pressed)
    assert result.state == "cancelled" and len(result.levels) == 1
    assert result.levels[0]["state"] == "cancelled" and result.levels[0]["finished"] > 0 and result.levels[0]["errors"] == 0
    assert (tmp_path / result.run_id / "result.json").exists()


def test_slots_start_staggered_over_one_request_unless_burst(rig: Path, tmp_path: Path) -> None:
    with paced(rig, rate=50, ttft_ms=5) as url:
        result = measure(url, folder=tmp_path, burst=False, concurrencies=[4], requests=8)
    _, records = read_level(tmp_path / result.run_id / "c4.npz")
    first = sorted(record.t_send for record in records if record.index < 4)
    assert first[-1] - first[0] == pytest.approx(0.385e9 * 3 / 4, rel=0.3)  # 19 gaps of 20 ms and 5 ms, over four slots


def test_the_next_request_leaves_at_once(rig: Path, tmp_path: Path) -> None:
    with paced(rig, rate=200, ttft_ms=5) as url:
        level = measure(url, concurrencies=[2], requests=20).levels[0]
    assert level["queue_p50_ms"] < 1 and level["connects_in_level"] == 0


def test_prompts_are_unique_and_the_same_seed_makes_them_again() -> None:
    seen: list[str] = []
    for _ in range(2):
        with scripted(lambda n, body: good_stream(2)) as server:
            measure(server.url, model="m", max_tokens=2)
            seen.append(sorted(body["messages"][0]["content"] for path, body in server.requests if body))
    assert len(set(seen[0])) == len(seen[0]) == 10 and seen[0] == seen[1]
    assert len({text.split()[0] for text in seen[0]}) == 10


def test_fixed_length_is_demanded_and_natural_is_not() -> None:
    bodies = []
    for mode in ("fixed", "natural"):
        with scripted(lambda n, body: good_stream(2)) as server:
            measure(server.url, model="m", max_tokens=2, output_mode=mode)
            bodies.append(server.requests[-1][1])
    assert (bodies[0]["min_tokens"], bodies[0]["ignore_eos"], bodies[0]["stream_options"]) == (2, True, {"include_usage": True})
    assert "min_tokens" not in bodies[1] and "ignore_eos" not in bodies[1] and bodies[1]["temperature"] == 0.0


BAD = {
    "http": [response(400, {"error": {"message": "temperature must be non-negative", "type": "BadRequestError", "code": 400}})],
    "not_a_stream": [response(200, {"choices": []})],
    "cut": [STREAM_HEAD, chunk(event({"content": "a"})), CLOSE],
    "stream_error": [STREAM_HEAD, chunk(event({"content": "a"})), chunk(event(None, error={"message": "EngineCore died", "code": 500})),
                     chunk(DONE), STREAM_END],
    "no_done": [STREAM_HEAD, chunk(event({"content": "a"}, finish="stop")), STREAM_END],
    "no_chunk": [STREAM_HEAD, chunk(event({}, finish="stop")), chunk(usage(0)), chunk(DONE), STREAM_END],
    "protocol": [b"\x00\x01\x02 what is this\r\n\r\n"],
}


@pytest.mark.parametrize("kind", BAD)
def test_a_server_that_fails_every_request_is_an_error_with_its_words(kind: str) -> None:
    with scripted(lambda n, body: BAD[kind]) as server, pytest.raises(OpsError) as told:
        measure(server.url, model="m")
    assert told.value.kind == f"request_{kind}" and server.url in told.value.what and told.value.why


def test_too_many_errors_stop_the_sweep_and_keep_the_levels() -> None:
    def chat(number: int, body: dict[str, Any]) -> list[Any]:
        return good_stream(2) if number <= 10 else BAD["http"]

    with scripted(chat) as server:
        result = measure(server.url, model="m", max_tokens=2, concurrencies=[1, 2], requests=8, warmup_per_slot=1.0)
    assert result.state == "failed" and "temperature must be non-negative" in result.reason
    assert result.levels[0]["finished"] == 8


@pytest.mark.parametrize(("hits", "told"), [(5.0, False), (20.0, True)])
def test_prompts_that_came_from_the_prefix_cache_are_told_above_one_percent(hits: float, told: bool) -> None:
    looks = iter(range(1000))

    def metrics(body: Any) -> bytes:
        n = next(looks)
        text = f"vllm:prefix_cache_queries_total 0{1000 * n}.0\nvllm:prefix_cache_hits_total {hits * n}\n".encode()
        return b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % len(text) + text

    with scripted(lambda n, body: good_stream(2), paths={"/metrics": metrics}) as server:
        result = measure(server.url, model="m", max_tokens=2)
    assert result.levels[0]["server"]["prefix_hit_rate"] == pytest.approx(hits / 1000)
    assert any("2 % of the prompt tokens came from the prefix cache" in text for text in result.warnings) is told


def test_failures_that_are_quicker_than_answers_do_not_pass_for_most_of_them() -> None:
    """Five of eight are refused at once: the first to end, and yet they are not most of what was asked."""
    refused = response(503, {"error": {"message": "busy"}})
    with scripted(lambda n, body: [refused] if n <= 5 else [0.3, *good_stream(2)]) as server:
        result = measure(server.url, model="m", max_tokens=2, concurrencies=[8], requests=16, warmup_per_slot=0.0)
    assert (result.state, result.levels[0]["stopped"], result.levels[0]["finished"], result.levels[0]["errors"]) == ("done", "", 11, 5)


def test_a_server_that_closes_each_connection_is_measured_with_the_connects_counted() -> None:
    head, *rest = good_stream(3)
    closing = [head.replace(b"transfer-encoding", b"connection: close\r\ntransfer-encoding"), *rest]
    with scripted(lambda n, body: [*closing, CLOSE]) as server:
        level = measure(server.url, model="m", max_tokens=3).levels[0]
    assert (level["finished"], level["errors"]) == (8, 0) and level["connects_in_level"] >= 4


def test_an_idle_connection_that_the_server_drops_is_opened_again() -> None:
    def chat(number: int, body: dict[str, Any]) -> list[Any]:
        return [*good_stream(2), CLOSE]  # promises keep-alive and closes

    with scripted(chat) as server:
        level = measure(server.url, model="m", max_tokens=2).levels[0]
    assert (level["finished"], level["errors"]) == (8, 0)


def test_an_answer_without_end_is_cut_off_and_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def chat(number: int, body: dict[str, Any]) -> Any:
        yield STREAM_HEAD
        for _ in range(200):
            yield chunk(event({"content": "x" * 65_000}))
            yield 0.02

    monkeypatch.setattr(load, "MAX_RESPONSE", 1_000_000)
    with scripted(chat) as server, pytest.raises(OpsError, match="protocol") as told:
        measure(server.url, model="m", concurrencies=[1], requests=1, warmup_per_slot=0.0)
    assert "longer than" in told.value.why


def test_a_sweep_leaves_no_file_and_no_thread_open(rig: Path) -> None:
    with paced(rig, rate=500, ttft_ms=2) as url:
        measure(url)
        before = len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
        measure(url, concurrencies=[1, 8], requests=16)
        assert (len(list(Path("/proc/self/fd").iterdir())), threading.active_count()) == before


def test_a_wrong_model_is_refused_before_any_load(rig: Path) -> None:
    with paced(rig) as url, pytest.raises(BadInput, match="does not serve a model `kimi`"):
        measure(url, model="kimi")


def test_more_tokens_than_the_context_are_refused_before_any_load() -> None:
    with scripted(lambda n, body: good_stream(2)) as server, pytest.raises(BadInput, match="do not fit into the context"):
        measure(server.url, model="m", max_tokens=4096)


def test_practice_shows_in_events_result_and_table() -> None:
    events: Events = []
    with scripted(lambda n, body: good_stream(2), version="0.16.0+practice") as server:
        result = measure(server.url, model="m", max_tokens=2, events=events)
    assert result.practice and events[0][1]["practice"] is True and result.settings["practice"] is True
    assert result.to_markdown_table().startswith("**PRACTICE**")


def test_a_practice_server_behind_a_real_record_is_refused() -> None:
    with scripted(lambda n, body: good_stream(2), version="0.16.0+practice") as server, pytest.raises(OpsError) as told:
        measure(server.url, model="m", practice=False)
    assert told.value.kind == "practice_mismatch"


def test_an_open_loop_sends_at_its_rate_whatever_is_in_flight(rig: Path, tmp_path: Path) -> None:
    events: Events = []
    with paced(rig, rate=50, ttft_ms=100) as url:
        result = measure(url, events=events, folder=tmp_path, load="open", rates=[50.0], concurrencies=[], requests=60, max_tokens=15)
    level = result.levels[0]
    assert (level["load"], level["value"], level["concurrency"], level["finished"], level["errors"]) == ("open", 50.0, None, 60, 0)
    _, records = read_level(tmp_path / result.run_id / "r50.npz")
    assert [record.t_sched for record in records] == load.arrivals(1, 50.0, 60)  # Poisson from the seed, not rescaled
    assert all(record.t_send >= record.t_sched for record in records) and level["queue_p50_ms"] < 100  # of 400
    assert level["steady_s"] is not None and level["connects_in_level"] < 20
    assert events[0][1]["rates"] == [50.0] and events[0][1]["concurrencies"] == []


def test_an_open_loop_at_its_cap_waits_and_its_wait_is_the_queue_delay(rig: Path) -> None:
    with paced(rig, rate=100, ttft_ms=100) as url:
        result = measure(url, load="open", rates=[50.0], concurrencies=[], requests=16, max_tokens=10, max_in_flight=2)
    level = result.levels[0]
    assert level["finished"] == 16 and level["queue_max_ms"] > 500 and level["connects_in_level"] == 0
    assert level["e2e_from_schedule_p50_s"] > level["e2e_p50_s"] + level["queue_p50_ms"] / 2000
    assert any(f"since they were wanted, the median is {level['e2e_from_schedule_p50_s']:.3g} s" in text for text in result.warnings)


KEY = {"load", "value", "concurrency", "endpoint_kind", "output_mode", "max_tokens", "prompt_words", "prompt_tokens_asked", "reasoning", "streaming",
       "temperature", "counted_by", "gpu_count"}


def test_an_open_loop_that_could_send_no_more_at_once_and_a_clock_that_was_set_are_told(rig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "MAX_IN_FLIGHT", 2)
    ahead, real = 3_600_000_000_000, time.time_ns
    monkeypatch.setattr("ops.benchmark.kernel_stamps.time_ns", lambda: real() + ahead)

    def told(type: str) -> None:
        nonlocal ahead
        ahead = 0 if type == "sweep.level_started" else ahead

    with paced(rig, rate=60, ttft_ms=20) as url:
        settings = presets.settings("custom", base_url=url, model="paced", load="open", rates=[50.0], requests=20, max_tokens=10, seed=1,
                                    warmup_per_slot=0)
        result = sweep.run(settings, emit=lambda type, _: told(str(type)))
    level = result.levels[0]
    assert level["client_clock_steps"] >= 1 and level["queue_max_ms"] > 100
    words = " ".join(result.warnings)
    assert re.search(r"\d+ of 20 requests did not leave when they were wanted, because 2,048 were in flight", words)
    assert "wall clock was set" in words


def test_a_level_carries_its_key_and_what_charts_need_and_the_last_event_only_the_summary(rig: Path) -> None:
    events: Events = []
    with paced(rig, rate=200, ttft_ms=5) as url:
        result = measure(url, events=events, slos={"ttft_ms": 500.0}, gpu_count=8)
    level = next(data["metrics"] for type, data in events if type == "sweep.level_finished")
    assert set(level) >= KEY and (level["endpoint_kind"], level["output_mode"], level["max_tokens"], level["gpu_count"]) == ("chat", "fixed", 20, 8)
    assert level["goodput_s"] == pytest.approx(level["steady_requests_s"], rel=0.01) and level["prompt_tokens_mean"] is not None
    assert len(level["detail"]["ecdf"]["ttft_ms"]) == 101 and len(level["detail"]["timeline"]) == 8 and level["detail"]["seconds"]["tok_s"]
    assert "detail" not in events[-1][1]["result"]["levels"][0] and "detail" in result.levels[0]
    assert events[0][1]["sweep_key"] == result.sweep_key != ""


def completion(tokens: int) -> list[bytes]:
    def text(content: str, finish: str | None = None) -> bytes:
        return event(None, choices=[{"index": 0, "text": content, "logprobs": None, "finish_reason": finish}])

    return [STREAM_HEAD, *(chunk(text(f" w{i}")) for i in range(tokens - 1)), chunk(text(" end", "length")), chunk(usage(tokens)), chunk(DONE),
            STREAM_END]


def test_completions_are_measured_with_a_word_on_what_they_hide() -> None:
    with scripted(lambda n, body: completion(3)) as server:
        result = measure(server.url, model="m", max_tokens=3, endpoint_kind="completions")
        path, body = server.requests[-1]
    assert path == "/v1/completions" and isinstance(body["prompt"], str) and "messages" not in body
    assert (result.levels[0]["finished"], result.levels[0]["chunks"]) == (8, 24) and "thinking" in result.warnings[0]


def test_a_server_that_asks_for_patience_gets_it_in_the_warm_up_only() -> None:
    limited = response(429, {"error": {"message": "slow down"}}, extra="retry-after: 0\r\n")

    def chat(number: int, body: dict[str, Any]) -> list[Any]:
        return [limited] if number <= 2 or number == 7 else good_stream(2)

    with scripted(chat) as server:
        level = measure(server.url, model="m", max_tokens=2).levels[0]
    assert (level["finished"], level["errors_by_kind"], level["first_error"]) == (7, {"rate_limited": 1}, "HTTP 429: slow down")


def test_a_server_that_never_lets_anybody_in_says_when_to_come_again() -> None:
    limited = response(429, {"error": {"message": "quota"}}, extra="retry-after: 3600\r\n")
    with scripted(lambda n, body: [limited]) as server, pytest.raises(OpsError) as told:
        measure(server.url, model="m", max_tokens=2)
    assert told.value.kind == "request_rate_limited" and "in 3600 s" in told.value.hint


def test_a_proxy_that_keeps_answers_until_they_end_is_told() -> None:
    with scripted(lambda n, body: [0.02, b"".join(good_stream(20))]) as server:
        result = measure(server.url, model="m", max_tokens=20)
    assert "bunched" in result.levels[0]["marks"] and any("a proxy in between keeps streams until they end" in text for text in result.warnings)


def test_a_server_that_ignores_max_tokens_is_told_with_what_came() -> None:
    with scripted(lambda n, body: good_stream(9)) as server:
        result = measure(server.url, model="m", max_tokens=3)
    assert "length not obeyed" in result.levels[0]["marks"] and any("3 output tokens were demanded and 9 came" in text for text in result.warnings)


def test_a_model_cut_off_while_it_thinks_is_proposed_more_tokens() -> None:
    thought = [STREAM_HEAD, *(chunk(event({"reasoning": " hm"})) for _ in range(3)), chunk(event({}, finish="length")), chunk(usage(3, 3)),
               chunk(DONE), STREAM_END]
    with scripted(lambda n, body: thought) as server:
        result = measure(server.url, model="m", max_tokens=1500)
    level = result.levels[0]
    assert "reasoning only" in level["marks"] and level["max_tokens_proposed"] == 4096 - 7 - 1  # four times as many, as far as the context goes
    assert any("ended by length before any content" in text and "4,088" in text for text in result.warnings)


def test_prompts_of_a_file_are_sent_with_a_mark_in_front_and_bad_lines_are_told(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "Why is the sky blue?"}\n{broken\n{"messages": [{"role": "system", "content": "Be short."}, '
                    '{"role": "user", "content": "Hello"}]}\n')
    with scripted(lambda n, body: good_stream(2)) as server:
        result = measure(server.url, model="m", max_tokens=2, prompt_source="file", prompt_file=str(path))
        sent = [body["messages"] for _, body in server.requests if body]
    assert len({messages[0]["content"].split()[0] for messages in sent}) == 10
    assert {messages[-1]["content"].split(maxsplit=1)[-1] for messages in sent} == {"Why is the sky blue?", "Hello"}
    assert len(result.settings["prompt_sha256"]) == 64 and result.levels[0]["prompt_words"] is None
    assert "1 of 3 lines of prompts.jsonl hold no prompt" in result.warnings[0] and "sent again" in result.warnings[1]


def by_tokenize(body: dict[str, Any]) -> bytes:
    """Two tokens a word, and 20 of a template."""
    return response(200, {"count": 20 + 2 * len(body["messages"][0]["content"].split()), "max_model_len": 4096, "tokens": []})


@pytest.mark.parametrize("known", [True, False])
def test_prompts_have_the_length_that_was_asked_for(known: bool) -> None:
    """With `/tokenize`, or by the usage of short requests."""
    def chat(number: int, body: dict[str, Any]) -> list[Any]:
        count = 20 + 2 * len(body["messages"][0]["content"].split())
        told = event(None, usage={"prompt_tokens": count, "completion_tokens": 2, "total_tokens": count + 2})
        return [STREAM_HEAD, chunk(event({"content": "a"})), chunk(event({"content": "b"}, finish="length")), chunk(told), chunk(DONE), STREAM_END]

    with scripted(chat, paths={"/tokenize": by_tokenize} if known else {}) as server:
        result = measure(server.url, model="m", max_tokens=2, prompt_tokens=300)
    level = result.levels[0]
    assert (level["prompt_tokens_asked"], level["prompt_tokens_mean"], level["prompt_words"]) == (300, 300, None)
    assert not any("does not say how long" in text for text in result.warnings)


def test_a_tokenizer_that_counts_no_words_is_not_believed() -> None:
    """One that says 1, then 2, whatever is sent would ask for millions of words."""
    told = iter([7, *[1] * 3, *[2] * 3])
    with scripted(lambda n, body: good_stream(2), paths={"/tokenize": lambda body: response(200, {"count": next(told, 2)})}) as server:
        result = measure(server.url, model="m", max_tokens=2, prompt_tokens=300)
    assert any("does not say how long" in text for text in result.warnings)


def test_a_cancel_ends_the_search_for_a_length_on_a_server_that_does_not_answer() -> None:
    pressed = threading.Event()

    def chat(number: int, body: dict[str, Any]) -> Any:
        pressed.set()
        yield STREAM_HEAD
        yield 30.0

    with scripted(chat) as server:
        result = measure(server.url, model="m", max_tokens=2, prompt_tokens=300, cancel=pressed.is_set)
    assert result.state == "cancelled" and len([path for path, _ in server.requests if path.endswith("completions")]) == 1


def test_a_disk_that_takes_no_more_costs_files_and_no_numbers(tmp_path: Path) -> None:
    def full(type: str, data: dict[str, Any]) -> None:
        if type == "sweep.level_started":
            (tmp_path / data["run_id"] / "c1.part").mkdir()  # so that the level's file cannot be written

    with scripted(lambda n, body: good_stream(2)) as server:
        asked = presets.settings("custom", base_url=server.url, model="m", max_tokens=2, concurrencies=[1], requests=[3])
        result = sweep.run(asked, emit=full, runs_folder=tmp_path)
        with pytest.raises(OpsError, match="Nothing can be stored"):
            sweep.run(asked, emit=full, runs_folder=Path("/dev/full"))
    assert result.state == "done" and result.levels[0]["finished"] == 3 and any("Not all of this run is stored" in text for text in result.warnings)
    assert (tmp_path / result.run_id / "result.json").is_file()


def test_a_cancel_in_the_warm_up_is_no_failure_and_no_level() -> None:
    pressed = threading.Event()

    def chat(number: int, body: dict[str, Any]) -> Any:
        pressed.set()
        return [response(429, {"error": "later"}, extra="retry-after: 60\r\n")]

    with scripted(chat) as server:
        result = measure(server.url, model="m", cancel=pressed.is_set)
    assert result.state == "cancelled" and result.levels == []


def test_prompts_and_answers_that_do_not_fit_together_are_refused_before_any_load() -> None:
    with scripted(lambda n, body: good_stream(2)) as server, pytest.raises(BadInput, match="do not fit into the context"):
        measure(server.url, model="m", max_tokens=2000, prompt_tokens=2100)


def test_tokens_without_usage_are_told_as_chunks() -> None:
    bare = [part for part in good_stream(3) if b"usage" not in part]
    with scripted(lambda n, body: bare) as server:
        result = measure(server.url, model="m", max_tokens=3)
    assert result.levels[0]["counted_by"] == "chunks" and any("sends no usage" in text for text in result.warnings)


def test_levels_before_concurrency_1_get_their_scaling_at_the_end() -> None:
    with scripted(lambda n, body: [good_stream(2)[0], 0.01, *good_stream(2)[1:]]) as server:
        result = measure(server.url, model="m", max_tokens=2, concurrencies=[2, 1], order="given")
    assert [level["value"] for level in result.levels] == [2, 1] and result.levels[1]["scaling_x"] == 1.0
    assert result.levels[0]["scaling_efficiency"] == pytest.approx(result.levels[0]["scaling_x"] / 2)


def test_reasoning_is_switched_in_the_chat_template() -> None:
    with scripted(lambda n, body: good_stream(2)) as server:
        measure(server.url, model="m", max_tokens=2, reasoning="off")
        assert server.requests[-1][1]["chat_template_kwargs"] == {"enable_thinking": False, "thinking": False}


def test_a_server_that_never_answers_ends_at_the_warm_up() -> None:
    with scripted(lambda n, body: [30.0]) as server, pytest.raises(OpsError) as told:
        measure(server.url, model="m", level_seconds=0.3, drain_seconds=0.2, concurrencies=[1], requests=1, warmup_per_slot=1.0)
    assert told.value.kind == "nothing_measured" and "ended within 0.5 s" in told.value.what
