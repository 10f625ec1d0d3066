"""What a node says of a scan of its leftovers and of a purge: about a dozen kinds in every state, a manifest, and one that wants to do harm.

`World` is one scan, whole: `artifacts` all that was found, `listed` what `artifacts.found` told of it (of each kind its largest; one kind has more
than that), `summary` the data of `artifacts.scanned`, each total counted from `artifacts`. `scan_job` and `purge_job` tell them as jobs of a Story.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dashboard.models import Job, Node
from ops.artifacts.found import KEPT, OFFERED, OPTIONAL, Artifact, Choice, Entry
from ops.jobs.events import EventType

if TYPE_CHECKING:
    from tests.dashboard.pages.factory import Story

PRACTICE_ROOT = "/srv/roundhouse/practice"
DAY = 86_400.0
TOLD_OF_A_KIND = 60  # here, instead of 2,000: so that a page with more than were listed stays quick to make
TENSORS, TENSOR_BYTES = 35, 1_863_680
SCAN_STEPS = (("scan", "Scan", False),)
PURGE_STEPS = (("purge", "Purge", False),)
DIGEST = "9f" * 32


def kind(name: str, title: str, one: str, *, leftover: str, keeping: str, unit: str = "file", offered: bool = True, with_redeploy: bool = False,
         own: bool = False) -> dict[str, Any]:
    return {"kind": name, "title": title, "one": one, "unit": unit, "leftover": leftover, "keeping": keeping, "offered_by_default": offered,
            "with_redeploy": with_redeploy, "own": own}


KINDS: dict[str, dict[str, Any]] = {row["kind"]: row for row in (
    kind("debug-tensor", "Debug tensors", "debug tensor", with_redeploy=True, keeping="Nothing reads it again",
         leftover="Written by debug code, read by nobody: no service loads .pt files from a scratch folder"),
    kind("compile-cache", "Stale compile caches", "stale compile cache", unit="folder",
         leftover="Compiled graphs for a vLLM version that no kept release has", keeping="Spares about 2 minutes of the next start that uses it"),
    kind("flashinfer-jit", "FlashInfer kernels of old versions", "FlashInfer kernel folder", unit="folder",
         leftover="Kernels of a FlashInfer version that is not installed", keeping="Nothing, until that version is installed again"),
    kind("shm-segment", "Shared-memory segments", "shared-memory segment",
         leftover="Left in memory by a process that ended without cleaning up", keeping="Nothing: memory is lost until it goes"),
    kind("ipc-socket", "IPC sockets", "IPC socket", leftover="The process that made it has ended", keeping="Nothing"),
    kind("nccl-dump", "NCCL and flight-recorder dumps", "NCCL dump", leftover="Written when a collective hung",
         keeping="May still explain a hang of the last days"),
    kind("function-trace", "Function traces", "function trace", leftover="A line per call, written by VLLM_TRACE_FUNCTION",
         keeping="Nothing, once the fault was found"),
    kind("core-dump", "Core dumps", "core dump", offered=False, leftover="Written by the kernel when a process crashed",
         keeping="May still explain a crash"),
    kind("autotune-cache", "FlashInfer autotune cache", "autotune file", offered=False, leftover="Measured kernel choices of earlier starts",
         keeping="Saves 2 to 15 minutes of each start"),
    kind("old-release", "Old releases", "old release", unit="folder", offered=False, leftover="Built for this service, not live any more",
         keeping="One click back to this version"),
    kind("uv-cache", "uv cache", "uv cache", unit="folder", offered=False, leftover="Wheels that no environment links to (uv's own estimate)",
         keeping="Spares downloads of the next redeploy"),
    kind("bench-scratch", "Benchmark scratch", "benchmark scratch file", own=True, leftover="Written by our nightly comparison, kept by mistake",
         keeping="Nothing reads it again"))}

# The last of them as an admin added it
OWN_KIND: dict[str, Any] = {
    "name": "bench-scratch", "title": "Benchmark scratch", "one": "benchmark scratch file",
    "leftover": "Written by our nightly comparison, kept by mistake", "keeping": "Nothing reads it again",
    "places": ["/srv/roundhouse/practice/tmp/bench"], "patterns": ["nightly-*.bin"], "unit": "file", "method": "files", "file_type": "regular",
    "depth": 2, "min_age_s": 1_209_600.0, "conditions": ["all-processes-seen"], "offered": True,
    "with_redeploy": False, "any_owner": False, "own": True}


@dataclass
class World:
    artifacts: list[Artifact]
    listed: list[Artifact]
    summary: dict[str, Any]

    def of(self, kind: str) -> list[Artifact]:
        return [artifact for artifact in self.artifacts if artifact.kind == kind]

    def chosen(self, choice: Choice) -> list[Artifact]:
        return [artifact for artifact in self.artifacts if choice.takes(artifact)]

    @property
    def offered(self) -> Choice:
        """All that is chosen when the preview opens."""
        return Choice(kinds=list(dict.fromkeys(artifact.kind for artifact in self.artifacts if artifact.state == OFFERED)))  # no kind is mixed here


@dataclass
class _Writer:
    at: float
    made: list[Artifact] = field(default_factory=list)

    def add(self, kind: str, path: str, size_bytes: int, *, days: float, state: str = OFFERED, why: str = "", files: int = 1, owner: str = "llm",
            open_by: Sequence[dict[str, Any]] = (), service: str = "") -> None:
        number = len(self.made) + 1
        told = KINDS[kind]
        reason = why or (told["keeping"] if state == OPTIONAL else told["leftover"])
        self.made.append(Artifact(
            number=number, kind=kind, unit=told["unit"], path=path, size_bytes=size_bytes, files=files, mtime_ns=round((self.at - days * DAY) * 1e9),
            uid=1000 if owner == "llm" else 0, owner=owner, device=66_306, inode=500_000 + number, state=state, why=reason, open_by=list(open_by),
            service=service))


def open_in(pid: int, name: str, service: str = "kimi-k25") -> list[dict[str, Any]]:
    return [{"pid": pid, "name": name, "service": service}]


def artifacts(*, at: float, root: str = PRACTICE_ROOT) -> list[Artifact]:
    """All that lies there. `root` "": a real node, with /tmp and /dev/shm themselves."""
    to = _Writer(at)
    tmp, shm, cache = f"{root}/tmp", f"{root}/shm" if root else "/dev/shm", f"{root}/cache" if root else "/home/llm/.cache"
    releases = f"{root or '/srv/roundhouse'}/node/services/kimi-k25/releases"
    for n in range(TENSORS):
        to.add("debug-tensor", f"{tmp}/dbg_layer{n}_000.pt", TENSOR_BYTES, days=11 - n * 8 / (TENSORS - 1), service="kimi-k25")
    for name, size, days, files in (("2f81c09aab", 1_900_003_328, 31, 1204), ("88d1e7f302", 1_399_996_416, 19, 988),
                                    ("b04c5512fe", 900_001_792, 12, 871)):
        to.add("compile-cache", f"{cache}/vllm/torch_compile_cache/{name}", size, days=days, files=files, service="kimi-k25")
    to.add("compile-cache", f"{cache}/vllm/torch_compile_cache/e51a77c3d0", 1_100_001_280, days=0.3, files=1011, state=KEPT, service="kimi-k25",
           why="The last run of kimi-k25 used this hash")
    to.add("flashinfer-jit", f"{cache}/flashinfer/0.6.2", 4_398_047_232, days=40, files=3120)
    to.add("flashinfer-jit", f"{cache}/flashinfer/0.6.3", 4_410_003_456, days=6, files=3166, state=KEPT,
           why="FlashInfer 0.6.3 is installed in kimi-k25")
    for name, size, pid, who in (("psm_3fa81c02", 512_000_000, 613_118, "Worker_TP0"), ("psm_91d20b7e", 512_000_000, 613_007, "EngineCore"),
                                 ("sem.mp-a8k2f1", 102_400, 612_894, "APIServer")):
        to.add("shm-segment", f"{shm}/{name}", size, days=0.25, state=KEPT, why=f"Open in {who} (pid {pid}), which belongs to kimi-k25",
               open_by=open_in(pid, who), service="kimi-k25")
    for n in range(4):
        to.add("ipc-socket", f"{tmp}/6f1d2c3{n}-5a7b-4c1d-9e2f-8a6b4c2d0e1f", 0, days=3 + n)
    for n in range(18):
        young = n >= 12
        to.add("nccl-dump", f"{tmp}/nccl_trace_rank_{n}", 1_265_664, days=9 if young else 21, state=KEPT if young else OFFERED,
               why="Younger than 14 days" if young else "")
    for n in range(3_140):
        to.add("function-trace", f"{tmp}/vllm/vllm-instance-c41f/VLLM_TRACE_FUNCTION_for_process_{4000 + n}.log", 614_400 - 4096 * (n % 100), days=16,
               service="kimi-k25")
    for name, size, days, state in (("core.20411", 6_200_000_512, 20, OPTIONAL), ("core.31877", 5_099_999_232, 9, OPTIONAL),
                                    ("core.40112", 5_811_998_720, 0.5, KEPT)):
        to.add("core-dump", f"{root}/var/crash/{name}", size, days=days, state=state, why="The newest core dump stays" if state == KEPT else "")
    for n in range(2):
        to.add("autotune-cache", f"{cache}/vllm/flashinfer_autotune_cache/ab{n}4/autotune_configs.json", 8_192, days=2, state=OPTIONAL)
    for name, size, days, state, why in (
            ("20260114-093000-0.15.1-practice", 11_320_000_512, 44, OPTIONAL, ""),
            ("20260201-120000-0.16.0rc1-practice", 11_399_999_488, 26, OPTIONAL, ""),
            ("20260227-181500-0.16.0rc2.dev313-practice", 11_400_000_512, 3, KEPT, "The way back of the live release")):
        to.add("old-release", f"{releases}/{name}", size, days=days, files=58_112, state=state, why=why, service="kimi-k25")
    to.add("uv-cache", f"{cache}/uv", 7_918_002_176, days=1, files=120_311, state=OPTIONAL)
    for name, owner, state, why in (("nightly-0301.bin", "llm", OFFERED, ""), ("nightly-0302.bin", "root", KEPT, "Belongs to root")):
        to.add("bench-scratch", f"{tmp}/bench/{name}", 262_144_000, days=15, owner=owner, state=state, why=why)
    return to.made


def few(*, at: float | None = None) -> list[Artifact]:
    """Three of each kind."""
    rows, told = artifacts(at=time.time() if at is None else at), Counter[str]()
    return [row for row in rows if told.update([row.kind]) is None and told[row.kind] <= 3]


def total(rows: Sequence[Artifact]) -> dict[str, Any]:
    ages = [row.mtime_ns for row in rows]
    return {"count": len(rows), "files": sum(row.files for row in rows), "size_bytes": sum(row.size_bytes for row in rows),
            "oldest_ns": min(ages, default=None), "newest_ns": max(ages, default=None)}


def kind_rows(rows: Sequence[Artifact], *, told: int = TOLD_OF_A_KIND) -> list[dict[str, Any]]:
    """`kinds` of `artifacts.scanned`, those that were found."""
    made = []
    for name, known in KINDS.items():
        mine = [row for row in rows if row.kind == name]
        if not mine:
            continue
        whys = Counter(row.why for row in mine if row.state == KEPT)
        made.append({**known, **{state: total([row for row in mine if row.state == state]) for state in (OFFERED, OPTIONAL, KEPT)},
                     "listed": min(len(mine), told),
                     "why_kept": [{"why": why, "count": count, "size_bytes": sum(row.size_bytes for row in mine if row.why == why)}
                                  for why, count in whys.most_common()]})
    return made


def gauges(*, root: str = PRACTICE_ROOT, freed_bytes: int = 0) -> list[dict[str, Any]]:
    """One of each file system: the disk, nearly full, and shared memory (which counts no inodes that matter)."""
    disk = 240_000_000_000
    free = 21_400_000_000 + freed_bytes
    shm = f"{root}/shm" if root else "/dev/shm"
    return [{"path": root or "/", "what": "disk", "total_bytes": disk, "used_bytes": disk - free, "free_bytes": free, "inodes": 15_728_640,
             "inodes_free": 2_204_118},
            {"path": shm, "what": "shared memory", "total_bytes": 67_000_000_000, "used_bytes": 1_024_102_400, "free_bytes": 65_975_897_600,
             "inodes": None, "inodes_free": None}]


def world(scan: str, *, at: float | None = None, root: str = PRACTICE_ROOT, rows: Sequence[Artifact] | None = None, problems: Sequence[str] = (),
          open_checked: bool = True) -> World:
    """A scan of that id. `rows`: these were found, and nothing else (numbered anew)."""
    moment = time.time() if at is None else at
    found = list(artifacts(at=moment, root=root) if rows is None else rows)
    for number, row in enumerate(found, start=1):
        row.number = number
    listed = [row for name in KINDS for row in sorted((row for row in found if row.kind == name), key=lambda row: (-row.size_bytes, row.number))
              [:TOLD_OF_A_KIND]]
    size = {state: sum(row.size_bytes for row in found if row.state == state) for state in (OFFERED, OPTIONAL, KEPT)}
    tmp, shm, cache = f"{root}/tmp", f"{root}/shm" if root else "/dev/shm", f"{root}/cache" if root else "/home/llm/.cache"
    summary: dict[str, Any] = {
        "scan": scan, "at": moment, "took_s": 1.9,
        "preview": {"path": f"/srv/roundhouse/node/previews/{scan}.jsonl", "digest": DIGEST, "size_bytes": 1_204_233},
        "places": [{"path": tmp, "what": "temporary files", "files": 4_120, "size_bytes": 2_410_000_384, "problem": ""},
                   {"path": shm, "what": "shared memory", "files": 3, "size_bytes": 1_024_102_400, "problem": ""},
                   {"path": f"{cache}/vllm", "what": "vLLM's cache", "files": 4_076, "size_bytes": 5_300_019_200, "problem": ""},
                   {"path": f"{cache}/flashinfer", "what": "FlashInfer's cache", "files": 6_286, "size_bytes": 8_808_050_688, "problem": ""}],
        "kinds": kind_rows(found), "gauges": gauges(root=root),
        "largest": [{"path": f"{cache}/flashinfer/0.6.3", "size_bytes": 4_410_003_456, "files": 3_166},
                    {"path": f"{cache}/flashinfer/0.6.2", "size_bytes": 4_398_047_232, "files": 3_120},
                    {"path": f"{cache}/vllm/torch_compile_cache/2f81c09aab", "size_bytes": 1_900_003_328, "files": 1_204},
                    {"path": f"{tmp}/vllm/vllm-instance-c41f", "size_bytes": 1_291_845_632, "files": 3_140}],
        "files": sum(row.files for row in found) + 912, "size_bytes": sum(size.values()) + 2_204_119_040,
        "problems": list(problems), "offered_bytes": size[OFFERED], "choosable_bytes": size[OFFERED] + size[OPTIONAL], "open_checked": open_checked}
    return World(found, listed, summary)


PROBLEMS = ("`/srv/roundhouse/practice/tmp/systemd-private-4e1f` cannot be read: Permission denied",
            "`/scratch` is not in `artifact_roots` of /srv/roundhouse/node/node.toml: add \"/scratch\" to look there")


def entry(artifact: Artifact, *, result: str = "deleted", why: str = "", freed_bytes: int | None = None, deleted_files: int | None = None) -> Entry:
    whole = result == "deleted"
    return Entry(
        number=artifact.number, path=artifact.path, kind=artifact.kind, size_bytes=artifact.size_bytes, files=artifact.files,
        mtime_ns=artifact.mtime_ns, owner=artifact.owner, reason=KINDS[artifact.kind]["leftover"], result=result, why=why, service=artifact.service,
        freed_bytes=(artifact.size_bytes if whole else 0) if freed_bytes is None else freed_bytes,
        deleted_files=(artifact.files if whole else 0) if deleted_files is None else deleted_files)


def entries(chosen: Sequence[Artifact], *, partial: bool = False) -> list[Entry]:
    """A manifest. `partial`: of the tensors one is open by now, one has changed and one is gone; the first folder has a new file in it."""
    made = [entry(artifact) for artifact in chosen]
    if partial:
        tensors = [n for n, row in enumerate(chosen) if row.kind == "debug-tensor"]
        for n, (result, why) in zip(tensors[-3:], (("kept", "Open in python3 (pid 4711)"), ("kept", "Changed since the preview: written 4 s ago"),
                                                   ("gone", "It was not there any more")), strict=False):
            made[n] = entry(chosen[n], result=result, why=why)
        folder = next((n for n, row in enumerate(chosen) if row.unit == "folder"), None)
        if folder is not None:
            row = chosen[folder]
            made[folder] = entry(row, result="partly", why="1 file is new since the preview: `computation_graph.py`",
                                 freed_bytes=row.size_bytes - 40_960, deleted_files=row.files - 1)
    return made


def purge_result(scan: str, job: str, chosen: Sequence[Artifact], told: Sequence[Entry], *, cancelled: bool = False, took_s: float = 2.1,
                 root: str = PRACTICE_ROOT) -> dict[str, Any]:
    """Data of `purge.result`, counted from the manifest. One that was cancelled has fewer lines than were chosen."""
    freed = sum(line.freed_bytes for line in told)
    gone = [line for line in told if line.result == "deleted"]
    stayed = [line for line in told if line.result in ("kept", "partly")]
    whys: dict[str, list[Entry]] = {}
    for line in told:
        if line.why:
            whys.setdefault(line.why, []).append(line)
    kinds = []
    for name in dict.fromkeys(row.kind for row in chosen):
        mine = [line for line in told if line.kind == name]
        kinds.append({"kind": name, "title": KINDS[name]["title"], "one": KINDS[name]["one"], "chosen": sum(1 for row in chosen if row.kind == name),
                      "deleted": sum(1 for line in mine if line.result == "deleted"),
                      "kept": sum(1 for line in mine if line.result in ("kept", "partly")), "freed_bytes": sum(line.freed_bytes for line in mine)})
    return {"scan": scan, "chosen": {"count": len(chosen), "files": sum(row.files for row in chosen),
                                     "size_bytes": sum(row.size_bytes for row in chosen)},
            "deleted": {"count": len(gone), "files": sum(line.deleted_files for line in told), "size_bytes": freed}, "kept": {"count": len(stayed)},
            "kinds": kinds, "why_kept": [{"why": why, "count": len(rows), "example": rows[0].as_dict()["path"]} for why, rows in whys.items()],
            "freed_bytes": freed, "manifest": {"path": f"/srv/roundhouse/node/manifests/{job}.jsonl", "entries": len(told), "told": len(told)},
            "took_s": took_s, "cancelled": cancelled, "gauges": gauges(root=root, freed_bytes=freed)}


OF_A_PLAN = ("debug-tensor", "compile-cache", "nccl-dump", "core-dump", "shm-segment")  # a plan looks at its service's places


def of_plan(scan: str = "5f0c1f0e-6a55-4a57-9a63-0d0f1c2b3a4d", *, at: float | None = None) -> dict[str, Any]:
    """`cleanup` of a plan."""
    moment = time.time() if at is None else at
    found = world(scan, at=moment, rows=[row for row in artifacts(at=moment) if row.kind in OF_A_PLAN])
    return {"scan": scan, "digest": DIGEST, "kinds": found.summary["kinds"], "listed": [row.as_dict() for row in found.listed], "problems": []}


def purge_of_plan(story: Story, job: Job, cleanup: dict[str, Any]) -> None:
    """The purge of a redeploy: what its plan has ticked, all of it deleted."""
    chosen = [Artifact(**row) for row in cleanup["listed"] if row["kind"] == "debug-tensor"]
    tell_purged(story, job, cleanup["scan"], chosen, entries(chosen))


def old_artifacts(root: str = PRACTICE_ROOT) -> list[dict[str, Any]]:
    """The 35 debug tensors as versions before the preview told them: in a plan's `artifacts`."""
    return [{"path": f"{root}/tmp/dbg_layer{n}_000.pt", "size_bytes": 1_863_000, "kind": "debug-tensor", "mtime_ns": 1, "inode": n, "device": 1,
             "uid": 1000, "open_by": [], "safe": True, "why": ""} for n in range(TENSORS)]


def old_purge(*, kept: int = 0) -> dict[str, Any]:
    """Data of `purge.result` as those versions told it."""
    rows = old_artifacts()
    gone = rows[:TENSORS - kept]
    return {"artifacts": rows, "deleted": gone, "kept": [{"path": row["path"], "why": "open in process 4711"} for row in rows[TENSORS - kept:]],
            "freed_bytes": sum(row["size_bytes"] for row in gone)}


# ---- as jobs of a story ----


def tell_found(story: Story, job: Job, found: World) -> None:
    """The events of a scan: its artifacts in parts of 500, then the whole of it."""
    for at in range(0, len(found.listed), 500):
        story.say(job, EventType.ARTIFACTS_FOUND, scan=found.summary["scan"], artifacts=[row.as_dict() for row in found.listed[at:at + 500]])
    story.say(job, EventType.ARTIFACTS_SCANNED, **found.summary)


def tell_purged(story: Story, job: Job, scan: str, chosen: Sequence[Artifact], told: Sequence[Entry], *, cancelled: bool = False) -> None:
    """The events of a purge: its manifest in parts of 1,000, then the result."""
    for at in range(0, len(told), 1000):
        story.say(job, EventType.PURGE_ENTRIES, scan=scan, entries=[line.as_dict() for line in told[at:at + 1000]])
    story.say(job, EventType.PURGE_RESULT, **purge_result(scan, str(job.pk), chosen, told, cancelled=cancelled))


def scan_job(story: Story, *, ago_s: float = 600.0, of: Node | None = None, found: World | None = None, root: str = PRACTICE_ROOT, end: bool = True,
             problems: Sequence[str] = (), roots: list[str] | None = None) -> tuple[Job, World]:
    """A scan of the practice node, or of another. `end` False: it runs, and has told nothing but its progress. `problems`: it ends partial. `roots`:
    it was asked for these folders only."""
    job = story.job("artifact-scan", ago_s=ago_s, of=of or story.the_node, params={"roots": roots, "kinds": None}, steps=SCAN_STEPS)
    made = found or world(str(job.pk), at=time.time() - ago_s, root=root, problems=problems)
    made.summary["scan"] = str(job.pk)
    story.step(job, "scan", log=f"looking through {len(made.summary['places'])} places\n", end=False)
    if not end:
        story.say(job, EventType.STEP_PROGRESS, step="scan", done=8_112, total=None, unit="files", text="/srv/roundhouse/practice/cache/flashinfer",
                  estimate=False)
        return story.tell(job), made
    tell_found(story, job, made)
    story.finish_step(job, "scan", note=f"{len(made.artifacts):,} found in {made.summary['files']:,} files", took=1.9)
    left = len(made.summary["problems"])
    story.end(job, "partial" if left else "succeeded", reason=f"{left} places could not be read" if left else "", duration_s=2.0)
    return job, made


def purge_job(story: Story, scan: Job, found: World, *, choice: Choice | None = None, ago_s: float = 300.0, partial: bool = False,
              cancelled: bool = False, end: bool = True) -> Job:
    """A purge of that scan; of 35 debug tensors and the 3 stale compile caches, if nothing else is chosen. `cancelled`: in the middle."""
    wanted = choice or Choice(kinds=["debug-tensor", "compile-cache"])
    chosen = found.chosen(wanted)
    services = sorted({row.service for row in chosen if row.service})
    job = story.job("purge", ago_s=ago_s, of=scan.node, steps=PURGE_STEPS, params={
        "scan": str(scan.pk), "digest": found.summary["preview"]["digest"], "choice": wanted.as_dict(), "services": services})
    told = entries(chosen[:len(chosen) // 2] if cancelled else chosen, partial=partial)
    said = [f"{line.result} {line.as_dict()['path']}{f': {line.why}' if line.why else ''}\n" for line in told]
    story.step(job, "purge", log="".join(said[:12] if not end else said[:40]), end=False)
    if not end:
        story.say(job, EventType.STEP_PROGRESS, step="purge", done=12, total=len(chosen), unit="artifacts", text="22.4 MB freed", estimate=False)
        return story.tell(job)
    tell_purged(story, job, str(scan.pk), chosen, told, cancelled=cancelled)
    freed = sum(line.freed_bytes for line in told)
    story.finish_step(job, "purge", outcome="cancelled" if cancelled else "done", took=2.1,
                      note=f"{sum(1 for line in told if line.result == 'deleted'):,} deleted, {freed / 1e6:,.1f} MB freed")
    if cancelled:
        return story.end(job, "cancelled", reason="Cancelled at step `purge`", duration_s=2.2)
    stayed = sum(1 for line in told if line.result in ("kept", "partly"))
    return story.end(job, "partial" if stayed else "succeeded", reason=f"{stayed} of {len(told)} stayed" if stayed else "", duration_s=2.2)


# ---- what harms ----

HOSTILE_NAMES = ("two\nlines.pt", "-rf --no-preserve-root.pt", "<img src=x onerror=window.canary=1>.pt", "\u202etxt.exe\u202c.pt",
                 "not\udcff\udcfeutf8.pt", "=cmd|'/c calc'!A1.pt", "</script><script>window.canary=1</script>.pt", "x" * 252 + ".pt", "{{7*7}}.pt")


def hostile_rows(*, at: float, root: str = PRACTICE_ROOT) -> list[Artifact]:
    """Debug tensors with names that a user of the node chose to do harm; as honest code finds them."""
    to = _Writer(at)
    for name in HOSTILE_NAMES:
        to.add("debug-tensor", f"{root}/tmp/{name}", TENSOR_BYTES, days=5, service="kimi-k25")
    return to.made


def lying_artifacts() -> list[Any]:
    """What a node that lies could put into `artifacts.found`: nothing of it is an artifact, or all of it is out of bounds."""
    good = hostile_rows(at=time.time())[0].as_dict()
    of: list[dict[str, Any]] = [
        {"number": "1"}, {"number": -3}, {"number": 10**30}, {"size_bytes": "much"}, {"size_bytes": -1}, {"size_bytes": 10**40}, {"mtime_ns": 10**40},
        {"mtime_ns": None}, {"state": "yours"}, {"open_by": "everybody"}, {"open_by": [{"pid": "x", "name": ["y"]}, 3]}, {"path": "p" * 200_000},
        {"kind": "<script>window.canary=1</script>"}, {"why": "w" * 200_000}, {"owner": {"a": 1}}, {"path": "nul\x00 and \ud800 alone"}]
    return [None, 7, "x", [], {}, *({**good, "number": 100 + n, **wrong} for n, wrong in enumerate(of))]
