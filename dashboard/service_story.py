"""A service as its page tells it: how it runs now and since when, why it is down, how it ended before, its unit, its launch settings, its warmups.

Rows hold what a node said (`dashboard/inventories.py` gave it a form); status and record are as they came. Everything here reads and gives plain
data for templates; nothing writes, and unknown stays None.
"""

from __future__ import annotations

import difflib
import re
import shlex
import signal
from collections.abc import Sequence
from statistics import median
from typing import Any

from django.utils import timezone

from dashboard import environment_story
from dashboard.diagnoses import DOWN, diagnosis_card
from dashboard.environment_story import listed, text, told, whole
from dashboard.forms import others
from dashboard.models import Job, JobEvent, Service
from dashboard.templatetags.roundhouse import as_datetime
from ops.jobs.events import EventType
from ops.jobs.redact import HIDDEN
from ops.services.failures import LIMIT_S, kernel_words, meaning

WORDS = {"healthy": "it answers", "starting": "it does not answer yet", "stopped": "asked to, or never started", "failed":
         "it ended, and nobody asked for that", "unknown": "its node has not said"}
READING_S = LIMIT_S + 60  # so long a log may be waited for: another may be read before it
PROCESS_STOP_S = 30  # ops/services/process.py: how long a plain process may take to end


def number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15 else None


def is_systemd(service: Service) -> bool:
    return told(service.record).get("manager") == "systemd"


def unit_name(service: Service) -> str:
    return text(told(service.record).get("unit"))


# ---- now ----


def now(service: Service) -> dict[str, Any]:
    """How it runs: `facts` for the strip, `down`, `loops` (its manager starts it again and again), `gave_up` (it has done so, and does no more),
    `restarts`, `exit` (how the last run ended)."""
    status, unit = told(service.status), told(service.unit)
    down = service.state in DOWN
    restarts = whole(status.get("restarts"))
    restarts = whole(unit.get("restarts")) if restarts is None else restarts
    since = as_datetime(number(status.get("ended_at") if down else status.get("started_at"))) or as_datetime(number(status.get("since"))) \
        or service.changed_at
    again = is_systemd(service) and bool(restarts) and service.state in ("failed", "starting")
    gave_up = again and service.state == "failed" and status.get("restarting") is not True and unit.get("state") == "failed"
    loops = again and not gave_up
    facts = [
        {"term": "State", "state": service.state, "small": text(status.get("detail")) or WORDS.get(service.state, "")},
        {"term": "Down for" if down else "Up for" if service.state in ("healthy", "starting") else "Unknown for", "since": since, "at": since,
         "hours": since is not None and (timezone.now() - since).total_seconds() >= 3600},
        {"term": "Restarts", "value": None if restarts is None else f"{restarts:,}",
         "unknown": "not known" if is_systemd(service) else "not counted",
         "small": "by systemd, by itself" if restarts is not None else "" if is_systemd(service) else "only jobs start it",
         "tone": "warn" if loops else ""},
        {"term": "Release", "release": environment_story.live_release(service), "small": "live" if environment_story.live_release(service)
         else "not known yet"},
        {"term": "Process", "value": f"pid {status['pid']}" if whole(status.get("pid")) else None, "small": _process_words(service, status)},
    ]
    return {"facts": facts, "down": down, "loops": loops, "gave_up": gave_up, "restarts": restarts,
            "exit": exit_words(status.get("exit_code"), status.get("detail")) if down else ""}


def _process_words(service: Service, status: dict[str, Any]) -> str:
    if service.state in DOWN:
        return exit_words(status.get("exit_code"), status.get("detail")) if service.state == "failed" or status.get("exit_code") is not None else ""
    return unit_name(service) if is_systemd(service) else "plain process"


def exit_words(code: Any, detail: Any = "") -> str:
    """How a run ended, in words: an exit code, a signal's name, or that it was not seen. `detail`: what its node says of it, which may know without
    a code."""
    code = _code(code)
    if code is None:
        how = text(detail).partition("being asked to, with ")[2]
        return re.split(r" \(|;", how)[0][:80] or "how it ended was not seen"
    if code == 0:
        return "exit code 0"
    if code > 0:
        return f"exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"


def _code(raw: Any) -> int | None:
    return raw if isinstance(raw, int) and not isinstance(raw, bool) else None


def trouble(service: Service, last: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """What the page says first of a service that is down: its title, why, the diagnosis of its last end, and a button. None for one that runs.

    `last`: what `failures` gave.
    """
    if service.state not in DOWN:
        return None
    status, here = told(service.status), now(service)
    why = [text(status.get("detail"))]
    newest = _explained(service, last)
    code = status.get("exit_code")
    if service.state == "failed" and code == 0:
        why.append(_code_0(newest["card"] if newest else None))
    elif service.state == "failed" and code is not None and (words := exit_words(code)).removeprefix("ended by ") not in why[0]:
        why.append(f"It {words}" if words.startswith("ended") else f"It left {words}")
    if newest:
        why += [newest["means"], newest["kernel"]] if newest is last[0] else []
        why += [] if newest["card"] else [newest["log"]]
    title = f"{service.name} is stopped"
    if service.state == "stopped" and why[0]:
        why.append("It answers no request until somebody starts it")
    if service.state == "failed":
        count = f"{here['restarts']} {'restart' if here['restarts'] == 1 else 'restarts'}"
        title = f"{service.name} crashes again and again: {count}" if here["loops"] else \
            f"{service.name} crashed after {count}, and systemd starts it no more" if here["gave_up"] else f"{service.name} does not answer"
    otherwise = "Its process has ended." if service.state == "failed" else \
        "It was asked to stop, or was never started. It answers no request until somebody starts it."
    return {"title": title, "why": " ".join(_sentence(one) for one in why if one) or otherwise, "failure": newest,
            "card": newest["card"] if newest else None}


def _sentence(words: str) -> str:
    return words if words.endswith((".", "!", "?")) else f"{words}."


# ---- ends that nobody asked for ----


def failures(service: Service) -> list[dict[str, Any]]:
    """The last ends that nobody asked for, newest first: when, of which release, how, and `card` (a diagnosis as pages show it, or None);
    `means`, `kernel` and `log`: what its signal means, whether the kernel was asked, what became of its log; `about`: the others in sentences."""
    rows = []
    for raw in reversed(listed(service.failures)):
        found = told(raw.get("diagnosis"))
        card = diagnosis_card(found, service=service) if found.get("fault") is True else None
        said = text(card.get("diagnosis")) or text(card.get("text")) if card else ""
        row = {"at": as_datetime(number(raw.get("ended_at"))) or as_datetime(number(raw.get("at"))), "release": text(raw.get("release")),
               "exit": exit_words(raw.get("exit_code"), raw.get("detail")), "code": raw.get("exit_code"), "restarts": whole(raw.get("restarts")),
               "detail": text(raw.get("detail")), "problem": text(raw.get("problem")), "card": card,
               "kind": text(found.get("kind")) if card else "", "invocation": text(raw.get("invocation")), "log": _log_words(raw),
               "means": "" if card else meaning(_code(raw.get("exit_code"))), "kernel": _kernel_words(raw, card),
               "title": said or text(raw.get("detail")) or ("It ended, and its log could not be read" if text(raw.get("problem")) else
                                                            f"It ended: {exit_words(raw.get('exit_code'))}")}
        about = [row["detail"] if row["detail"] != row["title"] else "", _code_0(card) if row["code"] == 0 else "", row["means"], row["kernel"]]
        rows.append({**row, "about": " ".join(_sentence(one) for one in about if one)})
    return rows


def _code_0(card: dict[str, Any] | None) -> str:
    return "" if card and "code 0" in card["diagnosis"] else "vLLM exits with code 0 when its engine dies, so the code says nothing"


def _log_words(raw: dict[str, Any]) -> str:
    """What became of its log, where it gave no cause."""
    if problem := text(raw.get("problem")):
        return f"Its log was not diagnosed: {problem}"
    if told(raw.get("diagnosis")).get("fault") is False:
        return "Its log names no cause."
    noticed = number(raw.get("at"))
    reading = noticed is not None and timezone.now().timestamp() - noticed < READING_S
    return "Its log is being read." if reading else "What its log says is not known."


def _kernel_words(raw: dict[str, Any], card: dict[str, Any] | None) -> str:
    """Whether the kernel was asked, where it could have ended the service and the diagnosis is not already its word."""
    kernel = raw.get("kernel")
    if not isinstance(kernel, dict) or not ("kernel log" in card["fix"] if card else meaning(_code(raw.get("exit_code")))):
        return ""
    return "" if card and card["source"] == "kernel" else kernel_words(text(kernel.get("problem")))


def newest_failure(service: Service) -> dict[str, Any] | None:
    """Of a service that failed, why, as far as its node has found out; None for others."""
    return _explained(service, failures(service))


def _explained(service: Service, last: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    if service.state != "failed" or not last:
        return None
    if last[0]["card"] or not now(service)["loops"]:
        return last[0]
    return next((one for one in last if one["card"]), last[0])  # ends come faster than logs can be read; one of the loop was


# ---- the unit ----


def unit(service: Service) -> dict[str, Any] | None:
    """Facts of the systemd unit, and `notes` that a person should read; None for a service without one."""
    if not is_systemd(service):
        return None
    said, name = told(service.unit), unit_name(service)
    scope = text(said.get("scope")) or text(told(service.record).get("unit_scope"))
    state, sub = text(said.get("state")), text(said.get("sub"))
    state = f"{state} ({sub})" if state and sub and sub != state else state
    enabled = said.get("enabled")
    enabled = {"enabled": True, "disabled": False}.get(enabled) if isinstance(enabled, str) else enabled if isinstance(enabled, bool) else None
    ctl = "systemctl --user" if scope == "user" else "systemctl"
    notes: list[dict[str, Any]] = []
    if problem := text(said.get("problem")):
        notes.append({"level": "warning", "text": problem, "command": ""})
    if said.get("needs_reload") is True:
        notes.append({"level": "warning", "text": "Its unit file was changed on disk, and systemd has not read it again. An admin of the node runs:",
                      "command": f"{ctl} daemon-reload"})
    if said.get("launcher_installed") is False:
        notes.append({"level": "warning", "command": f"python -m ops adopt --unit {shlex.quote(name)} --apply --install", "text":
                      "It still runs its own command. Start, stop and restart work; a redeploy, a roll back and launch settings need Roundhouse's "
                      "drop-in first, which an admin of the node installs:"})
    if enabled is False:
        notes.append({"level": "note", "text": "It is not enabled: it does not start with the machine.", "command": ""})
    result = text(said.get("result"))
    return {"name": name, "scope": scope, "state": state, "result": result if result != "success" else "", "enabled": enabled, "notes": notes,
            "known": bool(said), "failed": text(said.get("state")) == "failed", "own_command": said.get("launcher_installed") is False}


# ---- launch settings ----


def launch(service: Service) -> dict[str, Any]:
    """What the next start will use: `flags` (one option a line), `env` (secret values are not known here), `env_files`, `pending`."""
    said, record = told(service.launch), told(service.record)
    flags = said.get("flags") if isinstance(said.get("flags"), list) else record.get("flags")
    env = said.get("env") if isinstance(said.get("env"), dict) else record.get("env")
    secret = set(said.get("secret_names") or []) if isinstance(said.get("secret_names"), list) else set()
    files = said.get("env_files") if isinstance(said.get("env_files"), list) else record.get("env_files")
    rows = [{"name": str(name), "value": str(value), "secret": name in secret or HIDDEN in str(value)}
            for name, value in sorted((env or {}).items())] if isinstance(env, dict) else []
    rows += [{"name": name, "value": "", "secret": True} for name in sorted(map(str, secret - {row["name"] for row in rows}))]
    return {"known": bool(said), "flags": flag_lines(flags), "env": rows,
            "env_files": [str(one) for one in files] if isinstance(files, list) else [], "pending": said.get("pending") is True}


def flag_lines(flags: Any) -> list[str]:
    """Flags as a person writes them, an option with its values a line, quoted where a shell would want it."""
    lines: list[list[str]] = []
    for flag in flags if isinstance(flags, list) else []:
        if not lines or (str(flag).startswith("-") and not _is_number(str(flag))):
            lines.append([])
        lines[-1].append(shlex.quote(str(flag)))
    return [" ".join(line) for line in lines]


def _is_number(word: str) -> bool:
    return word[1:].replace(".", "", 1).isdigit()


# ---- warmups ----


def warmups(service: Service) -> list[dict[str, Any]]:
    """Warmups that its node remembers, oldest first: at, release, total_s, cache, phases {name: seconds}."""
    return [{"at": as_datetime(number(one.get("at"))), "release": text(one.get("release")), "total_s": number(one.get("total_s")),
             "cache": text(one.get("cache")) or "unknown", "phases": {str(name): took for name, value in told(one.get("phases")).items()
                                                                      if (took := number(value)) is not None}}
            for one in listed(service.warmups) if number(one.get("total_s")) is not None]


def usual_warmup(service: Service) -> dict[str, Any] | None:
    """What a start usually takes, by what its node remembers: `seconds` (median), `count`; None before the first."""
    known = [one["total_s"] for one in warmups(service)]
    if known:
        return {"seconds": median(known), "count": len(known)}
    usual = environment_story.start_estimate(service)
    return {"seconds": usual.warmup_s, "count": usual.warmups} if usual.warmup_s is not None else None


# ---- what can be done ----


def switch_choices(service: Service) -> list[dict[str, Any]]:
    """Services that could take its place, each with what its start usually takes."""
    return [{"service": one, "model": text(told(one.record).get("model_path")).rstrip("/").rsplit("/", 1)[-1], "usual": usual_warmup(one)}
            for one in others(service)]


def own_processes(job: Job, service: Service) -> list[dict[str, Any]]:
    """Processes that a job found to be left over from this service: those that may be ended."""
    found = leftovers(job)
    return found["own"] if (found["service"] or (job.service.name if job.service else "")) == service.name else []


def leftovers(job: Job) -> dict[str, Any]:
    """What a job found left over, as pages show it: `own` and `others` (processes), gpus (that are not free), ports, shm, ipc, `problems`, `nothing`,
    service, `running`, at. Whatever it told last counts."""
    event = JobEvent.objects.filter(job=job, type=EventType.LEFTOVERS).order_by("-seq").first()
    said = told(event.data) if event else {}
    rows = [_process(one) for one in listed(said.get("processes"))[:200]]
    ports = [{"port": whole(one.get("port")), "pid": whole(one.get("pid")), "command": text(one.get("command")), "strange": one.get("own") is False}
             for one in listed(said.get("ports"))]
    gpus = [{**{name: whole(one.get(name)) for name in ("index", "used_bytes", "allowed_bytes")}, "problem": text(one.get("problem"))}
            for one in listed(said.get("gpus"))]
    problems = [text(one) for one in said["problems"] if text(one)] if isinstance(said.get("problems"), list) else []
    shm = [{"path": text(one.get("path")), "size_bytes": whole(one.get("size_bytes"))} for one in listed(said.get("shm"))]
    ipc = [{"path": text(one.get("path")), "what": text(one.get("what"))} for one in listed(said.get("ipc"))]
    return {"told": event is not None, "own": [row for row in rows if row["own"]], "others": [row for row in rows if not row["own"]],
            "ports": ports[:200], "shm": shm[:200], "ipc": ipc[:200], "nothing": not (rows or ports or shm or ipc or gpus),
            "gpus": gpus[:64], "problems": problems[:50], "running": said.get("running") is True,
            "shm_bytes": sum(one["size_bytes"] for one in shm if one["size_bytes"] is not None), "service": text(said.get("service")),
            "at": as_datetime(number(said.get("at"))) or (as_datetime(event.at) if event else None)}


def _process(raw: dict[str, Any]) -> dict[str, Any]:
    pid, ticks = whole(raw.get("pid")), whole(raw.get("start_ticks"))
    gpus = [{"index": whole(one.get("index")), "used_bytes": whole(one.get("used_bytes"))} for one in listed(raw.get("gpus"))]
    sizes = [one["used_bytes"] for one in gpus if one["used_bytes"] is not None]
    return {"pid": pid, "named": f"{pid}:{ticks}" if pid is not None and ticks is not None else "", "user": text(raw.get("user")),
            "unit": text(raw.get("unit")), "command": text(raw.get("command")), "started_at": as_datetime(number(raw.get("started_at"))),
            "gpus": gpus, "used_bytes": sum(sizes) if sizes else None, "why": text(raw.get("why")), "service": text(raw.get("service")),
            "own": raw.get("own") is True and pid is not None and ticks is not None}


def settings_changed(job: Job) -> dict[str, Any] | None:
    """Launch settings that a job changed: `flags` (rows: kind "same", "add" or "del", and text), `env`, files, applies; None where it told none."""
    event = JobEvent.objects.filter(job=job, type=EventType.SETTINGS_CHANGED).order_by("-seq").first()
    if event is None:
        return None
    said = told(event.data)
    flags = told(said.get("flags"))
    env = [{"name": text(one.get("name")), "change": text(one.get("change")), "secret": one.get("secret") is True, "before": text(one.get("before")),
            "after": text(one.get("after"))} for one in listed(said.get("env"))[:1000]]
    return {"flags": flag_changes(flag_lines(flags.get("before")), flag_lines(flags.get("after"))), "env": env, "applies": text(said.get("applies")),
            "files": [str(one) for one in said.get("files") or []][:20] if isinstance(said.get("files"), list) else []}


def flag_changes(before: Sequence[str], after: Sequence[str]) -> list[dict[str, str]]:
    """Lines of flags before and after as one list: those that went ("del"), came ("add") or stayed ("same"). Empty where nothing changed."""
    if list(before) == list(after):
        return []
    kinds = {"  ": "same", "- ": "del", "+ ": "add"}
    return [{"kind": kinds[line[:2]], "text": line[2:]} for line in difflib.ndiff(before, after) if line[:2] in kinds]
