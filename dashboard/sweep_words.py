"""The live numbers of a running sweep as text. static/js/sweep_live.js `liveWords` says the same in the browser: what is shown does not change
when a page is loaded anew. Pure; events come from nodes, so every value may be anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dashboard.charts import number
from dashboard.templatetags.roundhouse import rate

FEW, UNTOLD = "n/a", "not reported"


def figures(value: Any, none: str = "") -> str:
    """Three of them: 1,240, 23.7, 0.79."""
    found = number(value)
    if found is None:
        return none
    size = abs(found)
    return f"{found:,.0f}" if size >= 99.95 else f"{found:.1f}" if size >= 9.995 else f"{found:.2f}"


def whole(value: Any, none: str = "") -> str:
    found = number(value)
    return none if found is None else f"{found:,.0f}"


def share(value: Any, none: str = UNTOLD) -> str:
    """A share as percent: 0.4137 is 41.4."""
    found = number(value)
    return none if found is None else f"{100 * found:.1f}"


def live_words(latest: dict[str, Any], requests: Any = None) -> dict[str, str]:
    """Every text of a live second, by the name that its place on the page has (`data-live`); all empty before the first."""
    if not latest:
        return {}
    server = latest["server"] if isinstance(latest.get("server"), dict) else {}
    asked, finished = number(requests), whole(latest.get("finished"), "0")
    power, so_far, c = number(latest.get("power_w")), number(latest.get("throughput_so_far_tok_s")), number(latest.get("concurrency"))
    told = {
        "tok_s": rate(number(latest.get("output_tok_s"))), "so_far": rate(so_far), "per_user": rate(so_far / c) if so_far is not None and c else FEW,
        "in_flight": whole(latest.get("in_flight")),
        "finished": f"{finished} of {asked:,.0f}" if asked else finished, "errors": whole(latest.get("errors"), "0"),
        "running": whole(server.get("running"), UNTOLD), "waiting": whole(server.get("waiting"), UNTOLD), "kv": share(server.get("kv_use")),
        "prefix": share(server.get("prefix_hit_rate")), "accepted": share(server.get("spec_acceptance")),
        "power": UNTOLD if power is None else f"{power / 1000:.2f}", "tokens_per_joule": figures(latest.get("tokens_per_joule"), UNTOLD),
    }
    for name, unit in (("ttft", "ms"), ("icl", "ms"), ("e2e", "s")):
        for part in ("p50", "p90", "p99", "mean"):
            told[f"{name}_{part}"] = figures(latest.get(f"{name}_{part}_{unit}"), FEW)
    return told


def gpu_rows(latest: dict[str, Any]) -> list[dict[str, Any]]:
    """Each GPU of the service at the newest second: index, and utilization (percent), memory (GiB) and power (W) as text."""
    listed = latest.get("gpus")
    return [{"index": int(index), "parts": [{"kind": "b-now", "share": (number(gpu.get("utilization")) or 0) / 100}],
             "util": whole(gpu.get("utilization"), UNTOLD),
             "used": UNTOLD if number(gpu.get("used_bytes")) is None else f"{gpu['used_bytes'] / 2**30:,.1f}",
             "power": whole(gpu.get("power_w"), UNTOLD)}
            for gpu in (listed if isinstance(listed, list) else []) if isinstance(gpu, dict) and (index := number(gpu.get("index"))) is not None]


def beside_table(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What the levels (job_story.level_rows) say of their server and their GPUs: heads (title, unit) and a line of texts each.

    A column of which no level says anything is left out; None where that leaves none.
    """
    columns = []
    for title, unit, of in _BESIDE:
        texts = [of(row) for row in rows]
        if any(text != UNTOLD for text in texts):
            columns.append((title, unit, texts))
    if not columns:
        return None
    lines = [{"label": row["label"], "texts": [texts[n] for _, _, texts in columns]} for n, row in enumerate(rows)]
    return {"heads": [(title, unit) for title, unit, _ in columns], "lines": [one for one in lines if set(one["texts"]) != {UNTOLD}]}


def _of_server(name: str, form: Callable[[Any, str], str]) -> Callable[[dict[str, Any]], str]:
    return lambda row: form(row["server"].get(name), UNTOLD)


def _of_metrics(name: str, scale: float) -> Callable[[dict[str, Any]], str]:
    def text(row: dict[str, Any]) -> str:
        value = number(row["metrics"].get(name))
        return UNTOLD if value is None else figures(value / scale)

    return text


_BESIDE = (
    ("Running", "", _of_server("running_max", whole)), ("Waiting", "", _of_server("waiting_max", whole)),
    ("KV cache", "%", _of_server("kv_use_max", share)), ("Prefix hits", "%", _of_server("prefix_hit_rate", share)),
    ("Drafts accepted", "%", _of_server("spec_acceptance", share)), ("Preemptions", "", _of_server("preemptions", whole)),
    ("Power", "kW", _of_metrics("power_mean_w", 1000)), ("Energy", "kJ", _of_metrics("energy_j", 1000)),
    ("Tokens", "per J", _of_metrics("tokens_per_joule", 1)),
)
