"""The first page: is everything healthy, what is running now, what needs me? One card a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.views.decorators.http import require_safe
from redis.exceptions import RedisError

from dashboard import charts, cleanup_rows, cleanup_story, from_a_node, job_story, redis_clients, run_edits, service_story
from dashboard.forms import channels_for
from dashboard.models import BenchmarkRun, Job, Node, Service
from dashboard.templatetags.roundhouse import as_datetime, size
from ops.benchmark.comparing.readings import OURS
from ops.jobs.errors import OpsError
from ops.jobs.events import JobState

HISTORY_S, HISTORY_STEP_S = 300, 5
ROW_JOBS = 8
DISK_SHARE, DISK_FREE_BYTES, DISK_FULL_BYTES = 0.95, 20 * 10**9, 10**9  # from where on a disk needs somebody, and when at once
STARTING_JOBS = ("redeploy", "restart", "start", "switch", "practice-reset", "rollback")  # while one runs, a service that is down is being seen to
FRAGMENTS = ("needs", "facts", "recent", "services", "disks", "node-disks")
OF_A_NODE = {"services": "fleet/_services.html", "disks": "fleet/_disks.html", "node-disks": "nodes/_disks.html"}


@require_safe
def fleet(request: HttpRequest) -> HttpResponse:
    context = _context()
    return render(request, "fleet/fleet.html", context)


@require_safe
def fragment(request: HttpRequest, name: str) -> HttpResponse:
    """A part of the page, as the page itself has it. Those of a node need `?node=`."""
    if name not in FRAGMENTS:
        raise Http404("There is no such part of the fleet page")
    if name in OF_A_NODE:
        node = get_object_or_404(Node, name=request.GET.get("node", ""))
        return render(request, OF_A_NODE[name], {"card": node_card(node, history=False)})
    return render(request, f"fleet/_{name}.html", _context(history=False))


def _context(*, history: bool = True) -> dict[str, Any]:
    nodes = list(Node.objects.prefetch_related("services"))
    cards = [node_card(node, history=history) for node in nodes]
    jobs = list(Job.objects.select_related("service", "node", "by").prefetch_related("steps")[:ROW_JOBS])
    running = list(Job.objects.filter(state__in=job_story.OPEN_STATES).select_related("service", "node", "by").prefetch_related("steps",
                                                                                                                                "runs__levels"))
    return {"cards": cards, "needs": needs(nodes), "running": [running_card(job) for job in running], "facts": _facts(cards),
            "rows": job_rows(jobs)}


def job_rows(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    return [{"job": job, "title": job_story.title(job), "result": job_story.result_line(job), "href": job_href(job),
             "since": job.claimed_at or job.created_at} for job in jobs]


def job_href(job: Job) -> str:
    return reverse("plan" if job.type == "plan" else "job", args=[job.number])


def running_card(job: Job) -> dict[str, Any]:
    """A running job in a few lines: where it is, its bar, how long so far and usually."""
    known = job_story.earlier(job)
    steps = list(job.steps.all())
    run = next(iter(job.runs.all()), None)
    running = next((s for s in steps if s.state in ("running", "undoing")), None)
    if running is not None and running.name == "sweep" and run is not None:
        parts, gap = job_story.sweep_bar(job_story.level_rows(run)), 2
    else:
        parts, gap = _steps_bar(steps, known), 2
    expected = [known.steps.get(s.name) for s in steps]
    total = sum(e for e in expected if e is not None) if expected and all(e is not None for e in expected) else None
    latest = None
    if run is not None:
        done = [lv for lv in run.levels.all() if lv.state == "done" and lv.output_tok_s is not None]
        latest = done[-1] if done else None
    at = charts.level_name(latest.load, latest.value) if latest else ""
    return {"job": job, "title": job_story.title(job), "line": job_story.result_line(job), "href": job_href(job), "parts": parts, "gap": gap,
            "since": job.claimed_at or job.created_at, "total": total, "latest": latest, "at": at, "percent": _percent(steps)}


def _steps_bar(steps: Sequence[Any], known: Any) -> list[dict[str, Any]]:
    """Steps as parts; what is known of their length makes them to scale (in square roots, so that short ones can be seen)."""
    if not steps:
        return []
    weights = [max(known.steps.get(s.name) or s.duration_s or 1.0, 0.5) ** 0.5 for s in steps]
    total = sum(weights)
    kinds = {"done": ("b-done", 1.0), "skipped": ("b-idle", 1.0), "running": ("b-now", 0.5), "failed": ("b-fail", 1.0), "undoing": ("b-now", 0.5)}
    parts = []
    for step, weight in zip(steps, weights, strict=True):
        kind, filled = kinds.get(step.state, ("b-none", 0.0))
        progress = step.progress or {}
        if step.state == "running" and progress.get("total"):
            filled = min(1.0, (progress.get("done") or 0) / progress["total"])
        parts.append({"kind": kind, "share": weight / total, "filled": filled, "title": step.title})
    return parts


def _percent(steps: Sequence[Any]) -> int:
    return round(100 * sum(1 for s in steps if s.state in ("done", "skipped")) / len(steps)) if steps else 0


# ---- a node's card ----


def node_card(node: Node, *, history: bool = True) -> dict[str, Any]:
    """All that the card shows, from the node's last telemetry; readings that are not there stay None."""
    snapshot, facts = _dict(_dict(node.telemetry).get("gpus")), _dict(node.facts)
    gpus, odd = readings(snapshot.get("gpus") or facts.get("gpus"))
    silent = job_story.is_silent(node.seen_at)
    rows = [gpu_row(gpu) for gpu in gpus]
    names = {str(g["name"] or "") for g in gpus}
    services = [service_card(s) for s in node.services.all()]
    known = utilization_history(node.name) if history and gpus else {}
    for row in rows:
        row["spark"] = spark_points(known.get(row["index"], []))
        row["history"] = known.get(row["index"], [])
    totals = {row["total"] for row in rows if row["total"]}
    scan = cleanup_rows.newest_scans([node]).get(node.pk)
    return {
        "disks": cleanup_story.with_freed(cleanup_story.disks(node, scan), {}),
        "back": {"scan": scan, **cleanup_rows.left(scan)} if scan is not None else None, "back_address": cleanup_story.address(node, scan),
        "node": node, "gpus": rows, "services": services, "silent": silent, "state": "silent" if silent else "online",
        "model": short_gpu_name(names.pop()) if len(names) == 1 else "", "problem": snapshot.get("problem") or facts.get("problem"),
        "odd": odd, "readings": gpus,
        "driver": snapshot.get("driver") or facts.get("driver"), "cuda": snapshot.get("cuda") or facts.get("cuda"),
        "each": totals.pop() if len(totals) == 1 else None, "legend": memory_legend(gpus), "history_step": HISTORY_STEP_S,
        "history_id": f"history-{node.name}", "known": {str(row["index"]): row["history"] for row in rows},
        "pcie_gen": max((g["pcie_gen"] or 0 for g in gpus), default=0) or None,
    }


NUMBERS = ("total_bytes", "used_bytes", "utilization", "temperature_c", "power_w", "power_limit_w", "pcie_width", "pcie_max_width", "pcie_gen")


def readings(told: Any) -> tuple[list[dict[str, Any]], int]:
    """GPU readings as pages can show them, and how many were left out. A node is another program, of another version perhaps: a reading whose
    index is no number, or stands twice, is left out; a value that is no number is one that was not read (None)."""
    rows: dict[int, dict[str, Any]] = {}
    listed = told if isinstance(told, list) else [told] if told else []
    for gpu in listed:
        index = gpu.get("index") if isinstance(gpu, dict) else None
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < 1000 or index in rows:
            continue
        processes = gpu.get("processes")
        rows[index] = {
            "index": index, **{name: _number(gpu.get(name)) for name in NUMBERS}, "name": _text(gpu.get("name")), "error": _text(gpu.get("error")),
            "throttle": gpu.get("throttle") if isinstance(gpu.get("throttle"), list) else [],
            "processes": [_process(process) for process in processes if isinstance(process, dict)] if isinstance(processes, list) else []}
    return list(rows.values()), len(listed) - len(rows)


def _process(told: dict[str, Any]) -> dict[str, Any]:
    return {**{name: _text(told.get(name)) for name in ("service", "command", "user")}, "pid": _number(told.get("pid")),
            "used_bytes": _number(told.get("used_bytes"))}


def _number(value: Any) -> float | int | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def short_gpu_name(name: str) -> str:
    return name.removeprefix("NVIDIA ").strip()


def gpu_row(gpu: dict[str, Any]) -> dict[str, Any]:
    total, used = gpu.get("total_bytes"), gpu.get("used_bytes")
    width, most, gen = gpu.get("pcie_width"), gpu.get("pcie_max_width"), gpu.get("pcie_gen")
    link = (f"{gen}.0 " if gen else "") + (f"×{width}" if width else "")
    return {"index": gpu.get("index"), "total": total, "used": used, "parts": memory_parts(gpu), "utilization": gpu.get("utilization"),
            "temperature": gpu.get("temperature_c"), "power": gpu.get("power_w"), "power_limit": gpu.get("power_limit_w"), "link": link.strip(),
            "slow_link": bool(width and most and width < most), "max_width": most, "throttle": gpu.get("throttle") or [], "error": gpu.get("error")}


def memory_parts(gpu: dict[str, Any]) -> list[dict[str, Any]]:
    """A GPU's memory by who holds it: services, unclaimed processes, and what no listed process explains. fleet_page.js does the same."""
    total, used = gpu.get("total_bytes"), gpu.get("used_bytes")
    if not total or used is None:
        return []
    parts, left = [], float(used)
    for process in sorted(gpu.get("processes") or [], key=lambda p: (p.get("service") is None, p.get("pid") or 0)):
        held = min(max(float(process.get("used_bytes") or 0), 0.0), left)
        left -= held
        if held > 0:
            who = process.get("service") or f"unclaimed: {process.get('command') or 'process'}, pid {process.get('pid')}"
            parts.append({"kind": "b-service" if process.get("service") else "b-other", "share": held / total,
                          "title": f"{who}, {held / 2**30:.1f} GiB"})
    if left > 0:
        parts.append({"kind": "b-idle", "share": left / total, "title": f"held by no process that can be seen, {left / 2**30:.1f} GiB"})
    return parts


def memory_legend(gpus: Sequence[dict[str, Any]]) -> dict[str, Any]:
    services: set[str] = set()
    unclaimed = []
    hidden = 0.0
    for gpu in gpus:
        explained = 0.0
        for process in gpu.get("processes") or []:
            explained += process.get("used_bytes") or 0
            if process.get("service"):
                services.add(process["service"])
            else:
                command = str(process.get("command") or "process").split()[0].rsplit("/", 1)[-1]
                unclaimed.append({"command": command, "pid": process.get("pid"), "user": process.get("user"), "used": process.get("used_bytes"),
                                  "gpu": gpu.get("index")})
        hidden += max(0.0, (gpu.get("used_bytes") or 0) - explained)
    return {"services": sorted(services), "unclaimed": unclaimed[:3], "more": max(0, len(unclaimed) - 3), "hidden": hidden if hidden > 2**20
            else None}


def utilization_history(node: str) -> dict[int, list[float | None]]:
    """The last minutes of each GPU's utilization, one value every 5 s, from the telemetry stream; empty where Redis does not answer."""
    try:
        with redis_clients.connect(timeout_s=1) as client:
            entries = client.xrevrange(f"telemetry:{node}", count=HISTORY_S)
    except (RedisError, OpsError):
        return {}  # only a small curve is missing; the page says elsewhere that it is not live
    found: dict[int, list[float | None]] = {}
    for _, fields in list(entries)[::HISTORY_STEP_S]:
        try:
            told = from_a_node.read(fields.get(b"t") or fields.get("t") or "{}")
        except ValueError:
            continue  # a second of a small curve; the recorder writes into its log that it could not be read
        for gpu in readings(_dict(_dict(told).get("gpus")).get("gpus"))[0]:
            found.setdefault(gpu["index"], []).append(gpu["utilization"])
    return {index: values[::-1] for index, values in found.items()}


def spark_points(values: Sequence[float | None], *, width: float = 72, height: float = 18, count: int = HISTORY_S // HISTORY_STEP_S) -> str:
    """Points of a polyline, newest at the right edge, 0 to 100 percent from bottom to top."""
    shown = list(values)[-count:]
    step = width / (count - 1)
    start = width - step * (len(shown) - 1)
    return " ".join(f"{start + n * step:.1f},{height - 1 - (height - 2) * min(max(v, 0), 100) / 100:.1f}" for n, v in enumerate(shown)
                    if v is not None)


def service_card(service: Service) -> dict[str, Any]:
    """A service as its card and its page show it."""
    record, packages, status = service.record or {}, service.packages or {}, service.status or {}
    versions = packages.get("versions") or {}
    findings = packages.get("coupling") or []
    coupled = {name for finding in findings for name in finding.get("packages") or {}}
    pairs = [{"finding": f, "packages": list((f.get("packages") or {}).items())} for f in findings]
    chips = [{"name": name, "version": versions[name]} for name in job_story.SERVING_STACK if versions.get(name) and name not in coupled]
    if not findings and versions.get("flashinfer-python") and versions.get("flashinfer-python") == versions.get("flashinfer-cubin"):
        chips = [c for c in chips if c["name"] not in ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache")]
        chips.insert(1 if chips else 0, {"name": "flashinfer", "version": versions["flashinfer-python"], "pair": True})
    patched = packages.get("patched") or None
    files = (patched or {}).get("files") or []
    guards = packages.get("guards") or []
    flags = record.get("flags") or []
    return {
        "service": service, "record": record, "status": status, "release": status.get("release") or packages.get("release"), "chips": chips,
        "pairs": pairs, "patched": patched, "patched_files": files, "guards": guards, "guards_hold": sum(1 for g in guards if g.get("holds")),
        "since": as_datetime(status.get("started_at")) if service.state in ("healthy", "starting") else service.changed_at,
        "tp": flag_value(flags, "--tensor-parallel-size", "-tp"), "model": str(record.get("model_path") or "").rstrip("/").rsplit("/", 1)[-1],
        "address": str(record.get("base_url") or "").split("//", 1)[-1], "can_start": service.state in ("stopped", "failed"),
        "can_redeploy": bool(channels_for(service)),
        "href": reverse("service", args=[service.node.name, service.name]),
        "target": "–".join(f"{value:g}" for value in run_edits.target(service)),
    }


def flag_value(flags: Sequence[str], *names: str) -> str | None:
    for n, flag in enumerate(flags):
        key, _, value = flag.partition("=")
        if key in names:
            return value or (flags[n + 1] if n + 1 < len(flags) else None)
    return None


# ---- what needs a person ----


def needs(nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """What is wrong now, worst first, each with the one action that helps most."""
    found: list[dict[str, Any]] = []
    busy = set(Job.objects.filter(state__in=job_story.OPEN_STATES).filter(type__in=STARTING_JOBS).values_list("service_id", flat=True))
    for node in nodes:
        if job_story.is_silent(node.seen_at):
            found.append({"order": 1, "level": "warning", "title": f"{node.name} is silent",
                          "text": "Its agent has sent nothing for a while. What this "
                          "page shows of it is old. Services and jobs there go on without it.", "seen": node.seen_at,
                          "command": "make up" if not node.practice else "make demo",
                          "links": [(f"Open {node.name}", reverse("node", args=[node.name]))]})
        if _dict(node.facts).get("problem"):
            found.append({"order": 4, "level": "note", "title": f"{node.name} reports no GPU", "text": node.facts["problem"], "links": []})
        found += _disk_needs(node)
        for service in node.services.all():
            found += _service_needs(service, busy=service.pk in busy)
    for job in Job.objects.filter(state=JobState.LOST).select_related("service", "node"):
        found.append({"order": 0, "level": "warning", "title": f"{job_story.title(job)} #{job.number} lost its node",
                      "text": "No heartbeat for 60 s. The job may still run there" + (
                          ", so its lock is kept until the node answers or an admin abandons it." if job.locks.exists() else "."),
                      "links": [("Open job", job_href(job))]})
    found.sort(key=lambda n: n["order"])
    if found:
        found[0]["first"] = True
    return found


def _disk_needs(node: Node) -> list[dict[str, Any]]:
    """Disks that fill up: hardly a share left, and little in bytes too (of a disk for models 5 % may be terabytes), or hardly an inode."""
    found: list[dict[str, Any]] = []
    if job_story.is_silent(node.seen_at):
        return found  # what it told of its disks is old
    for disk in cleanup_story.disks(node):
        free, inodes = disk["free_bytes"], disk["inodes_share"] or 0.0
        filled = disk["share"] is not None and disk["share"] > DISK_SHARE and free is not None and free < DISK_FREE_BYTES
        if not filled and inodes <= DISK_SHARE:
            continue
        scan = cleanup_rows.newest_scans([node]).get(node.pk)
        back = cleanup_rows.left(scan)["offered_bytes"] if scan is not None else 0
        there = f"{size(free)} are free" if filled else f"{inodes:.0%} of its inodes are taken".replace("%", " %")
        helps = f"{size(back)} can be given back on this node." if back else "A scan says what can be given back."
        found.append({"order": 1 if filled and free < DISK_FULL_BYTES else 2, "level": "warning",
                      "title": f"{disk['path']} of {node.name} is nearly full",
                      "text": f"{there}. {helps} When it is full, services fail in odd ways.",
                      "links": [("Clean up", cleanup_story.address(node, scan))]})
    return found


def _service_needs(service: Service, *, busy: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    card = service_card(service)
    last = (Job.objects.filter(service=service).exclude(type__in=("plan", "integrity", "warmup")).select_related("node", "service")
            .prefetch_related("steps").first())
    failed = last is not None and last.state in (JobState.FAILED, JobState.INTERRUPTED)
    if service.state == "failed" and not busy:
        here, why = service_story.now(service), service_story.newest_failure(service)
        detail = str((service.status or {}).get("detail") or "")
        said = why["title"] if why is not None and why["card"] is not None else ""
        found.append({"order": 0, "level": "stop", "title": f"{service.name} crashes again and again: {here['restarts']} restarts" if here["loops"]
                      else f"{service.name} is down", "text": said or detail or "Its process ended and nobody started it again.",
                      "fix": why["card"].get("fix") if why is not None and why["card"] is not None else "",
                      "post": None if here["loops"] else {
                          "href": reverse("service_run", args=[service.node.name, service.name, "start"]), "label": "Start it again…"},
                      "links": [("What happened", job_href(last))] if failed and last else [("Open service", card["href"])]})
    elif service.state == "stopped" and not busy:
        found.append({"order": 1, "level": "warning", "title": f"{service.name} is stopped",
                      "text": "It answers no request until somebody starts it.",
                      "post": {"href": reverse("service_run", args=[service.node.name, service.name, "start"]), "label": "Start it…"},
                      "links": [("Open service", card["href"])]})
    for pair in card["pairs"]:
        finding = pair["finding"]
        fatal = finding.get("level") == "stop"
        running = service.state == "healthy"
        what = f"{service.name} runs, but its next start will fail" if fatal and running else f"{service.name} cannot start" if fatal else \
            f"Coupled packages of {service.name} differ"
        found.append({"order": 2, "level": "warning", "title": what, "pair": pair["packages"], "text": finding.get("why") or "",
                      "fix": finding.get("fix"),
                      "plan": service, "links": [("Open service", card["href"])]})
    if failed and last is not None:
        worse = last.rollback == "failed"
        tail = {"done": " It was rolled back by itself.", "failed": " The rollback failed too: a person has to look."}.get(last.rollback, "")
        found.append({"order": 0 if worse else 3, "level": "stop" if worse else "warning", "title": f"{job_story.title(last)} #{last.number} failed",
                      "text": f"{last.reason.rstrip('.')}.{tail}", "links": [("See why", job_href(last))], "at": last.finished_at})
    broken = [g for g in card["guards"] if not g.get("holds")]
    if broken:
        found.append({"order": 2, "level": "warning", "title": f"{len(broken)} of {len(card['guards'])} guards of {service.name} do not hold",
                      "text": broken[0].get("explains") or "", "fix": broken[0].get("fix"), "links": [("Open service", card["href"])]})
    return found


def _facts(cards: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    gpus = [row for card in cards for row in card["gpus"]]
    services = [s["service"] for card in cards for s in card["services"]]
    used = [row["used"] for row in gpus if row["used"] is not None]
    total = [row["total"] for row in gpus if row["total"] is not None]
    power = [row["power"] for row in gpus if row["power"] is not None]
    limits = [row["power_limit"] for row in gpus if row["power_limit"] is not None]
    silent = sum(1 for card in cards if card["silent"])
    healthy = sum(1 for s in services if s.state == "healthy")
    others = [f"{n} {word}" for word in ("starting", "stopped", "failed", "unknown") if (n := sum(1 for s in services if s.state == word))]
    run = BenchmarkRun.objects.filter(state="done", origin=OURS).select_related("service").prefetch_related("levels").first()
    single = next((lv for lv in run.levels.all() if lv.concurrency == 1 and lv.output_tok_s is not None), None) if run else None
    return [
        {"term": "Nodes", "value": len(cards), "small": "all online" if not silent else f"{silent} silent", "tone": "warn" if silent else ""},
        {"term": "Services", "value": f"{healthy} healthy", "small": ", ".join(others) or ("all of them" if services else "none yet"),
         "tone": "fail" if any(s.state == "failed" for s in services) else ""},
        {"term": "GPU memory", "gib": sum(used) if used else None, "small_gib": sum(total) if total else None, "gpus": len(gpus), "key": "memory"},
        {"term": "GPU power", "watts": sum(power) if power else None, "limit": sum(limits) if limits else None, "key": "power"},
        {"term": "Last sweep, single stream", "rate": single.output_tok_s if single else None, "run": run if single else None,
         "small": job_story.target_words(run, single) if run and single else "no sweep yet"},
    ]
