"""The contract between a node and the console: every event that a job can say, and its JSON form.

An event is `{"job", "seq", "at", "type", "data"}`: job id (uuid4 text), sequence number within the job (1, 2, 3, ... without a
gap), wall-clock time in seconds since the epoch (float), type (one of `EventType`), and data as described beside each type.
Durations never come from `at`: they are measured with the monotonic clock and sent as data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class JobState(StrEnum):
    """States of a job (RELIABILITY: queued to lost are open, the rest is final)."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    RUNNING = "running"
    CANCELLING = "cancelling"
    LOST = "lost"
    SUCCEEDED = "succeeded"
    PARTIAL = "partial"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


FINAL_STATES = frozenset({JobState.SUCCEEDED, JobState.PARTIAL, JobState.FAILED, JobState.CANCELLED, JobState.INTERRUPTED})
LOCKING_STATES = frozenset({JobState.CLAIMED, JobState.RUNNING, JobState.CANCELLING, JobState.LOST})


class EventType(StrEnum):
    """Every event type. The comment gives its data."""

    # type, service, params, locks, fence, by, boot_id, pid, start_time (clock ticks since boot), steps: [{name, title, downtime}]
    JOB_CLAIMED = "job.claimed"
    # pid, start_time of the runner
    JOB_STARTED = "job.started"
    # by: who asked
    JOB_CANCELLING = "job.cancelling"
    # state, reason, reason_kind ("expected" | "bug" | ""), rollback ("none" | "done" | "failed"), error (OpsError.as_dict) or null,
    # duration_s, downtime_s or null
    JOB_FINISHED = "job.finished"

    # step, title, index, deadline_s or null
    STEP_STARTED = "step.started"
    # step, done, total (either may be null), unit ("files", "bytes", "requests", ...), text, estimate (true: a guess, marked so)
    STEP_PROGRESS = "step.progress"
    # step, text (complete lines with their newline, at most 64 KB), dropped_bytes (0, or what was left out after this text)
    STEP_LOG = "step.log"
    # step, outcome ("done" | "skipped" | "failed" | "cancelled" | "interrupted"), duration_s, note (one line for the step list)
    STEP_FINISHED = "step.finished"
    # step, title: an undo begins; its end is step.undone with outcome ("done" | "failed"), duration_s, note
    STEP_UNDOING = "step.undoing"
    STEP_UNDONE = "step.undone"

    # subject ("preflight" | "plan" | "verify" | ...), level ("ok" | "note" | "warning" | "stop"), title, why, fix; of preflight also part ("host" |
    # "release"), and look: the name of the look that found it (a later finding of the same part and look is another one, not its correction)
    FINDING = "finding"
    # the whole plan (ops/environments/plan.py), with "hash"
    PLAN_MADE = "plan.made"
    # service: no answer from here on; ended: seconds measured on the monotonic clock, release that answers now
    DOWNTIME_STARTED = "downtime.started"
    DOWNTIME_ENDED = "downtime.ended"
    # phase (a word of services/warmup.py PHASES), title, state ("running" | "done"), took_s or null, detail, done, total, began_s,
    # elapsed_s, estimate_s (of the whole) or null, cache, try (2, 3, ...: its manager has started it again, and all phases begin anew)
    WARMUP_PHASE = "warmup.phase"
    # total_s, phases [{phase, title, took_s, usual_s or null}], cache ("hit" | "miss" | "unknown"), release, first_answer_s, compared: {count,
    # median_s, last_s} of this service's earlier warmups with the same cache state, or null; try (which start it was that came up)
    WARMUP_DONE = "warmup.done"
    # one stall or crash of a warmup that goes on: kind ("stall" | "crash"), text (one sentence), diagnosis or null, try (1, 2, ... of a restart loop)
    WARMUP_TROUBLE = "warmup.trouble"
    # name, title, outcome ("passed" | "failed" | "left out"), summary, took_s, detail, and what was said: kind, prompt, answer, reasoning (each cut
    # at 4,000 characters, cut: bool), finish_reason
    SMOKE_RESULT = "smoke.result"
    # run_id, preset, load ("closed" | "open"), concurrencies (closed) or rates (open, requests a second), max_tokens, requests per level, model,
    # endpoint, practice (bool), short (bool), started_at, settings (SweepSettings.as_dict()), fingerprint, sweep_key; of repeats also group (id of
    # those that were measured together), group_index (its place, from 0), repeats
    SWEEP_STARTED = "sweep.started"
    # run_id, load, value (concurrency or rate), concurrency or null, requests, started_at
    LEVEL_STARTED = "sweep.level_started"
    # run_id, load, value, concurrency or null, second (int, since the level began), output_tok_s, in_flight, finished, errors, ttft_p50_ms,
    # ttft_p90_ms, ttft_p99_ms, icl_p50_ms, icl_p90_ms, icl_p99_ms, e2e_p50_s, e2e_p90_s, e2e_p99_s, e2e_mean_s (each of this level so far, or null),
    # throughput_so_far_tok_s,
    # server {running, waiting, kv_use, prefix_hit_rate, spec_acceptance: number or null each} or null, gpus [{index, power_w, utilization,
    # used_bytes}] or null, power_w or null, tokens_per_joule or null
    LEVEL_SECOND = "sweep.level_second"
    # run_id, metrics: ops/benchmark/metrics.py LevelMetrics.as_dict(), with detail
    LEVEL_FINISHED = "sweep.level_finished"
    # run_id, result: ops/benchmark/results.py SweepResult.as_dict(), its levels without detail
    SWEEP_FINISHED = "sweep.finished"
    # service, sweep_key, stack (fingerprint hash), run_ids, floors [{load, value, metric, half_width (share), runs}]: the A/A noise floor,
    # measured anew
    NOISE_FLOOR = "noise.floor"
    # this sweep against the service's baseline (ops/benchmark/comparing/regression.py), as it was when the job began: baseline {run_ids, label,
    # release, interleaved: false}, run_ids, levels [{load, value, label, comparable, why (not comparable), metrics [{metric, title, ratio, low, high,
    # floor, floor_from ("measured" | "default"), word, holds (after Holm's correction; or null), more_runs}], errors (words)}],
    # outside (how many metrics lie outside), words [sentence]
    REGRESSION = "regression"
    # what a stop left behind: processes [{pid, start_ticks or null (gone), started_at, user, unit, command, gpus [{index, used_bytes}], own (it
    # belonged to the service: it may be ended by the job `end-leftovers`), why (what proves that, or whose it is), service (another one that it is
    # of) or null}], gpus [{index, used_bytes, allowed_bytes, problem}] that are not free, ports [{port, pid or null, command, own}],
    # shm [{path, size_bytes}], ipc [{path, what}], problems [what could not be looked at], running (it runs: its own run is not in here), at, service
    LEFTOVERS = "leftovers"
    # launch settings were changed: flags {before, after}, env [{name, change ("set" | "changed" | "removed"), secret (bool), before, after: "" if
    # secret}], files (written), applies ("at the next start")
    SETTINGS_CHANGED = "settings.changed"
    # what ops/services/diagnosis.py Diagnosis.as_dict() gives
    DIAGNOSIS = "diagnosis"
    # what ops/environments/integrity.py IntegrityReport.as_dict() gives, with release, started_at (of the service's process) or null, newer (paths
    # changed after that: not what is running); changed and extra files with diff, diff_lines, added, removed, debris where they can be shown
    INTEGRITY = "integrity"
    # one file put on the patch shelf: folder (name below services/<name>/shelf/), path (relative to the environment), package, version, release,
    # change ("changed" | "extra" | "missing"), size_bytes, sha256, pristine_sha256 or null, diff (text, cut at 256 KB) or null, diff_cut (bool),
    # debris [{line, text, what}] (ops/environments/debris.py), note, where (absolute path of the copy on the node)
    SHELF_SAVED = "shelf.saved"
    # folder, path: the copy and its diff are gone from the node
    SHELF_FORGOTTEN = "shelf.forgotten"
    # results [GuardResult.as_dict()], applied [{file, backup, diff}] (what "apply" edited; usually empty)
    GUARDS = "guards"
    # moment ("before" | "good-start" | "end"), fingerprint (ops/environments/fingerprint.py), changed (words, against the last good start), since
    FINGERPRINT = "fingerprint"
    # recipe (ops/environments/recipe.py), name (of its file)
    RECIPE = "recipe"
    # what ops/services/adoption.py Adoption.as_dict() gives (the record with secrets hidden, findings, drop_in {path, text, hidden: a secret was left
    # out}, node_toml), cut to what a page can show, with asked (unit, name, environment, in_place, manager), hash (of the whole record and the
    # drop-in, keyed by the node) and stored (the record's path, once it is a service) or null
    ADOPTION = "adoption"
    # a part of what a scan found: scan (id: the job's), artifacts (ops/artifacts/found.py Artifact.as_dict(), at most 500; of each kind its largest)
    ARTIFACTS_FOUND = "artifacts.found"
    # the whole of a scan: scan, at, took_s, preview {path, digest (sha256), size_bytes} on the node, places [{path, what, files, size_bytes,
    # problem}], kinds [{kind, title, one, unit, leftover, keeping, offered_by_default, with_redeploy, own, offered, optional, kept: {count, files,
    # size_bytes, oldest_ns, newest_ns} each, listed (how many artifacts.found told), why_kept [{why, count, size_bytes}]}], gauges [{path, what,
    # total_bytes, used_bytes, free_bytes, inodes, inodes_free}], largest [{path, size_bytes, files}] folders, files (all that were looked at),
    # size_bytes, problems [sentence], offered_bytes, choosable_bytes, open_checked (false: not all processes could be looked into; problems says so)
    ARTIFACTS_SCANNED = "artifacts.scanned"
    # a part of a purge's manifest: scan, entries (ops/artifacts/found.py Entry.as_dict(), at most 1000)
    PURGE_ENTRIES = "purge.entries"
    # the whole of a purge: scan, chosen {count, files, size_bytes}, deleted {count, files, size_bytes}, kept {count}, kinds [{kind, title, one,
    # chosen, deleted, kept, freed_bytes}], why_kept [{why, count, example}], freed_bytes, manifest {path (on the node), entries, told (in
    # purge.entries)}, took_s, cancelled (bool), gauges (as in artifacts.scanned, looked at afterwards), problems [sentence] about the manifest
    PURGE_RESULT = "purge.result"
    # the four-part report (ops/report.py), as data and as "markdown"
    REPORT = "report"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that a job said."""

    job: str
    seq: int
    at: float
    type: str
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """One line of JSON, without a newline."""
        return json.dumps(
            {"job": self.job, "seq": self.seq, "at": self.at, "type": self.type, "data": self.data},
            separators=(",", ":"), ensure_ascii=False,
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> Event:
        """Raises ValueError on anything that is not an event."""
        try:
            raw = json.loads(text)
        except RecursionError as error:
            raise ValueError("not an event: it is nested too deep") from error
        try:
            return cls(job=str(raw["job"]), seq=int(raw["seq"]), at=float(raw["at"]), type=str(raw["type"]), data=dict(raw["data"]))
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not an event: {error!r}") from error
