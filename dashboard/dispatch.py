"""How a wish becomes a job: one transaction for the row, its locks, fences, envelope and audit entry; then one message to the node.

The message may be lost: the row stays `queued`, and the recorder's reaper sends it again. The node removes duplicates.

The envelope (`ops/jobs/envelope.py`) carries the service's record and in `snapshot` the others that the job needs (`channel`, `plan`), because
the agent has no database.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from celery import Celery
from django.contrib.auth.models import AbstractBaseUser
from django.db import IntegrityError, transaction
from django.db.models import Max, Q
from django.utils import timezone
from kombu.exceptions import OperationalError as BrokerError
from redis.exceptions import RedisError

from dashboard import baselines, cleanup_choice, cleanup_rows, permissions, purge_story, redis_clients, run_summaries
from dashboard.deciding import MORE_AT_ONCE
from dashboard.models import (
    ArtifactScan,
    AuditEntry,
    BenchmarkRun,
    Channel,
    Job,
    JobEvent,
    JobLock,
    LockFence,
    Node,
    Service,
    ShelvedPatch,
)
from ops.artifacts.found import Choice
from ops.benchmark.comparing.verdicts import MIN_RUNS
from ops.jobs import streams
from ops.jobs.claim import ON_KEPT
from ops.jobs.envelope import Envelope
from ops.jobs.errors import BadInput, Busy, OpsError
from ops.jobs.events import FINAL_STATES, EventType, JobState
from ops.jobs.redact import HIDDEN, hide_in_command
from ops.records import NAME, NEVER_IN_TEXT

if TYPE_CHECKING:
    from ops.benchmark.presets import SweepSettings
    from ops.jobs.kinds import Kind

logger = logging.getLogger(__name__)

TASK = "run_job"
ENVELOPE_VALID_S = 3600  # how long a node may still take the job; after that the reaper ends it as not taken
PARAMS_MAX_BYTES = 256 * 1024
CHOICE_MAX_BYTES = 1024 * 1024  # params of a purge, which names what was chosen one by one
KINDS_MOST, ROOTS_MOST = 200, 50  # that one scan is asked for
CHANGES = "changes"  # stream for the live view: what happened to which job
CHANGES_KEPT = 1000
CONTROL_KEPT = 1000
CONTROL_KINDS = ("start", "stop", "restart", "reset-failed", "leftovers", "diagnose")
LEFTOVERS_LOOKED_AT = 50  # events of this node's jobs, newest first: what may be ended was listed in one of them
MODES = ("full", "restore")  # ways to make a release: ops/environments/plan.py
LABEL_LENGTH = 120
REPEATS_MOST, NOISE_RUNS, NOISE_RUNS_LEAST = MORE_AT_ONCE, 6, MIN_RUNS  # runs of one job
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}\Z")


def start(*, type: str, node: str | Node, service: str | Service | None = None, params: dict[str, Any] | None = None,
          user: AbstractBaseUser | None, idempotency_key: str | None = None, snapshot: dict[str, Any] | None = None) -> Job:
    """Makes the job and sends it. The same `idempotency_key` of the same user gives the same job again.

    `user` is None for the console's own command line. Raises Busy (another job holds, or waits for, a lock of this one: the error names it),
    BadInput (unknown type, node or service; params too big), PermissionDenied.
    """
    from ops.jobs.kinds import KINDS

    kind = KINDS.get(type)
    if kind is None:
        raise BadInput(f"There is no kind of job called `{type[:60]}`", hint=f"Known: {', '.join(sorted(KINDS))}")
    if user is not None:
        permissions.require(user, f"job.{type}")
    the_node = _node(node)
    the_service = _service(the_node, service)
    if kind.needs_service and the_service is None:
        raise BadInput(f"A {kind.title.lower()} job needs a service", hint="Choose one of the node's services")
    params = {**(in_place_params(the_service) if the_service is not None and _locks_environment(kind) else {}), **(params or {})}
    limit = CHOICE_MAX_BYTES if type == "purge" else PARAMS_MAX_BYTES
    if len(json.dumps(params)) > limit:
        raise BadInput("This job's settings are too big", why=f"At most {limit // 1024} KiB", hint="Ask for less at once")
    key = _key(user, idempotency_key)
    locks = sorted(kind.locks(the_service.name if the_service else None, params))
    for last in (False, False, True):
        try:
            with transaction.atomic():
                if key and (known := Job.objects.filter(idempotency_key=key).first()):
                    return known
                job = _make(type=type, node=the_node, service=the_service, params=params, user=user, key=key, locks=locks, snapshot=snapshot or {})
                transaction.on_commit(partial(send, job))
            return job
        except IntegrityError:  # two at once took the same number, fence or key (PostgreSQL only: SQLite's writers queue at BEGIN)
            if last:
                raise
    raise AssertionError("unreachable")


def _key(user: AbstractBaseUser | None, idempotency_key: str | None) -> str | None:
    """Two people's same key are two wishes."""
    return hashlib.sha256(f"{user.pk if user else ''}:{idempotency_key}".encode()).hexdigest() if idempotency_key else None


def _known(user: AbstractBaseUser | None, idempotency_key: str | None) -> Job | None:
    """The job that this person's key has started already."""
    key = _key(user, idempotency_key)
    return Job.objects.filter(idempotency_key=key).first() if key else None


def start_plan(*, service: Service, channel: Channel, user: AbstractBaseUser | None, version: str | None = None, coupling: bool = True,
               mode: str = "full", options: dict[str, Any] | None = None, idempotency_key: str | None = None) -> Job:
    """A read-only job that says what a redeploy would do. Practice channels are for practice services, and the other way round.

    `mode`: "full" (all wheels of the channel, resolved anew) or "restore" (the versions of now; only what was edited is installed anew).
    `options`: those of ops/environments/plan.py (`python`, `allow_variant_change`); the node checks them.
    """
    if channel.practice != service.practice:
        raise BadInput(f"Channel `{channel.name}` is not for service `{service.name}`", why="Practice packages never meet a real service",
                       hint="Choose another channel")
    if mode not in MODES:
        raise BadInput(f"There is no way to redeploy called `{mode[:40]}`", hint=f"Use one of {', '.join(MODES)}")
    return start(type="plan", node=service.node, service=service, user=user, idempotency_key=idempotency_key,
                 params={"channel": channel.name, "version": version, "coupling": coupling, "mode": mode, "options": dict(options or {})},
                 snapshot={"channel": channel.record, "kinds": cleanup_rows.own_kinds()})


def start_redeploy(*, plan_job: Job, user: AbstractBaseUser | None, options: dict[str, Any], idempotency_key: str | None = None) -> Job:
    """Confirms a plan: the job builds exactly this plan, or fails before it touches anything. `options`: `smoke`, `sweep`, `purge`, `rollback`
    (all true if left out), `preset`, `purge_kinds` (names of kinds of leftovers that the plan found; None or left out: those that it offers), and
    `accept_no_rollback` (false if left out): without it a plan that has no way back is refused (kind "no_rollback")."""
    plan, params, snapshot = _confirmed(plan_job)
    if unknown := sorted(set(options) - {"smoke", "sweep", "purge", "purge_kinds", "rollback", "preset", "accept_no_rollback"}):
        raise BadInput(f"A redeploy has no option `{unknown[0][:60]}`")
    accepted = bool(options.get("accept_no_rollback", False))
    if (no_way_back := why_no_rollback(plan)) is not None and not accepted:
        raise BadInput("This redeploy cannot be rolled back, and that was not confirmed", why=no_way_back,
                       hint="Confirm it on the plan's page, or make room for the backup copy and plan again", kind="no_rollback")
    params |= {"preset": options.get("preset") or "quick", "accept_no_rollback": accepted,
               **{name: bool(options.get(name, True)) for name in ("smoke", "sweep", "rollback")}, **_purge_of_plan(plan, options)}
    if params["purge"]:
        snapshot["kinds"] = cleanup_rows.own_kinds()  # as they are now: one that was removed or changed since the plan takes no more than it says now
    if params["sweep"] and plan_job.service is not None:
        snapshot |= _with_baseline(plan_job.service)
    return start(type="redeploy", node=plan_job.node, service=plan_job.service, user=user, idempotency_key=idempotency_key, params=params,
                 snapshot=snapshot)


def _purge_of_plan(plan: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """`purge` and `purge_kinds` of a redeploy: the kinds by name, so that the job purges what its page promised. Raises BadInput for a kind that the
    plan did not find."""
    known, ticked = purge_story.kinds_of_plan(plan)
    asked = options.get("purge_kinds")
    kinds = ticked if asked is None else list(dict.fromkeys(asked)) if isinstance(asked, list | tuple) else [str(asked)]
    if unknown := [name for name in kinds if name not in known]:
        raise BadInput(f"This plan found no leftovers of the kind `{str(unknown[0])[:60]}`", hint="Choose kinds of the plan, or plan again")
    wanted = bool(options.get("purge", True)) and bool(kinds)
    return {"purge": wanted, "purge_kinds": kinds if wanted else []}


def start_sweep(*, service: Service, settings: SweepSettings, user: AbstractBaseUser | None, repeats: int = 1, group: uuid.UUID | None = None,
                group_from: int = 0, idempotency_key: str | None = None) -> Job:
    """Measures the service as `settings` say (address, model, practice and GPUs are the node's to say), `repeats` times; several runs are one group.

    `group`, `group_from`: the group that they belong to, and the place of the first of them in it; None: one of their own. The job takes a copy of
    the service's baseline along. Raises BadInput for settings beyond the limits.
    """
    params = _sweep_params(settings, repeats)
    if group is not None:
        params |= {"group": str(group), "group_from": group_from}
    return start(type="sweep", node=service.node, service=service, user=user, idempotency_key=idempotency_key, params=params,
                 snapshot=_with_baseline(service))


def start_noise_floor(*, service: Service, settings: SweepSettings, user: AbstractBaseUser | None, repeats: int = NOISE_RUNS,
                      idempotency_key: str | None = None) -> Job:
    """Measures the same configuration `repeats` times, to know how much it differs from itself. Raises BadInput for fewer than three, and for
    levels that are never full."""
    if not NOISE_RUNS_LEAST <= repeats <= REPEATS_MOST:
        raise BadInput(f"A noise floor of {repeats} runs cannot be", why="Below three runs there is no spread",
                       hint=f"From {NOISE_RUNS_LEAST} to {REPEATS_MOST}")
    params = _sweep_params(settings, repeats)
    settings.check_floor()
    return start(type="noise-floor", node=service.node, service=service, user=user, idempotency_key=idempotency_key,
                 params=params)


def start_decide(*, run: BenchmarkRun, more: int, user: AbstractBaseUser | None, idempotency_key: str | None = None) -> Job:
    """Measures what `run` measured `more` times again, so that all of them are one side. Raises BadInput where the service is not what it was."""
    from ops.benchmark.presets import SweepSettings
    from ops.benchmark.repeats import SEED_STEP

    service = run.service
    if service is None or run.origin != "roundhouse":
        raise BadInput("This run cannot be repeated", why="It is not one of a service of this console")
    if run.state != "done":
        raise BadInput(f"This run is {run.state}, so nothing is decided by repeating it", hint="Sweep the service anew")
    release = (service.status or {}).get("release")
    if release and run.release and release != run.release:
        raise BadInput(f"`{service.name}` runs another release now", why=f"It was `{run.release}`, it is `{release}`",
                       hint="Sweep the service as it is now")
    asked = run.settings.get("settings") if isinstance(run.settings.get("settings"), dict) else run.settings
    settings = SweepSettings.from_dict(asked)
    with transaction.atomic():
        BenchmarkRun.objects.filter(pk=run.pk, group=None).update(group=uuid.uuid4(), group_index=0)
        run.refresh_from_db(fields=["group", "group_index"])
        place = (BenchmarkRun.objects.filter(group=run.group).aggregate(last=Max("group_index"))["last"] or 0) + 1
        settings.seed -= SEED_STEP * run.group_index  # of the group's first: each further run counts on from there, so its prompts are its own
        return start_sweep(service=service, settings=settings, user=user, repeats=more, group=run.group, group_from=place,
                           idempotency_key=idempotency_key)


def _sweep_params(settings: SweepSettings, repeats: int) -> dict[str, Any]:
    """What a job is told of a sweep: all but what the node knows better."""
    from ops.benchmark.presets import NODE_SAYS

    if not isinstance(repeats, int) or not 1 <= repeats <= REPEATS_MOST:
        raise BadInput(f"{repeats} runs cannot be asked for", hint=f"From 1 to {REPEATS_MOST}")
    if settings.prompt_source == "file":
        raise BadInput("A job cannot take its prompts from a file", why="The console names no files of a node",
                       hint="Use `python -m ops bench --prompts FILE` on the node")
    settings = replace(settings, repeats=repeats)
    settings.check()
    asked = {name: value for name, value in settings.as_dict().items() if name not in NODE_SAYS and value is not None}
    return {"preset": settings.preset, "sweep_settings": asked}


def _with_baseline(service: Service) -> dict[str, Any]:
    """The copy of the pinned baseline, for a job that ends with a sweep: in its snapshot, because lists read the params."""
    snapshot = baselines.snapshot(service)
    return {"baseline": snapshot} if snapshot else {}


def start_build(*, plan_job: Job, user: AbstractBaseUser | None, idempotency_key: str | None = None) -> Job:
    """Builds and verifies a plan's release beside the live one, and stops there: switching to it later is a roll back (or forward)."""
    plan, params, snapshot = _confirmed(plan_job)
    if plan.get("in_place") is True:
        raise BadInput("This environment is changed in place, so nothing can be built beside it", hint="Redeploy it, or adopt it without `in_place`")
    return start(type="build", node=plan_job.node, service=plan_job.service, user=user, idempotency_key=idempotency_key, params=params,
                 snapshot=snapshot)


def start_rollback(*, service: Service, release: str, user: AbstractBaseUser | None, smoke: bool = True, idempotency_key: str | None = None) -> Job:
    """Switches to a kept release: offline, nothing is built. Raises BadInput for one that is not there, is live already, or was never finished."""
    kept = kept_release(service, release)
    if kept.get("is_current") is True:
        raise BadInput(f"Release `{release}` is the one that runs", hint="Choose another")
    if kept.get("unfinished") is True:
        raise BadInput(f"Release `{release}` was never finished", hint="Choose another, or remove it")
    return start(type="rollback", node=service.node, service=service, user=user, idempotency_key=idempotency_key,
                 params={"release": release, "smoke": smoke})


def start_control(*, service: Service, kind: str, user: AbstractBaseUser | None, smoke: bool | None = None,
                  idempotency_key: str | None = None) -> Job:
    """One of CONTROL_KINDS. `smoke`: whether a start or restart ends with smoke tests; None: as that kind does by itself."""
    if kind not in CONTROL_KINDS:
        raise BadInput(f"A service cannot be controlled by `{kind[:40]}`", hint=f"Use one of {', '.join(CONTROL_KINDS)}")
    if smoke is not None and kind not in ("start", "restart"):
        raise BadInput(f"A job of kind {kind} asks no smoke tests")
    return start(type=kind, node=service.node, service=service, user=user, idempotency_key=idempotency_key,
                 params={} if smoke is None else {"smoke": smoke})


def start_switch(*, service: Service, to: Service, user: AbstractBaseUser | None, smoke: bool = True, idempotency_key: str | None = None) -> Job:
    """Stops `service`, then starts `to` on the same node; brings `service` back if `to` does not come up. The node takes both records from its own
    folder."""
    if to.pk == service.pk:
        raise BadInput(f"`{to.name}` cannot be switched to itself", hint="Restart it instead")
    if to.node_id != service.node_id:
        raise BadInput(f"`{to.name}` is on another node than `{service.name}`", why="A switch frees the GPUs of one node for another service of it")
    if to.practice != service.practice:
        raise BadInput(f"`{to.name}` cannot take the place of `{service.name}`", why="Practice never mixes with real services")
    return start(type="switch", node=service.node, service=service, user=user, idempotency_key=idempotency_key,
                 params={"to": to.name, "smoke": smoke})


def start_end_leftovers(*, service: Service, processes: Sequence[Mapping[str, Any]], user: AbstractBaseUser | None,
                        idempotency_key: str | None = None) -> Job:
    """Ends processes that a stop of this service left behind: only such as a job listed as the service's own. The node proves it once more."""
    wanted = [_process(one) for one in processes]
    if not wanted:
        raise BadInput("Nothing was chosen", hint="Choose what to end")
    own = own_leftovers(service)
    if strange := [pid for pid, ticks in wanted if (pid, ticks) not in own]:
        raise BadInput(f"Process {strange[0]} was not found to be a leftover of `{service.name}`",
                       why="Only what belonged to the service can be ended", hint="Look for leftovers again")
    return start(type="end-leftovers", node=service.node, service=service, user=user, idempotency_key=idempotency_key,
                 params={"processes": [{"pid": pid, "start_ticks": ticks} for pid, ticks in dict.fromkeys(wanted)]})


def own_leftovers(service: Service) -> set[tuple[int, int]]:
    """(pid, start time) of every process that a job of the node has listed as one that belonged to this service, and that may be ended."""
    found = set()
    told = JobEvent.objects.filter(job__node_id=service.node_id, type=EventType.LEFTOVERS).select_related("job__service").order_by("-at")
    for event in told[:LEFTOVERS_LOOKED_AT]:
        about = event.data.get("service") or (event.job.service.name if event.job.service else None)
        listed = event.data.get("processes") if about == service.name else None
        for one in listed if isinstance(listed, list) else []:
            if isinstance(one, dict) and one.get("own") is True and isinstance(one.get("pid"), int) and isinstance(one.get("start_ticks"), int):
                found.add((one["pid"], one["start_ticks"]))
    return found


def _process(raw: Mapping[str, Any]) -> tuple[int, int]:
    pid, ticks = raw.get("pid"), raw.get("start_ticks")
    if type(pid) is not int or type(ticks) is not int or pid < 2 or ticks < 0:
        raise BadInput("This names no process", why=str(dict(raw))[:200], hint="A process is named by `pid` and `start_ticks`")
    return pid, ticks


def start_settings_set(*, service: Service, user: AbstractBaseUser | None, before: str, flags: Sequence[str] | None = None,
                       env: Mapping[str, str | Mapping[str, str] | None] | None = None, idempotency_key: str | None = None) -> Job:
    """Changes the flags and variables that the service's next start gets.

    `flags`: the whole new list, or None to leave them. `env`: of each variable that changes its value, or None to remove it; what `redact.HIDDEN`
    stands for stays as it is. Values are sealed for the node here and now, so that no row, message or page ever holds one; {"sealed": text} is one
    that was sealed before (between the two pages of a form). `before`: the mark
    (`service.launch["mark"]`) of the settings that the person had before them. Raises BadInput, OpsError (kind "changed") if they are others by now.
    """
    from ops import sealed

    if flags is None and not env:
        raise BadInput("Nothing was changed", hint="Change a flag or a variable")
    known = (service.launch or {}).get("mark")
    if not known or not before:
        raise BadInput(f"The settings of `{service.name}` are not known yet", why="Its node has not told them", hint="Wait for its next announcement")
    if known != before:
        raise OpsError(f"The settings of `{service.name}` were changed meanwhile", why="Somebody else has set others since this form was shown",
                       hint="Look at them as they are now, and change them again", kind="changed")
    params: dict[str, Any] = {"flags": None if flags is None else checked_flags(flags), "env": {}, "before": before}
    key = service.node.facts.get("settings_key")
    for name, value in (env or {}).items():
        if not VARIABLE.match(name) or name.startswith("ROUNDHOUSE_"):
            raise BadInput(f"`{name[:80]}` is not a variable that a service can have", hint="Letters, digits and underscores; not ROUNDHOUSE_…")
        if value is None:
            params["env"][name] = None
        elif not isinstance(value, str):
            params["env"][name] = {"sealed": value["sealed"]}
        elif value == HIDDEN:
            params["env"][name] = {"keep": True}
        elif isinstance(key, str) and key:
            params["env"][name] = {"sealed": sealed.seal(key, value, service=service.name, name=name)}
        else:
            raise BadInput(f"Node `{service.node.name}` has not told the key that values are sealed with", hint="Bring its agent to this version")
    return start(type="settings-set", node=service.node, service=service, user=user, idempotency_key=idempotency_key, params=params)


def checked_flags(flags: Sequence[str]) -> list[str]:
    """The flags as an order may carry them. Raises BadInput for what is no text, and for a secret: flags are stored and shown."""
    for flag in flags:
        if not isinstance(flag, str) or not flag or NEVER_IN_TEXT.search(flag):
            raise BadInput(f"This is not a flag: {str(flag)[:80]!r}")
    if flags and not flags[0].startswith("-"):
        raise BadInput(f"`{flags[0][:80]}` is no flag", why="The model stands before the flags, and is not changed here",
                       hint="Begin with a word like --port")
    for flag, shown in zip(flags, hide_in_command(flags), strict=True):
        if flag != shown:
            raise BadInput(f"The flag `{shown[:80]}` holds a secret", why="Flags are stored and shown, and every process list has them",
                           hint="Give it as a variable (VLLM_API_KEY, HF_TOKEN): its value is sealed")
    return list(flags)


def start_smoke_set(*, service: Service, user: AbstractBaseUser | None, tests: list[dict[str, Any]], without: list[str], before: dict[str, Any],
                    idempotency_key: str | None = None) -> Job:
    """Makes `tests` the service's own questions and `without` the built-in ones that it is not asked. `before`: `smoke_suite` as it was shown; the
    node changes nothing where it has another one by then."""
    from ops import smoke_set

    smoke_set.check(tests, without)
    return start(type="smoke-set", node=service.node, service=service, user=user, idempotency_key=idempotency_key,
                 params={"tests": tests, "without": without, "before": before})


def smoke_suite(service: Service) -> dict[str, Any]:
    """The service's own questions (`tests`) and the built-in ones left out (`without`), as its node last told them: what a form shows."""
    return {"tests": service.record.get("smoke_tests") or [], "without": service.record.get("smoke_without") or []}


def start_remove_release(*, service: Service, release: str, user: AbstractBaseUser | None, idempotency_key: str | None = None) -> Job:
    """Removes a kept release from the node. Raises BadInput for the live one and the last good one, which is the way back."""
    kept = kept_release(service, release)
    for flag, words in (("is_current", "is the one that runs"), ("is_last_good", "is the last good one, so it is the way back")):
        if kept.get(flag) is True:
            raise BadInput(f"Release `{release}` {words}", hint="It stays")
    return start(type="remove-release", node=service.node, service=service, user=user, idempotency_key=idempotency_key, params={"release": release})


def start_guards_apply(*, service: Service, user: AbstractBaseUser | None, guards: list[dict[str, Any]] | None = None,
                       idempotency_key: str | None = None) -> Job:
    """Edits the model folder's files so that guards hold, each with a backup. `guards`: which of the service's; None: all that fail."""
    known = service.record.get("guards") or []
    if unknown := [guard for guard in guards or [] if guard not in known]:
        raise BadInput("This guard is not one of the service's", why=str(unknown[0])[:200], hint="Reload the page")
    return start(type="guards-apply", node=service.node, service=service, user=user, idempotency_key=idempotency_key, params={"guards": guards})


def start_guards_set(*, service: Service, guards: list[dict[str, Any]], user: AbstractBaseUser | None, idempotency_key: str | None = None) -> Job:
    """Makes `guards` the service's list, in its record on the node. {"preset": name} stands for a preset's: the node knows which fit its model.

    The order carries the list that this console knows as well: where the node has another one by then, nothing is changed.
    """
    from ops.environments import guard_list
    from ops.environments.guards import presets

    known = service.record.get("guards") or []
    named = {preset["name"] for preset in presets()}
    for one in guards:
        if set(one) == {"preset"}:
            if one["preset"] not in named:
                raise BadInput(f"There is no guard preset `{str(one['preset'])[:40]}`", hint=f"Known: {', '.join(sorted(named))}")
        elif one not in known:
            guard_list.check(one)
    if len(guards) > guard_list.GUARDS_MAX:
        raise BadInput(f"That would be {len(guards)} guards", why=f"A service has at most {guard_list.GUARDS_MAX}", hint="Remove some first")
    return start(type="guards-set", node=service.node, service=service, user=user, idempotency_key=idempotency_key,
                 params={"guards": guards, "before": known})


def start_adopt(*, node: Node, unit: str, user: AbstractBaseUser | None, name: str = "", environment: str = "", in_place: bool = False,
                manager: str = "systemd", idempotency_key: str | None = None) -> Job:
    """A read-only job that reads a systemd unit of the node and says which service it would be. Raises BadInput for a practice node."""
    from ops.adopting import Asked

    params: dict[str, Any] = {"unit": unit, "name": name, "environment": environment, "in_place": in_place, "manager": manager}
    Asked.of(params)
    _refuse_practice(node)
    return start(type="adopt", node=node, user=user, idempotency_key=idempotency_key, params=params)


def start_adopt_apply(*, read_job: Job, seen: str, user: AbstractBaseUser | None, idempotency_key: str | None = None) -> Job:
    """Makes the unit that a job has read a service of its node, if it is still what was looked at; `seen` is its hash. Raises BadInput for another
    one, and where a finding or the node's own limits forbid it."""
    found = (read_job.result or {}).get("adoption")
    if read_job.type != "adopt" or read_job.state != JobState.SUCCEEDED or not isinstance(found, dict) or not found.get("record"):
        raise BadInput(f"Job #{read_job.number} has read no unit to the end", why=read_job.reason, hint="Read it again")
    if not found.get("hash") or found["hash"] != seen:
        raise BadInput("This is not what was looked at", hint="Reload the page, look at it, and adopt it then")
    if stops := [finding for finding in found.get("findings") or [] if finding.get("level") == "stop"]:
        raise BadInput(stops[0].get("title") or "A finding forbids it", why=stops[0].get("why", ""), hint=stops[0].get("fix", ""))
    if lines := found.get("node_toml") or []:
        raise BadInput(f"Node `{read_job.node.name}` does not allow it yet", why="; ".join(map(str, lines)),
                       hint="Its owner adds these lines to its node.toml; then read the unit again")
    name = found["record"].get("name")
    if not isinstance(name, str) or not NAME.match(name):
        raise BadInput(f"Job #{read_job.number} names no service", hint="Read the unit again")
    _refuse_practice(read_job.node)
    asked = {key: read_job.params.get(key) for key in ("unit", "environment", "in_place", "manager")}
    return start(type="adopt-apply", node=read_job.node, user=user, idempotency_key=idempotency_key, params={
        **asked, "name": name, "hash": found["hash"], "record": found["record"],
        "drop_in": (found.get("drop_in") or {}).get("text"), "read_job": str(read_job.pk)})


def _refuse_practice(node: Node) -> None:
    if node.practice:
        raise BadInput(f"`{node.name}` is a practice node", why="Practice never mixes with real services, so it adopts no unit",
                       hint="Adopt it on a real node: `make up`, with a state folder of its own (ROUNDHOUSE_STATE)")


def start_scan(*, node: Node, user: AbstractBaseUser | None, roots: Sequence[str] | None = None, kinds: Sequence[str] | None = None,
               idempotency_key: str | None = None) -> Job:
    """A read-only job that looks for leftovers on a node. `roots`, `kinds`: only below these folders, only these kinds; None: all. The kinds that
    admins added go along. Raises BadInput for a folder or a kind that cannot be; which folders may be looked at the node decides."""
    for root in roots or ():
        if not isinstance(root, str) or not root.startswith("/") or len(root) > 4096 or NEVER_IN_TEXT.search(root):
            raise BadInput(f"This is no folder to look into: {str(root)[:80]!r}", hint="Give an absolute path")
    if (roots is not None and not 0 < len(roots) <= ROOTS_MOST) or (kinds is not None and not 0 < len(kinds) <= KINDS_MOST):
        raise BadInput("This scan would look for nothing, or for too much at once", hint=f"At most {ROOTS_MOST} folders and {KINDS_MOST} kinds")
    if kinds is not None and (unknown := sorted(set(kinds) - cleanup_rows.known_kinds())):
        raise BadInput(f"There is no kind of leftover `{unknown[0][:60]}`", hint="Settings lists all kinds")
    return start(type="artifact-scan", node=node, user=user, idempotency_key=idempotency_key, snapshot={"kinds": cleanup_rows.own_kinds()},
                 params={"roots": list(roots) if roots is not None else None, "kinds": list(kinds) if kinds is not None else None})


def start_purge(*, scan: ArtifactScan, choice: Choice, user: AbstractBaseUser | None, idempotency_key: str | None = None) -> Job:
    """Deletes what `choice` takes of what this scan found, as far as it is still what it was: the node looks at each thing once more. Services that
    something chosen belongs to are locked. What an earlier purge of the scan has deleted is left out. Raises BadInput for a scan that has not ended,
    and for a choice that takes nothing of it."""
    if (known := _known(user, idempotency_key)) is not None:  # by now there may be nothing left to choose: the second click is answered as the first
        return known
    if not scan.finished or not scan.digest:
        raise BadInput("This scan has no preview yet", why="It has not ended, or it ended before it had looked at everything",
                       hint="Wait until it has ended, or scan again")
    choice.check()
    totals = cleanup_choice.totals(scan, choice)
    if totals["count"] < 1:
        raise BadInput("Nothing was chosen", why="All of it was left out, or cannot be chosen", hint="Choose kinds, or single artifacts")
    if totals["count"] == totals["gone"]["count"]:
        raise BadInput("Nothing of what was chosen is left", why="An earlier purge of this scan has deleted it", hint="Scan again")
    choice = cleanup_choice.less_gone(scan, choice)
    return start(type="purge", node=scan.node, user=user, idempotency_key=idempotency_key, snapshot={"kinds": cleanup_rows.own_kinds()}, params={
        "scan": str(scan.job_id), "digest": scan.digest, "choice": choice.as_dict(), "services": cleanup_choice.services(scan, choice)})


def start_shelf_forget(*, service: Service, entries: list[ShelvedPatch], user: AbstractBaseUser | None, idempotency_key: str | None = None) -> Job:
    """Removes saved edits from the service's shelf on the node. They cannot be had back."""
    if not entries:
        raise BadInput("Nothing was chosen", hint="Choose what to forget")
    if strange := [patch for patch in entries if patch.service_id != service.pk]:
        raise BadInput(f"`{strange[0].path[:200]}` is not on the shelf of `{service.name}`", hint="Reload the page")
    return start(type="shelf-forget", node=service.node, service=service, user=user, idempotency_key=idempotency_key,
                 params={"entries": [{"folder": patch.folder, "path": patch.path} for patch in entries]})


def start_recipe(*, service: Service, user: AbstractBaseUser | None, label: str = "", idempotency_key: str | None = None) -> Job:
    """A read-only job that writes down the live release as a recipe: lock, flags, variables, guards and reference numbers in one file."""
    if len(label) > LABEL_LENGTH or not label.isprintable():
        raise BadInput("This is no label for a recipe", hint=f"At most {LABEL_LENGTH} printable characters")
    return start(type="recipe", node=service.node, service=service, user=user, idempotency_key=idempotency_key, params={"label": label})


def kept_release(service: Service, name: str) -> dict[str, Any]:
    """What the node last said of a release. Raises BadInput if it has none of this name."""
    found = next((one for one in service.releases if isinstance(one, dict) and one.get("name") == name), None)
    if found is None:
        raise BadInput(f"Service `{service.name}` keeps no release `{name[:120]}`", hint="Reload the page: it may have been removed meanwhile")
    return found


def why_no_rollback(plan: dict[str, Any]) -> str | None:
    """Why a redeploy by this plan could not be rolled back; None if it can be."""
    rollback = plan.get("rollback")
    if not isinstance(rollback, dict) or rollback.get("possible") is not False:
        return None
    return str(rollback.get("why") or "The plan does not say why")


def in_place_params(service: Service) -> dict[str, Any]:
    """`in_place` and `environment` of a job about an environment that is changed where it is: they decide its lock. Empty for other services."""
    if service.record.get("in_place") is not True:
        return {}
    told = (service.environment or {}).get("adopted")  # as the node resolved it; the record may name it by a link
    return {"in_place": True, "environment": told if isinstance(told, str) and told else service.record.get("environment")}


def _locks_environment(kind: Kind) -> bool:
    """Whether jobs of this kind lock an environment that is changed where it is."""
    return "env:/" in kind.locks("a", {"in_place": True, "environment": "/"})


def _confirmed(plan_job: Job) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The plan, and params and snapshot of a job that does it. Raises BadInput if there is none, or a finding of it forbids to go on."""
    plan = (plan_job.result or {}).get("plan")
    if plan_job.type != "plan" or plan_job.state != JobState.SUCCEEDED or not plan or plan_job.service is None:
        raise BadInput(f"Job #{plan_job.number} has no finished plan", why=plan_job.reason, hint="Make a new plan")
    if stops := [finding for finding in plan.get("findings", []) if finding.get("level") == "stop"]:
        raise BadInput(stops[0].get("title", "The plan has a finding that stops it"), why=stops[0].get("why", ""), hint=stops[0].get("fix", ""))
    asked = plan_job.params
    params = {"plan_job": str(plan_job.id), "plan_hash": plan.get("hash"), "channel": asked.get("channel"), "version": asked.get("version"),
              "coupling": asked.get("coupling", True), "mode": asked.get("mode", "full"), "options": asked.get("options") or {}}
    # The event rather than the row's summary: what was looked at is what is built, even if the summary should be shortened one day
    event = JobEvent.objects.filter(job=plan_job, type="plan.made").order_by("-seq").first()
    return plan, params, {"channel": plan_job.envelope["snapshot"]["channel"], "plan": event.data if event else plan}


def cancel(job: Job, user: AbstractBaseUser | None) -> Job:
    """Asks the node to stop the job; a job that no node has taken yet ends here and now. Asking twice is harmless."""
    if user is not None:
        permissions.require(user, "job.cancel")
    now = timezone.now()
    with transaction.atomic():
        asked = Job.objects.filter(pk=job.pk, cancel_wanted_at=None).exclude(state__in=FINAL_STATES).update(cancel_wanted_at=now)
        if asked:
            AuditEntry.objects.create(by_id=_pk(user), action="job.cancel", subject=f"#{job.number}", data={"job": str(job.pk)})
        # Conditional: if the node's `claimed` is recorded in this moment, one of the two wins, and the node's word stands
        ended = Job.objects.filter(pk=job.pk, state=JobState.QUEUED).update(
            state=JobState.CANCELLED, reason="Cancelled before the node took it", reason_kind="expected", finished_at=now)
        if not ended:
            Job.objects.filter(pk=job.pk, state__in=[JobState.CLAIMED, JobState.RUNNING]).update(state=JobState.CANCELLING)
        transaction.on_commit(partial(send_cancel, job))
    job.refresh_from_db()
    return job


def abandon(job: Job, user: AbstractBaseUser, *, typed: str) -> Job:
    """An admin gives up a lost job and frees its locks in the console's eyes, by typing the service's name. The node's own lock stays with
    whoever holds it."""
    permissions.require(user, "job.abandon")
    expected = job.service.name if job.service else job.node.name
    if typed.strip() != expected:
        raise BadInput("The name does not match", hint=f"Type `{expected}` to abandon job #{job.number}")
    with transaction.atomic():
        if not Job.objects.filter(pk=job.pk, state=JobState.LOST).update(
                state=JobState.INTERRUPTED, reason=f"Abandoned by {user.get_username()} after the node fell silent", reason_kind="expected",
                finished_at=timezone.now()):
            raise BadInput(f"Job #{job.number} is not lost", hint="Only a job whose node fell silent can be abandoned")
        JobLock.objects.filter(job=job).update(held=False)
        run_summaries.close_runs(job, "failed", timezone.now())
        AuditEntry.objects.create(by_id=user.pk, action="job.abandon", subject=f"#{job.number}", data={"job": str(job.pk)})
        transaction.on_commit(lambda: announce_change(job))
    job.refresh_from_db()
    return job


def job_summary(job: Job) -> dict[str, Any]:
    """What the live view tells about a job: `{"id", "number", "type", "state"}`."""
    return {"id": str(job.pk), "number": job.number, "type": job.type, "state": str(job.state)}


def send(job: Job) -> bool:
    """Sends the job's envelope to its node. False if the broker does not answer: the reaper tries again."""
    for again in (True, False):
        try:
            _producer(streams.celery_address(streams.address())).send_task(
                TASK, args=[job.envelope], queue=f"node.{job.node.name}", ignore_result=True, retry=False)
            break
        except (BrokerError, RedisError, OSError, OpsError) as error:
            _producer.cache_clear()  # its pooled connection may be one to a Redis that was started anew since
            if not again:
                logger.warning("job #%s could not be sent, it stays queued: %s", job.number, error)
                return False
    Job.objects.filter(pk=job.pk).update(sent_at=timezone.now())
    announce_change(job)
    return True


def announce_change(job: Job | None, **more: Any) -> None:
    """Tells the live views that a job changed (or, with None, that they should look). Only a hint: a lost one harms nothing."""
    said = {**(job_summary(job) if job else {}), **more}
    if job:
        said["job"] = said["id"]
    try:
        with redis_clients.connect(timeout_s=2) as client:
            client.xadd(CHANGES, {"c": json.dumps(said)}, maxlen=CHANGES_KEPT, approximate=True)
    except (RedisError, OpsError) as error:
        logger.warning("live views were not told of a change: %s", error)


def send_cancel(job: Job) -> None:
    """Tells the job's node that somebody wants it to stop. Repeated by the reaper until the job has ended."""
    try:
        with redis_clients.connect(timeout_s=2) as client:
            message = json.dumps({"do": "cancel", "job": str(job.pk)})
            client.xadd(streams.control_stream(job.node.name), {"c": message}, maxlen=CONTROL_KEPT, approximate=True)
    except (RedisError, OpsError) as error:
        logger.warning("the cancel of job #%s was not sent, the reaper sends it again: %s", job.number, error)
    job.refresh_from_db(fields=["state"])
    announce_change(job)


@lru_cache(maxsize=4)
def _producer(broker: str) -> Celery:
    """A Celery app that knows no task: it only puts messages into queues. A broker that is away fails within seconds."""
    app = Celery("roundhouse-console", broker=broker, set_as_current=False)
    app.conf.update(
        task_serializer="json", accept_content=["json"], task_ignore_result=True, broker_connection_retry=False, broker_connection_timeout=3,
        task_publish_retry=False, broker_transport_options={"socket_timeout": 5, "socket_connect_timeout": 3, "max_retries": 0,
                                                            "visibility_timeout": 86400})
    return app


def _make(*, type: str, node: Node, service: Service | None, params: dict[str, Any], user: AbstractBaseUser | None, key: str | None, locks: list[str],
          snapshot: dict[str, Any]) -> Job:
    fences: dict[str, int] = {}
    now = _redis_time()
    for lock in locks:  # in sorted order, as everywhere
        LockFence.objects.get_or_create(node=node, lock=lock)
        row = LockFence.objects.select_for_update().get(node=node, lock=lock)
        _refuse_if_busy(node, lock, type)
        # At least the time in seconds: a console whose database was made anew still exceeds the number that the node has stored
        row.last = max(row.last + 1, int(now))
        row.save(update_fields=["last"])
        fences[lock] = row.last
    job_id = uuid.uuid4()
    envelope = Envelope.make(
        job=str(job_id), node=node.name, service=service.record if service else None, type=type, params=params, locks=locks, fence=fences,
        snapshot=snapshot, by=user.get_username() if user else "command line", now=now, lifetime_s=ENVELOPE_VALID_S).as_dict()
    job = Job.objects.create(
        id=job_id, number=(Job.objects.aggregate(last=Max("number"))["last"] or 0) + 1, type=type, node=node, service=service, params=params,
        envelope=envelope, by_id=_pk(user), idempotency_key=key, practice=service.practice if service else node.practice)
    JobLock.objects.bulk_create([JobLock(job=job, node=node, lock=lock, fence=fence) for lock, fence in fences.items()])
    AuditEntry.objects.create(by_id=_pk(user), action=f"job.{type}", subject=f"#{job.number} {service or node}", data={"job": str(job_id)})
    return job


def _refuse_if_busy(node: Node, lock: str, type: str) -> None:
    """Raises Busy naming the job that holds the lock, or waits for its node to take it. A job whose rollback failed keeps its lock until a person
    has looked: what that person then does (restart, stop, end what is left) may take it."""
    taken = JobLock.objects.filter(Q(held=True) | ~Q(job__state__in=FINAL_STATES), node=node, lock=lock)
    if type in ON_KEPT:
        taken = taken.exclude(job__state__in=FINAL_STATES)
    holder = taken.select_related("job").order_by("job__number").first()
    if holder is None:
        return
    job = holder.job
    what = lock.partition(":")[2] if lock.startswith("service:") else lock
    why, hint = "One job at a time may change a service", f"Wait until job #{job.number} has ended, or cancel it"
    if lock == "node:purge":
        what, why = f"cleanup of {node.name}", "One job at a time deletes on a node"
    if job.state == JobState.LOST:
        hint = f"Its node fell silent. Look at job #{job.number}; an admin can abandon it"
    elif job.is_final:
        why, hint = "Its rollback failed, so a person has to look first", f"Look at job #{job.number}, then restart the service, or roll it back"
    raise Busy(f"`{what}` is busy: job #{job.number} ({job.type}) is {job.state}", why=why, hint=hint, **job_summary(job))


def _redis_time() -> float:
    """Redis' clock, which also the node asks; this host's own where Redis is away (the reaper renews the envelope when it sends it again)."""
    try:
        with redis_clients.connect(timeout_s=2) as client:
            return streams.redis_time(client)
    except (RedisError, OpsError):
        return time.time()


def _node(node: str | Node) -> Node:
    if isinstance(node, Node):
        return node
    found = Node.objects.filter(name=node).first()
    if found is None:
        raise BadInput(f"There is no node `{node[:63]}`", hint="It appears once its agent has announced itself")
    return found


def _service(node: Node, service: str | Service | None) -> Service | None:
    if service is None:
        return None
    if isinstance(service, Service):
        if service.node_id != node.pk:
            raise BadInput(f"Service `{service.name}` is not on node `{node.name}`")
        return service
    found = Service.objects.filter(node=node, name=service).first()
    if found is None:
        raise BadInput(f"Node `{node.name}` has no service `{service[:63]}`", hint="It appears once the node's agent has announced it")
    return found


def _pk(user: AbstractBaseUser | None) -> Any:
    return user.pk if user is not None else None
