"""What a job's rows mean to a reader: its title, one line of result, its steps in groups, the strip of facts, the step to show.

Everything here reads rows and gives plain data for templates; nothing writes. Pages and their live fragments use the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.utils import timezone

from dashboard import charts, purge_story, run_edits
from dashboard.estimates import EARLIER, Usual, usual
from dashboard.models import BenchmarkRun, Job, JobEvent, JobStep
from dashboard.templatetags.roundhouse import clock, clock_unit, rate, short_release, size
from dashboard.templatetags.roundhouse import took as took_words
from ops.jobs.events import EventType, JobState

TITLES = {
    "plan": "Plan redeploy of", "redeploy": "Redeploy", "restart": "Restart", "warmup": "Watch warmup of", "sweep": "Sweep",
    "purge": "Purge leftovers of", "smoke": "Smoke tests", "integrity": "Integrity of", "practice-reset": "Reset practice box",
    "build": "Build a release for", "rollback": "Roll back", "remove-release": "Remove a release of", "guards-apply": "Apply guards of",
    "shelf-forget": "Forget patches of", "recipe": "Save a recipe of", "guards-set": "Set guards of", "adopt": "Read unit", "adopt-apply": "Adopt",
    "start": "Start", "stop": "Stop", "switch": "Switch", "reset-failed": "Reset the failed state of", "leftovers": "Look for leftovers of",
    "end-leftovers": "End leftovers of", "diagnose": "Diagnose", "settings-set": "Set launch settings of", "smoke-set": "Set the smoke suite of",
    "noise-floor": "Measure the noise floor of", "artifact-scan": "Cleanup scan of",
}
TYPE_WORDS = {
    "plan": "Plan", "redeploy": "Redeploy", "restart": "Restart", "warmup": "Warmup watch", "sweep": "Sweep", "purge": "Purge",
    "smoke": "Smoke tests", "integrity": "Integrity", "practice-reset": "Reset practice box", "build": "Build", "rollback": "Roll back",
    "remove-release": "Remove a release", "guards-apply": "Apply guards", "shelf-forget": "Forget patches", "recipe": "Recipe",
    "guards-set": "Set guards", "adopt": "Read a unit", "adopt-apply": "Adopt", "start": "Start", "stop": "Stop", "switch": "Switch",
    "reset-failed": "Reset failed state", "leftovers": "Look for leftover processes", "end-leftovers": "End leftover processes",
    "diagnose": "Diagnosis", "settings-set": "Launch settings", "smoke-set": "Smoke suite", "noise-floor": "Noise floor",
    "artifact-scan": "Cleanup scan",
}
SERVING_STACK = ("vllm", "flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache", "torch", "transformers")
DONE_STATES = (JobState.SUCCEEDED, JobState.PARTIAL)
OPEN_STATES = (JobState.QUEUED, JobState.CLAIMED, JobState.RUNNING, JobState.CANCELLING, JobState.LOST)
PARTS = 5  # colours for the parts of a whole: --part-1 to --part-5


def title(job: Job) -> str:
    name = TITLES.get(job.type, job.type.capitalize())
    if job.type in ("adopt", "adopt-apply"):  # of a service that is not there yet
        return f"{name} {str(job.params.get('unit') or '').removesuffix('.service')[:80]}".strip()
    if job.type == "switch" and job.service is not None:
        return f"{name} {job.service.name} to {str(job.params.get('to') or '')[:63]}"
    if job.type in ("artifact-scan", "purge"):  # of a node; a purge of earlier versions was one of a service
        return f"{name} {job.service.name if job.service is not None else job.node.name}"
    return name if job.type == "practice-reset" or job.service is None else f"{name} {job.service.name}"


def release_words(job: Job) -> tuple[str, str]:
    """(release before, release after) of a redeploy; empty where not known yet."""
    report = (job.result or {}).get("report") or {}
    plan = (job.result or {}).get("plan") or {}
    release = report.get("release") or {}
    if job.type in ("rollback", "remove-release"):  # they say which; a roll back's report says what it came from
        return str(release.get("before") or ""), str(job.params.get("release") or "") if job.type == "rollback" else ""
    return str(release.get("before") or plan.get("current") or ""), str(release.get("after") or plan.get("release") or "")


def result_line(job: Job) -> str:
    """One line for lists: how far it is, or what came out."""
    result = job.result or {}
    if job.state in (JobState.QUEUED, JobState.CLAIMED):
        return "waiting for the node" if job.state == JobState.QUEUED else "starting on the node"
    if not job.is_final:
        step = next((s for s in job.steps.all() if s.state in ("running", "undoing")), None)
        if step is None:
            return "no heartbeat from the node" if job.state == JobState.LOST else ""
        told = (step.progress or {}).get("text") or ""
        return f"{step.title}: {told}" if told else str(step.title)
    if job.state in (JobState.FAILED, JobState.INTERRUPTED):
        rolled = {"done": "; rolled back", "failed": "; rollback failed"}.get(job.rollback, "")
        return f"{job.reason.rstrip('.')}{rolled}"
    if job.state == JobState.CANCELLED:
        purged = purge_story.line(job) if job.type == "purge" else ""
        return f"{purged}; cancelled" if purged else job.reason or "cancelled"
    if told := _environment_line(job, result) or _control_line(job, result):
        return told
    if job.type == "redeploy":
        changed = [p for p in (result.get("plan") or {}).get("packages", []) if p.get("change") != "same"]
        vllm = next((p for p in changed if p.get("name") == "vllm"), None)
        what = f"vllm {short_version(vllm['old'])} → {short_version(vllm['new'])}" if vllm else f"{len(changed)} packages changed"
        return what + (f", down {duration_words(job.downtime_s)}" if job.downtime_s is not None else "")
    if job.type == "plan":
        changed = [p for p in (result.get("plan") or {}).get("packages", []) if p.get("change") != "same"]
        return f"{len(changed)} packages would change" if result.get("plan") else ""
    if job.type == "smoke":
        return smoke_words(result.get("smoke") or [])
    if job.type == "integrity" and (report := result.get("integrity")):
        return integrity_words(report)
    if job.type == "artifact-scan" and (scan := result.get("scan")):
        return scan_words(scan)
    if job.type == "purge" and (purged := purge_story.line(job)):
        return purged
    if job.downtime_s is not None:
        return f"down {duration_words(job.downtime_s)}"
    last = [s for s in job.steps.all() if s.note]
    return str(last[-1].note) if last else ""


def _environment_line(job: Job, result: dict[str, Any]) -> str:
    """The line of a job that has to do with releases, guards, patches or recipes; "" for others."""
    release = short_release(str(job.params.get("release") or (result.get("plan") or {}).get("release") or ""))
    if job.type == "rollback":
        return f"on {release}" + (f", down {duration_words(job.downtime_s)}" if job.downtime_s is not None else "")
    if job.type == "build":
        return f"{release} built and verified" if release else ""
    if job.type == "remove-release":
        return f"{release} removed" if release else ""
    if job.type == "guards-apply" and (guards := result.get("guards")):
        applied, results = guards.get("applied") or [], guards.get("results") or []
        edited = f"{len(applied)} {'file' if len(applied) == 1 else 'files'} edited" if applied else "nothing had to be edited"
        return f"{edited}, {sum(1 for g in results if g.get('holds'))} of {len(results)} hold" if results else edited
    if job.type == "shelf-forget":
        count = len(job.params.get("entries") or [])
        return f"{count} {'patch' if count == 1 else 'patches'} forgotten"
    if job.type in ("adopt", "adopt-apply") and result.get("adoption"):
        from dashboard import adoption_story

        return adoption_story.line(job)
    if job.type == "recipe" and (recipe := result.get("recipe")):
        return str(recipe.get("name") or "saved")
    return ""


def _control_line(job: Job, result: dict[str, Any]) -> str:
    """The line of a job that controls a service, looks at it, or sets what it starts with; "" for others, and where its last step says it better."""
    down = f", down {duration_words(job.downtime_s)}" if job.downtime_s is not None else ""
    if job.type == "switch":
        return f"on {str(job.params.get('to') or '')[:63]}{down}"
    if job.type == "start" and (took := (result.get("warmup") or {}).get("total_s")) is not None:
        return f"answers after {duration_words(took)}"
    if job.type == "leftovers" and (left := result.get("leftovers")):
        return leftovers_words(left)
    if job.type == "diagnose" and (found := result.get("diagnosis")):
        return diagnosis_words(found)
    if job.type == "settings-set" and (settings := result.get("settings")):
        return settings_words(settings)
    if job.type == "smoke-set":
        own, without = (len(job.params.get(name) or []) for name in ("tests", "without"))
        return f"{own} own {'question' if own == 1 else 'questions'}" + (f", {without} built-in left out" if without else "")
    return ""


def leftovers_words(left: dict[str, Any]) -> str:
    """What a look for leftovers came to, from the counts that `Job.result` keeps."""
    counts = {name: left.get(name) or 0 for name in ("gpus", "own", "others", "ports", "shm", "ipc")}
    words = [f"{counts[name]} {one if counts[name] == 1 else many}" for name, one, many in (
        ("gpus", "GPU is not free", "GPUs are not free"),
        ("own", "process that can be ended", "processes that can be ended"), ("others", "process of others", "processes of others"),
        ("ports", "port", "ports"), ("shm", "file in shared memory", "files in shared memory"), ("ipc", "socket", "sockets")) if counts[name]]
    return ", ".join(words) if words else "not wholly known" if left.get("problems") else "nothing is left over"


def diagnosis_words(found: dict[str, Any]) -> str:
    """A diagnosis in one line."""
    if found.get("fault") is not True:
        return {"serving": "no fault: it serves", "stopped": "no fault: it was stopped", "empty": "the log is empty"}.get(
            str(found.get("state") or ""), "no fault found")
    return str(found.get("diagnosis") or found.get("text") or "a fault was found")[:200]


def settings_words(settings: dict[str, Any]) -> str:
    """What was changed of a service's launch settings, from what `Job.result` keeps."""
    env = settings.get("env") or 0
    changed = [*(["flags"] if settings.get("flags") else []), *([f"{env} {'variable' if env == 1 else 'variables'}"] if env else [])]
    return f"{' and '.join(changed)} changed, for the next start" if changed else "nothing was changed"


def scan_words(scan: dict[str, Any]) -> str:
    """What a scan for leftovers came to, from the totals that `Job.result` keeps."""
    count, offered = scan.get("count") or 0, scan.get("offered_bytes")
    if not count:
        return "no leftovers"
    return f"{count:,} {'leftover' if count == 1 else 'leftovers'}, {size(offered) if offered else 'nothing'} to give back"


def importance(package: dict[str, Any]) -> tuple[int, str]:
    """Sorts packages: the serving stack first, in the order in which people look for it, then by name."""
    name = str(package.get("name"))
    return (SERVING_STACK.index(name) if name in SERVING_STACK else len(SERVING_STACK), name)


def short_version(version: str | None) -> str:
    """A version as far as it tells builds apart: dev344 of 0.16.0rc2.dev344+practice."""
    text = str(version or "absent").split("+")[0]
    return text.rsplit(".", 1)[1] if ".dev" in text else text


def duration_words(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.1f} s" if seconds < 60 else f"{clock(seconds)} {clock_unit(seconds)}"


def smoke_words(results: Sequence[dict[str, Any]]) -> str:
    """How many of those that were asked passed, and how many were left out."""
    passed, left_out = (sum(1 for r in results if r.get("outcome") == outcome) for outcome in ("passed", "left out"))
    return f"{passed} of {len(results) - left_out} passed" + (f", {left_out} left out" if left_out else "") if results else ""


def integrity_words(report: dict[str, Any]) -> str:
    changed, missing, extra = (len(report.get(k) or []) for k in ("changed", "missing", "extra"))
    if not changed + missing + extra:
        return f"all {report.get('files') or 0:,} files match RECORD"
    return ", ".join(f"{n} {w}" for n, w in ((changed, "changed"), (missing, "missing"), (extra, "extra")) if n)


# ---- what to expect ----


def earlier(job: Job) -> Usual:
    """What jobs of this kind took before on this service."""
    if job.service_id is None:
        return Usual()
    rows = (Job.objects.filter(service=job.service, number__lt=job.number, state__in=(JobState.SUCCEEDED, JobState.PARTIAL),
                               type__in=("redeploy", "restart", "warmup", "practice-reset", "rollback", "start", job.type))
            .prefetch_related("steps")[:EARLIER * 2])
    return usual(rows, downtime_of=(job.type,))


def downtime_estimate(job: Job) -> dict[str, Any] | None:
    """Expected downtime of a redeploy planned by `job`: from earlier redeploys, else from the node's own warmups."""
    known = usual(Job.objects.filter(service=job.service, type__in=("redeploy", "restart", "rollback"),
                                     state__in=(JobState.SUCCEEDED, JobState.PARTIAL))
                  .prefetch_related("steps")[:EARLIER * 2], downtime_of=("redeploy", "restart", "rollback"))
    plan = (job.result or {}).get("plan") or {}
    told = plan.get("estimate") or {}
    if plan.get("in_place") is True:
        return _in_place_estimate(job, known)
    if known.downtime_s is not None:
        low, high = known.downtime_range or (None, None)
        return {"seconds": known.downtime_s, "low": low, "high": high, "from": f"from {known.downtimes} earlier "
                + ("start" if known.downtimes == 1 else "starts"), "usual": known}
    if told.get("warmup_s"):
        count = told.get("warmups") or 0
        return {"seconds": told["warmup_s"], "low": None, "high": None, "from": f"the warmup alone, from {count} earlier "
                + ("warmup" if count == 1 else "warmups"), "usual": known}
    return None


def _in_place_estimate(job: Job, known: Usual) -> dict[str, Any] | None:
    """In place the install is part of the downtime: from earlier ones in place, else a start and a build together, as they took apart."""
    before = usual(Job.objects.filter(service=job.service, type="redeploy", params__in_place=True, state__in=DONE_STATES)
                   .prefetch_related("steps")[:EARLIER * 2])
    if before.downtime_s is not None:
        low, high = before.downtime_range or (None, None)
        return {"seconds": before.downtime_s, "low": low, "high": high, "usual": known, "from":
                f"from {before.downtimes} earlier redeploy{'' if before.downtimes == 1 else 's'} in place"}
    start, build = known.downtime_s if known.downtime_s is not None else known.warmup_s, known.steps.get("build")
    if start is None or build is None:
        return None
    return {"seconds": start + build, "low": None, "high": None, "usual": known, "from": "a start and an install, as they took apart"}


# ---- steps ----


def step_groups(job: Job, known: Usual, *, selected: str = "", link: str = "") -> list[dict[str, Any]]:
    """Steps in order, in groups: neighbours that take the service down are one group, `downtime` true."""
    groups: list[dict[str, Any]] = []
    for step in job.steps.all():
        row = _step_row(job, step, known)
        row["selected"], row["href"] = step.name == selected, f"{link}?step={step.name}"
        if not groups or groups[-1]["downtime"] != step.downtime:
            groups.append({"downtime": step.downtime, "steps": []})
        groups[-1]["steps"].append(row)
    return groups


def _step_row(job: Job, step: JobStep, known: Usual) -> dict[str, Any]:
    state, took, since = step.state, "", None
    if state == "todo" and job.is_final:
        state, took = "not reached", "not reached"
    elif state == "todo":
        expected = known.steps.get(step.name)
        took = "" if expected is None else f"~{took_words(expected)}"
    elif state == "running":
        since = step.started_at
    elif step.duration_s is not None:
        took = clock(step.duration_s) if step.duration_s >= 10 else f"{step.duration_s:.1f} s"
    return {"step": step, "state": state, "took": took, "since": since,
            "undone": {"seconds": step.undo_s, "note": step.undo_note} if step.undo_s is not None else None}


def chosen_step(job: Job, wanted: str = "") -> JobStep | None:
    """The step to show: the one asked for; else the one running, the one that failed, the report, the last that did something."""
    steps = list(job.steps.all())
    by_name = {s.name: s for s in steps}
    if wanted in by_name:
        return by_name[wanted]
    for state in ("running", "undoing", "failed", "cancelled", "interrupted"):
        if found := [s for s in steps if s.state == state]:
            return found[0]
    if job.is_final and job.state in (JobState.SUCCEEDED, JobState.PARTIAL):
        if "report" in by_name and (job.result or {}).get("report"):
            return by_name["report"]
        if done := [s for s in steps if s.state == "done"]:
            return done[-1]
    reached = [s for s in steps if s.state != "todo"]
    return reached[-1] if reached else (steps[0] if steps else None)


# ---- facts ----


def facts(job: Job, known: Usual, run: BenchmarkRun | None, live: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Five cells at most, most wanted first. `live`: the newest second of the level that runs."""
    return _facts_after(job, run) if job.is_final else _facts_during(job, known, run, live)


def _cell(term: str, value: Any = "", unit: str = "", *, small: str = "", tone: str = "", since: Any = None, key: str = "",
          small_time: Any = None) -> dict[str, Any]:
    return {"term": term, "value": value, "unit": unit, "small": small, "tone": tone, "since": since, "key": key, "small_time": small_time}


def _facts_during(job: Job, known: Usual, run: BenchmarkRun | None, live: dict[str, Any] | None) -> list[dict[str, Any]]:
    steps = list(job.steps.all())
    step = next((s for s in steps if s.state in ("running", "undoing")), None)
    words = {JobState.QUEUED: "Queued", JobState.CLAIMED: "Starting", JobState.LOST: "Lost contact", JobState.CANCELLING: "Cancelling"}
    now = words.get(JobState(job.state)) or ("Rolling back" if step and step.state == "undoing" else step.title if step else "Between steps")
    told = (step.progress or {}).get("text") or "" if step else ""
    if job.state == JobState.LOST:
        told = "no heartbeat from the node"
    elif not told and job.state == JobState.QUEUED:
        told = f"waiting for {job.node.name}"
    elif not told and step:
        told = f"step {step.index + 1} of {len(steps)}"
    started = job.claimed_at or job.created_at
    cells = [_cell("Now", now, small=told, tone={JobState.LOST: "warn", JobState.CANCELLING: "warn", JobState.QUEUED: ""}.get(JobState(job.state),
                                                                                                                              "run"), key="now"),
             _cell("Elapsed", since=started, small="since", small_time=started, key="elapsed")]
    if step is not None and step.name == "sweep" and run is not None:
        return [*cells, *_sweep_facts(run, live)]
    undoing = step is not None and step.state == "undoing"
    if undoing:
        cells.append(_cell("It ends as", "failed" if job.state == JobState.RUNNING else "cancelled", small="once the last good release answers"))
    elif job.state == JobState.LOST:
        cells.append(_cell("Done in about", "not known", small=f"{job.node.name} says nothing", key="left"))
    elif (left := _left(steps, known)) is not None and left < 0.5 and any(s.state == "running" for s in steps):
        cells.append(_cell("Done in about", "longer than usual", small="from earlier jobs of this service", key="left"))
    elif left is not None:
        cells.append(_cell("Done in about", clock(left), unit=clock_unit(left), small="from earlier jobs of this service", key="left"))
    else:
        cells.append(_cell("Done in about", "no estimate yet", small="" if job.state == JobState.QUEUED else "not every step was timed before",
                           key="left"))
    if job.downtime_since is not None:
        expected = "" if known.downtime_s is None else f"expected {clock(known.downtime_s)}"
        cells.append(_cell("Service down", since=job.downtime_since, tone="warn", small=expected, key="down"))
    elif job.downtime_s is not None:
        cells.append(_cell("Service was down", clock(job.downtime_s), unit=clock_unit(job.downtime_s), small="until the first healthy answer",
                           key="down"))
    elif any(s.downtime for s in steps):
        expected = "no estimate yet" if known.downtime_s is None else f"about {clock(known.downtime_s)} to come"
        cells.append(_cell("Service down", "not yet", small=expected, key="down"))
    if job.type == "switch" and not undoing and job.service is not None:
        cells.append(_cell("If it fails", f"Back to {job.service.name}", small="by itself"))
    elif job.type in ("redeploy", "restart", "rollback") and not undoing:
        off = job.params.get("rollback", True) is False
        cells.append(_cell("If it fails", "Stays as it is" if off else "Back to the last good", small="rollback was turned off" if off
                           else "by itself"))
    return cells


def _sweep_facts(run: BenchmarkRun, live: dict[str, Any] | None) -> list[dict[str, Any]]:
    levels = list(run.levels.all())
    single = next((lv for lv in levels if lv.concurrency == 1 and lv.output_tok_s is not None), None)
    latest = max((lv for lv in levels if lv.state == "done"), key=lambda lv: lv.value, default=None)
    errors, ended = sum(lv.errors for lv in levels), sum(lv.finished + lv.errors for lv in levels)
    base = {"errors": errors, "ended": ended}  # to which job_page.js adds those of the level that runs
    level = charts.told_level(live) if live else None
    tput = charts.number(live.get("throughput_so_far_tok_s")) if live else None
    if live and level and tput:
        each = f", {rate(tput / level[1])} per user" if level[0] == "closed" and level[1] else ""
        now = _cell("Output throughput, live", rate(tput), "tok/s", small=f"at {charts.level_name(*level)}{each}", key="tput")
        failed = int(charts.number(live.get("errors")) or 0)
        errors, ended = errors + failed, ended + int(charts.number(live.get("finished")) or 0) + failed
    elif latest is not None:
        at = charts.level_name(latest.load, latest.value)
        now = _cell("Output throughput", rate(latest.output_tok_s), "tok/s", small=f"at {at}, the last level", key="tput")
    else:
        now = _cell("Output throughput", "not yet", small="before the first level", key="tput")
    measured = (rate(single.output_tok_s), "tok/s") if single else ("not yet", "")
    small = target_words(run, single) if single else "level C = 1" if charts.load_of(run, levels) == "closed" else "not of an open loop"
    return [now, _cell("Single stream", *(measured if single or charts.load_of(run, levels) == "closed" else ("n/a", "")), small=small, key="single"),
            _cell("Errors", errors, small=f"of {ended:,} requests", tone="fail" if errors else "", key="errors") | {"base": base}]


def target_words(run: BenchmarkRun, single: Any) -> str:
    goal = run_edits.target(run.service) if run.service else []
    if single is None or single.output_tok_s is None:
        return "not measured"
    if len(goal) != 2:
        return "no target set"
    words = f"target {goal[0]:g}–{goal[1]:g}"
    return f"{words} met" if single.output_tok_s >= goal[0] else f"{words} not met"


def _left(steps: Sequence[JobStep], known: Usual) -> float | None:
    """Seconds to go; None unless every step that is left is known."""
    if not steps:
        return None
    left = 0.0
    for step in steps:
        if step.state in ("todo", "running"):
            expected = known.steps.get(step.name)
            if expected is None:
                return None
            spent = (timezone.now() - step.started_at).total_seconds() if step.state == "running" and step.started_at else 0.0
            left += max(0.0, expected - spent)
    return left


def _facts_after(job: Job, run: BenchmarkRun | None) -> list[dict[str, Any]]:
    result = job.result or {}
    took = job.duration_s
    if took is None and job.finished_at:
        took = (job.finished_at - (job.claimed_at or job.created_at)).total_seconds()
    serving = took - job.downtime_s if took is not None and job.downtime_s is not None and took >= job.downtime_s else None
    cells = [_cell("Took", *_clocked(took), small=f"{duration_words(serving)} of it while serving" if serving is not None else "")]
    if job.downtime_s is not None or (job.type != "stop" and any(s.downtime for s in job.steps.all())):
        lost = job.downtime_s is None and job.rollback == "failed"
        was = _clocked(job.downtime_s) if job.downtime_s is not None else ("since then", "") if lost else ("not at all", "")
        still = "it does not answer yet" if job.downtime_since is not None else "it did not answer when the job ended" if lost else \
            "stop to first healthy answer" if job.downtime_s else ""
        cells.append(_cell("Service down", *was, small=still, tone="fail" if lost else "warn" if job.downtime_since else ""))
    if plan := result.get("plan"):
        packages = plan.get("packages") or []
        changed = sum(1 for p in packages if p.get("change") != "same")
        cells.append(_cell("Packages", f"{changed} {'would change' if job.type == 'plan' else 'changed' if job.state in DONE_STATES else 'planned'}",
                           small=f"of {len(packages)}"))
    warmup = result.get("warmup") or {}
    if job.type in ("start", "restart", "warmup") and warmup.get("total_s") is not None:
        compared = _compared(warmup)
        words = f"usually {duration_words(compared['median_s'])}" if compared else "to the first answer"
        cells.append(_cell("Warmup", *_clocked(warmup["total_s"]), small=words))
    if smoke := result.get("smoke"):
        passed, left_out = (sum(1 for r in smoke if r.get("outcome") == outcome) for outcome in ("passed", "left out"))
        words = f"passed in {duration_words(sum(r.get('took_s') or 0 for r in smoke))}" + (f", {left_out} left out" if left_out else "")
        asked = len(smoke) - left_out
        cells.append(_cell("Smoke tests", f"{passed} of {asked}", small=words, tone="" if passed == asked else "fail"))
    if run is not None:
        measured = [lv for lv in run.levels.all() if lv.output_tok_s is not None]
        single = next((lv for lv in measured if lv.concurrency == 1), None)
        if single is not None:
            cells.append(_cell("Single stream", rate(single.output_tok_s), unit="tok/s", small=target_words(run, single)))
        elif measured:
            best = max(measured, key=lambda lv: lv.output_tok_s or 0)
            cells.append(_cell("Best throughput", rate(best.output_tok_s), unit="tok/s", small=f"at {charts.level_name(best.load, best.value)}"))
    if report := result.get("integrity"):
        cells.append(_cell("Files", f"{report.get('files') or 0:,} checked", small=integrity_words(report)))
    if (scan := result.get("scan")) and job.type == "artifact-scan":
        offered, looked = scan.get("offered_bytes"), scan.get("files")
        found, most = scan.get("count") or 0, scan.get("choosable_bytes") or 0
        cells.append(_cell("Can be given back", *(size(offered) or "unknown").split("\u202f"),
                           small=f"up to {size(most)} if you ask" if most > (offered or 0) else "if you choose all of it"))
        cells.append(_cell("Leftovers", f"{found:,}", small=f"{scan.get('kept') or 0:,} of them stay"))
        cells.append(_cell("Looked at", f"{looked:,} files" if looked is not None else "not told", small=size(scan.get("size_bytes"))))
    if purged := purge_story.summary(job):
        cells.append(_cell("Freed", *(size(purged["freed_bytes"]) or "unknown").split("\u202f"), small=purged["words"] or "nothing was deleted"))
    return cells[:5]


def _clocked(seconds: float | None) -> tuple[str, str]:
    if seconds is None:
        return "not measured", ""
    return (f"{seconds:.1f}", "s") if seconds < 60 else (clock(seconds), clock_unit(seconds))


# ---- parts of a job's page ----


def events(job: Job, *types: EventType) -> list[JobEvent]:
    return list(JobEvent.objects.filter(job=job, type__in=types).order_by("seq"))


def findings(job: Job, step: JobStep | None = None) -> list[dict[str, Any]]:
    """The job's findings, blocking ones first; of one step's subject where the step is named."""
    listed = (job.result or {}).get("findings")
    if listed is None:
        listed = [e.data for e in events(job, EventType.FINDING)]
    if step is not None:
        listed = [f for f in listed if f.get("subject") == step.name or f.get("step") == step.name]
    order = {"stop": 0, "warning": 1, "note": 2, "ok": 3}
    return sorted(listed, key=lambda f: order.get(f.get("level"), 2))


def by_part(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Findings of a preflight in the order in which they are looked for, each part with its counts: the host, then the release that is to start.
    Of a node that names no part: all in one."""
    titles = {"host": "The host", "release": "The release that is to start"}
    parts: dict[str, list[dict[str, Any]]] = {}
    for finding in found:
        parts.setdefault(finding["part"] if finding.get("part") in titles else "", []).append(finding)
    return [{"name": name, "title": titles.get(name, ""), "findings": parts[name], "counted": counted(parts[name])}
            for name in ("", "host", "release") if name in parts]


def counted(found: Sequence[dict[str, Any]]) -> dict[str, int]:
    return {level: sum(1 for f in found if f.get("level") == level) for level in ("stop", "warning", "note", "ok")}


def warmup_phases(job: Job, known: Usual, *, of: str = "warmup") -> dict[str, Any] | None:
    """Phases of a warmup with their usual times, from events, so that a running one is there too.

    `of`: the step "warmup", or "stop", whose undo starts the last good release and watches that one's warmup.
    """
    begun: dict[str, dict[str, Any]] = {}
    started_at: float | None = None
    inside = False
    troubles: list[dict[str, Any]] = []
    for event in events(job, EventType.WARMUP_PHASE, EventType.WARMUP_TROUBLE, EventType.STEP_STARTED, EventType.STEP_UNDOING):
        if event.type == EventType.WARMUP_TROUBLE:
            if inside:
                troubles.append({**event.data, "at": event.at})
                if event.data.get("kind") == "crash":  # its manager starts it again: the phases begin anew
                    begun = {}
        elif event.type == EventType.WARMUP_PHASE:
            if inside:
                row = begun.setdefault(event.data["phase"], {"since": event.at})
                row.update(event.data)
                row["at"] = event.at
        else:
            opens = EventType.STEP_STARTED if of == "warmup" else EventType.STEP_UNDOING
            inside = event.type == opens and event.data.get("step") == of
            if inside:
                begun, started_at, troubles = {}, event.at, []
    from ops.services.warmup import PHASES

    rows: list[dict[str, Any]] = []
    for name, words in PHASES:
        rows.append({"phase": name, "title": words, "state": "todo", "usual": known.phases.get(name), **begun.pop(name, {})})
    rows += [{"usual": known.phases.get(name), **row} for name, row in begun.items()]
    if not any(row["state"] != "todo" for row in rows) and started_at is None:
        return None
    estimates = [row["estimate_s"] for row in rows if row.get("estimate_s") is not None]
    failed = of == "warmup" and any(s.name == "warmup" and s.outcome in ("failed", "cancelled", "interrupted") for s in job.steps.all())
    total = ((job.result or {}).get("warmup") or {}) if of == "warmup" and not failed else {}
    usual_s = {one.get("phase"): one.get("usual_s") for one in total.get("phases") or []}
    alone = "compared" in total and _compared(total) is None and total.get("cache") in ("hit", "miss")  # of the other state of the cache only
    for row in rows:
        if alone:
            row["usual"] = None
        if usual_s.get(row["phase"]) is not None:  # what the node told: of starts with the same compile cache
            row["usual"] = usual_s[row["phase"]]
        row["difference"] = row["took_s"] - row["usual"] if row.get("took_s") is not None and row.get("usual") is not None else None
        if (job.is_final or failed) and row["state"] == "running":
            row["state"] = "failed"
        elif (job.is_final or failed) and row["state"] == "todo":
            row["state"] = "not reached"
        if row["state"] == "running":
            row["running_since"] = row["since"]
    shown = [row for row in rows if row["state"] != "not reached"] if failed else rows
    return {"rows": shown, "bar": [] if failed else _phase_bar(rows, known), "since": started_at, "total_s": total.get("total_s"),
            "cache": total.get("cache"),
            "usual_s": known.warmup_s, "warmups": known.warmups, "has_usual": any(r.get("usual") is not None for r in rows),
            "troubles": troubles, "try": 1 + sum(1 for one in troubles if one.get("kind") == "crash"), "compared": _compared(total), "alone": alone,
            "estimate_s": estimates[-1] if estimates and not job.is_final and not failed else None}


def _compared(total: dict[str, Any]) -> dict[str, Any] | None:
    """A finished warmup against this service's earlier ones with the same cache state; None before there is one."""
    told, took = total.get("compared"), total.get("total_s")
    if not isinstance(told, dict) or not told.get("count") or told.get("median_s") is None or took is None:
        return None
    return {**told, "difference": took - told["median_s"], "share": abs(took - told["median_s"]) / told["median_s"] if told["median_s"] else None}


def _phase_bar(rows: Sequence[dict[str, Any]], known: Usual) -> list[dict[str, Any]]:
    """Phases to scale: what each took, else what it usually takes; equal parts while nothing is known."""
    now = timezone.now().timestamp()
    lengths = []
    for row in rows:
        spent = now - row["since"] if row["state"] == "running" and row.get("since") else 0.0
        lengths.append(max(row.get("took_s") or 0.0, row.get("usual") or 0.0, spent) if known.phases or row.get("took_s") else None)
    guess = [v for v in lengths if v] or [1.0]
    filled = [v if v else max(sum(guess) * 0.02, 0.5) if known.phases else sum(guess) / len(guess) for v in lengths]
    total = sum(filled) or 1.0
    parts = []
    for row, length in zip(rows, filled, strict=True):
        share = length / total
        done = {"done": 1.0, "failed": 1.0}.get(row["state"], 0.0)
        if row["state"] == "running":
            done = min(0.97, (now - row["since"]) / length) if row.get("usual") else 0.5
        kind = {"running": "b-now", "failed": "b-fail"}.get(row["state"], "b-done")
        part: dict[str, Any] = {"kind": kind, "share": share, "filled": done, "title": row["title"]}
        if row["state"] == "running" and row.get("usual"):
            part["grows"] = {"since": row["since"], "seconds": row["usual"]}
        parts.append(part)
    return parts


def warmup_parts(warmup: dict[str, Any]) -> list[dict[str, Any]]:
    """A finished warmup as parts of one whole, at most five: the report's bar and its legend."""
    phases = [p for p in warmup.get("phases") or [] if p.get("took_s")]
    if len(phases) > PARTS:
        rest = phases[PARTS - 1:]
        phases = [*phases[:PARTS - 1], {"phase": "rest", "title": f"{rest[0].get('title', rest[0]['phase'])} and after",
                                        "took_s": sum(p["took_s"] for p in rest)}]
    total = sum(p["took_s"] for p in phases) or 1.0
    return [{"kind": f"b-part-{n}", "swatch": f"part-{n}", "share": p["took_s"] / total, "title": p.get("title") or p["phase"], "took_s": p["took_s"]}
            for n, p in enumerate(phases, start=1)]


def level_rows(run: BenchmarkRun) -> list[dict[str, Any]]:
    """The levels table: measured ones, the running one, and those to come. `c` is None for a rate."""
    levels = list(run.levels.all())
    load = charts.load_of(run, levels)
    measured = {level.value: level for level in levels if level.load == load}
    asked = charts.wanted(run, load)
    base = measured[1].output_tok_s if load == "closed" and 1 in measured and measured[1].state == "done" else None
    rows = []
    for value in sorted({*measured, *asked}):
        level = measured.get(value)
        c = int(value) if load == "closed" else None
        metrics = (level.metrics or {}) if level else {}
        tput = level.output_tok_s if level else None
        state = level.state if level else "todo"
        if run.state != "running" and state in ("running", "todo"):
            state = "not reached"
        marks = metrics.get("marks")
        scaling = charts.scaling(metrics.get("scaling_x"), tput, base) if state == "done" and c else None
        rows.append({
            "c": c, "value": value, "load": load, "key": charts.level_key(load, value), "name": charts.level_name(load, value),
            "label": f"{value:g}" if load == "open" else c, "level": level, "state": state,
            "tput": tput, "per_user": tput / c if tput is not None and c else None,
            "scaling": scaling, "efficiency": scaling / c if scaling is not None and c else None,
            "spread": charts.number(metrics.get("spread_p99_p50")),
            "requests": (level.requests if level else None) or _asked_requests(run, asked.index(value) if value in asked else None, value),
            "mean": level.e2e_mean_s if level else None, "p50": level.e2e_p50_s if level else None, "p99": level.e2e_p99_s if level else None,
            "ttft_ms": level.ttft_p50_ms if level else None, "errors": level.errors if level and state != "todo" else None,
            "finished": level.finished if level else None, "few": level is not None and level.state == "done" and level.e2e_p99_s is None,
            "metrics": metrics, "marks": [str(mark)[:40] for mark in marks if mark != "short"] if isinstance(marks, list) else [],
            "server": metrics.get("server") if isinstance(metrics.get("server"), dict) else {},
        })
    return rows


def _asked_requests(run: BenchmarkRun, index: int | None, value: float) -> int | None:
    """Requests that a level will send, from the run's settings: a list beside the levels, a mapping, or one number."""
    asked = (run.settings or {}).get("requests")
    if isinstance(asked, list) and index is not None and index < len(asked):
        return int(asked[index])
    if isinstance(asked, dict):
        found = asked.get(f"{value:g}", asked.get(value))
        return None if found is None else int(found)
    return asked if isinstance(asked, int) else None


def sweep_bar(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Levels to scale: the square root of concurrency stands for how long a level takes, until it has been measured. Rates take equal times."""
    weights = [row["metrics"].get("whole_s") or max(row["c"] or 1, 1) ** 0.5 for row in rows]
    if any(row["metrics"].get("whole_s") for row in rows) and not all(row["metrics"].get("whole_s") for row in rows):
        weights = [max(row["c"] or 1, 1) ** 0.5 for row in rows]
    total = sum(weights) or 1.0
    parts = []
    for row, weight in zip(rows, weights, strict=True):
        filled = {"done": 1.0, "failed": 1.0}.get(row["state"], 0.0)
        if row["state"] == "running":
            filled = row["finished"] / row["requests"] if row["requests"] and row["finished"] else 0.5
        parts.append({"kind": "b-now" if row["state"] == "running" else "b-fail" if row["state"] == "failed" else "b-done", "share": weight / total,
                      "filled": filled, "title": row["name"]})
    return parts


def timeline(job: Job) -> list[dict[str, Any]]:
    """The story of a failure and its rollback: stop, start, decisive line, each undo, first healthy answer."""
    rows: list[dict[str, Any]] = []
    titles = {s.name: s.title for s in job.steps.all()}
    current = ""
    kinds = (EventType.STEP_STARTED, EventType.STEP_FINISHED, EventType.DIAGNOSIS, EventType.STEP_UNDONE, EventType.DOWNTIME_STARTED,
             EventType.DOWNTIME_ENDED)
    for event in events(job, *kinds):
        data = event.data
        if event.type == EventType.STEP_STARTED:
            current = data["step"]
        elif event.type == EventType.STEP_FINISHED:
            if data["outcome"] == "done" and data["step"] in ("stop", "switch", "start"):
                words = {"stop": "Stopped", "switch": "Switched to the new release", "start": "Started"}[data["step"]]
                note = data.get("note") or ""
                shape = {"stop": "off", "switch": "right", "start": "play"}[data["step"]]
                rows.append({"at": event.at, "icon": shape, "text": words + (f", {note}" if note else "")})
            elif data["outcome"] in ("failed", "cancelled") and not (rows and rows[-1].get("decisive")):
                what = "failed" if data["outcome"] == "failed" else "was cancelled"
                rows.append({"at": event.at, "icon": "fail" if data["outcome"] == "failed" else "off", "tone": "fail" if data["outcome"] == "failed"
                             else "",
                             "text": f"{titles.get(data['step'], data['step'])} {what}"})
        elif event.type == EventType.DIAGNOSIS and data.get("text"):
            rows.append({"at": event.at, "icon": "fail", "tone": "fail", "decisive": True,
                         "text": f"{titles.get(current, 'The step')} failed: the decisive line was found"})
        elif event.type == EventType.STEP_UNDONE and (data.get("note") or data["outcome"] == "failed") \
                and not (rows and rows[-1].get("answers")):
            failed = data["outcome"] == "failed"
            rows.append({"at": event.at, "icon": "fail" if failed else "rollback", "tone": "fail" if failed else "",
                         "text": data.get("note") or f"Undo of {titles.get(data['step'], data['step'])} failed"})
        elif event.type == EventType.DOWNTIME_ENDED and rows:
            rows.append({"at": event.at, "icon": "ok", "tone": "ok", "answers": True,
                         "text": f"First healthy answer on {data.get('release') or 'the old release'}"})
    return rows


def live_level(row: dict[str, Any], live: dict[str, Any]) -> dict[str, Any]:
    """What the newest second of a running level adds to its row in the table."""
    names = ("throughput_so_far_tok_s", "e2e_mean_s", "e2e_p50_s", "e2e_p99_s", "ttft_p50_ms", "finished", "errors")
    told = {name: charts.number(live.get(name)) for name in names}
    tput = told["throughput_so_far_tok_s"]
    return {"tput": tput, "per_user": tput / row["c"] if tput is not None and row["c"] else None, "mean": told["e2e_mean_s"],
            "p50": told["e2e_p50_s"], "p99": told["e2e_p99_s"], "ttft_ms": told["ttft_p50_ms"],
            "finished": int(told["finished"] or 0), "errors": int(told["errors"] or 0)}


def newest_run_before(run: BenchmarkRun) -> BenchmarkRun | None:
    """The last finished run of the same service, model and kind (practice or not) before this one."""
    if run.service_id is None:
        return None
    return (BenchmarkRun.objects.filter(service=run.service, model=run.model, practice=run.practice, state="done", started_at__lt=run.started_at)
            .exclude(pk=run.pk).prefetch_related("levels").order_by("-started_at").first())


def is_silent(seen_at: Any, *, after_s: float = 60) -> bool:
    return seen_at is None or timezone.now() - seen_at > timedelta(seconds=after_s)
