"""vLLM's /metrics beside the load: names of both engines, shares between two looks, servers that have no such page, go away or come back."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from ops.benchmark import server_metrics
from ops.benchmark.beside import GpusAndServer
from ops.benchmark.server_metrics import ServerMetrics, Snapshot, between, of_level, parse
from tests.fakes.scripted_server import scripted

V1 = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a } b"} 7.0
vllm:num_requests_running{engine="1",model_name="a } b"} 5.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:num_preemptions_total{engine="0",model_name="m"} 3.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.79e+09
vllm:gpu_prefix_cache_queries_total{engine="0",model_name="m"} 1e9
vllm:gpu_prefix_cache_hits_total{engine="0",model_name="m"} 1e9
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 2000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 100.0
vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 5.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 2000.0
vllm:generation_tokens_total{engine="0",model_name="m"} 4132.0 1795967896000
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 30.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 12.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 9.0
process_start_time_seconds 1.795967896e+09
"""
V0 = b"""vllm:num_requests_running{model_name="m"} 1.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.125
vllm:gpu_prefix_cache_hit_rate{model_name="m"} 0.9
vllm:num_preemptions{model_name="m"} 2.0
vllm:generation_tokens{model_name="m"} 40
"""


def test_the_numbers_of_several_engines_become_one_and_the_newest_name_counts() -> None:
    found = parse(V1, at=1)
    assert found == Snapshot(at=1, running=12.0, waiting=2.0, kv_use=0.5, preemptions=3.0, prompt_tokens=2000.0, output_tokens=4132.0,
                             prefix_queries=2000.0, prefix_hits=100.0, drafted=30.0, accepted=12.0, started_at=1795967896.0)


def test_names_of_the_first_engine_and_counters_without_total_are_read_and_what_is_not_there_is_not_known() -> None:
    found = parse(V0)
    assert (found.running, found.kv_use, found.preemptions, found.output_tokens) == (1.0, 0.125, 2.0, 40.0)
    assert (found.waiting, found.prefix_queries, found.drafted, found.started_at) == (None, None, None, None)


@pytest.mark.parametrize("text", [
    b"", b"\n", b"<html>no</html>", b"\xff\xfe\x00", b"vllm:num_requests_running", b"vllm:num_requests_running{", b"vllm:num_requests_running{} ",
    b"vllm:num_requests_running{} NaN\n", b"vllm:num_requests_running{} +Inf\n", b"vllm:num_requests_running{} a\n",
    b"vllm:num_requests_running_x 4\n", b"xvllm:num_requests_running 4\n", b"# vllm:num_requests_running 4\n",
    b"vllm:num_requests_running " + b"9" * 5000],
    ids=range(14))
def test_what_is_no_series_is_passed_over(text: bytes) -> None:
    assert parse(text).empty


def test_shares_are_of_what_happened_between_two_looks() -> None:
    before = parse(V1)
    after = replace(before, at=before.at + 1, prefix_queries=3000.0, prefix_hits=600.0, drafted=130.0, accepted=82.0, preemptions=5.0)
    grown = between(before, after)
    assert (grown.prefix_hit_rate, grown.spec_acceptance, grown.preemptions) == (0.5, 0.7, 2.0)
    assert between(before, before).prefix_hit_rate is None  # nothing was asked
    assert between(None, after) == between(before, None) == server_metrics.Difference()


def test_a_server_that_was_started_anew_in_between_tells_nothing_of_the_time_in_between() -> None:
    before = parse(V1)
    assert between(before, replace(before, started_at=1795967999.0, prefix_queries=9999.0)) == server_metrics.Difference()
    assert between(replace(before, started_at=None), replace(before, started_at=None, output_tokens=1.0)) == server_metrics.Difference()


def test_drafts_that_begin_within_the_level_count_from_nothing() -> None:
    assert between(Snapshot(at=1), Snapshot(at=2, drafted=20.0, accepted=15.0)).spec_acceptance == 0.75


def test_a_level_has_the_most_of_its_gauges_and_the_shares_of_its_whole() -> None:
    looks = [Snapshot(at=1, running=0.0, waiting=0.0, kv_use=0.0, preemptions=1.0, prefix_queries=0.0, prefix_hits=0.0),
             Snapshot(at=2, running=9.0, waiting=4.0, kv_use=0.75, preemptions=1.0, prefix_queries=50.0, prefix_hits=0.0),
             Snapshot(at=3, running=2.0, waiting=0.0, kv_use=0.25, preemptions=2.0, prefix_queries=100.0, prefix_hits=10.0)]
    assert of_level(looks) == {"prefix_hit_rate": 0.1, "spec_acceptance": None, "kv_use_max": 0.75, "running_max": 9.0, "waiting_max": 4.0,
                               "preemptions": 1.0}
    assert of_level([]) is None


class _Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    status, body, seen, hang_up = 200, V1, [], False

    def do_GET(self) -> None:
        type(self).seen.append((self.path, self.headers.get("authorization"), self.client_address[1]))
        self.send_response(self.status)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)
        self.close_connection = self.hang_up

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def page(*, status: int = 200, body: bytes = V1, hang_up: bool = False) -> Iterator[tuple[str, type[_Page]]]:
    handler = type("Page", (_Page,), {"status": status, "body": body, "seen": [], "hang_up": hang_up})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", handler
        finally:
            server.shutdown()
            thread.join()


def test_looks_share_a_connection_and_one_that_was_closed_is_opened_again() -> None:
    with page() as (url, handler):
        metrics = ServerMetrics(f"{url}/base/v1", "a key")
        assert metrics.read() is not None and metrics.read() is not None
        handler.hang_up = True
        assert metrics.read() is not None and metrics.read() is not None  # the last one after the server has closed
        metrics.close()
        assert {(path, key) for path, key, _ in handler.seen} == {("/base/metrics", "Bearer a key")}
        assert len({port for _, _, port in handler.seen}) == 2


@pytest.mark.parametrize(("status", "body", "absent"), [
    (404, b"{}", True), (401, b"", True), (302, b"", True), (200, b"up 1\n", True), (503, V1, False)])
def test_a_server_without_such_a_page_is_asked_once_and_one_in_trouble_again(status: int, body: bytes, absent: bool) -> None:
    with page(status=status, body=body) as (url, handler):
        metrics = ServerMetrics(url)
        assert metrics.read() is None and metrics.read() is None
        metrics.close()
        assert metrics.absent is absent
        assert len(handler.seen) == (1 if absent else 2)


def test_a_page_beyond_all_measure_and_a_server_that_is_gone_are_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_metrics, "MAX_BYTES", 100)
    with page() as (url, _):
        metrics = ServerMetrics(url)
        assert metrics.read() is None and metrics.absent
        metrics.close()
    gone = ServerMetrics(url)
    assert gone.read() is None and not gone.absent
    gone.close()


def test_numbers_beyond_all_measure_are_not_known() -> None:
    """Each can be read, but not their sum; and a share of less than nothing is none."""
    looked = parse(b'vllm:num_requests_running{e="0"} 1e308\nvllm:num_requests_running{e="1"} 1e308\nvllm:kv_cache_usage_perc -7\n'
                   b"vllm:num_requests_waiting 2\n")
    assert (looked.running, looked.kv_use, looked.waiting) == (None, None, 2.0)


@pytest.mark.parametrize("size", [b"-1", b"-5", b"ffffffffffffffffffffffff"], ids=["minus one", "minus five", "huge"])
def test_chunks_of_impossible_sizes_are_no_numbers(size: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_metrics, "MAX_BYTES", 200_000)

    def metrics(body: object) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + size + b"\r\n"
        for _ in range(100):
            yield b"A" * 10_000

    with scripted(lambda number, body: [], paths={"/metrics": metrics}) as server:
        looking = ServerMetrics(server.url)
        assert looking.read() is None
        looking.close()


def test_a_page_that_drips_is_ended_by_others_and_asked_no_more() -> None:
    drips = threading.Event()

    def metrics(body: object) -> Iterator[bytes | float]:
        yield b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n"
        while True:
            drips.set()
            yield b"a"
            yield 0.01

    with scripted(lambda number, body: [], paths={"/metrics": metrics}) as server:
        beside = GpusAndServer(None, ServerMetrics(server.url), waits_s=0.01)
        assert beside.read()["server"] is None and drips.wait(10)
        beside.close()  # waits for the look, which would go on for a quarter of an hour
        assert [path for path, _ in server.requests] == ["/metrics"]
