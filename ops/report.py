"""The four-part summary that a redeploy writes: reinstall, cleanup, service verified, benchmark; as data and as Markdown.

`Collector` stands before a job's reporter and keeps what the report needs, so that no step has to hand its results on twice.
"""

from __future__ import annotations

from typing import Any

from ops.jobs.events import EventType
from ops.jobs.pipeline import Context, Reporter

KEPT_ONE = {EventType.PLAN_MADE, EventType.WARMUP_DONE, EventType.SWEEP_FINISHED, EventType.PURGE_RESULT, EventType.DIAGNOSIS,
            EventType.INTEGRITY, EventType.SWEEP_STARTED, EventType.REGRESSION}
SMOKE_SHOWN = ("name", "title", "outcome", "summary", "took_s", "detail")  # the whole answers are in the job's events
KEPT_ALL = {EventType.SMOKE_RESULT, EventType.LEVEL_FINISHED, EventType.DOWNTIME_ENDED}
MANIFEST_SHOWN = 100  # lines of a purge's manifest in the report; the file on the node has all


class Collector:
    """A reporter that keeps the last (or all) of the events that a report is made of, in `facts["said"]`."""

    def __init__(self, emit: Reporter, facts: dict[str, Any]) -> None:
        self._emit, self._said = emit, facts.setdefault("said", {})

    def __call__(self, type: str, data: dict[str, Any]) -> None:
        if type in KEPT_ONE:
            self._said[str(type)] = data
        elif type in KEPT_ALL:
            self._said.setdefault(str(type), []).append(_short(data))
        elif type == EventType.PURGE_ENTRIES:
            lines = self._said.setdefault(str(type), [])
            lines += data["entries"][:MANIFEST_SHOWN - len(lines)]
        self._emit(type, data)


def _short(data: dict[str, Any]) -> dict[str, Any]:
    """A level without what only charts need: the report is an event too."""
    metrics = data.get("metrics")
    return {**data, "metrics": {name: value for name, value in metrics.items() if name != "detail"}} if isinstance(metrics, dict) else data


def collect(context: Context) -> None:
    """Puts a `Collector` before the context's reporter, once."""
    if not isinstance(context.emit, Collector):
        context.emit = Collector(context.emit, context.facts)


def make(context: Context) -> dict[str, Any]:
    """The report as data, with its Markdown under "markdown".

    Parts that the job did not reach (or was told to leave out) are None: nothing is claimed that was not done.
    """
    facts, record = context.facts, context.the_service
    said: dict[str, Any] = facts.get("said", {})
    plan = said.get(EventType.PLAN_MADE)
    failure = facts.get("failure")
    downtimes = said.get(EventType.DOWNTIME_ENDED, [])
    built = bool({"build", "install"} & set(facts.get("finished", [])))
    report: dict[str, Any] = {
        "kind": "redeploy" if plan else "rollback",
        "service": record.name,
        "node": context.config.name,
        "practice": record.practice,
        "state": "failed" if failure else "succeeded",
        "failure": failure,
        "rollback": facts.get("rollback", "none"),
        "release": {"before": facts.get("previous"), "after": facts.get("release")},
        "in_place": record.in_place and "install" in facts.get("finished", []),
        "changed_since_good": facts.get("changed", []),
        "pruned": facts.get("pruned", []),
        "downtime_s": sum(d["seconds"] for d in downtimes) if downtimes else None,
        "reinstall": _reinstall(plan, facts) if plan and built else None,
        "cleanup": _cleanup(said),
        "service_verified": _service(said, facts, record.base_url),
        "benchmark": _benchmark(said),
        "diagnosis": said.get(EventType.DIAGNOSIS),
    }
    report["markdown"] = markdown(report)
    return report


def _reinstall(plan: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    changed = [{k: p.get(k) for k in ("name", "old", "new", "change", "why")} for p in plan["packages"] if p["change"] != "same"]
    return {
        "changed": changed,
        "same_count": len(plan["packages"]) - len(changed),
        "files_checked": facts.get("files_checked"),
        "mode": plan.get("mode", "full"),
        "cache_leaks": facts.get("cache_leaks", []),
        "patched": [{k: v for k, v in found.items() if k not in ("diff", "diff_lines")} for found in plan.get("patched_files", [])],
        "shelf": facts.get("shelf"),
    }


def _cleanup(said: dict[str, Any]) -> dict[str, Any] | None:
    """What the purge gave back: counts, `kinds` and `why_kept` as in the event purge.result, `manifest` {path (on the node), entries}, and the first
    of its `lines` (as in purge.entries), `more` of which are in the file alone."""
    result = said.get(EventType.PURGE_RESULT)
    if result is None:
        return None
    lines = said.get(EventType.PURGE_ENTRIES, [])
    return {
        "deleted_count": result["deleted"]["count"], "deleted_files": result["deleted"]["files"], "freed_bytes": result["freed_bytes"],
        "kept_count": result["kept"]["count"], "kinds": result["kinds"], "why_kept": result["why_kept"], "manifest": result["manifest"],
        "cancelled": result["cancelled"], "lines": lines, "more": max(0, result["manifest"]["entries"] - len(lines)),
    }


def _service(said: dict[str, Any], facts: dict[str, Any], base_url: str) -> dict[str, Any] | None:
    if EventType.WARMUP_DONE not in said:
        return None
    return {
        "base_url": base_url,
        "warmup": said[EventType.WARMUP_DONE],
        "smoke": [{name: one[name] for name in SMOKE_SHOWN if name in one} for one in said.get(EventType.SMOKE_RESULT, [])],
        "guards": facts.get("guards", []),
    }


def _benchmark(said: dict[str, Any]) -> dict[str, Any] | None:
    started, levels = said.get(EventType.SWEEP_STARTED), said.get(EventType.LEVEL_FINISHED, [])
    if started is None or not levels:
        return None
    return {
        "run_id": started["run_id"],
        "preset": started["preset"],
        "short": started["short"],
        "max_tokens": started["max_tokens"],
        "levels": [level["metrics"] for level in levels if level.get("run_id") in (None, started["run_id"])],
        "baseline": _baseline(said.get(EventType.REGRESSION)),
    }


def _baseline(found: dict[str, Any] | None) -> dict[str, Any] | None:
    """What the watch against the pinned baseline said; None without one."""
    if found is None:
        return None
    return {"label": found["baseline"]["label"], "release": found["baseline"]["release"], "run_ids": found["baseline"]["run_ids"],
            "outside": found["outside"], "words": found["words"]}


def markdown(report: dict[str, Any]) -> str:
    """The report as Markdown, for a terminal, a ticket or a chat. Says PRACTICE wherever the numbers are simulated."""
    practice = " (PRACTICE: simulated GPUs and model)" if report["practice"] else ""
    kind = "Redeploy" if report["kind"] == "redeploy" else "Roll back"
    lines = [f"# {kind} {report['service']} on {report['node']}{practice}", ""]
    if report["failure"]:
        lines += [f"**Failed at {report['failure']['title']}**: {report['failure']['what']}", ""]
        if report["diagnosis"] and report["diagnosis"].get("text"):
            found = report["diagnosis"]
            lines += [f"Decisive line {found['line']}: `{found['text'].strip()}`", "", f"{found['diagnosis']} {found['fix']}".strip(), ""]
        if report["rollback"] != "none":
            lines += [f"Rollback: {report['rollback']}; the release in use is {report['release']['before']}.", ""]
    if report["downtime_s"] is not None:
        lines += [f"Service down for {duration(report['downtime_s'])}, from stop to the first healthy answer.", ""]
    lines += ["## 1 Reinstall", "", *_reinstall_lines(report), "", "## 2 Cleanup", "", *_cleanup_lines(report), "",
              "## 3 Service verified", "", *_service_lines(report), "", f"## 4 Benchmark{practice}", "", *_benchmark_lines(report), ""]
    return "\n".join(lines)


def _reinstall_lines(report: dict[str, Any]) -> list[str]:
    part = report["reinstall"]
    if part is None and report["kind"] == "rollback":
        return [f"Nothing was installed: release `{report['release']['after']}` was here, before it `{report['release']['before']}` was in use."]
    if part is None:
        return ["Not reached."]
    how = "changed in place, the one before was" if report["in_place"] else "built beside"
    lines = [f"Release `{report['release']['after']}`, {how} `{report['release']['before']}`.", ""]
    if part["changed"]:
        lines += ["| package | before | after | why |", "| --- | --- | --- | --- |"]
    lines += [f"| {p['name']} | {p['old'] or 'absent'} | {p['new'] or 'removed'} | {p['why']} |" for p in part["changed"]]
    checked = f" {part['files_checked']:,} files match RECORD." if part["files_checked"] is not None else ""
    lines += [*([""] if part["changed"] else []), f"{len(part['changed'])} changed, {part['same_count']} stayed.{checked}"]
    if part["patched"]:
        names = ", ".join(f"`{p['path'].rsplit('/', 1)[-1]}`" for p in part["patched"])
        told = "1 patched file of the old release is" if len(part["patched"]) == 1 else f"{len(part['patched'])} patched files of the old release are"
        lines.append(f"{told} on the patch shelf: {names}.")
    lines += [f"{leak}." for leak in part["cache_leaks"]]
    if part["mode"] == "restore":
        lines.append("Packages that nobody had touched were copied from the release before, and held against RECORD again.")
    return lines


def _cleanup_lines(report: dict[str, Any]) -> list[str]:
    part = report["cleanup"]
    pruned = [f"Old releases removed: {', '.join(f'`{name}`' for name in report['pruned'])}."] if report["pruned"] else []
    if part is None:
        return ["Nothing was purged.", *pruned]
    files = part["deleted_files"]
    lines = [f"{files:,} {'file' if files == 1 else 'files'} deleted, {part['freed_bytes'] / 1e6:,.0f} MB freed"
             f"{', then cancelled' if part['cancelled'] else ''}."]
    if part["kinds"]:
        lines += ["", "| what | chosen | deleted | kept | freed |", "| --- | ---: | ---: | ---: | ---: |"]
        lines += [f"| {_cell(kind['title'])} | {kind['chosen']:,} | {kind['deleted']:,} | {kind['kept']:,} | {kind['freed_bytes'] / 1e6:,.1f} MB |"
                  for kind in part["kinds"]]
    if part["why_kept"]:
        lines += ["", *(f"- Kept {why['count']:,}: {_cell(why['why'])}, such as `{_code(why['example'])}`" for why in part["why_kept"])]
    if part["lines"]:
        lines += ["", f"Manifest (`{_code(part['manifest']['path'])}`):", "", "| path | size | result |", "| --- | ---: | --- |"]
        lines += [f"| `{_code(line['path'])}` | {line['size_bytes'] / 1e6:,.2f} MB | {_cell(_became(line))} |" for line in part["lines"]]
    if part["more"]:
        lines += ["", f"The manifest has {part['more']:,} more."]
    return [*lines, "", *pruned] if pruned else lines


def _became(line: dict[str, Any]) -> str:
    return f"{line['result']}: {line['why']}" if line["why"] else str(line["result"])


def _service_lines(report: dict[str, Any]) -> list[str]:
    part = report["service_verified"]
    if part is None:
        return ["Not reached."]
    lines = [f"Healthy at {part['base_url']} after a warmup of {duration(part['warmup']['total_s'])}.", ""]
    if part["smoke"]:
        lines += ["| smoke test | outcome | what came back | took |", "| --- | --- | --- | --- |"]
        lines += [f"| {s['title']} | {s['outcome']} | {_cell(s['summary'])} | {s['took_s']:.1f} s |" for s in part["smoke"]]
    else:
        lines.append("Smoke tests were not run.")
    if part["guards"]:
        held = sum(1 for g in part["guards"] if g["holds"])
        lines += ["", f"{held} of {len(part['guards'])} guards hold."]
    return lines


def _benchmark_lines(report: dict[str, Any]) -> list[str]:
    part = report["benchmark"]
    if part is None:
        return ["Not measured."]
    short = ", marked short" if part["short"] else ""
    endpoint = "Completions" if any(m.get("endpoint_kind") == "completions" for m in part["levels"]) else "Chat completions"
    rates = any(m.get("load") == "open" for m in part["levels"])
    lines = [f"{endpoint}, {part['max_tokens']} output tokens, preset {part['preset']}{short}.", "",
             f"| {'requests/s offered' if rates else 'concurrency'} | output tok/s | mean latency | P50 | P99 | TTFT P50 | requests | errors | "
             "marks |",
             "| ---: " * 8 + "| --- |"]
    for m in part["levels"]:
        lines.append("| " + " | ".join([
            f"{m['value']:g}" if m.get("load") == "open" else str(m["concurrency"]), number(m.get("output_tok_s"), 0),
            seconds(m.get("e2e_mean_s")), seconds(m.get("e2e_p50_s")),
            seconds(m.get("e2e_p99_s")), number(m.get("ttft_p50_ms"), 0, " ms"), str(m.get("finished")), str(m.get("errors")),
            ", ".join(m.get("marks") or []),
        ]) + " |")
    if baseline := part.get("baseline"):
        of = " ".join(filter(None, (_cell(baseline["label"]), f"(release `{baseline['release']}`)" if baseline["release"] else "")))
        lines += ["", f"Against the baseline{f' {of}' if of else ''}, not interleaved:", "", *(f"- {_cell(word)}" for word in baseline["words"])]
    return lines


def number(value: float | None, digits: int, unit: str = "") -> str:
    """With thousands separators; "n/a" for None."""
    return "n/a" if value is None else f"{value:,.{digits}f}{unit}"


def seconds(value: float | None) -> str:
    """Seconds with one digit, or "n/a"."""
    return number(value, 1, " s")


def duration(value: float) -> str:
    """"12.3 s" below a minute, else "13:02 min"."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes}:{rest:02d} min"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _code(text: str) -> str:
    """A path between backticks in a table's cell: what would end it early is replaced, for nobody copies it from there."""
    return _cell(text.replace("`", "'"))
