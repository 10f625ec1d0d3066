"""A console full of what happens: a practice node, its service, and jobs in every state, told by the very events that a node sends.

Events go through the real recorder, so that pages are tested on the rows that it really writes. Numbers are the story's.
"""

from __future__ import annotations

import gzip
import hashlib
import time
import uuid
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Max
from django.utils import timezone

from dashboard import baselines, practice_reference, recorder, run_summaries
from dashboard.models import ArtifactKind, BenchmarkLevel, BenchmarkRun, Channel, ImportedFile, Job, Node, Service
from ops import records, report
from ops.artifacts.found import Choice
from ops.benchmark.comparing import regression
from ops.jobs.events import Event, EventType
from ops.services.warmup import PHASES
from tests.dashboard.pages import cleanup_data, run_data
from tests.dashboard.pages import environment_data as said
from tests.dashboard.pages import service_data as ran

GIB = 2**30
OLD, NEW, BUILT = said.OLD, said.NEW, said.BUILT
LEVELS = {1: (61.0, 8.4, 8.4, None, 210.0), 8: (277.0, 14.8, 14.7, 15.3, 340.0), 32: (690.0, 23.7, 23.6, 24.6, 710.0),
          128: (1239.0, 52.8, 52.6, 54.6, 1940.0)}
TOOK = {"start": 46.0, "load": 439.0, "compile": 112.0, "kv_cache": 26.0, "autotune": 9.0, "capture": 134.0, "listening": 3.0, "healthy": 3.0}
STEPS = (("plan", "Plan", False), ("preflight", "Preflight", False), ("build", "Build", False), ("verify", "Verify", False),
         ("shelf", "Keep patches", False),
         ("stop", "Stop", True), ("gpus-free", "GPUs free", True), ("switch", "Switch", True), ("start", "Start", True), ("warmup", "Warmup", True),
         ("smoke", "Smoke tests", False), ("sweep", "Sweep", False), ("purge", "Purge", False), ("report", "Report", False))
DURATIONS = {"plan": 11.2, "preflight": 4.1, "build": 161.0, "verify": 39.0, "shelf": 2.2, "stop": 9.1, "gpus-free": 3.0, "switch": 0.2, "start": 2.0,
             "warmup": 772.0, "smoke": 23.0, "sweep": 1555.0, "purge": 2.0, "report": 0.4}
NOTES = {"plan": "11 packages change", "preflight": "9 checked", "build": NEW, "verify": "8,412 files match RECORD", "shelf": "4 files saved",
         "stop": "pid 20411 ended",
         "gpus-free": "8 GPUs at 0 MiB", "switch": NEW, "start": "pid 20533", "warmup": "healthy after 12:52 min", "smoke": "4 of 4 passed",
         "sweep": "up to 1,239 tok/s", "purge": "35 files, 65 MB freed"}
DIFF = """--- a/{path}
+++ b/{path}
@@ -118,7 +118,9 @@ class DeepseekV2MoE(nn.Module):
         hidden_states = hidden_states.view(-1, hidden_dim)
         router_logits, _ = self.gate(hidden_states)
-        final_hidden_states = self.experts(hidden_states=hidden_states, router_logits=router_logits) * self.routed_scaling_factor
+        if self.layer_idx < 3:
+            torch.save(hidden_states, f"/tmp/debug_tensor_{{self.layer_idx}}.pt")
+        final_hidden_states = self.experts(hidden_states=hidden_states, router_logits=router_logits)
         return final_hidden_states.view(num_tokens, hidden_dim)
"""


def _patched(name: str, size: int, added: int, removed: int) -> dict[str, Any]:
    path = f"lib/python3.12/site-packages/vllm/model_executor/{name}"
    return {"package": "vllm", "path": path, "change": "changed", "sha256": "a" * 64, "size_bytes": size, "note": "", "added": added,
            "removed": removed, "diff": DIFF.format(path=path), "diff_lines": 10 if added < 30 else 60}


PATCHED = [_patched("models/deepseek_v2.py", 81234, 38, 2), _patched("model_loader/gguf_loader.py", 12210, 11, 4),
           _patched("model_loader/weight_utils.py", 40110, 6, 1),
           {k: v for k, v in _patched("config.py", 9120, 3, 3).items() if k not in ("diff", "diff_lines", "added", "removed")}]
GUARDS = [{"guard": {"kind": "key_absent", "file": file, "key": key, "value": None}, "holds": True, "explains": f"`{key}` is not in `{file}`",
           "path": f"/data/models/Kimi-K2.5-NVFP4/{file}", "sha256": "b" * 64, "fix": "", "found": None}
          for file, key in (("config.json", "kv_cache_scheme"), ("hf_quant_config.json", "kv_cache_quant_algo"))]
VERSIONS = {"vllm": "0.16.0rc2.dev313+practice", "flashinfer-python": "0.6.3+practice", "flashinfer-cubin": "0.6.3+practice",
            "torch": "2.9.1+practice"}
MISMATCH = {"level": "stop", "packages": {"flashinfer-python": "0.6.4+practice", "flashinfer-cubin": "0.6.3+practice"},
            "title": "Packages do not agree: `flashinfer-python` is 0.6.4+practice, `flashinfer-cubin` is 0.6.3+practice",
            "why": "`import flashinfer` raises RuntimeError: flashinfer-cubin must have exactly the version of flashinfer-python, so the service "
                   "cannot start",
            "fix": "Install `flashinfer-cubin==0.6.4`, then start the service again", "action": {"do": "install", "package": "flashinfer-cubin",
                                                                                                 "version": "0.6.4"}}
DECISIVE = ("RuntimeError: flashinfer-cubin version (0.6.3) does not match flashinfer version (0.6.4). "
            "Please install the same version of both packages.")
RECORD = {
    "name": "kimi-k25", "root": "/srv/roundhouse/node/services/kimi-k25", "model_path": "/data/models/Kimi-K2.5-NVFP4",
    "served_model_name": "kimi-k2.5",
    "base_url": "http://127.0.0.1:8000", "flags": ["--tensor-parallel-size", "8", "--gpu-memory-utilization", "0.92", "--max-model-len", "131072",
                                                   "--reasoning-parser", "kimi_k2", "--tool-call-parser", "kimi_k2"],
    "gpus": list(range(8)), "guards": [g["guard"] for g in GUARDS], "artifact_roots": ["/srv/roundhouse/practice/tmp"], "target_tok_s": [40, 50],
    "practice": True,
}
CHANNEL = {"name": "practice", "kind": "wheelhouse", "wheelhouse": "/srv/roundhouse/practice/wheels", "practice": True}


def packages() -> list[dict[str, Any]]:
    changed = [("vllm", "0.16.0rc2.dev313+practice", "0.16.0rc2.dev344+practice", "asked for"), ("flashinfer-python", "0.6.3+practice",
                                                                                                 "0.6.4+practice", "vllm needs it"),
               ("flashinfer-cubin", "0.6.3+practice", "0.6.4+practice", "coupled with flashinfer-python, added by Roundhouse"),
               ("transformers", "4.57.3+practice", "4.57.6+practice", "vllm needs it"), ("xgrammar", None, "0.1.30+practice", "vllm needs it")]
    rows = [{"name": n, "old": o, "new": v, "change": "changed" if o else "added", "why": w, "file": f"{n}.whl", "sha256": "c" * 64,
             "size_bytes": 5_000_000}
            for n, o, v, w in changed]
    same = ("numpy", "pydantic", "fastapi", "openai", "httpx", "uvicorn", "safetensors", "tokenizers")
    return rows + [{"name": n, "old": "1.2.3+practice", "new": "1.2.3+practice", "change": "same", "why": "vllm needs it", "file": f"{n}.whl",
                    "sha256": "d" * 64,
                    "size_bytes": 1_000_000} for n in same] + [
        {"name": "torch", "old": "2.9.1+practice", "new": "2.9.1+practice", "change": "same", "why": "vllm needs it", "file": "torch.whl",
         "sha256": "d" * 64, "size_bytes": None}]


def plan(*, coupling: bool = True) -> dict[str, Any]:
    rows = packages()
    findings = [
        {"level": "warning", "title": "4 files differ from what was installed, in `vllm`",
         "why": "The new release is built from pristine wheels: these edits will not be in it",
         "fix": "They are saved to the patch shelf before the switch", "about": "patched_files"},
        {"level": "note", "title": "Both guards hold", "why": "", "fix": ""}]
    if not coupling:
        rows[2] = {**rows[2], "new": rows[2]["old"], "change": "same", "why": "nothing asks for another one"}
        findings.insert(0, {"level": "warning", "title": MISMATCH["title"],
                            "why": f"Coupling is off. {MISMATCH['why']}. The new release will crash at its start, and the job "
                            "will go back to the last good one", "fix": "Make the plan with coupled packages completed"})
    return {"service": "kimi-k25", "channel": "practice", "requirements": ["vllm"], "version": "0.16.0rc2.dev344+practice", "wanted_version": None,
            "coupling": coupling,
            "options": {}, "python": {"path": "/usr/bin/python3.12", "version": "3.12.1"}, "release": NEW, "created_at": time.time(), "current": OLD,
            "practice": True,
            "packages": rows, "findings": findings, "patched_files": PATCHED, "guards": GUARDS, "cleanup": cleanup_data.of_plan(),
            "disk": {"path": "/srv", "needed_bytes": 11_400_000_000, "free_bytes": 412_000_000_000, "estimate": False}, "input_state": "e" * 64,
            "hash": "f" * 64,
            "estimate": {"warmup_s": None, "warmups": 0}}


def gpus(*, used_gib: float = 88.4, utilization: float = 91.0, stray: bool = False, source: str = "practice") -> dict[str, Any]:
    rows = []
    for n in range(8):
        held = round((used_gib - 0.1 * (n % 2)) * GIB)
        processes = [{"pid": 20660 + n, "used_bytes": held, "user": "llm", "command": "VLLM::Worker", "service": "kimi-k25",
                      "started_at": None}] if held else []
        if stray and n == 7:
            processes.append({"pid": 41877, "used_bytes": round(0.9 * GIB), "user": "llm", "command": "python3 notebook.py", "service": None,
                              "started_at": None})
        rows.append({"index": n, "uuid": f"GPU-{n}", "name": "NVIDIA RTX PRO 6000 Blackwell 96 GB", "total_bytes": round(95.6 * GIB),
                     "used_bytes": sum(p["used_bytes"] for p in processes), "utilization": utilization + n % 3, "temperature_c": 60 + n % 5,
                     "power_w": 421.0 + 2 * n,
                     "power_limit_w": 600.0, "pcie_gen": 5, "pcie_width": 4 if stray and n == 3 else 16, "pcie_max_width": 16,
                     "compute_capability": "12.0",
                     "throttle": [], "error": None, "processes": processes})
    return {"gpus": rows, "driver": "580.95.05", "cuda": "13.0", "source": source, "problem": None}


class Story:
    """Makes rows. `say` gives a job its next event; nothing is stored before `tell` (called by the methods that make whole jobs)."""

    def __init__(self) -> None:
        self.number = 120
        self.user = User.objects.filter(username="admin").first() or User.objects.create_superuser("admin", password="correct horse battery")
        self.events: list[Event] = []
        self.seq: dict[str, int] = {}
        self.at = time.time()

    # ---- node and service ----

    def node(self, *, silent: bool = False, **readings: Any) -> Node:
        snapshot = gpus(**readings)
        seen = timezone.now() - timedelta(minutes=7) if silent else timezone.now()
        self.the_node, _ = Node.objects.update_or_create(name="practice", defaults={
            "practice": True, "announced_at": seen, "seen_at": seen,
            "facts": {"driver": snapshot["driver"], "cuda": "13.0",
                      "gpus": [{"index": g["index"], "name": g["name"], "total_bytes": g["total_bytes"]} for g in snapshot["gpus"]],
                      "kernel": "6.8.0-45-generic", "python": "3.12.1", "roundhouse": "0.1.0", "problem": None},
            "telemetry": {"node": "practice", "at": seen.timestamp(), "gpus": snapshot, "services": {}, "disks": cleanup_data.gauges(),
                          "disk": {"path": "/srv", "total_bytes": 2 * 10**12, "used_bytes": 10**12,
                                                                                                                   "free_bytes": 10**12}}})
        return self.the_node

    def service(self, *, state: str = "healthy", mismatch: bool = False, detail: str = "", release: str = OLD, patched: bool = True) -> Service:
        versions = {**VERSIONS, **({"flashinfer-python": "0.6.4+practice"} if mismatch else {})}
        self.the_service, _ = Service.objects.update_or_create(node=self.the_node, name="kimi-k25", defaults={
            "record": records.ServiceRecord.from_dict(RECORD).as_dict(), "state": state, "practice": True, "changed_at": timezone.now(),
            "status": {"state": state, "pid": 20533 if state in ("healthy", "starting") else None, "start_ticks": 1, "started_at": time.time() - 7200,
                       "release": release,
                       "exit_code": 1 if state == "failed" else None, "log_path": "/srv/roundhouse/node/services/kimi-k25/logs/serve.log",
                       "detail": detail},
            "packages": {"versions": versions, "coupling": [MISMATCH] if mismatch else [], "release": release, "guards": GUARDS,
                         "patched": {"files": PATCHED if patched else [], "checked_at": time.time() - 900}}})
        self.the_channel, _ = Channel.objects.update_or_create(name="practice", defaults={"record": records.Channel.from_dict(CHANNEL).as_dict(),
                                                                                          "practice": True, "announced": True})
        return self.the_service

    def environment(self, *, release: str = OLD, mismatch: bool = False, broken: bool = False, changed: bool = False,
                    guards_hold: bool = True) -> Service:
        """What the node announces beside the versions: packages with findings, releases, what changed, guards, the model folder."""
        guards = said.guards(holding=guards_hold)
        record = {**self.the_service.record, "guards": [g["guard"] for g in guards]}
        Service.objects.filter(pk=self.the_service.pk).update(
            record=record, environment=said.environment(release=release, mismatch=mismatch, broken=broken), releases=said.releases(release),
            changed={"since": time.time() - 86400, "words": said.WORDS, "differences": None} if changed else None, model=said.MODEL if broken else [],
            packages={**self.the_service.packages, "guards": guards})
        self.the_service.refresh_from_db()
        return self.the_service

    def real_node(self) -> Node:
        """A node that is no practice box, with nothing on it yet."""
        self.real, _ = Node.objects.update_or_create(name="gpu01", defaults={
            "practice": False, "announced_at": timezone.now(), "seen_at": timezone.now(), "facts": {}, "telemetry": {}})
        return self.real

    def adoption_job(self, type: str = "adopt", *, ago_s: float = 60.0, error: dict[str, Any] | None = None, told: dict[str, Any] | None = None,
                     **shape: bool) -> Job:
        """A unit of the real node that was read, or adopted; `error`: it came to nothing."""
        found = told or said.adoption(**shape)
        step = ("read", "Read the unit", False) if type == "adopt" else ("adopt", "Adopt", False)
        params = {**found["asked"], **({"hash": found["hash"], "record": found["record"]} if type != "adopt" else {})}
        job = self.job(type, ago_s=ago_s, params=params, steps=(step,), of=self.real)
        if error is not None:
            self.step(job, step[0], outcome="failed", note=error["what"], took=0.1)
            return self.end(job, "failed", reason=error["what"], error=error, duration_s=0.2)
        self.step(job, step[0], end=False)
        self.say(job, EventType.ADOPTION, **found)
        self.finish_step(job, step[0], note="it can become service `glm-5`", took=0.1)
        return self.end(job, duration_s=0.3)

    # ---- jobs ----

    def job(self, type: str, *, ago_s: float = 0.0, params: dict[str, Any] | None = None, claimed: bool = True,
            steps: Any = (), state: str | None = None, of: Node | None = None) -> Job:
        self.number = max(self.number, Job.objects.aggregate(last=Max("number"))["last"] or 0) + 1
        job = Job.objects.create(number=self.number, type=type, node=of or self.the_node, service=None if of else self.the_service,
                                 params=params or {}, by=self.user, practice=of is None or of.practice,
                                 envelope={"snapshot": {"channel": CHANNEL}})
        self.at = time.time() - ago_s
        Job.objects.filter(pk=job.pk).update(created_at=datetime.fromtimestamp(self.at, UTC))
        self.seq[str(job.pk)] = 0
        if claimed:
            self.say(job, EventType.JOB_CLAIMED, type=type, service=None if of else "kimi-k25", params=job.params, locks=[], fence={}, by="admin",
                     boot_id="b", pid=1, start_time=1,
                     steps=[{"name": n, "title": t, "downtime": d} for n, t, d in steps])
            self.say(job, EventType.JOB_STARTED, pid=2, start_time=2)
        return job

    def say(self, job: Job, event_type: str, /, **data: Any) -> None:
        key = str(job.pk)
        self.seq[key] += 1
        self.events.append(Event(job=key, seq=self.seq[key], at=self.at, type=event_type, data=data))

    def tell(self, job: Job) -> Job:
        told, self.events = self.events, []
        done = recorder.record(told)
        assert not done.unknown
        job.refresh_from_db()
        assert job.last_seq == self.seq[str(job.pk)]
        return job

    def step(self, job: Job, name: str, *, outcome: str = "done", note: str | None = None, log: str = "", index: int = 0, end: bool = True,
             took: float | None = None) -> None:
        title = next((t for n, t, _ in STEPS if n == name), {"read": "Read the unit"}.get(name, name.capitalize()))
        self.say(job, EventType.STEP_STARTED, step=name, title=title, index=next((i for i, (n, _, _) in enumerate(STEPS) if n == name), index),
                 deadline_s=600)
        if log:
            self.say(job, EventType.STEP_LOG, step=name, text=log, dropped_bytes=0)
        if end:
            length = DURATIONS.get(name, 3.0) if took is None else took
            self.at += length
            self.finish_step(job, name, outcome=outcome, note=note, took=length)

    def finish_step(self, job: Job, name: str, *, outcome: str = "done", note: str | None = None, took: float = 1.0) -> None:
        self.say(job, EventType.STEP_FINISHED, step=name, outcome=outcome, duration_s=took, note=NOTES.get(name, "") if note is None else note)

    def end(self, job: Job, state: str = "succeeded", *, reason: str = "", rollback: str = "none", error: Any = None, duration_s: float = 60.0,
            downtime_s: float | None = None) -> Job:
        self.say(job, EventType.JOB_FINISHED, state=state, reason=reason, reason_kind="expected" if reason else "", rollback=rollback, error=error,
                 duration_s=duration_s,
                 downtime_s=downtime_s)
        return self.tell(job)

    def plan_job(self, *, ago_s: float = 120.0, coupling: bool = True, end: bool = True) -> Job:
        job = self.job("plan", ago_s=ago_s, params={"channel": "practice", "version": None, "coupling": coupling}, steps=STEPS[:2])
        made = plan(coupling=coupling)
        self.step(job, "plan", log="uv pip compile --no-config --offline --find-links wheels\nResolved 14 packages in 31ms\n", end=False)
        if not end:
            self.say(job, EventType.STEP_PROGRESS, step="plan", done=3100, total=8412, unit="files", text="looking for patched files", estimate=False)
            return self.tell(job)
        self.say(job, EventType.PLAN_MADE, **made)
        for found in made["findings"]:
            self.say(job, EventType.FINDING, subject="plan", **found)
        self.at += 11
        self.finish_step(job, "plan", note="5 of 14 packages change")
        self.say(job, EventType.STEP_STARTED, step="preflight", title="Preflight", index=1, deadline_s=300)
        for level, title, why in (("ok", "The service answers", ""), ("ok", "8 of 8 GPUs can be read", ""), ("note", "`trust_remote_code` is not set",
                                                                                                             "The model needs none")):
            self.say(job, EventType.FINDING, subject="preflight", level=level, title=title, why=why, fix="")
        self.finish_step(job, "preflight", took=4.0)
        return self.end(job, duration_s=15.3)

    def shaped_plan(self, *, ago_s: float = 100.0, mode: str = "full", in_place: bool = False, way_back: bool = True,
                    download_bytes: int | None = 6_210_000_000) -> Job:
        """A finished plan that restores, or one in place, with or without a way back."""
        job = self.job("plan", ago_s=ago_s, params={"channel": "practice", "version": None, "coupling": True, "mode": mode}, steps=STEPS[:2])
        made = plan()
        if mode == "restore":
            made["packages"] = [{**p, "new": p["old"], "change": "same"} for p in made["packages"] if p["old"]]
        backup = f"/opt/llm/venv.roundhouse-{NEW}"
        made |= {"mode": mode, "in_place": in_place, "ways": said.WAYS, "restore": ["vllm"] if mode == "restore" else [], "edited": ["vllm"],
                 "download_bytes": download_bytes,
                 "rollback": {"possible": way_back, "why": "" if way_back else "`/opt` has 3.1 GB free, a copy of `/opt/llm/venv` needs 11.4 GB",
                              "backup": backup if in_place and way_back else None, "backup_bytes": 11_400_000_000 if in_place and way_back else None}}
        self.step(job, "plan", log="Resolved 14 packages in 31ms\n", end=False)
        self.say(job, EventType.PLAN_MADE, **made)
        for found in made["findings"]:
            self.say(job, EventType.FINDING, subject="plan", **found)
        self.finish_step(job, "plan", note="planned")
        return self.end(job, duration_s=12.0)

    def impossible_plan(self) -> Job:
        """A plan whose resolver found no solution."""
        job = self.job("plan", ago_s=90, params={"channel": "practice", "version": "0.17.1", "coupling": True, "mode": "full"}, steps=STEPS[:2])
        self.step(job, "plan", outcome="failed", note=said.CONFLICT["what"], log="  × No solution found when resolving dependencies:\n", took=2.0)
        return self.end(job, "failed", reason=str(said.CONFLICT["what"]), error=said.CONFLICT, duration_s=2.2)

    def put_on_shelf(self, job: Job, *, folder: str = f"20260302-102140-{OLD}") -> None:
        """The four edits, one of them without a difference."""
        for file in PATCHED:
            self.say(job, EventType.SHELF_SAVED, folder=folder, path=file["path"], package="vllm", version="0.16.0rc2.dev313+practice", release=OLD,
                     change="changed", size_bytes=file["size_bytes"], sha256=file["sha256"], pristine_sha256="b" * 64, diff=file.get("diff"),
                     diff_cut=False, debris=said.DEBRIS if "deepseek" in file["path"] else [],
                     note="" if file.get("diff") else "The wheel that it came from is not at hand",
                     where=f"/srv/roundhouse/node/services/kimi-k25/shelf/{folder}/files/{file['path']}")

    def checked(self, *, ago_s: float = 600.0, clean: bool = False) -> Job:
        """An integrity check that found edits: one made after the service began, one file missing, one extra."""
        job = self.job("integrity", ago_s=ago_s, steps=(("integrity", "Integrity", False),))
        self.say(job, EventType.STEP_STARTED, step="integrity", title="Integrity", index=0, deadline_s=900)
        now = time.time()
        changed = [] if clean else [{**file, "mtime": now - 300 if n == 0 else now - 90000} for n, file in enumerate(PATCHED)]
        site = "lib/python3.12/site-packages"
        self.say(job, EventType.INTEGRITY, path="/srv", distributions=58, files=18412, bytes=8_300_000_000, unhashed=14, clean=clean, digest="x",
                 changed=changed, more={}, release=(self.the_service.status or {}).get("release"),
                 missing=[] if clean else [{"package": "numba", "path": f"{site}/numba/core/typing/asnumbatype.py", "change": "missing",
                                            "sha256": None, "size_bytes": None, "note": "", "mtime": None}],
                 extra=[] if clean else [{"package": "", "path": f"{site}/zz_debug.pth", "change": "extra", "sha256": "9" * 64, "size_bytes": 41,
                                          "note": "a `.pth` file: Python runs it at every start", "mtime": now - 90000}],
                 problems=[] if clean else ["`notes-0.1.dist-info` has no RECORD, so its files cannot be held against anything"])
        self.finish_step(job, "integrity", note="all files match" if clean else "4 changed, 1 missing, 1 extra of 18,412 files", took=2.4)
        return self.end(job, duration_s=2.6)

    def good_fingerprint(self, job: Job) -> None:
        self.say(job, EventType.FINGERPRINT, moment="good-start", changed=said.WORDS, since=time.time() - 86400,
                 fingerprint={**self.fingerprint(NEW), "python": "3.12.1", "hash": "0123456789abcdef" * 4})

    def environment_jobs(self) -> dict[str, Job]:
        """One finished job of every kind that has to do with releases, guards, patches and recipes."""
        made: dict[str, Job] = {}
        job = self.job("build", ago_s=3000, params={"channel": "practice", "mode": "full"}, steps=STEPS[:5])
        self.before_stop(job)
        self.put_on_shelf(job)
        self.say(job, EventType.FINDING, subject="verify", level="warning", title=said.CAME_BACK, why="", fix="")
        made["build"] = self.end(job, duration_s=220.0)
        job = self.job("rollback", ago_s=2400, params={"release": OLD, "smoke": True}, steps=(STEPS[1], *STEPS[4:11], STEPS[13]))
        for name in ("preflight", "shelf"):
            self.step(job, name)
        self.put_on_shelf(job, folder=f"20260302-120000-{OLD}")
        self.down(job)
        self.warmup(job)
        self.say(job, EventType.DOWNTIME_ENDED, service="kimi-k25", seconds=761.0, release=OLD)
        self.finish_step(job, "warmup", took=755.0)
        self.say(job, EventType.STEP_STARTED, step="smoke", title="Smoke tests", index=10, deadline_s=900)
        self.smoke(job)
        self.finish_step(job, "smoke", took=20.0)
        self.good_fingerprint(job)
        self.say(job, EventType.STEP_STARTED, step="report", title="Report", index=13, deadline_s=60)
        self.say(job, EventType.REPORT, **self.report(None, finished=True, before=NEW, after=OLD))
        self.finish_step(job, "report", note="", took=0.4)
        made["rollback"] = self.end(job, duration_s=800.0, downtime_s=761.0)
        job = self.job("remove-release", ago_s=1500, params={"release": BUILT}, steps=(("remove", "Remove", False),))
        self.step(job, "remove", note="11.4 GB freed", log=f"removing {BUILT}\n")
        made["remove-release"] = self.end(job, duration_s=4.0)
        job = self.job("guards-apply", ago_s=1400, params={"guards": None}, steps=(("guards", "Guards", False),))
        self.say(job, EventType.STEP_STARTED, step="guards", title="Guards", index=0, deadline_s=300)
        self.say(job, EventType.GUARDS, results=said.guards(holding=True), applied=said.APPLIED)
        self.finish_step(job, "guards", note="1 file edited, 3 of 3 hold", took=0.3)
        made["guards-apply"] = self.end(job, duration_s=0.5)
        job = self.job("guards-set", ago_s=1350, params={"guards": [*RECORD["guards"], {"preset": "complete"}], "before": RECORD["guards"]},
                       steps=(("guards", "Set guards", False),))
        self.say(job, EventType.STEP_STARTED, step="guards", title="Set guards", index=0, deadline_s=300)
        self.say(job, EventType.GUARDS, results=said.guards(holding=True), applied=[])
        self.finish_step(job, "guards", note="3 guards (2 before), all hold", took=0.3)
        made["guards-set"] = self.end(job, duration_s=0.5)
        job = self.job("shelf-forget", ago_s=1300, params={"entries": [{"folder": f"20260302-120000-{OLD}", "path": PATCHED[3]["path"]}]},
                       steps=(("forget", "Forget", False),))
        self.say(job, EventType.SHELF_FORGOTTEN, folder=f"20260302-120000-{OLD}", path=PATCHED[3]["path"])
        self.step(job, "forget", note="1 patch forgotten", log="forgotten\n")
        made["shelf-forget"] = self.end(job, duration_s=0.2)
        job = self.job("recipe", ago_s=1200, params={"label": "all 8 GPUs, long context"}, steps=(("recipe", "Recipe", False),))
        self.say(job, EventType.STEP_STARTED, step="recipe", title="Recipe", index=0, deadline_s=300)
        self.say(job, EventType.RECIPE, **said.RECIPE)
        self.finish_step(job, "recipe", note="58 packages", took=0.8)
        made["recipe"] = self.end(job, duration_s=1.0)
        return made

    def before_stop(self, job: Job, *, coupling: bool = True) -> dict[str, Any]:
        made = plan(coupling=coupling)
        self.say(job, EventType.STEP_STARTED, step="plan", title="Plan", index=0, deadline_s=600)
        self.say(job, EventType.PLAN_MADE, **made)
        self.finish_step(job, "plan", took=DURATIONS["plan"])
        self.at += 11
        for name in ("preflight", "build", "verify", "shelf"):
            self.step(job, name, log=build_log() if name == "build" else f"{name}\n")
        return made

    def down(self, job: Job) -> None:
        self.say(job, EventType.STEP_STARTED, step="stop", title="Stop", index=5, deadline_s=900)
        self.say(job, EventType.DOWNTIME_STARTED, service="kimi-k25")
        self.at += 9
        self.finish_step(job, "stop", took=9.1)
        for name in ("gpus-free", "switch", "start"):
            self.step(job, name)

    def phase(self, job: Job, name: str, state: str, **more: Any) -> None:
        self.say(job, EventType.WARMUP_PHASE, phase=name, title=dict(PHASES)[name], state=state, took_s=TOOK[name] if state == "done" else None,
                 detail=more.get("detail", ""), done=more.get("done"), total=more.get("total"))

    def warmup(self, job: Job, *, until: str = "") -> None:
        """All phases done, or up to a phase that still runs."""
        self.say(job, EventType.STEP_STARTED, step="warmup", title="Warmup", index=9, deadline_s=7200)
        self.say(job, EventType.STEP_LOG, step="warmup", text=warmup_log(), dropped_bytes=0)
        for name, _ in PHASES:
            detail = {"start": "8 workers, TP 8", "load": "119 of 119 shards, 71.84 GiB a GPU",
                      "compile": "Dynamo done in 14.3 s; compiling range 1–8192"}.get(name, "")
            if name == until:
                self.phase(job, name, "running", detail=detail, done=50, total=61)
                return
            self.phase(job, name, "running", detail=detail)
            self.at += TOOK[name]
            self.phase(job, name, "done", detail=detail)
        self.say(job, EventType.WARMUP_DONE, total_s=772.0, cache="miss", release=NEW, first_answer_s=0.4,
                 phases=[{"phase": n, "title": t, "took_s": TOOK[n]} for n, t in PHASES])

    def smoke(self, job: Job, *, failing: bool = False) -> None:
        rows = (("fact", "Factual question", "“…the capital of Australia is Canberra.”", 3.1), ("code", "Code generation",
                                                                                                "parses as Python; `is_prime(97)` is True", 8.2),
                ("reasoning", "Reasoning present", "214 reasoning tokens, then 88 of content", 5.0),
                ("tool", "Tool call", "`get_weather({\"city\": \"Paris\"})`, well formed", 4.4))
        for name, title, summary, took in rows:
            bad = failing and name == "tool"
            self.say(job, EventType.SMOKE_RESULT, name=name, title=title, outcome="failed" if bad else "passed", took_s=took, detail="",
                     summary="the answer has no tool call; `finish_reason` is stop" if bad else summary)

    def fingerprint(self, release: str) -> dict[str, Any]:
        return {"release": release, "packages": {**VERSIONS, "vllm": "0.16.0rc2.dev344+practice" if release == NEW else VERSIONS["vllm"]},
                "gpus": {"source": "practice", "driver": "580.95.05", "cuda": "13.0", "count": 8, "names": ["NVIDIA RTX PRO 6000 Blackwell 96 GB"],
                         "power_limit_w": [600.0] * 8}, "flags": RECORD["flags"], "host": {"kernel": "6.8.0-45-generic", "cpus": 64}}

    def sweep(self, job: Job, *, until: int | None = None, seconds: int = 40, scale: float = 1.0, release: str = NEW) -> str:
        """A sweep with all levels, or one that is `seconds` into level `until`."""
        run_id = str(uuid.uuid4())
        asked = {1: 30, 8: 100, 32: 160, 128: 640}
        self.say(job, EventType.SWEEP_STARTED, run_id=run_id, preset="story", concurrencies=list(LEVELS), requests=list(asked.values()),
                 max_tokens=512, model="kimi-k2.5",
                 endpoint="http://127.0.0.1:8000", practice=True, short=False, started_at=self.at, settings={"preset": "story", "max_tokens": 512,
                                                                                                             "requests": list(asked.values())},
                 fingerprint=self.fingerprint(release))
        for c, (tput, mean, p50, p99, ttft) in LEVELS.items():
            self.say(job, EventType.LEVEL_STARTED, run_id=run_id, concurrency=c, requests=asked[c], started_at=self.at)
            if c == until:
                for second in range(seconds):
                    rise = min(1.0, second / 12)
                    self.say(job, EventType.LEVEL_SECOND, run_id=run_id, concurrency=c, second=second,
                             output_tok_s=round(tput * rise + (second * 7919 % 31) - 15) if second else 0,
                             in_flight=c, finished=second * 3, errors=0, ttft_p50_ms=ttft, icl_p50_ms=12.0, e2e_mean_s=mean if second > 12 else None,
                             throughput_so_far_tok_s=tput * rise, power_w=3420.0)
                return run_id
            self.say(job, EventType.LEVEL_FINISHED, run_id=run_id, metrics={
                "concurrency": c, "requests": asked[c], "sent": asked[c], "finished": asked[c], "errors": 0, "output_tok_s": tput * scale,
                "e2e_mean_s": mean / scale,
                "e2e_p50_s": p50 / scale, "e2e_p90_s": p50 * 1.02 / scale, "e2e_p99_s": p99 / scale if p99 else None, "ttft_p50_ms": ttft,
                "whole_s": 60.0 + c})
        self.say(job, EventType.SWEEP_FINISHED, run_id=run_id, result={
            "state": "done", "warnings": [], "settings": {"preset": "story", "concurrencies": list(LEVELS), "requests": list(asked.values()),
                                                          "max_tokens": 512, "seed": 1},
            "fingerprint": self.fingerprint(release)})
        return run_id

    def measured(self, *, ago_s: float = 600.0, scale: float = 1.0, repeats: int = 1, release: str = NEW, rates: bool = False,
                 errors: int = 0, slos: dict[str, float] | None = None, model: str = "kimi-k2.5", values: tuple[float, ...] | None = None,
                 group: str | None = None, against: list[BenchmarkRun] | None = None, **asked: Any) -> list[BenchmarkRun]:
        """A job whose sweeps ended well, every number told: `repeats` runs of one group, each one's luck a percent; `rates`: an open loop; `against`:
        the baseline that its node held them against."""
        job = self.job("sweep", ago_s=ago_s, params={"preset": "story", "repeats": repeats}, steps=(("sweep", "Sweep", False),))
        self.step(job, "sweep", end=False, index=0)
        first = BenchmarkRun.objects.filter(group=group).count() if group else 0
        group = group or (str(uuid.uuid4()) if repeats > 1 else None)
        chosen = values or ((0.5, 1.0, 2.0, 2.5) if rates else tuple(LEVELS))
        load, made = "open" if rates else "closed", []
        for index in range(repeats):
            run_id, luck = str(uuid.uuid4()), scale * (1 + 0.01 * (index % 3 - 1))
            wanted = run_data.settings(model=model, load=load, concurrencies=[] if rates else [int(one) for one in chosen],
                                       rates=list(chosen) if rates else [],
                                       requests=[run_data.ASKED.get(int(one), 100) for one in chosen], slos=slos or {}, repeats=repeats,
                                       **{"seed": index + 1, **asked})
            self.say(job, EventType.SWEEP_STARTED, run_id=run_id, preset=wanted["preset"], load=load, concurrencies=wanted["concurrencies"],
                     rates=wanted["rates"], requests=wanted["requests"], max_tokens=wanted["max_tokens"], model=model, endpoint=wanted["base_url"],
                     practice=True, short=False, started_at=self.at, settings=wanted, fingerprint=self.fingerprint(release), group=group,
                     group_index=first + index, repeats=repeats)
            levels = []
            for value in chosen:
                tok_s, mean_s, _, _, ttft_ms = LEVELS[min(LEVELS, key=lambda known: abs(known - (value * 20 if rates else value)))]
                told = run_data.metrics(value, load=load, tok_s=tok_s, mean_s=mean_s, ttft_ms=ttft_ms, scale=luck, errors=errors, slos=slos,
                                        max_tokens=wanted["max_tokens"])
                self.say(job, EventType.LEVEL_STARTED, run_id=run_id, load=load, value=value, concurrency=told["concurrency"],
                         requests=told["requests"], started_at=self.at)
                self.at += told["whole_s"]
                self.say(job, EventType.LEVEL_FINISHED, run_id=run_id, metrics=told)
                levels.append({name: one for name, one in told.items() if name != "detail"})
            self.say(job, EventType.SWEEP_FINISHED, run_id=run_id, result={
                "state": "done", "warnings": [], "settings": wanted, "fingerprint": self.fingerprint(release), "levels": levels, "short": False,
                "tool": "roundhouse", "tool_version": "0.1.0"})
            made.append(run_id)
        if against:
            self.tell(job)
            told = regression.watch([baselines.document(BenchmarkRun.objects.get(pk=one)) for one in made],
                                    [baselines.document(one) for one in against], label=baselines.label(against[0]))
            self.say(job, EventType.REGRESSION, **told)
        self.finish_step(job, "sweep", took=1555.0)
        self.end(job, duration_s=1560.0)
        return [BenchmarkRun.objects.get(pk=one) for one in made]

    def imported(self, *, tool: str = "vllm bench serve", ago_s: float = 5000.0, practice: bool = False, model: str = "kimi-k2.5",
                 origin: str = "imported", scale: float = 1.0) -> BenchmarkRun:
        """A run of another tool: no fingerprint, levels with what that tool tells, the file kept whole."""
        content = f'{{"tool": "{tool}", "at": {ago_s}, "n": {BenchmarkRun.objects.count()}}}'.encode()
        at = timezone.now() - timedelta(seconds=ago_s)
        file = ImportedFile.objects.create(name="result.json", tool=tool, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest(),
                                           content=gzip.compress(content), imported_at=at, imported_by=self.user)
        run = BenchmarkRun.objects.create(
            model=model, endpoint="", preset="", origin=origin, tool=tool, tool_version="0.16.0", imported=file, practice=practice, state="done",
            started_at=at, finished_at=at, settings={"model": model}, label="their numbers")
        for value, (tok_s, mean_s, _, _, ttft_ms) in LEVELS.items():
            told = run_data.metrics(value, tok_s=tok_s, mean_s=mean_s, ttft_ms=ttft_ms, scale=scale, gpu_count=None, with_detail=False)
            told |= dict.fromkeys(("server", "stamps", "steady_output_tok_s", "steady_s", "energy_j", "gpus", "client_cpu_share", "power_mean_w",
                                   "tokens_per_joule", "reasoning_tokens", "content_tokens")) | {"window": "whole"}
            BenchmarkLevel.objects.create(run=run, load="closed", value=value, concurrency=value, state="done", metrics=told, **{
                name: told[name] for name in ("requests", "finished", "errors", "output_tok_s", "e2e_mean_s", "e2e_p50_s", "e2e_p99_s", "ttft_p50_ms",
                                              "tpot_p50_ms")})
        run_summaries.summarise(run)
        return run

    def many_runs(self, count: int) -> None:
        """So many finished runs with their levels, written at once: what a list has after years."""
        now = timezone.now()
        runs = [BenchmarkRun(
            service=self.the_service, node_name="practice", service_name="kimi-k25", model=("kimi-k2.5", "glm-5", "minimax-m2.5")[n % 3],
            endpoint="http://127.0.0.1:8000", preset=("quick", "story")[n % 2], release=(OLD, NEW)[n % 2], vllm_version=VERSIONS["vllm"],
            practice=True, state=("done", "done", "done", "failed")[n % 4], started_at=now - timedelta(minutes=n),
            finished_at=now - timedelta(minutes=n, seconds=-50), settings=run_data.settings(), fingerprint=self.fingerprint((OLD, NEW)[n % 2]),
            label=f"night {n}" if n % 7 == 0 else "", tags=["nightly"] if n % 5 == 0 else []) for n in range(count)]
        levels = []
        for n, run in enumerate(runs):
            mine = [BenchmarkLevel(run=run, load="closed", value=value, concurrency=value, state="done", requests=100, finished=100, errors=n % 3,
                                   output_tok_s=tok_s * (1 + n % 10 / 100), e2e_mean_s=mean_s, e2e_p50_s=mean_s, e2e_p99_s=p99, ttft_p50_ms=ttft_ms)
                    for value, (tok_s, mean_s, _, p99, ttft_ms) in LEVELS.items()]
            for name, one in run_summaries.columns(run, mine).items():
                setattr(run, name, one)
            levels += mine
        BenchmarkRun.objects.bulk_create(runs, batch_size=500)
        BenchmarkLevel.objects.bulk_create(levels, batch_size=500)

    def redeploy(self, *, ago_s: float = 3600.0, scale: float = 1.0) -> Job:
        """One that succeeded, with all four parts of its report."""
        job = self.job("redeploy", ago_s=ago_s, params={"channel": "practice", "coupling": True, "rollback": True, "preset": "story"}, steps=STEPS)
        made = self.before_stop(job)
        self.down(job)
        self.warmup(job)
        self.say(job, EventType.DOWNTIME_ENDED, service="kimi-k25", seconds=778.0, release=NEW)
        self.finish_step(job, "warmup", took=772.0)
        self.say(job, EventType.STEP_STARTED, step="smoke", title="Smoke tests", index=10, deadline_s=900)
        self.smoke(job)
        self.finish_step(job, "smoke", took=23.0)
        self.say(job, EventType.STEP_STARTED, step="sweep", title="Sweep", index=11, deadline_s=21600)
        self.sweep(job, scale=scale)
        self.finish_step(job, "sweep", took=1555.0)
        self.say(job, EventType.STEP_STARTED, step="purge", title="Purge", index=12, deadline_s=900)
        cleanup_data.purge_of_plan(self, job, made["cleanup"])
        self.finish_step(job, "purge", took=2.0)
        self.say(job, EventType.STEP_STARTED, step="report", title="Report", index=13, deadline_s=60)
        self.say(job, EventType.REPORT, **self.report(made, finished=True))
        self.finish_step(job, "report", note="", took=0.4)
        return self.end(job, duration_s=2574.0, downtime_s=778.0)

    def report(self, made: dict[str, Any] | None, *, finished: bool, before: str = OLD, after: str = NEW) -> dict[str, Any]:
        """`ops.report.make` on what was said so far; without a plan it is a roll back's."""
        facts: dict[str, Any] = {"previous": before, "release": after, "files_checked": 8412,
                                 "shelf": "/srv/roundhouse/node/services/kimi-k25/shelf/20260302-102208",
                                 "guards": GUARDS, "finished": ["build"] if finished else [],
                                 "said": {EventType.PLAN_MADE: made} if made else {}}
        for event in self.events:
            if event.type in report.KEPT_ONE:
                facts["said"][event.type] = event.data
            elif event.type in report.KEPT_ALL:
                facts["said"].setdefault(event.type, []).append(event.data)
            elif event.type == EventType.PURGE_ENTRIES:
                facts["said"].setdefault(event.type, []).extend(event.data["entries"])
        return report.make(SimpleNamespace(facts=facts, the_service=records.ServiceRecord.from_dict(RECORD),
                                           config=SimpleNamespace(name="practice")))  # type: ignore[arg-type]

    def failed_redeploy(self, *, ago_s: float = 1800.0, rollback: str = "done") -> Job:
        """Coupling was off: it crashed while it started, was diagnosed, and rolled back."""
        job = self.job("redeploy", ago_s=ago_s, params={"channel": "practice", "coupling": False, "rollback": True}, steps=STEPS)
        self.before_stop(job, coupling=False)
        self.down(job)
        self.say(job, EventType.STEP_STARTED, step="warmup", title="Warmup", index=9, deadline_s=7200)
        self.say(job, EventType.STEP_LOG, step="warmup", text=crash_log(), dropped_bytes=0)
        self.phase(job, "start", "running")
        self.at += 27
        decisive = DECISIVE
        lines = crash_log().splitlines()
        number = next(n for n, line in enumerate(lines, start=1) if "does not match" in line)
        self.say(job, EventType.DIAGNOSIS, fault=True, line=number, text=decisive, kind="coupled packages differ", preflight=True, state="failed",
                 lines=len(lines),
                 diagnosis="flashinfer-cubin 0.6.3 does not match flashinfer 0.6.4: the two must have the same version",
                 rule="flashinfer-cubin-version",
                 fix="Install the version that matches: `uv pip install --python ENV flashinfer-cubin==0.6.4`, then start the service again",
                 context=[{"number": n, "text": lines[n - 1]} for n in range(number - 3, number + 4)])
        self.finish_step(job, "warmup", outcome="failed", note=decisive, took=27.0)
        for name, note, took in (("start", "pid 20533 ended", 1.0), ("switch", f"current is {OLD} again", 0.2)):
            self.say(job, EventType.STEP_UNDOING, step=name, title=name.capitalize())
            self.at += took
            self.say(job, EventType.STEP_UNDONE, step=name, outcome="done", duration_s=took, note=note)
        self.say(job, EventType.STEP_UNDOING, step="stop", title="Stop")
        if rollback == "done":
            for name, _ in PHASES:
                self.at += TOOK[name]
                self.phase(job, name, "done")
            self.say(job, EventType.DOWNTIME_ENDED, service="kimi-k25", seconds=1611.0, release=OLD)
            self.say(job, EventType.STEP_UNDONE, step="stop", outcome="done", duration_s=780.0, note=f"kimi-k25 answers again on {OLD}")
        else:
            self.say(job, EventType.STEP_UNDONE, step="stop", outcome="failed", duration_s=12.0,
                     note="The old release did not come up: port 8000 is in use")
        self.say(job, EventType.STEP_STARTED, step="report", title="Report", index=13, deadline_s=60)
        self.finish_step(job, "report", note="", took=0.3)
        return self.end(job, "failed", reason=decisive, rollback=rollback, duration_s=1754.0, downtime_s=1611.0 if rollback == "done" else None,
                        error={"kind": "service_crashed", "what": decisive, "why": "", "hint": "", "facts": {}})

    def running_warmup(self) -> Job:
        job = self.job("redeploy", ago_s=801, params={"channel": "practice", "coupling": True, "rollback": True, "preset": "quick"}, steps=STEPS)
        self.before_stop(job)
        self.down(job)
        self.warmup(job, until="compile")
        self.the_service.state = "starting"
        return self.tell(job)

    def running_sweep(self) -> Job:
        job = self.job("sweep", ago_s=400, params={"preset": "story"}, steps=(("sweep", "Sweep", False),))
        self.step(job, "sweep", end=False, index=0)
        self.sweep(job, until=32)
        self.say(job, EventType.STEP_PROGRESS, step="sweep", done=2, total=4, unit="levels", text="C = 32", estimate=False)
        return self.tell(job)

    def small_jobs(self) -> dict[str, Job]:
        """One job in every other state and kind."""
        made: dict[str, Job] = {}
        job = self.job("smoke", ago_s=5000, steps=(("smoke", "Smoke tests", False),))
        self.say(job, EventType.STEP_STARTED, step="smoke", title="Smoke tests", index=0, deadline_s=900)
        self.smoke(job, failing=True)
        self.finish_step(job, "smoke", outcome="failed", note="Smoke tests failed: Tool call", took=20.0)
        made["smoke"] = self.end(job, "failed", reason="Smoke tests failed: Tool call", duration_s=21.0,
                                 error={"kind": "failed", "what": "Smoke tests failed: Tool call", "why": "1 of 4 answers is not as expected",
                                        "hint": "Look at the answer in the log",
                                        "facts": {}})
        job = self.job("integrity", ago_s=4000, steps=(("integrity", "Integrity", False),))
        self.say(job, EventType.STEP_STARTED, step="integrity", title="Integrity", index=0, deadline_s=900)
        self.say(job, EventType.INTEGRITY, path="/srv", distributions=14, files=8412, bytes=1_300_000_000, unhashed=14, clean=False, digest="x",
                 changed=PATCHED, missing=[], extra=[],
                 more={}, problems=[])
        self.finish_step(job, "integrity", note="4 changed, 0 missing, 0 extra of 8,412 files", took=2.4)
        made["integrity"] = self.end(job, duration_s=2.6)
        job = self.job("restart", ago_s=3900, params={"rollback": True}, steps=STEPS[5:7] + STEPS[8:11])
        self.step(job, "stop")
        self.say(job, EventType.JOB_CANCELLING, by="admin")
        made["cancelled"] = self.end(job, "cancelled", reason="Cancelled at step `gpus-free`", rollback="done", duration_s=44.0)
        scan, found = cleanup_data.scan_job(self, ago_s=3850, of=self.the_node)
        made["scan"], made["partial"] = scan, cleanup_data.purge_job(self, scan, found, ago_s=3800, partial=True)
        job = self.job("integrity", ago_s=3700, steps=(("integrity", "Integrity", False),))
        self.say(job, EventType.STEP_STARTED, step="integrity", title="Integrity", index=0, deadline_s=900)
        self.say(job, EventType.STEP_PROGRESS, step="integrity", done=3000, total=8412, unit="files", text="", estimate=False)
        self.tell(job)
        Job.objects.filter(pk=job.pk).update(state="lost")
        made["lost"] = job
        job = self.job("warmup", ago_s=3600, steps=(("warmup", "Warmup", True),))
        self.step(job, "warmup", end=False, index=0)
        made["interrupted"] = self.end(job, "interrupted", reason="The runner died at step `warmup`", duration_s=12.0)
        made["queued"] = self.job("smoke", ago_s=4, claimed=False)
        return made


    def control_jobs(self) -> dict[str, Job]:
        """One job of each kind that controls a service, or looks at what it does."""
        made: dict[str, Job] = {}
        for name, left in (("nothing", ran.NOTHING_LEFT), ("leftovers", ran.LEFTOVERS)):
            made[name] = job = self.job("leftovers", ago_s=700, steps=(("leftovers", "Look for leftovers", False),))
            self.step(job, "leftovers", end=False)
            self.say(job, EventType.LEFTOVERS, **left)
            self.finish_step(job, "leftovers", note="", took=0.4)
            self.end(job, duration_s=0.6)
        made["stop"] = job = self.job("stop", ago_s=650, steps=(("stop", "Stop", True), ("gpus-free", "GPUs free", True)))
        self.step(job, "stop")
        self.step(job, "gpus-free", end=False)
        self.say(job, EventType.LEFTOVERS, **ran.LEFTOVERS)
        self.say(job, EventType.FINDING, subject="gpus", level="warning", title="GPUs 1 and 2 still hold memory after 60 s",
                 why="pid 20661 (llm) holds 88.1 GiB of GPU 1", fix="End what belonged to the service")
        self.finish_step(job, "gpus-free", note="GPUs 1 and 2 still hold memory after 60 s", took=60.0)
        self.end(job, "partial", duration_s=69.0, reason="Service `kimi-k25` is stopped, but not all of its GPUs are free")
        made["settings-set"] = job = self.job("settings-set", ago_s=600, steps=(("settings", "Launch settings", False),))
        self.step(job, "settings", end=False)
        self.say(job, EventType.SETTINGS_CHANGED, **ran.SETTINGS)
        self.finish_step(job, "settings", note="", took=0.1)
        self.end(job, duration_s=0.2)
        made["diagnose"] = job = self.job("diagnose", ago_s=500, steps=(("diagnose", "Diagnose", False),))
        self.step(job, "diagnose", end=False)
        self.say(job, EventType.DIAGNOSIS, **ran.diagnosis())
        self.finish_step(job, "diagnose", note="", took=0.3)
        self.end(job, duration_s=0.4)
        made["smoke"] = job = self.job("smoke", ago_s=450, steps=(("smoke", "Smoke tests", False),))
        self.step(job, "smoke", end=False)
        for result in ran.SMOKE:
            self.say(job, EventType.SMOKE_RESULT, **result)
        self.finish_step(job, "smoke", outcome="failed", note="Smoke tests failed: Reasoning present", took=16.0)
        self.end(job, "failed", reason="Smoke tests failed: Reasoning present", duration_s=17.0)
        steps = (("preflight", "Preflight", False), ("start", "Start", False), ("warmup", "Warmup", False))
        made["refused"] = job = self.job("start", ago_s=400, steps=steps)
        self.step(job, "preflight", end=False)
        for finding in ran.PREFLIGHT:
            self.say(job, EventType.FINDING, subject="preflight", **finding)
        self.finish_step(job, "preflight", outcome="failed", note="1 finding stops it", took=2.0)
        self.end(job, "failed", reason="`nvcc` is 12.8, but this GPU needs 12.9 or newer", duration_s=2.2)
        made["warmed"] = job = self.job("start", ago_s=1800, steps=steps)
        self.step(job, "warmup", end=False)
        for name, _ in PHASES:
            self.phase(job, name, "running")
            self.at += TOOK[name]
            self.phase(job, name, "done")
        self.say(job, EventType.WARMUP_DONE, total_s=772.0, cache="hit", release=NEW, first_answer_s=0.4,
                 compared={"count": 4, "median_s": 660.0, "last_s": 668.0},
                 phases=[{"phase": n, "title": t, "took_s": TOOK[n], "usual_s": TOOK[n] * 0.86} for n, t in PHASES])
        self.finish_step(job, "warmup", note="healthy after 12:52 min", took=772.0)
        self.end(job, duration_s=780.0)
        made["again"] = job = self.job("start", ago_s=220, steps=steps)
        self.step(job, "preflight", note="all is well", took=1.0)
        self.step(job, "start")
        self.say(job, EventType.STEP_STARTED, step="warmup", title="Warmup", index=2, deadline_s=7200)
        self.phase(job, "start", "running")
        self.at += 27
        self.say(job, EventType.WARMUP_TROUBLE, kind="crash", text="It ended with exit code 1; systemd starts it again", diagnosis=ran.diagnosis(),
                 **{"try": 1})
        self.phase(job, "start", "running")
        self.at += 46
        self.phase(job, "start", "done")
        self.phase(job, "load", "running", done=31, total=119)
        self.at += 60
        self.say(job, EventType.WARMUP_TROUBLE, kind="stall", text="No milestone, no progress and idle GPUs for 60 s", diagnosis=None, **{"try": 2})
        self.say(job, EventType.STEP_PROGRESS, step="warmup", done=106.0, total=668.0, unit="s", estimate=True,
                 text="Loading weights: 31 of 119 shards; about 9:22 left")
        self.unfinished = self.tell(job)
        return made


def full() -> Story:
    """A console in good use: history, a running sweep, a stray process."""
    story = Story()
    story.node(stray=True)
    story.service(release=NEW, patched=False)
    story.redeploy(ago_s=6 * 86400, scale=0.94)
    story.plan_job(ago_s=9000)
    story.redeploy(ago_s=8000)
    story.running_sweep()
    story.environment(release=NEW)
    story.checked(clean=True, ago_s=3000)
    Service.objects.filter(pk=story.the_service.pk).update(packages={**story.the_service.packages, "versions": {
        **VERSIONS, "vllm": "0.16.0rc2.dev344+practice", "flashinfer-python": "0.6.4+practice", "flashinfer-cubin": "0.6.4+practice"}})
    return story


def measuring() -> Story:
    """A console that has measured for a while: repeats, rates, another release, another model, and runs of other tools."""
    story = full()
    story.measured(ago_s=5 * 86400, release=OLD, repeats=3)
    story.measured(ago_s=3 * 86400, repeats=3, scale=0.9)
    story.measured(ago_s=2 * 86400, rates=True, slos={"ttft_ms": 1000.0, "tpot_ms": 60.0})
    story.measured(ago_s=86400, model="glm-5", errors=2)
    story.imported()
    story.imported(tool="guidellm", scale=1.1)
    return story


def comparing() -> Story:
    """Runs to hold against each other: three of one release, three of the next, one of another model, another tool's, the published figures."""
    story = Story()
    story.node()
    story.service(release=NEW, patched=False)
    values = (1, 2, 4, 8, 16, 32, 64, 128)
    story.measured(ago_s=5 * 86400, release=OLD, repeats=3, values=values)
    story.measured(ago_s=3 * 86400, repeats=3, scale=1.09, values=values)
    story.measured(ago_s=86400, model="kimi-k2.5-int4", scale=0.84, values=values)
    story.imported(practice=True)
    practice_reference.seed()
    return story


def deciding() -> Story:
    """A service with a pinned baseline of three runs: one sweep that is slower, one that was decided, a measured noise floor."""
    story = Story()
    story.node()
    story.service(release=NEW)
    base = story.measured(ago_s=5 * 86400, release=OLD, repeats=3)
    baselines.pin(base[0], story.user)
    story.measured(ago_s=4 * 86400, scale=0.9, against=base, repeats=3)
    job = story.job("noise-floor", ago_s=2 * 86400, steps=(("sweep", "Noise floor", False),))
    story.step(job, "sweep", end=False, index=0)
    story.say(job, EventType.NOISE_FLOOR, service="kimi-k25", sweep_key=base[0].sweep_key, stack="", run_ids=["a"] * 6, floors=[
        {"load": "closed", "value": c, "metric": metric, "half_width": width * (1 + c / 100), "runs": 6}
        for c in LEVELS for metric, width in (("output_tok_s", 0.011), ("tpot_p50_ms", 0.012), ("ttft_p50_ms", 0.041), ("ttft_p99_ms", 0.12))])
    story.finish_step(job, "sweep", note="6 runs; throughput differs from itself by up to ±2.5 %")
    story.end(job)
    story.measured(ago_s=600, scale=0.93, against=base)
    return story


def previewing() -> Story:
    """A node whose leftovers were scanned, and not purged yet."""
    story = Story()
    story.node()
    story.service()
    cleanup_data.scan_job(story, problems=cleanup_data.PROBLEMS)
    return story


def cleaning() -> Story:
    """A node whose leftovers were scanned and partly purged, scanned again since, and a purge of every outcome."""
    story = Story()
    story.node()
    story.service()
    ArtifactKind.objects.create(name=cleanup_data.OWN_KIND["name"], record=cleanup_data.OWN_KIND)
    first, found = cleanup_data.scan_job(story, ago_s=3 * 86400)
    cleanup_data.purge_job(story, first, found, ago_s=3 * 86400 - 600)
    cleanup_data.purge_job(story, first, found, ago_s=3 * 86400 - 1200, choice=Choice(kinds=["core-dump", "old-release"]), cancelled=True)
    latest, found = cleanup_data.scan_job(story, ago_s=900, problems=cleanup_data.PROBLEMS)
    cleanup_data.purge_job(story, latest, found, ago_s=600, partial=True)
    return story


def purging() -> Story:
    """A plan and a redeploy that purge, and jobs of cleanup as they end well, badly, or not yet; some told by an earlier version."""
    story = cleaning()
    story.redeploy(ago_s=7200)
    story.plan_job()
    for kept in (0, 2):
        job = story.job("purge", ago_s=90 * 86400, steps=cleanup_data.PURGE_STEPS)
        story.step(job, "purge", end=False)
        story.say(job, EventType.PURGE_RESULT, **cleanup_data.old_purge(kept=kept))
        story.finish_step(job, "purge", note=f"{35 - kept} files, 65 MB freed")
        story.end(job, "partial" if kept else "succeeded", reason=f"{kept} files were kept" if kept else "")
    scan, found = cleanup_data.scan_job(story, ago_s=120)
    job = story.job("purge", ago_s=100, of=story.the_node, steps=cleanup_data.PURGE_STEPS, params={"scan": str(scan.pk)})
    story.step(job, "purge", end=False)
    told = cleanup_data.entries(found.of("debug-tensor")[:7])
    story.say(job, EventType.PURGE_ENTRIES, scan=str(scan.pk), entries=[line.as_dict() for line in told])
    story.end(job, "interrupted", reason="The runner died at step `purge`")
    cleanup_data.purge_job(story, scan, found, ago_s=10, end=False)
    cleanup_data.scan_job(story, ago_s=5, end=False)
    return story


def failing() -> Story:
    """What goes wrong: a crash that was rolled back, packages that differ, and a job of every unhappy kind."""
    story = Story()
    story.node(stray=True)
    story.service(mismatch=True)
    story.environment(mismatch=True, broken=True, changed=True, guards_hold=False)
    story.small_jobs()
    story.failed_redeploy()
    return story


def environments() -> Story:
    """A patched environment with everything that can be done about it, and jobs of every kind that has to do with environments."""
    story = Story()
    story.node()
    story.service()
    story.redeploy(ago_s=6 * 86400)
    story.environment(changed=True, guards_hold=False)
    story.environment_jobs()
    story.checked()
    story.shaped_plan(mode="restore", ago_s=700, download_bytes=0)
    story.shaped_plan(in_place=True, ago_s=500)
    story.shaped_plan(in_place=True, way_back=False, ago_s=400, download_bytes=None)
    story.impossible_plan()
    return story


def adopting() -> Story:
    """A real node beside the practice box, and units of it: read, not allowed yet, forbidden, changed since, adopted in both ways."""
    story = Story()
    story.node()
    story.service()
    story.real_node()
    story.adoption_job(ago_s=900, stops=True)
    story.adoption_job(ago_s=800, lines=True)
    story.adoption_job(ago_s=700)
    story.adoption_job("adopt-apply", ago_s=600, error={
        "kind": "differs", "what": "`vllm.service` is not what was looked at any more", "facts": {},
        "why": '`base_url` was "http://127.0.0.1:8000", is "http://127.0.0.1:8001"; `flags` was ["--port", "8000"], is ["--port", "8001"]',
        "hint": "Nothing was changed. Read it again, and look at what it is now"})
    story.adoption_job("adopt-apply", ago_s=500, stored=True)
    story.adoption_job("adopt-apply", ago_s=400, stored=True, process=True)
    return story


def services() -> Story:
    """A service under systemd in a restart loop that a job starts, another that crashed, and a job of every kind that controls or looks at one."""
    story = Story()
    story.node(stray=True)
    story.service(state="failed", detail="It ended by itself 7 times; systemd starts it again in 12 s")
    story.redeploy(ago_s=6 * 86400)
    story.environment()
    kimi = story.the_service
    status = {**kimi.status, "pid": None, "restarts": 7, "restarting": True, "ended_at": time.time() - 62, "log_path": None,
              "log_where": "journalctl -u vllm-kimi.service _SYSTEMD_INVOCATION_ID=0f3a"}
    Node.objects.filter(pk=story.the_node.pk).update(facts={**story.the_node.facts, "settings_key": ran.SETTINGS_KEY})
    Service.objects.filter(pk=kimi.pk).update(
        record={**kimi.record, "manager": "systemd", "unit": "vllm-kimi.service", "smoke_tests": ran.QUESTIONS,
                "smoke_without": ["code"]}, status=status, failures=ran.failures(), warmups=ran.warmups(),
        unit={**ran.UNIT, "state": "activating", "sub": "auto-restart", "result": "exit-code", "restarts": 7, "launcher_installed": False,
              "needs_reload": True},
        launch={**ran.LAUNCH, "pending": True})
    Service.objects.create(
        node=story.the_node, name="glm-5", practice=True, state="failed", launch=ran.LAUNCH, warmups=ran.warmups(1), failures=ran.failures(),
        status={"state": "failed", "exit_code": 1, "ended_at": time.time() - 62}, record={
            **kimi.record, "name": "glm-5", "model_path": "/data/models/GLM-5-NVFP4", "base_url": "http://127.0.0.1:8001"})
    story.control_jobs()
    kimi.refresh_from_db()
    return story


def empty_node() -> Story:
    """A real node without a service: where a person with a server of their own begins."""
    story = Story()
    story.real_node()
    return story


def warming() -> Story:
    """A redeploy in the middle of its warmup, the service not answering; and a plan that is being made."""
    story = Story()
    story.node(used_gib=73.4, utilization=33.0)
    story.service(state="starting")
    story.redeploy(ago_s=6 * 86400)
    story.running_warmup()
    story.plan_job(end=False, ago_s=3)
    return story


def building() -> Story:
    """A redeploy that has just begun to build."""
    story = Story()
    story.node()
    story.service()
    job = story.job("redeploy", ago_s=20, params={"channel": "practice", "coupling": True, "rollback": True, "preset": "quick"}, steps=STEPS)
    story.step(job, "plan", log="plan\n")
    story.step(job, "preflight", log="preflight\n")
    story.step(job, "build", log="line 1\n", end=False)
    story.tell(job)
    return story


def build_log() -> str:
    return ("\x1b[1m\x1b[36mCreating virtual environment\x1b[0m at releases/new\nUsing Python 3.12.1 interpreter at: /usr/bin/python3.12\n"
            "Resolved 14 packages in 31ms\nInstalled 14 packages in 1.20s\n \x1b[32m+\x1b[39m \x1b[1mvllm\x1b[0m==0.16.0rc2.dev344+practice\n")


def warmup_log() -> str:
    lines = ["(APIServer pid=20411) INFO 03-02 10:26:31 [api_server.py:1346] vLLM API server version 0.16.0rc2.dev344+practice",
             "(Worker_TP0 pid=20660) INFO 03-02 10:26:44 [gpu_model_runner.py:3028] Starting to load model /data/models/Kimi-K2.5-NVFP4...",
             "(Worker_TP0 pid=20660) WARNING 03-02 10:26:45 [modelopt.py:998] Detected ModelOpt NVFP4 checkpoint. The format is experimental.",
             *[f"Loading safetensors checkpoint shards: {n * 100 // 119:3d}% Completed | {n}/119 [{n // 16:02d}:{n * 3 % 60:02d}<00:00,  3.67s/it]"
               for n in range(1, 120, 7)],
             "(Worker_TP0 pid=20660) INFO 03-02 10:34:01 [default_loader.py:267] Loading weights took 436.61 seconds",
             "(Worker_TP0 pid=20660) INFO 03-02 10:34:19 [backends.py:215] Dynamo bytecode transform time: 14.32 s",
             "<script>alert('a log line is text')</script> \u202eesrever\u202c and \x1b]0;title\x07 gone",
             *[f"(Worker_TP0 pid=20660) INFO 03-02 10:35:{n:02d} [backends.py:301] Compiling a graph for compile range (1, 8192): {n} of 61"
               for n in range(8, 60, 3)]]
    return "\n".join(lines) + "\n"


def crash_log() -> str:
    head = [f"(APIServer pid=611582) INFO 03-02 04:11:0{n % 10} [config.py:{n}] Initializing a V1 LLM engine, step {n}" for n in range(40)]
    worker = ["(Worker_TP0 pid=611710) ERROR 03-02 04:11:28 [multiproc_executor.py:751] Traceback (most recent call last):",
              "(Worker_TP0 pid=611710) ERROR 03-02 04:11:28 [multiproc.py:751]   File \".../site-packages/flashinfer/jit/env.py\", line 1456",
              "(Worker_TP0 pid=611710) ERROR 03-02 04:11:28 [multiproc_executor.py:751]     raise RuntimeError(",
              f"(Worker_TP0 pid=611710) ERROR 03-02 04:11:28 [multiproc_executor.py:751] {DECISIVE}"]
    tail = [f"(EngineCore_DP0 pid=611650) ERROR 03-02 04:11:3{n % 10} [core.py:946]   File \".../vllm/v1/engine/core.py\", line {n}, in __init__"
            for n in range(60)]
    return "\n".join([*head, *worker, *tail,
                      "(APIServer pid=611582) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"]) + "\n"


def hostile() -> Story:
    """All that `environments` has, said by a node that wants to act on whoever reads it."""
    from tests.dashboard.pages.hostile import spoil

    story = environments()
    story.redeploy()
    story.control_jobs()
    scan, found = cleanup_data.scan_job(story, found=cleanup_data.world("", rows=cleanup_data.few()), problems=cleanup_data.PROBLEMS)
    cleanup_data.purge_job(story, scan, found, partial=True)
    Service.objects.filter(pk=story.the_service.pk).update(
        state="failed", failures=ran.failures(), warmups=ran.warmups(), launch=ran.LAUNCH, unit={**ran.UNIT, "problem": "The unit is masked"},
        record={**story.the_service.record, "manager": "systemd", "unit": "vllm-kimi.service", "smoke_tests": ran.QUESTIONS})
    spoil()
    return story
