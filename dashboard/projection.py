"""What an event means for the rows that pages read: the job, its steps, its benchmark runs.

`Job.result` gets, as the job goes on: `plan` (data of plan.made), `findings` (list, data of finding), `warmup` (`phases` as told, then `total_s`,
`cache`), `smoke` (list, data of smoke.result), `diagnosis`, `purge`, `integrity`, `report` (data of those events), `run_ids` (list of text),
`guards` (`results` as last checked, `applied` by the whole job), `recipe` (data of recipe), `adoption` (data of adoption, cut), `changed` (`since`,
`words`: against the last good start), `leftovers` (how many of each sort), `regression` (data of that event),
`noise_floor` (`rows`: how many were stored, `sweep_key`, `run_ids`), `settings` (`flags`: they changed; `env`: how many variables did).
`scan` (totals of artifacts.scanned: `cleanup_rows.keep_scan`).
`Job.fingerprint` is the last one that the job said. Files put on the patch shelf become rows of their own
(`ShelvedPatch`).

Events come in `seq` order and each only once: `recorder.py` sees to it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F
from django.db.models.functions import Greatest

from dashboard import cleanup_rows, noise_floors, run_summaries
from dashboard.from_a_node import count, items, named, number, text, texts, when
from dashboard.models import BenchmarkLevel, BenchmarkRun, Job, JobLock, JobStep, LockFence, ShelvedPatch
from dashboard.run_documents import LEVEL_COLUMNS
from ops.jobs.claim import ON_KEPT, REPAIRS
from ops.jobs.events import FINAL_STATES, LOCKING_STATES, Event, EventType, JobState

FINDINGS_KEPT = 500
GUARDS_KEPT = 500
WORDS_KEPT = 200
TROUBLES_KEPT = 50
SMOKE_TEXT = 4000  # characters of a question and an answer; the node cuts there, too
DEBRIS_KEPT = 200
LEVELS_MAX = 200  # of a sweep
GROUP_MOST = 1000  # runs that are measured together
LEVELS_KEPT, METRICS_KEPT = 32, 12  # of a sweep against its baseline
REGRESSION_BYTES = 128 * 1024
DIFF_LENGTH = 256 * 1024  # characters; the node cuts there, too
FINGERPRINT_BYTES = 1024 * 1024  # some hundred packages are under 50 KB
ADOPTION_BYTES = 128 * 1024  # of a record, and of a drop-in; a node refuses to tell longer ones
CHANGES = ("changed", "extra", "missing")
SET_AT_THE_END = ("scaling_x", "scaling_efficiency")  # of levels that ran before the one that they are held against


def _keep_for_a_person(lock: JobLock) -> None:
    """A job that was let in, and is no repair that succeeded, gives the lock back to the one whose rollback failed: on the node it is kept, too."""
    for earlier in JobLock.objects.filter(node=lock.node, lock=lock.lock, fence__lt=lock.fence).select_related("job").order_by("-fence"):
        if earlier.job.rollback == "failed" and earlier.job.is_final:
            JobLock.objects.filter(pk=earlier.pk).update(held=True)
            return
        if earlier.job.type not in ON_KEPT or (earlier.job.type in REPAIRS and earlier.job.state == JobState.SUCCEEDED):
            return  # nobody had to look since then


def _let_go_with(lock: JobLock) -> None:
    """A repair succeeded: whatever the failed jobs before it kept besides (an environment's lock) goes as well, as on the node."""
    failed = JobLock.objects.filter(node=lock.node, lock=lock.lock, fence__lt=lock.fence, job__rollback="failed", job__state__in=FINAL_STATES)
    JobLock.objects.filter(job__in=failed.values("job"), held=True).update(held=False)


class JobProjection:
    """Applies events to one job in memory; `save` writes what changed. Use within one transaction, with the job's row locked."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.state_before = job.state
        self.steps: dict[str, JobStep] = {step.name: step for step in job.steps.all()}
        self.dirty_steps: set[str] = set()
        self.result_dirty = False
        self.fingerprint_dirty = False

    def apply(self, event: Event) -> None:
        """Raises KeyError, TypeError or ValueError on data that does not have the form that `ops/jobs/events.py` promises."""
        job = self.job
        job.last_seq = event.seq
        if event.type != EventType.JOB_FINISHED and (job.state in FINAL_STATES or job.state in (JobState.LOST, JobState.QUEUED)):
            # The node speaks: whatever the console concluded from its silence was wrong
            job.state, job.reason, job.reason_kind, job.finished_at = self._open_state(), "", "", None
        handler = _HANDLERS.get(event.type)
        if handler:
            handler(self, event.data, when(event.at))

    def save(self) -> None:
        """Writes the job, its changed steps and its locks."""
        job = self.job
        fields = ["last_seq", "state", "reason", "reason_kind", "rollback", "error", "claimed_at", "finished_at", "heartbeat_at", "duration_s",
                  "downtime_s", "downtime_since"]
        job.save(update_fields=fields + (["result"] if self.result_dirty else []) + (["fingerprint"] if self.fingerprint_dirty else []))
        for name in self.dirty_steps:
            self.steps[name].save()
        self.dirty_steps.clear()
        if job.state != self.state_before:
            self._hold_locks()

    # ---- job ----

    def _open_state(self) -> JobState:
        if self.job.cancel_wanted_at:
            return JobState.CANCELLING
        return JobState.RUNNING if any(step.state != "todo" for step in self.steps.values()) else JobState.CLAIMED

    def _claimed(self, data: dict[str, Any], at: datetime) -> None:
        self.job.claimed_at = at
        self.job.state = JobState.CANCELLING if self.job.cancel_wanted_at else JobState.CLAIMED
        for index, told in enumerate(data.get("steps") or []):
            step = self._step(str(told["name"]), title=str(told["title"]), index=index)
            step.downtime = bool(told.get("downtime"))
        for lock, fence in (data.get("fence") or {}).items():
            # The command line takes numbers too: the console's next one must be above
            LockFence.objects.get_or_create(node=self.job.node, lock=lock)
            LockFence.objects.filter(node=self.job.node, lock=lock).update(last=Greatest(F("last"), int(fence)))
            JobLock.objects.get_or_create(job=self.job, lock=lock, defaults={"node": self.job.node, "fence": int(fence)})
        self._hold_locks()

    def _started(self, data: dict[str, Any], at: datetime) -> None:
        if self.job.state != JobState.CANCELLING:
            self.job.state = JobState.RUNNING

    def _cancelling(self, data: dict[str, Any], at: datetime) -> None:
        self.job.state = JobState.CANCELLING
        self.job.cancel_wanted_at = self.job.cancel_wanted_at or at
        self.job.save(update_fields=["cancel_wanted_at"])

    def _finished(self, data: dict[str, Any], at: datetime) -> None:
        job = self.job
        job.state = JobState(data["state"])
        if job.state not in FINAL_STATES:
            raise ValueError(f"a job cannot finish as {job.state}")
        job.reason, job.reason_kind = str(data.get("reason") or ""), str(data.get("reason_kind") or "")[:10]
        job.rollback, job.error = str(data.get("rollback") or "none")[:10], data.get("error")
        job.finished_at, job.duration_s = at, number(data.get("duration_s"))
        if (downtime := number(data.get("downtime_s"))) is not None:
            job.downtime_s = downtime
        job.downtime_since = None
        for step in self.steps.values():
            if step.state in ("running", "undoing"):
                step.state = "interrupted"
                self.dirty_steps.add(step.name)
        ended = {JobState.CANCELLED: "cancelled"}.get(JobState(job.state), "failed")
        run_summaries.close_runs(job, ended, at)

    def _hold_locks(self) -> None:
        """A job in one of LOCKING_STATES holds its locks, and so does one whose rollback failed. Where another job still stands as holder, the higher
        fence is right: the node gave the lock to that one."""
        job = self.job
        holds = job.state in LOCKING_STATES or (job.state in FINAL_STATES and job.rollback == "failed")
        if not holds:
            left = list(JobLock.objects.filter(job=job, held=True))
            JobLock.objects.filter(job=job, held=True).update(held=False)
            repaired = job.type in REPAIRS and job.state == JobState.SUCCEEDED
            for lock in left if job.type in ON_KEPT else ():
                if repaired:
                    _let_go_with(lock)
                else:
                    _keep_for_a_person(lock)
            return
        for lock in JobLock.objects.filter(job=job, held=False):
            JobLock.objects.filter(node=lock.node, lock=lock.lock, held=True, fence__lt=lock.fence).exclude(job=job).update(held=False)
            try:
                with transaction.atomic():  # a savepoint: rolled back alone
                    JobLock.objects.filter(pk=lock.pk).update(held=True)
            except IntegrityError:
                continue  # a job with a higher fence has it: this one's end was not told yet

    # ---- steps ----

    def _step(self, name: str, *, title: str = "", index: int | None = None) -> JobStep:
        step = self.steps.get(name)
        if step is None:
            step = JobStep(job=self.job, name=name[:40], title=(title or name)[:80], index=len(self.steps) if index is None else index)
            self.steps[name] = step
        elif title:
            step.title = title[:80]
        if index is not None:
            step.index = index
        self.dirty_steps.add(name)
        return step

    def _step_started(self, data: dict[str, Any], at: datetime) -> None:
        step = self._step(str(data["step"]), title=str(data.get("title") or ""), index=data.get("index"))
        step.state, step.started_at, step.progress = "running", at, None
        if self.job.state == JobState.CLAIMED:
            self.job.state = JobState.RUNNING

    def _step_progress(self, data: dict[str, Any], at: datetime) -> None:
        if data.get("step"):
            self._step(str(data["step"])).progress = {key: data.get(key) for key in ("done", "total", "unit", "text", "estimate")}

    def _step_finished(self, data: dict[str, Any], at: datetime) -> None:
        step = self._step(str(data["step"]))
        step.state = step.outcome = str(data["outcome"])[:12]
        step.duration_s, step.note = number(data.get("duration_s")), str(data.get("note") or "")

    def _step_undoing(self, data: dict[str, Any], at: datetime) -> None:
        self._step(str(data["step"])).state = "undoing"

    def _step_undone(self, data: dict[str, Any], at: datetime) -> None:
        step = self._step(str(data["step"]))
        step.undo_note, step.undo_s = str(data.get("note") or ""), number(data.get("duration_s"))
        if data.get("outcome") == "failed":
            step.state = "failed"
        elif step.outcome in ("failed", "cancelled", "interrupted") or not step.undo_note:  # an undo without a note found nothing to put back
            step.state = step.outcome or "interrupted"
        else:
            step.state = "undone"

    # ---- downtime, findings, results ----

    def _downtime_started(self, data: dict[str, Any], at: datetime) -> None:
        self.job.downtime_since = at

    def _downtime_ended(self, data: dict[str, Any], at: datetime) -> None:
        self.job.downtime_since = None
        if (seconds := number(data.get("seconds"))) is not None:
            self.job.downtime_s = (self.job.downtime_s or 0) + seconds

    def _finding(self, data: dict[str, Any], at: datetime) -> None:
        kept = self.job.result.setdefault("findings", [])
        if len(kept) < FINDINGS_KEPT:
            kept.append(data)
            self.result_dirty = True

    def _smoke(self, data: dict[str, Any], at: datetime) -> None:
        data = {name: value[:SMOKE_TEXT] if isinstance(value, str) else value for name, value in data.items()}
        kept = self.job.result.setdefault("smoke", [])
        kept[:] = [*[known for known in kept if known.get("name") != data.get("name")], data][:100]
        self.result_dirty = True

    def _leftovers(self, data: dict[str, Any], at: datetime) -> None:
        """Only how many: the event has them."""
        processes = items(data.get("processes"), 10_000)
        own = sum(1 for one in processes if one.get("own") is True)
        self.job.result["leftovers"] = {
            "service": text(data.get("service"), 63), "running": data.get("running") is True, "own": own, "others": len(processes) - own,
            "problems": len(texts(data.get("problems"), 1000)),
            **{kind: len(items(data.get(kind), 10_000)) for kind in ("gpus", "ports", "shm", "ipc")}}
        self.result_dirty = True

    def _settings_changed(self, data: dict[str, Any], at: datetime) -> None:
        flags = data.get("flags")
        self.job.result["settings"] = {"flags": isinstance(flags, dict) and flags.get("before") != flags.get("after"),
                                       "env": len(items(data.get("env"), 10_000)), "applies": text(data.get("applies"), 200)}
        self.result_dirty = True

    def _warmup_trouble(self, data: dict[str, Any], at: datetime) -> None:
        """A stall, or a crash after which the service's manager starts it again: then the phases begin anew."""
        warmup = self.job.result.setdefault("warmup", {})
        troubles = warmup.setdefault("troubles", [])
        if len(troubles) < TROUBLES_KEPT:
            troubles.append({"at": at.timestamp(), "kind": text(data.get("kind"), 20), "text": text(data.get("text"), 2000), "try": data.get("try")})
        if data.get("kind") == "crash":
            warmup["phases"] = []
        self.result_dirty = True

    def _warmup_phase(self, data: dict[str, Any], at: datetime) -> None:
        warmup = self.job.result.setdefault("warmup", {})
        phases = warmup.setdefault("phases", [])
        known = next((phase for phase in phases if phase.get("phase") == data["phase"]), None)
        if known is None:
            phases.append(data)
        else:
            known.update(data)
        self.result_dirty = True

    def _warmup_done(self, data: dict[str, Any], at: datetime) -> None:
        self.job.result["warmup"] = {**self.job.result.get("warmup", {}), **data}
        self.result_dirty = True

    # ---- environments ----

    def _shelf_saved(self, data: dict[str, Any], at: datetime) -> None:
        if self.job.service is None:
            raise ValueError("a file was put on the shelf of no service")
        change = data["change"]
        if change not in CHANGES:
            raise ValueError(f"no change of a file: {str(change)[:40]!r}")
        diff, size = data.get("diff"), number(data.get("size_bytes"))
        diff = diff if isinstance(diff, str) else None
        known_size = int(size) if size is not None and 0 <= size < 2**63 else None
        debris = [{"line": one.get("line") if isinstance(one.get("line"), int) else None, "text": text(one.get("text"), 500),
                   "what": text(one.get("what"), 200)} for one in items(data.get("debris"), DEBRIS_KEPT)]
        ShelvedPatch.objects.update_or_create(
            service=self.job.service, folder=named(data["folder"], 200), path=named(data["path"], 1000), defaults={
                "job": self.job, "package": text(data.get("package"), 200), "version": text(data.get("version"), 120),
                "release": text(data.get("release"), 200), "change": change, "size_bytes": known_size,
                "sha256": text(data.get("sha256"), 64), "pristine_sha256": text(data.get("pristine_sha256"), 64),
                "diff": diff[:DIFF_LENGTH] if diff is not None else None,
                "diff_cut": data.get("diff_cut") is True or len(diff or "") > DIFF_LENGTH, "debris": debris, "note": text(data.get("note"), 2000),
                "where": text(data.get("where"), 2000), "saved_at": at, "forgotten_at": None})

    def _shelf_forgotten(self, data: dict[str, Any], at: datetime) -> None:
        """The row stays, so that it can be seen that there was something; its content goes, as on the node."""
        ShelvedPatch.objects.filter(service=self.job.service, folder=named(data["folder"], 200), path=named(data["path"], 1000),
                                    forgotten_at=None).update(forgotten_at=at, diff=None, debris=[])

    def _integrity(self, data: dict[str, Any], at: datetime) -> None:
        """Without the lines of its files, which lists of jobs do not show: the event has them."""
        def short(file: Any) -> Any:
            return {name: value for name, value in file.items() if name not in ("diff", "debris")} if isinstance(file, dict) else file

        self.job.result["integrity"] = {**data, **{kind: [short(one) for one in data[kind]] for kind in CHANGES if isinstance(data.get(kind), list)}}
        self.result_dirty = True

    def _guards(self, data: dict[str, Any], at: datetime) -> None:
        applied = [{"file": text(one.get("file"), 1000), "backup": text(one.get("backup"), 2000), "diff": text(one.get("diff"), DIFF_LENGTH)}
                   for one in items(data.get("applied"), GUARDS_KEPT)]
        before = (self.job.result.get("guards") or {}).get("applied") or []
        self.job.result["guards"] = {"results": items(data.get("results"), GUARDS_KEPT), "applied": [*before, *applied][:GUARDS_KEPT]}
        self.result_dirty = True

    def _adoption(self, data: dict[str, Any], at: datetime) -> None:
        record, drop_in = data["record"], data.get("drop_in")
        if not isinstance(record, dict) or len(json.dumps(record)) > ADOPTION_BYTES:
            raise ValueError(f"no record of a service: {type(record).__name__}")
        drop_in = drop_in if isinstance(drop_in, dict) else {}
        self.job.result["adoption"] = {
            "unit": text(data.get("unit"), 250), "user": text(data.get("user"), 80), "record": record, "hash": text(data.get("hash"), 64),
            "files": [text(one, 1000) for one in texts(data.get("files"), 50)],
            "findings": [{part: text(one.get(part), 4000) for part in ("level", "title", "why", "fix")} for one in items(data.get("findings"), 200)],
            "drop_in": {"path": text(drop_in.get("path"), 1000), "text": text(drop_in.get("text"), ADOPTION_BYTES),
                        "hidden": drop_in.get("hidden") is True},
            "node_toml": [text(one, 8000) for one in texts(data.get("node_toml"), 20)], "stored": text(data.get("stored"), 1000) or None,
            "adopted_before": data.get("adopted_before") is True}
        self.result_dirty = True

    def _fingerprint(self, data: dict[str, Any], at: datetime) -> None:
        told = data["fingerprint"]
        if not isinstance(told, dict) or len(json.dumps(told)) > FINGERPRINT_BYTES:
            raise ValueError(f"no fingerprint: {type(told).__name__}")
        self.job.fingerprint = told
        self.fingerprint_dirty = True
        words = data.get("changed")
        if isinstance(words, list) and (words or "changed" not in self.job.result):  # at its end a good job has nothing left to tell
            self.job.result["changed"] = {"since": number(data.get("since")), "words": [text(one, 500) for one in words[:WORDS_KEPT]]}
            self.result_dirty = True

    # ---- leftovers ----

    def _artifacts_found(self, data: dict[str, Any], at: datetime) -> None:
        cleanup_rows.keep_found(self.job, data, at)

    def _artifacts_scanned(self, data: dict[str, Any], at: datetime) -> None:
        self.job.result["scan"] = cleanup_rows.keep_scan(self.job, data, at)
        self.result_dirty = True

    def _purge_entries(self, data: dict[str, Any], at: datetime) -> None:
        cleanup_rows.keep_entries(self.job, data, at)

    def _purge_result(self, data: dict[str, Any], at: datetime) -> None:
        self.job.result["purge"] = cleanup_rows.keep_purge(self.job, data, at)
        self.result_dirty = True

    # ---- benchmark runs ----

    def _sweep_started(self, data: dict[str, Any], at: datetime) -> None:
        job, service = self.job, self.job.service
        fingerprint = data.get("fingerprint")
        fingerprint = fingerprint if isinstance(fingerprint, dict) else {}
        packages = fingerprint.get("packages")
        release, version = fingerprint.get("release"), packages.get("vllm") if isinstance(packages, dict) else None
        run_id = uuid.UUID(str(data["run_id"]))
        if BenchmarkRun.objects.filter(pk=run_id).exclude(job=job).exists():
            raise ValueError(f"run {run_id} belongs to another job")
        group, index = data.get("group"), number(data.get("group_index"))
        run, _ = BenchmarkRun.objects.update_or_create(id=run_id, defaults={
            "job": job, "service": service, "node_name": job.node.name, "service_name": service.name if service else "",
            "model": str(data.get("model") or "")[:300], "endpoint": str(data.get("endpoint") or "")[:300],
            "preset": str(data.get("preset") or "")[:40],
            "release": str(release or "")[:120], "vllm_version": str(version or "")[:80], "practice": bool(data.get("practice")),
            "short": bool(data.get("short")), "state": "running", "started_at": at,
            "group": uuid.UUID(group) if isinstance(group, str) and group else None,
            "group_index": int(index) if index is not None and 0 <= index < GROUP_MOST else 0, "sweep_key": text(data.get("sweep_key"), 64),
            "settings": {name: value for name, value in data.items() if name != "fingerprint"}, "fingerprint": fingerprint})
        for concurrency in data.get("concurrencies") or []:
            if (slots := count(concurrency)) is not None:
                BenchmarkLevel.objects.get_or_create(run=run, load="closed", value=slots, defaults={"concurrency": slots})
        for rate in data.get("rates") or []:
            if (wanted := number(rate)) is not None:
                BenchmarkLevel.objects.get_or_create(run=run, load="open", value=wanted)
        run_summaries.summarise(run)
        ids = self.job.result.setdefault("run_ids", [])
        if str(run.pk) not in ids:
            ids.append(str(run.pk))
        self.result_dirty = True

    def _level_started(self, data: dict[str, Any], at: datetime) -> None:
        self._level(data, data["run_id"], state="running", requests=count(data.get("requests")) or 0)

    def _level_finished(self, data: dict[str, Any], at: datetime) -> None:
        metrics = data["metrics"]
        columns = {name: number(metrics.get(name)) for name in LEVEL_COLUMNS}
        counts = {name: found for name in ("requests", "finished", "errors") if (found := count(metrics.get(name))) is not None}
        state = str(metrics.get("state") or "done")[:12]
        detail = metrics.get("detail") if isinstance(metrics.get("detail"), dict) else {}
        kept = {name: value for name, value in metrics.items() if name != "detail"}
        run_summaries.summarise(self._level(metrics, data["run_id"], state=state, metrics=kept, detail=detail, **columns, **counts))

    def _sweep_finished(self, data: dict[str, Any], at: datetime) -> None:
        result = data.get("result")
        result = result if isinstance(result, dict) else {}
        run = BenchmarkRun.objects.get(pk=uuid.UUID(str(data["run_id"])), job=self.job)
        state = str(result.get("state") or "done")
        run.finished_at, run.state = at, state if state in run_summaries.STATES else "failed"
        for name, form in (("settings", dict), ("fingerprint", dict), ("warnings", list)):
            if isinstance(result.get(name), form) and result[name]:
                setattr(run, name, result[name])
        run.sweep_key = text(result.get("sweep_key"), 64) or run.sweep_key
        run.tool_version = text(result.get("tool_version"), 80)
        if isinstance(result.get("short"), bool):  # by what was measured; at the start only by plan
            run.short = result["short"]
        run.save(update_fields=["finished_at", "state", "settings", "fingerprint", "warnings", "sweep_key", "tool_version", "short"])
        self._correct_levels(run, items(result.get("levels"), LEVELS_MAX))
        run_summaries.summarise(run)

    def _correct_levels(self, run: BenchmarkRun, told: list[dict[str, Any]]) -> None:
        """What a level could not say of itself when it ended: concurrency 1, which the others are held against, may have come after it."""
        known = {(level.load, level.value): level for level in run.levels.only("load", "value", "metrics")}
        for one in told:
            level = known.get((text(one.get("load"), 8) or "closed", number(one.get("value", one.get("concurrency"))) or 0.0))
            changed = {name: found for name in SET_AT_THE_END if (found := number(one.get(name))) is not None}
            if level is not None and level.metrics and any(level.metrics.get(name) != value for name, value in changed.items()):
                level.metrics |= changed
                level.save(update_fields=["metrics"])

    def _noise_floor(self, data: dict[str, Any], at: datetime) -> None:
        self.job.result["noise_floor"] = {"rows": noise_floors.store(self.job, data, at), "sweep_key": text(data.get("sweep_key"), 64),
                                          "run_ids": texts(data.get("run_ids"), 100)}
        self.result_dirty = True

    def _regression(self, data: dict[str, Any], at: datetime) -> None:
        """Without what no page shows of it: lists of jobs read this column."""
        levels = [{**level, "metrics": items(level.get("metrics"), METRICS_KEPT)} for level in items(data.get("levels"), LEVELS_KEPT)]
        told = {"baseline": data.get("baseline"), "levels": levels, "words": [one[:500] for one in texts(data.get("words"), LEVELS_KEPT)]}
        if len(json.dumps(told)) > REGRESSION_BYTES:
            raise ValueError("a regression of that size")
        self.job.result["regression"] = told
        self.result_dirty = True

    def _level(self, of: dict[str, Any], run_id: Any, **values: Any) -> BenchmarkRun:
        """The level's run. `of` says which level: load and value; before there were rates, only a concurrency."""
        run = BenchmarkRun.objects.get(pk=uuid.UUID(str(run_id)), job=self.job)
        load, concurrency = str(of.get("load") or "closed")[:8], of.get("concurrency")
        value = number(of.get("value", concurrency))
        if value is None:
            raise ValueError(f"no level: {str(of)[:80]}")
        if load == "closed":
            values["concurrency"] = count(value)
        BenchmarkLevel.objects.update_or_create(run=run, load=load, value=value, defaults=values)
        return run


def _keeps(key: str) -> Callable[[JobProjection, dict[str, Any], datetime], None]:
    def keep(projection: JobProjection, data: dict[str, Any], at: datetime) -> None:
        projection.job.result[key] = data
        projection.result_dirty = True
    return keep


_HANDLERS: dict[str, Callable[[JobProjection, dict[str, Any], datetime], None]] = {
    EventType.JOB_CLAIMED: JobProjection._claimed,
    EventType.JOB_STARTED: JobProjection._started,
    EventType.JOB_CANCELLING: JobProjection._cancelling,
    EventType.JOB_FINISHED: JobProjection._finished,
    EventType.STEP_STARTED: JobProjection._step_started,
    EventType.STEP_PROGRESS: JobProjection._step_progress,
    EventType.STEP_FINISHED: JobProjection._step_finished,
    EventType.STEP_UNDOING: JobProjection._step_undoing,
    EventType.STEP_UNDONE: JobProjection._step_undone,
    EventType.FINDING: JobProjection._finding,
    EventType.PLAN_MADE: _keeps("plan"),
    EventType.DOWNTIME_STARTED: JobProjection._downtime_started,
    EventType.DOWNTIME_ENDED: JobProjection._downtime_ended,
    EventType.WARMUP_PHASE: JobProjection._warmup_phase,
    EventType.WARMUP_DONE: JobProjection._warmup_done,
    EventType.WARMUP_TROUBLE: JobProjection._warmup_trouble,
    EventType.SMOKE_RESULT: JobProjection._smoke,
    EventType.SWEEP_STARTED: JobProjection._sweep_started,
    EventType.LEVEL_STARTED: JobProjection._level_started,
    EventType.LEVEL_FINISHED: JobProjection._level_finished,
    EventType.SWEEP_FINISHED: JobProjection._sweep_finished,
    EventType.NOISE_FLOOR: JobProjection._noise_floor,
    EventType.REGRESSION: JobProjection._regression,
    EventType.LEFTOVERS: JobProjection._leftovers,
    EventType.SETTINGS_CHANGED: JobProjection._settings_changed,
    EventType.DIAGNOSIS: _keeps("diagnosis"),
    EventType.INTEGRITY: JobProjection._integrity,
    EventType.SHELF_SAVED: JobProjection._shelf_saved,
    EventType.SHELF_FORGOTTEN: JobProjection._shelf_forgotten,
    EventType.GUARDS: JobProjection._guards,
    EventType.FINGERPRINT: JobProjection._fingerprint,
    EventType.RECIPE: _keeps("recipe"),
    EventType.ADOPTION: JobProjection._adoption,
    EventType.ARTIFACTS_FOUND: JobProjection._artifacts_found,
    EventType.ARTIFACTS_SCANNED: JobProjection._artifacts_scanned,
    EventType.PURGE_ENTRIES: JobProjection._purge_entries,
    EventType.PURGE_RESULT: JobProjection._purge_result,
    EventType.REPORT: _keeps("report"),
}
