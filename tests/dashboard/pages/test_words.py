"""How pages say numbers, times, names and log text; expected texts are written by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dashboard import charts
from dashboard.diagnoses import first_command
from dashboard.estimates import usual
from dashboard.templatetags import log_lines
from dashboard.templatetags import roundhouse as tags
from dashboard.views.fleet import memory_parts, spark_points

GIB = 2**30


@pytest.mark.parametrize(("seconds", "said"), [(0, "0:00"), (59.6, "1:00"), (778, "12:58"), (3723, "1:02:03"), (None, "")])
def test_clock(seconds: Any, said: str) -> None:
    assert tags.clock(seconds) == said


@pytest.mark.parametrize(("value", "said"), [(61.0, "61"), (57.3, "57.3"), (99.97, "100"), (1238.7, "1,239"), (None, "")])
def test_throughput_has_three_figures(value: Any, said: str) -> None:
    assert tags.rate(value) == said


@pytest.mark.parametrize(("value", "said"), [(65_205_000, "65.2\u202fMB"), (412e9, "412\u202fGB"), (187, "187\u202fB"), (None, "")])
def test_sizes_are_decimal(value: Any, said: str) -> None:
    assert tags.size(value) == said


@pytest.mark.parametrize(("text", "said"), [
    ("current is 20260227-181500-0.16.0rc2.dev313+practice again", "current is 0.16.0rc2.dev313 again"),
    ("/srv/releases/20260227-181500-0.16.0rc2.dev313/bin", "/srv/releases/20260227-181500-0.16.0rc2.dev313/bin"),
    ("r14", "r14"),
])
def test_release_names_are_short_but_never_in_paths(text: str, said: str) -> None:
    assert tags.short_release(text) == said


def test_backticks_become_monospace_and_all_is_escaped() -> None:
    assert tags.ticks("Install `a<b`, then") == 'Install <span class="mono">a&lt;b</span>, then'


@pytest.mark.parametrize(("fix", "command"), [
    ("Install it: `uv pip install a==1`, then start", "uv pip install a==1"),
    ('uv pip install --python /srv/env "flashinfer-cubin==0.6.4", then start again. If the index has none: uv pip uninstall x',
     'uv pip install --python /srv/env "flashinfer-cubin==0.6.4"'),
    ("Free memory on GPU 3", ""),
])
def test_the_command_of_a_fix_is_found(fix: str, command: str) -> None:
    assert first_command(fix) == command


def test_a_bar_has_its_widths_in_attributes() -> None:
    drawn = tags.bar([{"kind": "b-done", "share": 0.25}, {"kind": "b-now", "share": 0.5, "filled": 0.5}])
    assert 'class="b-done" x="0%" width="25%"' in drawn
    assert 'class="b-now" x="25%" width="25%"' in drawn
    assert "style" not in drawn


def test_log_lines_tell_process_level_and_text_apart() -> None:
    html = log_lines.log_html("(Worker_TP0 pid=7) ERROR 03-02 04:11:28 [core.py:946] it <broke>")
    assert html == ('<span class="dim">(Worker_TP0 pid=7)</span> <span class="error">ERROR</span>'
                    '<span class="dim"> 03-02 04:11:28 [core.py:946]</span> it &lt;broke&gt;')


@pytest.mark.parametrize(("line", "text"), [
    ("50%\r75%\r100%\r", "100%"), ("\x1b]0;title\x07text", "text"), ("a\u202eb\x00c", "abc"), ("\x1b[2Kdone", "done"), ("tab\there", "tab\there"),
])
def test_control_characters_go(line: str, text: str) -> None:
    assert log_lines.plain(line) == text


def test_memory_is_split_by_service_unclaimed_and_unexplained() -> None:
    parts = memory_parts({"total_bytes": 100 * GIB, "used_bytes": 60 * GIB, "processes": [
        {"pid": 2, "used_bytes": 10 * GIB, "service": None, "command": "python3"}, {"pid": 1, "used_bytes": 40 * GIB, "service": "kimi"}]})
    assert [(p["kind"], p["share"]) for p in parts] == [("b-service", 0.4), ("b-other", 0.1), ("b-idle", 0.1)]


def test_memory_that_is_not_known_is_no_bar() -> None:
    assert memory_parts({"total_bytes": 100 * GIB, "used_bytes": None}) == []


def test_a_sparkline_ends_at_the_right_edge() -> None:
    assert spark_points([0, 100], width=72, height=18, count=3) == "36.0,17.0 72.0,1.0"


def test_the_usual_is_the_median_of_what_succeeded() -> None:
    def job(state: str, took: float, down: float | None) -> Any:
        steps = SimpleNamespace(all=lambda: [SimpleNamespace(state="done", name="build", duration_s=took)])
        return SimpleNamespace(state=state, type="redeploy", downtime_s=down, steps=steps,
                               result={"warmup": {"total_s": took * 2, "phases": [{"phase": "load", "took_s": took}]}})

    known = usual([job("succeeded", 10, 100), job("failed", 900, 900), job("succeeded", 30, 140), job("succeeded", 20, 120)])
    assert known.steps == {"build": 20}
    assert (known.downtime_s, known.downtime_range, known.warmup_s, known.phases) == (120, (100, 140), 40, {"load": 20})


def test_curves_leave_out_what_was_not_measured() -> None:
    def level(concurrency: int, tput: float | None) -> Any:
        return SimpleNamespace(load="closed", value=float(concurrency), concurrency=concurrency, state="done", requests=4, finished=4, errors=0,
                               output_tok_s=tput, e2e_mean_s=1.0, e2e_p50_s=1.0, e2e_p99_s=None, ttft_p50_ms=20.0, metrics={})

    run = SimpleNamespace(pk="x", practice=True, release="r14", vllm_version="", settings={"concurrencies": [1, 8, 32]})
    data = charts.curves(run, [level(1, 61.0), level(8, None)])
    assert data["levels"] == [1, 8, 32]
    assert [(p["c"], p["tput"], p["p99"]) for p in data["points"]] == [(1, 61.0, None)]


def test_a_colour_code_of_thousands_of_digits_is_no_colour() -> None:
    assert log_lines.log_html(f"\x1b[{'9' * 5000}mtext\x1b[31;{'1' * 5000}mred") == 'text<span class="a-red">red</span>'
