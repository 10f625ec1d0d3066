"""`bench` and `smoke` as a person and as a program use them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.paced_server import compile_rig, paced
from tests.fakes.scripted_server import CLOSE, STREAM_HEAD, chunk, event, good_stream, response, scripted
from tests.ops.command_line.run import REPOSITORY, error_of, ops


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with paced(compile_rig(tmp_path_factory.mktemp("rig")), rate=200, ttft_ms=5) as address:
        yield address


def test_bench_prints_an_aligned_table(url: str) -> None:
    done = ops("bench", "--url", url, "--concurrency", "1,4", "--max-tokens", "20", "--requests", "8")
    assert done.returncode == 0, done.stderr
    head, *rows = [line for line in done.stdout.splitlines() if line.lstrip()[:1].isdigit() or line.startswith("concurrency")]
    assert head.split("  ")[0] == "concurrency" and [row.split()[0] for row in rows] == ["1", "4"]
    assert rows[0].index("1.00x") + 5 == head.index("scaling") + 7  # right-aligned
    assert "concurrency 4:" in done.stderr and "\nshort: fewer requests than" in done.stdout


def test_bench_warns_of_levels_that_are_never_full(url: str) -> None:
    done = ops("bench", "--url", url, "--concurrency", "8", "--max-tokens", "5", "--requests", "2")
    assert "warning: Never full: concurrency 8 has 2 requests" in done.stderr
    assert "\nnever full: at no time were C requests in flight" in done.stdout


def test_bench_json_is_the_whole_result(url: str, tmp_path: Path) -> None:
    done = ops("bench", "--url", url, "--model", "paced", "--concurrency", "2", "--max-tokens", "20", "--requests", "4", "--json",
               "--save", str(tmp_path))
    result = json.loads(done.stdout)
    assert done.returncode == 0 and result["state"] == "done" and result["levels"][0]["finished"] == 4
    assert (tmp_path / result["run_id"] / "c2.npz").exists()
    assert "requests, about" in done.stderr and "concurrency 2: " in done.stderr and "4 finished" in done.stderr, "the progress is told beside it"


def test_bench_repeats_rates_with_objectives_as_a_list_of_runs(url: str) -> None:
    done = ops("bench", "--url", url, "--rate", "40", "--max-tokens", "10", "--requests", "20", "--slo", "ttft_ms=500", "--repeats", "2", "--json")
    runs = json.loads(done.stdout)
    assert done.returncode == 0 and len(runs) == 2 and runs[0]["group"] == runs[1]["group"]
    assert (runs[0]["levels"][0]["load"], runs[0]["levels"][0]["slos"]) == ("open", {"ttft_ms": 500.0})


def test_repeats_end_with_a_summary_and_the_command_that_compares_them(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "before it"
    asked = ("bench", "--url", url, "--rate", "40", "--max-tokens", "5", "--requests", "8", "--slo", "ttft_ms=500", "--repeats", "2",
             "--save", str(folder))
    done = ops(*asked)
    assert done.returncode == 0 and "over 2 runs: the median, and the lowest to the highest" in done.stdout
    assert f"python -m ops compare '{folder}' OTHER" in done.stdout
    assert " that came back, " in done.stdout and " offered, within ttft_ms 500" in done.stdout
    assert "holds other runs, too" in ops(*asked).stdout


def test_bench_against_another_server_compares_them(url: str) -> None:
    done = ops("bench", "--url", url, "--against", url, "--concurrency", "2", "--max-tokens", "5", "--requests", "4", "--burst")
    assert done.returncode == 0, done.stderr
    assert f"A is {url}, B is {url}" in done.stdout and "# Comparison" in done.stdout and "about" in done.stderr and "output tokens" in done.stderr


def test_bench_takes_prompts_of_a_file_and_refuses_one_without_any(url: str, tmp_path: Path) -> None:
    (tmp_path / "good.jsonl").write_text("Why?\n{bad\n")
    done = ops("bench", "--url", url, "--prompts", str(tmp_path / "good.jsonl"), "--concurrency", "1", "--max-tokens", "5", "--requests", "2")
    assert done.returncode == 0 and "note: 1 of 2 lines of good.jsonl hold no prompt" in done.stdout
    (tmp_path / "empty.jsonl").write_text("")
    assert error_of("bench", "--url", url, "--prompts", str(tmp_path / "empty.jsonl"), code=2)["what"].endswith("holds no prompt")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)], ids=["ctrl-c", "terminate"])
def test_ctrl_c_keeps_the_partial_result(url: str, number: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-m", "ops", "bench", "--url", url, "--concurrency", "1,4", "--max-tokens", "20",
                                "--requests", "300", "--json"],
                               cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(4)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    result = json.loads(out)
    assert process.returncode == 130 and "Traceback" not in err
    assert result["state"] == "cancelled" and result["levels"][0]["finished"] > 0


@pytest.mark.parametrize("command", ["bench", "smoke"])
def test_nobody_at_the_address(command: str) -> None:
    assert error_of(command, "--url", "http://127.0.0.1:9")["kind"] == "unreachable"


def test_a_wrong_model_lists_the_right_one(url: str) -> None:
    assert error_of("bench", "--url", url, "--model", "kimi")["hint"] == "It serves: paced"


@pytest.mark.parametrize("command", ["bench", "smoke"])
def test_an_address_without_its_scheme_is_told_with_it(command: str) -> None:
    told = error_of(command, "--url", "127.0.0.1:8123", code=2)
    assert (told["kind"], told["hint"]) == ("bad_input", "Write it as http://127.0.0.1:8123")


@pytest.mark.parametrize(("option", "value"), [("--concurrency", "0"), ("--concurrency", "100000"), ("--concurrency", "1,1,1"), ("--requests", "0"),
                                               ("--max-tokens", "0"), ("--rate", "0"),
                                               ("--api-key-env", "NO_SUCH_VARIABLE")])
def test_what_cannot_be_is_wrong_before_anybody_is_asked(option: str, value: str) -> None:
    told = error_of("bench", "--url", "http://127.0.0.1:9", option, value, code=2)
    assert told["kind"] == "bad_input" and told["hint"]


def test_a_refusing_server_is_told_with_its_words() -> None:
    answer = response(400, {"error": {"message": "max_tokens is too large", "type": "BadRequestError", "code": 400}})
    with scripted(lambda n, body: [answer]) as server:
        told = error_of("bench", "--url", server.url, "--concurrency", "1", "--max-tokens", "5")
    assert told["kind"] == "request_http" and "max_tokens is too large" in told["why"]


def test_a_stream_that_is_always_cut_is_an_error() -> None:
    with scripted(lambda n, body: [STREAM_HEAD, chunk(event({"content": "a"})), CLOSE]) as server:
        assert error_of("bench", "--url", server.url, "--concurrency", "1", "--max-tokens", "5")["kind"] == "request_cut"


def test_some_failed_requests_keep_the_table_and_exit_1() -> None:
    def chat(number: int, body: dict[str, Any]) -> list[Any]:
        return [STREAM_HEAD, chunk(event({"content": "a"})), CLOSE] if number % 4 == 0 else good_stream(3)

    with scripted(chat) as server:
        done = ops("bench", "--url", server.url, "--concurrency", "2", "--max-tokens", "3", "--requests", "8", "--json")
    result = json.loads(done.stdout)
    assert done.returncode == 1 and result["error"]["kind"] == "requests_failed" and result["levels"][0]["finished"] == 6
    assert "2 of 8 requests failed" in done.stderr


def test_a_key_is_taken_from_the_environment_and_shown_nowhere() -> None:
    with scripted(lambda n, body: good_stream(2), paths={"/v1/models": response(401, {"error": {"message": "no"}})}) as server:
        done = ops("bench", "--url", server.url, "--api-key-env", "MY_KEY", "--json", MY_KEY="sk-canary")
    assert done.returncode == 1 and "sk-canary" not in done.stdout + done.stderr
    told = error_of("smoke", "--url", "http://127.0.0.1:9", "--api-key-env", "NOT_SET_HERE", code=2)
    assert told["what"] == "The environment variable `NOT_SET_HERE` is not set"


def test_smoke_names_what_failed_and_what_came_back() -> None:
    with scripted(lambda n, body: [response(200, {"choices": [{"message": {"content": "It is Sydney."}, "finish_reason": "stop"}]})]) as server:
        plain, machine = ops("smoke", "--url", server.url, "--only", "factual"), ops("smoke", "--url", server.url, "--only", "factual", "--json")
    assert plain.returncode == machine.returncode == 1 and "It is Sydney." in plain.stdout and "smoke tests failed: factual" in plain.stderr
    assert json.loads(machine.stdout)["results"][0]["outcome"] == "failed"


def test_smoke_takes_a_suite_from_a_file(tmp_path: Path) -> None:
    suite = tmp_path / "suite.json"
    suite.write_text(json.dumps([{"name": "ok", "kind": "factual", "title": "ok", "prompt": "Say ok.", "expect": "ok"}]))
    with scripted(lambda n, body: [response(200, {"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]})]) as server:
        assert ops("smoke", "--url", server.url, "--suite", str(suite)).returncode == 0
        suite.write_text("{")
        assert error_of("smoke", "--url", server.url, "--suite", str(suite))["what"].endswith("is not JSON")
