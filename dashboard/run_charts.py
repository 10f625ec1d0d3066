"""The charts of one run: rows in, plain JSON out for static/js/run_charts.js, and each chart's twin as a table. Unknown stays None and leaves a gap.

What is drawn: output throughput of the steady window and of the whole run, latency, time to first token and time per token over the load, throughput
per GPU against speed per user, goodput, distributions of TTFT and of the gaps between chunks, and for one level its seconds and its requests.
ICL (gaps between chunks) and TPOT (time per token) are different things where a chunk holds several tokens, so no chart has both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dashboard.charts import level_key, scaling
from ops.benchmark.comparing.readings import finite as number
from ops.benchmark.marks import MARKS as MARKS

PERCENTS = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 100)  # of a distribution's twin
POINTS = 101  # of a distribution
SECONDS = 900
REQUESTS = 200
FAMILIES = {"ttft": ("Time to first token", "ms"), "tpot": ("Time per token", "ms"), "e2e": ("Latency", "s"), "icl": ("Gap between chunks", "ms")}


def rounded(value: Any) -> float | None:
    """To five figures: more are not drawn, and a page with fewer is smaller."""
    found = number(value)
    return None if found is None else float(f"{found:.5g}")


def key(level: Any) -> str:
    """Names a level in addresses and scripts: closed:8, open:2.5."""
    return f"{level.load}:{level.value:g}"


def told(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def point(level: Any) -> dict[str, Any]:
    """All that charts and tables show of one level."""
    metrics = told(level.metrics)
    found: dict[str, Any] = {
        "key": key(level), "label": level_key(level.load, level.value), "load": level.load, "value": level.value, "state": level.state,
        # counts that a tool does not tell stand in `metrics` as None, in the columns as 0
        **{name: None if name in metrics and metrics[name] is None else getattr(level, name) for name in ("requests", "finished", "errors")},
        "tput": rounded(level.output_tok_s), "steady": rounded(metrics.get("steady_output_tok_s")),
        "whole": rounded(metrics.get("whole_output_tok_s")), "steady_s": rounded(metrics.get("steady_s")),
        "window": metrics.get("window") if metrics.get("window") in ("steady", "whole") else None,
        "per_gpu": rounded(metrics.get("output_tok_s_per_gpu")), "gpus": rounded(metrics.get("gpu_count")),
        "mean": rounded(level.e2e_mean_s), "goodput": rounded(metrics.get("goodput_s")), "left_out": rounded(metrics.get("goodput_left_out")),
        "requests_s": rounded(metrics.get("whole_requests_s") if metrics.get("steady_requests_s") is None else metrics["steady_requests_s"]),
        "offered": rounded(metrics.get("offered_s")), "achieved": rounded(metrics.get("achieved_s")),
        "scaling": rounded(metrics.get("scaling_x")), "spread": rounded(metrics.get("spread_p99_p50")),
        "queue_p50": rounded(metrics.get("queue_p50_ms")), "queue_p99": rounded(metrics.get("queue_p99_ms")),
        "tokens_per_chunk": rounded(metrics.get("tokens_per_chunk")), "output_tokens": rounded(metrics.get("output_tokens")),
        "reasoning_tokens": rounded(metrics.get("reasoning_tokens")),
        "marks": [mark for mark in metrics.get("marks") or [] if isinstance(mark, str)][:12] if isinstance(metrics.get("marks"), list) else [],
        "first_error": metrics["first_error"][:400] if isinstance(metrics.get("first_error"), str) else "",
        "kinds": {str(kind)[:40]: count for kind, count in list(told(metrics.get("errors_by_kind")).items())[:12] if number(count) is not None},
    }
    for name, (_, unit) in FAMILIES.items():
        found[f"{name}_n"] = rounded(metrics.get(f"{name}_n"))
        for part in ("p50", "p90", "p99"):
            found[f"{name}_{part}"] = rounded(metrics.get(f"{name}_{part}_{unit}"))
    found["ttfc_p50"] = rounded(metrics.get("ttfc_p50_ms"))
    found["with_queue_p50"] = rounded(metrics.get("e2e_from_schedule_p50_s"))
    found["e2e_p50"] = found["e2e_p50"] if found["e2e_p50"] is not None else rounded(level.e2e_p50_s)
    found["e2e_p99"] = found["e2e_p99"] if found["e2e_p99"] is not None else rounded(level.e2e_p99_s)
    found["ttft_p50"] = found["ttft_p50"] if found["ttft_p50"] is not None else rounded(level.ttft_p50_ms)
    found["tpot_p50"] = found["tpot_p50"] if found["tpot_p50"] is not None else rounded(level.tpot_p50_ms)
    found["user"] = rounded(1000 / found["tpot_p50"]) if found["tpot_p50"] else None
    return found


def rows(levels: Iterable[Any]) -> list[dict[str, Any]]:
    """The points of the levels' table: also of levels without a number, and with `scaling` and `efficiency` against concurrency 1."""
    points = [point(level) for level in levels]
    base = next((one["tput"] for one in points if (one["load"], one["value"], one["state"]) == ("closed", 1, "done")), None)
    for one in points:
        closed = one["load"] == "closed" and one["state"] == "done"
        one["scaling"] = scaling(one["scaling"], one["tput"], base) if closed else None
        one["efficiency"] = one["scaling"] / one["value"] if one["scaling"] is not None and one["value"] else None
    return points


def beside(level: Any) -> dict[str, Any]:
    """What was measured beside a level: the client's own error, the server's counters, the GPUs. Each None where nobody told."""
    metrics = told(level.metrics)
    server, gpus = told(metrics.get("server")), metrics.get("gpus")
    rows = [gpu for gpu in gpus if isinstance(gpu, Mapping)] if isinstance(gpus, list) else []

    def mean(name: str) -> float | None:
        values = [value for gpu in rows if (value := number(gpu.get(name))) is not None]
        return sum(values) / len(values) if values else None

    used = [value for gpu in rows if (value := number(gpu.get("used_bytes_max"))) is not None]
    return {
        "label": level_key(level.load, level.value), "stamps": {"kernel": "kernel", "own": "own"}.get(str(metrics.get("stamps"))),
        "late_p99": None if (late := number(metrics.get("kernel_delay_p99_us"))) is None else late / 1000,
        "lag_p99": number(metrics.get("client_lag_p99_ms")), "cpu": number(metrics.get("client_cpu_share")),
        "running": number(server.get("running_max")), "waiting": number(server.get("waiting_max")),
        "kv": number(server.get("kv_use_max")), "prefix": number(server.get("prefix_hit_rate")), "spec": number(server.get("spec_acceptance")),
        "preemptions": number(server.get("preemptions")), "power": number(metrics.get("power_mean_w")), "utilization": mean("utilization_mean"),
        "memory": sum(used) if used else None, "tokens_per_joule": number(metrics.get("tokens_per_joule")),
    }


def distribution(level: Any, name: str) -> list[float | None]:
    """The 101 values at 0, 1, ... 100 percent of a measurement of a level; empty where it has none."""
    values = told(told(level.detail).get("ecdf")).get(name)
    if not isinstance(values, list) or len(values) != POINTS:
        return []
    found = [rounded(value) for value in values]
    return found if any(value is not None for value in found) else []


def seconds(level: Any) -> dict[str, Any] | None:
    """Output tokens a second of a level, a value for each `step` seconds, with the steady window, as `detail` keeps it; None where it does not."""
    found = told(told(level.detail).get("seconds"))
    rows = found.get("tok_s")
    if not isinstance(rows, list) or not rows:
        return None
    step = number(found.get("step_s"))  # of levels longer than 900 s
    return {"tok_s": [rounded(value) for value in rows[:SECONDS]], "step": step if step is not None and step > 0 else 1,
            "from": rounded(found.get("from_s")), "to": rounded(found.get("to_s"))}


def timeline(level: Any) -> list[dict[str, Any]]:
    """The first requests of a level: ms from its start at which each was wanted (q), sent (s), had its first chunk (f), its first content (c), ended
    (e), and its kind of error."""
    rows = told(level.detail).get("timeline")
    found = []
    for row in rows[:REQUESTS] if isinstance(rows, list) else []:
        if isinstance(row, Mapping) and number(row.get("s")) is not None:
            found.append({**{name: None if number(row.get(name)) is None else round(float(row[name]), 1) for name in ("q", "s", "f", "c", "e")},
                          "err": row["err"][:60] if isinstance(row.get("err"), str) else ""})
    return found


def level_detail(level: Any) -> dict[str, Any]:
    """What a page asks for when a level is chosen."""
    return {"key": key(level), "label": level_key(level.load, level.value), "load": level.load, "seconds": seconds(level),
            "timeline": timeline(level)}


def measured(levels: Sequence[Any]) -> list[dict[str, Any]]:
    """The points of a run: levels with a number, by load."""
    points = [point(level) for level in sorted(levels, key=lambda one: (one.load, one.value))]
    return [one for one in points if one["tput"] is not None or one["e2e_p50"] is not None or one["mean"] is not None]


def run_data(run: Any, levels: Sequence[Any], *, target: Sequence[float] = ()) -> dict[str, Any]:
    """All charts of a run, as JSON. Where it has levels of both kinds, the charts over the load show concurrencies, the goodput chart the rates."""
    points = measured(levels)
    loads = {one["load"] for one in points}
    main = "closed" if "closed" in loads or not loads else "open"
    drawn = [one for one in points if one["load"] == main]
    rates = [one for one in points if one["load"] == "open"] or drawn
    slos = {name: found for name, value in told(asked(run).get("slos")).items() if (found := rounded(value)) is not None}
    return {
        "run": str(run.pk), "practice": run.practice, "load": main, "points": drawn, "rates": [one for one in rates if one["goodput"] is not None],
        "slos": slos, "target": [float(f"{value:.4g}") for value in target], "shapes": {
            name: {key(level): values for level in sorted(levels, key=lambda one: (one.load, one.value)) if (values := distribution(level, of))}
            for name, of in (("ttft", "ttft_ms"), ("icl", "icl_ms"))},
        "detailed": [key(level) for level in levels if told(level.detail).get("seconds") or told(level.detail).get("timeline")],
    }


def asked(run: Any) -> Mapping[str, Any]:
    """A run's settings. While it goes on they stand one level deeper, beside what the sweep said at its start."""
    return asked_of(run.settings)


def asked_of(settings: Any) -> Mapping[str, Any]:
    found = told(settings)
    return told(found.get("settings")) or found


def shape_rows(shapes: Mapping[str, Mapping[str, Sequence[float | None]]], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """The twin of the distributions: a row a level, with the values at PERCENTS."""
    return [{"measurement": FAMILIES[name][0], "label": labels.get(level, level.partition(":")[2]),
             "values": [values[percent] for percent in PERCENTS]} for name, by_level in shapes.items() for level, values in by_level.items()]


# ---- the twins: what a chart draws, as rows of text ----


def twins(data: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The tables of the charts of `run_data`, by chart: `head` [(title, unit)], `rows` [[text]]. "n/a": not measured, or too few requests."""
    points = data["points"]
    first = ("requests/s", "offered") if data["load"] == "open" else ("C", "")

    def table(rows: Sequence[Mapping[str, Any]], *columns: tuple[str, str, str, int | None], head: tuple[str, str] = first) -> dict[str, Any]:
        return {"head": [head, *((title, unit) for title, unit, _, _ in columns)],
                "rows": [[one["label"].removesuffix("/s"), *(shown(one[name], digits) for _, _, name, digits in columns)] for one in rows]}

    spreads = {name: [("P50", unit, f"{name}_p50", None), ("P90", unit, f"{name}_p90", None), ("P99", unit, f"{name}_p99", None),
                      ("n", "", f"{name}_n", 0)] for name, (_, unit) in FAMILIES.items()}
    rates = data["rates"]
    made = {
        "throughput": table(points, ("Steady", "tok/s", "steady", None), ("Whole run", "tok/s", "whole", None), ("Steady window", "s", "steady_s", 1),
                            ("Against C = 1", "×", "scaling", 2)),
        "latency": table(points, ("Mean", "s", "mean", None), *spreads["e2e"][:3], ("P99 / P50", "", "spread", 2), ("n", "", "finished", 0)),
        "ttft": table(points, *spreads["ttft"], ("First content P50", "ms", "ttfc_p50", None)),
        "tpot": table(points, *spreads["tpot"]), "goodput": table(
            rates, ("Goodput", "requests/s", "goodput", 3), ("All", "requests/s", "requests_s", 3), ("Achieved", "requests/s", "achieved", 3),
            ("Left out", "requests", "left_out", 0), head=("requests/s", "offered") if rates and rates[0]["load"] == "open" else ("C", "")),
        "pareto": table(points, ("Per user", "tok/s", "user", None), ("Per GPU", "tok/s", "per_gpu", None), ("Whole", "tok/s", "tput", None)),
    }
    for name in ("ttft", "icl"):
        labels = {one["key"]: one["label"] for one in points}
        made[f"ecdf_{name}"] = {"head": [first, *((f"{percent} %", "ms") for percent in PERCENTS)], "rows": [
            [row["label"], *(shown(value) for value in row["values"])] for row in shape_rows({name: data["shapes"][name]}, labels)]}
    return made


def shown(value: float | None, digits: int | None = None) -> str:
    """A number as text: with so many digits, or with as many as tell three figures."""
    if value is None:
        return "n/a"
    if digits is not None:
        return f"{value:,.{digits}f}"
    return f"{value:,.0f}" if abs(value) >= 99.95 or abs(value - round(value)) < 0.005 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
