"""What a node said of a service's environment, as pages show it: packages, what is wrong with them, releases, what was edited by hand.

Rows come from another program, perhaps of another version: whatever does not have the form that is promised is left out, and unknown stays None.
Everything here reads and gives plain data for templates; nothing writes.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from dashboard import diffs, job_story
from dashboard.estimates import Usual, usual
from dashboard.models import BenchmarkRun, Job, JobEvent, Service, ShelvedPatch
from dashboard.templatetags.roundhouse import as_datetime
from ops.jobs.events import EventType, JobState

VIEWS = {"": "all", "problems": "with a problem", "patched": "patched", "requested": "asked for by name", "coupled": "coupled"}
STARTS = ("redeploy", "restart", "start", "practice-reset", "rollback")
BUILDS = ("redeploy", "build")
LOOKED_BACK = 40  # jobs that are searched for what they said of a release


def told(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**18 else None


def name_of(value: Any) -> str:
    """A distribution's name as packages are compared by it (PEP 503)."""
    return canonicalize_name(text(value)) if text(value) else ""


# ---- packages ----


def packages(service: Service) -> dict[str, Any]:
    """All that the environment page shows: `known`, `rows`, `findings`, `counts`, path, python, release, at."""
    said = told(service.environment)
    found = findings(said)
    patched = patched_by_package(service)
    troubled: dict[str, list[str]] = {}
    for finding in found:
        for name in finding["names"]:
            troubled.setdefault(name, []).append(finding["title"])
    coupled = coupled_names() | {name for finding in found if finding["about"] == "coupling" for name in finding["names"]}
    rows = []
    for item in listed(said.get("distributions")):
        name = name_of(item.get("name"))
        if not name:
            continue
        rows.append({"name": name, "version": text(item.get("version")), "installer": text(item.get("installer")),
                     "requested": item.get("requested") is True, "size": whole(item.get("size_bytes")), "source": text(item.get("source")),
                     "problems": troubled.get(name, []), "patched": patched.get(name, 0), "coupled": name in coupled})
    rows.sort(key=lambda row: job_story.importance(row))
    counts = {view: sum(1 for row in rows if _belongs(row, view)) for view in VIEWS}
    sizes = [row["size"] for row in rows]
    return {"known": bool(rows), "rows": rows, "findings": found, "counts": counts, "path": text(said.get("path")),
            "python": text(said.get("python")), "release": text(said.get("release")), "at": as_datetime(said.get("at")), "problems": _problems(said),
            "bytes": sum(size for size in sizes if size is not None) if any(size is not None for size in sizes) else None,
            "bytes_whole": all(size is not None for size in sizes), "kernels": kernels(said.get("kernels")),
            "all_requested": bool(rows) and counts["requested"] == len(rows),
            "stops": sum(1 for finding in found if finding["level"] == "stop"), "warnings": sum(1 for f in found if f["level"] == "warning")}


def _belongs(row: dict[str, Any], view: str) -> bool:
    return not view or bool(row[{"problems": "problems", "patched": "patched", "requested": "requested", "coupled": "coupled"}[view]])


def chosen(rows: Sequence[dict[str, Any]], *, view: str, words: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of a view whose name, version or source has every word."""
    return [row for row in rows if _belongs(row, view)
            and all(word.lower() in f"{row['name']} {row['version']} {row['source']} {row['installer']}".lower() for word in words)]


def _problems(said: dict[str, Any]) -> list[str]:
    return [text(item) for item in said.get("problems") or [] if text(item)] if isinstance(said.get("problems"), list) else []


def coupled_names() -> set[str]:
    """Names in the table of coupled packages, with those that vLLM's own metadata couples."""
    from ops.environments import coupling
    from ops.jobs.errors import OpsError

    try:
        rules = coupling.rules()
    except OpsError:  # the node has read its own table; here only a filter would be shorter
        return set(job_story.SERVING_STACK)
    return {name_of(name) for rule in rules for name in (rule.leader, *(member.name for member in rule.members))} | {"torch", "transformers", "vllm"}


def patched_by_package(service: Service) -> dict[str, int]:
    """Package to how many of its files were edited, by the last time that somebody looked."""
    found: dict[str, int] = {}
    for file in listed(told(told(service.packages).get("patched")).get("files")):
        if name := name_of(file.get("package")):
            found[name] = found.get(name, 0) + 1
    return found


def findings(said: dict[str, Any]) -> list[dict[str, Any]]:
    """What is wrong in the environment, worst first. Each has level, about, title, why, fix, names, pair (packages that differ)."""
    found = [_finding(item, "coupling") for item in listed(said.get("coupling"))]
    found += [_requirement(item) for item in listed(said.get("requirements"))]
    found += [_duplicate(item) for item in listed(said.get("duplicates"))]
    found += [_finding(item, "cuda") for item in listed(said.get("cuda"))]
    found += (kernels(said.get("kernels")) or {}).get("findings", [])
    order = {"stop": 0, "warning": 1, "note": 2, "ok": 3}
    return sorted((item for item in found if item["title"]), key=lambda item: order.get(item["level"], 2))


def _finding(item: dict[str, Any], about: str) -> dict[str, Any]:
    versions = item.get("packages")
    pair = [(name_of(name), text(version)) for name, version in versions.items()] if isinstance(versions, dict) else []
    names = [name for name, _ in pair] if pair else [name_of(name) for name in versions if name_of(name)] if isinstance(versions, list) else []
    if one := name_of(item.get("package")):
        names = [*names, one]
    level = text(item.get("level"))
    return {"about": about, "level": level if level in ("stop", "warning", "note", "ok") else "warning", "title": text(item.get("title")),
            "why": text(item.get("why")), "fix": text(item.get("fix")), "names": names, "pair": pair if about == "coupling" and len(pair) > 1 else []}


def _requirement(item: dict[str, Any]) -> dict[str, Any]:
    package, needs, version = name_of(item.get("package")), text(item.get("needs")), text(item.get("found"))
    if item.get("kind") == "unreadable":
        return {"about": "requirements", "level": "note", "title": f"A requirement of `{package}` cannot be read: `{needs}`" if package else "",
                "why": "Nobody can tell whether it is met", "fix": "", "names": [], "pair": []}
    missing = item.get("kind") == "missing" or not version
    marker = text(item.get("marker"))
    try:
        needed = name_of(Requirement(needs).name)
    except InvalidRequirement:  # the sentence has it as it stands there
        needed = ""
    tail = "which is not installed" if missing else f"but {version} is installed"
    return {"about": "requirements", "level": "warning", "title": f"`{package}` needs `{needs}`, {tail}" if package and needs else "",
            "why": f"It holds here, because {marker}" if marker else "", "fix": "", "names": [n for n in (package, needed) if n], "pair": []}


def _duplicate(item: dict[str, Any]) -> dict[str, Any]:
    name, version = name_of(item.get("name")), text(item.get("version"))
    title = f"`{name}` is installed twice" + (f", once as {version}" if version else "")
    return {"about": "duplicates", "level": "warning", "title": title if name else "",
            "why": "Python takes the files that it finds first; the other copy's metadata tells another version",
            "fix": "A redeploy builds an environment with one of them", "names": [name] if name else [], "pair": []}


def kernels(value: Any) -> dict[str, Any] | None:
    """What is known of kernels for this node's GPUs: `{"state" ("there", "missing", "compiled", "unknown"), "words", "findings"}`; None where
    nobody looked."""
    said = told(value)
    if not said:
        return None
    built = [name for name in said.get("architectures") or [] if isinstance(name, str)] if isinstance(said.get("architectures"), list) else []
    words, problem = f"built for {', '.join(built)}" if built else "", text(said.get("problem"))
    found = [_finding({**item, "packages": ["torch"]}, "kernels") for item in listed(said.get("findings"))]
    if found:
        stops = any(item["level"] == "stop" for item in found)
        return {"state": "missing" if stops else "compiled", "words": words, "findings": found}
    if problem or not told(said.get("covered")):
        unknown = {"about": "kernels", "level": "note", "title": "Whether torch has kernels for this node's GPUs is not known", "why": problem,
                   "fix": "", "names": [], "pair": []}
        return {"state": "unknown", "words": problem or words, "findings": [unknown] if problem else []}
    return {"state": "there", "words": words, "findings": []}


def lock_lines(service: Service, rows: Sequence[dict[str, Any]]) -> list[str]:
    """`name==version` of every package, with `--hash` where a plan of this console knows the wheel that was installed."""
    known = wheel_hashes(service)
    lines = []
    for row in sorted(rows, key=lambda row: str(row["name"])):
        digest = known.get((row["name"], row["version"]))
        if row["version"]:
            lines.append(f"{row['name']}=={row['version']}" + (f" \\\n    --hash=sha256:{digest}" if digest else ""))
    return lines


def wheel_hashes(service: Service) -> dict[tuple[str, str], str]:
    """(name, version) to SHA-256 of the wheel, from the plan that the release in use was built by."""
    release = text(told(service.environment).get("release")) or text(told(service.status).get("release"))
    if not release:
        return {}
    for job in Job.objects.filter(service=service, type__in=BUILDS)[:LOOKED_BACK]:
        made = told(told(job.result).get("plan"))
        if made.get("release") == release:
            return {(name_of(p.get("name")), text(p.get("new"))): str(p["sha256"]) for p in listed(made.get("packages"))
                    if isinstance(p.get("sha256"), str) and len(p["sha256"]) == 64}
    return {}


# ---- releases ----


def releases(service: Service) -> list[dict[str, Any]]:
    """Releases that the node keeps, newest first, with what this console measured on each; before the first announcement, those it built."""
    measured = _measured(service)
    live = live_release(service)
    rows: list[dict[str, Any]] = []
    for item in listed(service.releases):
        name = text(item.get("name"))
        if not name:
            continue
        about = measured.pop(name, {})
        kind = text(item.get("kind")) or "built"
        current, good, unfinished = item.get("is_current") is True, item.get("is_last_good") is True, item.get("unfinished") is True
        rows.append({"name": name, "version": text(item.get("version")), "built_at": as_datetime(item.get("built_at")),
                     "size": whole(item.get("size_bytes")), "kind": kind, "current": current, "last_good": good, "unfinished": unfinished,
                     "verified": item.get("verified") is True,
                     "can_switch": not current and not unfinished, "can_remove": not current and not good and kind != "adopted", **_numbers(about)})
    for row in rows[:next((n for n, row in enumerate(rows) if row["current"]), 0)]:
        row["newer"] = row["kind"] == "built"  # than the live one: to switch to it is no going back
    if not rows and not service.releases:  # a node of an older version: what is known is what was built from here
        rows = [{"name": name, "version": about["vllm"], "built_at": about["job"].created_at, "size": None, "kind": "built", "current": name == live,
                 "last_good": False, "unfinished": False, "verified": True, "can_switch": False, "can_remove": False, **_numbers(about)}
                for name, about in measured.items()]
    return rows


def _numbers(about: dict[str, Any]) -> dict[str, Any]:
    known = ("job", "href", "warmup_s", "single", "best", "best_at", "failed", "flashinfer", "versions")
    return {key: about.get(key) for key in known} | {"newer": False}


def _measured(service: Service) -> dict[str, dict[str, Any]]:
    """Release to what this console knows of it: the job that built it, its packages, its newest warmup, its widest sweep. Newest first."""
    found: dict[str, dict[str, Any]] = {}
    for job in Job.objects.filter(service=service, type__in=(*BUILDS, "rollback")).prefetch_related("steps")[:LOOKED_BACK]:
        _, after = job_story.release_words(job)
        failed = job.state in (JobState.FAILED, JobState.INTERRUPTED)
        built = job.type in BUILDS and any(step.name == "verify" and step.state == "done" for step in job.steps.all())
        if not after or (job.type in BUILDS and not built) or (job.type == "rollback" and failed):
            continue
        about = found.setdefault(after, {"job": None, "href": None, "vllm": None, "flashinfer": None, "versions": None, "failed": False,
                                         "warmup_s": None, "single": None, "best": None, "best_at": None, "widest": None, "tried": False})
        if not failed and about["warmup_s"] is None:
            about["warmup_s"] = told(told(job.result).get("warmup")).get("total_s")
        if not about["tried"] and job.type != "build":  # the newest start of it says whether it comes up
            about["tried"], about["failed"] = True, failed
        if built and about["job"] is None:
            versions = {str(p.get("name")): text(p.get("new")) for p in listed(told(told(job.result).get("plan")).get("packages"))}
            about.update(job=job, href=f"/jobs/{job.number}/", vllm=versions.get("vllm"), flashinfer=versions.get("flashinfer-python"),
                         versions={name: version for name, version in versions.items() if version})
    for run in BenchmarkRun.objects.filter(service=service, state="done").prefetch_related("levels")[:LOOKED_BACK]:
        about = found.get(run.release) or {}
        levels = {level.concurrency: level.output_tok_s for level in run.levels.all()
                  if level.output_tok_s is not None and level.concurrency is not None}
        if about and levels:
            if about["single"] is None:
                about["single"] = levels.get(1)
            if about["widest"] is None or max(levels) > about["widest"]:  # peaks are alike only where sweeps went as far
                at = max(levels, key=lambda concurrency: levels[concurrency])
                about.update(widest=max(levels), best=levels[at], best_at=at)
    return {name: about for name, about in found.items() if about["job"] is not None or service.releases}


def find_release(service: Service, name: str) -> dict[str, Any] | None:
    return next((row for row in releases(service) if row["name"] == name), None)


def what_differs(service: Service, release: str) -> dict[str, Any]:
    """Packages of a kept release against those of the live one: `{"known", "rows"}`, from the plan that built it, or one that was made on it."""
    then = (find_release(service, release) or {}).get("versions") or _versions_before(service, release)
    now = {row["name"]: row["version"] for row in packages(service)["rows"]} or told(told(service.packages).get("versions"))
    if not then or not now:
        return {"known": False, "rows": []}
    names = sorted(then.keys() | now.keys(), key=lambda name: job_story.importance({"name": name}))
    partly = len(now) < len(then)  # only versions of interest are known: those that are not among them say nothing
    rows = [{"name": name, "now": now.get(name), "then": then.get(name)} for name in names if now.get(name) != then.get(name)
            and not (partly and name not in now)]
    return {"known": True, "rows": rows}


def _versions_before(service: Service, release: str) -> dict[str, str]:
    """Packages of a release that no plan of this console built: the old side of the last plan that was made while it was in use."""
    for job in Job.objects.filter(service=service, type__in=("plan", *BUILDS))[:LOOKED_BACK]:
        made = told(told(job.result).get("plan"))
        if text(made.get("current")) == release:
            return {text(p.get("name")): text(p.get("old")) for p in listed(made.get("packages")) if text(p.get("name")) and text(p.get("old"))}
    return {}


def edited_in(service: Service, release: str) -> list[str]:
    """Files of a kept release that were edited by hand, as the last job that looked at it found them; they come back with a roll back to it."""
    for job in Job.objects.filter(service=service, type__in=("plan", "integrity", *BUILDS))[:LOOKED_BACK]:
        said = told(job.result)
        made, report = told(said.get("plan")), told(said.get("integrity"))
        if job.type == "integrity" and text(report.get("release")) == release:
            return [text(file.get("path")) for change in ("changed", "missing", "extra") for file in listed(report.get(change))]
        if job.type != "integrity" and text(made.get("current")) == release and "patched_files" in made:
            return [text(file.get("path")) for file in listed(made["patched_files"])]
    return []


def start_estimate(service: Service) -> Usual:
    """What starts of this service took, whatever began them: a roll back's downtime is that of a start."""
    return usual(Job.objects.filter(service=service, state__in=(JobState.SUCCEEDED, JobState.PARTIAL), type__in=(*STARTS, "warmup"))
                 .prefetch_related("steps")[:16], downtime_of=("redeploy", "restart", "rollback"))


# ---- edits ----


def integrity_jobs(service: Service) -> list[Job]:
    return list(Job.objects.filter(service=service, type="integrity").select_related("service", "service__node", "node")
                .prefetch_related("steps")[:12])


def integrity_report(job: Job) -> dict[str, Any] | None:
    """The job's whole report: the event has every file, the row a summary."""
    event = JobEvent.objects.filter(job=job, type=EventType.INTEGRITY).order_by("-seq").first()
    return event.data if event else told(told(job.result).get("integrity")) or None


def live_release(service: Service) -> str:
    """Name of the release that the service runs; "" where nobody has told it."""
    return text(told(service.status).get("release")) or text(told(service.packages).get("release"))


def of_another_release(service: Service, report: dict[str, Any]) -> str:
    """The release that a check looked at, where that is not the one in use now; else ""."""
    checked, live = text(report.get("release")), live_release(service)
    return checked if checked and live and checked != live else ""


def agent_look(service: Service) -> dict[str, Any] | None:
    """What the node's agent found when it last held the files of the release in use against RECORD, without their lines: `{"files" (path,
    package, change; debug code is not known here), "count", "counts", "at"}`; None: it has not looked yet."""
    said = told(told(service.packages).get("patched"))
    if not said:
        return None
    files = [{"path": text(file.get("path")), "package": text(file.get("package")), "change": text(file.get("change")) or "changed"}
             for file in listed(said.get("files")) if text(file.get("path"))]
    count = whole(said.get("count"))
    return {"files": files, "count": max(len(files), count or 0), "at": as_datetime(said.get("checked_at")),
            "counts": {change: sum(1 for file in files if file["change"] == change) for change in ("changed", "missing", "extra")}}


def edited_files(job: Job, report: dict[str, Any]) -> list[dict[str, Any]]:
    """Files of a report that differ, debug code in a hot path first, then changed ones, each with its lines where anybody has them.

    `newer`: changed after the service's process began, so what runs is another content. `shown`: `diffs.rows`; None where there is no difference
    to show; `why_not` says why.
    """
    service = job.service
    known = _known_differences(service) if service else {}
    started = _started_at(job, report)
    told_newer = set(map(str, report["newer"])) if isinstance(report.get("newer"), list) else set()
    rows = []
    for change in ("changed", "missing", "extra"):
        for file in listed(report.get(change)):
            path = text(file.get("path"))
            if not path:
                continue
            other = known.get((path, text(file.get("sha256")))) or {}
            lines = file.get("diff") or other.get("diff")
            debris = file.get("debris") or other.get("debris") or look_for_debris(lines)
            shown = diffs.rows(lines, path, debris) if isinstance(lines, str) and lines else None
            mtime = file.get("mtime")
            moment = as_datetime(mtime) if isinstance(mtime, int | float) and not isinstance(mtime, bool) and 0 < mtime < 32_503_680_000 else None
            added, removed = whole(file.get("added")), whole(file.get("removed"))
            rows.append({
                "path": path, "package": text(file.get("package")), "change": change, "size": whole(file.get("size_bytes")),
                "note": text(file.get("note")),
                "changed_at": moment, "newer": started is not None and (moment > started if moment is not None else path in told_newer),
                "shown": shown,
                "added": added if added is not None else other.get("added"), "removed": removed if removed is not None else other.get("removed"),
                "debris": diffs.debris_words(debris), "more": max(0, (whole(file.get("diff_lines")) or whole(other.get("diff_lines")) or 0)
                                                                  - len(str(lines or "").splitlines())),
                "shelf": other.get("shelf"), "why_not": "" if shown else _why_not(file, change)})
            if shown and rows[-1]["added"] is None:
                rows[-1]["added"], rows[-1]["removed"] = shown["added"], shown["removed"]
    return sorted(rows, key=lambda row: not row["debris"])


def _why_not(file: dict[str, Any], change: str) -> str:
    if text(file.get("note")):
        return text(file.get("note"))
    return {"missing": "It was there when the package was installed.",
            "extra": "No package brought it, so there is nothing to hold it against."}.get(
        change, "Its lines are not known here: it is no text, too long, or the wheel that it came from is not at hand.")


def look_for_debris(lines: Any) -> list[dict[str, Any]]:
    """Known debris among the added lines of a difference."""
    if not isinstance(lines, str) or not lines:
        return []
    from ops.environments import debris

    return debris.look(lines)


def _known_differences(service: Service) -> dict[tuple[str, str], dict[str, Any]]:
    """(path, content) to a difference that was made before: by a plan, or when the file was put on the shelf."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for job in Job.objects.filter(service=service, type__in=("plan", *BUILDS))[:LOOKED_BACK]:
        for file in listed(told(told(job.result).get("plan")).get("patched_files")):
            if text(file.get("diff")):
                found.setdefault((text(file.get("path")), text(file.get("sha256"))), {
                    "diff": file["diff"], "added": whole(file.get("added")), "removed": whole(file.get("removed")),
                    "diff_lines": whole(file.get("diff_lines"))})
    for patch in ShelvedPatch.objects.filter(service=service).exclude(diff=None)[:400]:
        entry = found.setdefault((patch.path, patch.sha256), {"diff": patch.diff})
        if patch.forgotten_at is None:
            entry["shelf"] = patch.pk
        if not patch.diff_cut and len(patch.diff or "") > len(entry["diff"]):
            entry.update(diff=patch.diff, diff_lines=None)
        entry.setdefault("debris", patch.debris)
    return found


def _started_at(job: Job, report: dict[str, Any]) -> Any:
    """When the process that runs now began; None unless the job looked at the release that it runs."""
    service = job.service
    if service is None or service.state not in ("healthy", "starting"):
        return None
    live = text(told(service.status).get("release"))
    if live and text(report.get("release")) and text(report.get("release")) != live:
        return None
    return as_datetime(told(service.status).get("started_at"))


def came_back(service: Service, *, number: int | None = None) -> str:
    """The sentence on edits that came back through a cache, of the last job that built a release; "" if none did."""
    jobs = Job.objects.filter(service=service, type__in=BUILDS)
    for job in jobs.filter(number__lte=number)[:3] if number else jobs[:1]:
        for finding in job_story.findings(job):
            if "came back through" in text(finding.get("title")):
                return " ".join(part for part in (text(finding.get("title")).rstrip(".") + ".", text(finding.get("why"))) if part)
    return ""


def ways(service: Service, *, planned: Sequence[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """The two ways out of a patched environment, with what each is expected to cost; unknown is None.

    Downloads come from `planned` (a plan's `ways`), by default from the last plan of the live release; times from earlier jobs of this service.
    Where the environment is changed in place, the install belongs to the downtime (`in_place`): only redeploys in place tell how long that is.
    """
    in_place = told(service.record).get("in_place") is True

    by_mode = {text(way.get("mode")): way for way in (planned if planned is not None else _planned_ways(service))}
    down = start_estimate(service) if not in_place else usual(
        Job.objects.filter(service=service, type="redeploy", params__in_place=True, state__in=(JobState.SUCCEEDED, JobState.PARTIAL))
        .prefetch_related("steps")[:16], downtime_of=("redeploy",))
    rows = []
    for mode, title in (("restore", "Restore just the changed files"), ("full", "Full clean redeploy")):
        way = by_mode.get(mode, {})
        took = _build_time(service, mode)
        rows.append({"mode": mode, "title": title, "known": bool(way), "possible": way.get("possible") is not False,
                     "download": whole(way.get("download_bytes")),
                     "packages": whole(way.get("packages")), "files": whole(way.get("files")), "why": text(way.get("why")),
                     "build_s": None if in_place else took, "in_place": in_place, "downtime_s": down.downtime_s,
                     "downtimes": down.downtimes, "warmup_s": None if in_place else down.warmup_s})
    return rows


def _planned_ways(service: Service) -> list[dict[str, Any]]:
    live = live_release(service)
    for job in Job.objects.filter(service=service, type="plan", state=JobState.SUCCEEDED)[:LOOKED_BACK]:
        made = told(told(job.result).get("plan"))
        if text(made.get("current")) == live and listed(made.get("ways")):
            # A plan knows the cost of its own way; of the full one only if it is a full plan
            return [way for way in listed(made["ways"]) if way.get("mode") != "full" or (made.get("mode") or "full") == "full"]
    return []


def _build_time(service: Service, mode: str) -> float | None:
    """Seconds from plan to verified release, as earlier jobs of this way took; None while there is none."""
    jobs = [job for job in Job.objects.filter(service=service, type__in=BUILDS, state__in=(JobState.SUCCEEDED, JobState.PARTIAL))
            .prefetch_related("steps")[:LOOKED_BACK] if (told(job.params).get("mode") or "full") == mode]
    steps = usual(jobs, downtime_of=()).steps
    values = [steps[name] for name in ("build", "verify") if name in steps]
    return sum(values) if values else None


# ---- the shelf ----


def saves(service: Service) -> list[dict[str, Any]]:
    """The shelf, grouped by save, newest first: folder, when, release, job, files."""
    groups: dict[str, dict[str, Any]] = {}
    for patch in ShelvedPatch.objects.filter(service=service, forgotten_at=None).select_related("job"):
        group = groups.setdefault(patch.folder, {"folder": patch.folder, "at": patch.saved_at, "release": patch.release, "job": patch.job,
                                                 "files": []})
        shown = _counts(patch)
        group["files"].append({"patch": patch, "debris": diffs.debris_words(patch.debris), **shown})
    for group in groups.values():
        group["files"].sort(key=lambda file: (not file["debris"], file["patch"].path))
    return list(groups.values())


def _counts(patch: ShelvedPatch) -> dict[str, int | None]:
    added, removed = diffs.counts(patch.diff) if patch.diff else (None, None)
    return {"added": added, "removed": removed}


def saved_by(job: Job) -> list[dict[str, Any]]:
    """What a job put on the shelf."""
    return [{"patch": patch, "debris": diffs.debris_words(patch.debris), **_counts(patch)} for patch in ShelvedPatch.objects.filter(job=job)]


def changed_words(service: Service) -> dict[str, Any] | None:
    """What changed since the last good start, as the node words it: `{"words" (empty: nothing), "since", "job"}`; None: nothing to compare with."""
    said = told(service.changed)
    if not isinstance(said.get("words"), list):
        return None
    try:
        job = Job.objects.filter(service=service, pk=uuid.UUID(text(said.get("job")))).first()
    except ValueError:  # a start that no job of this console made
        job = None
    return {"words": [text(word) for word in said["words"] if text(word)], "since": as_datetime(said.get("since")), "job": job}


def model_findings(service: Service) -> list[dict[str, Any]]:
    """What stands out in the model folder: code of its own (`auto_map`), trust_remote_code."""
    return [item for item in (_finding(item, "model") for item in _listed_or_in(service.model)) if item["title"]]


def _listed_or_in(value: Any) -> Iterable[dict[str, Any]]:
    return listed(value.get("findings") if isinstance(value, dict) else value)
