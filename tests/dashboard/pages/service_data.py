"""What nodes say of services that run, fail, warm up and leave things behind: for tests of pages. Written by hand in the form of real ones."""

from __future__ import annotations

import base64
import time
from typing import Any

from nacl.public import PrivateKey

SEED = bytes(range(32))  # of the key pair with which the node of these tests opens what was sealed for it
SETTINGS_KEY = base64.b64encode(bytes(PrivateKey(SEED).public_key)).decode()
QUESTIONS: list[dict[str, Any]] = [
    {"name": "finnish", "kind": "contains", "title": "Answers in Finnish", "prompt": "Vastaa suomeksi: mikä on Suomen pääkaupunki?",
     "expect": "Helsinki"},
    {"name": "order-json", "kind": "json", "title": "An order as JSON", "prompt": "Give the order as JSON with `item` and `count`.",
     "schema": {"type": "object", "required": ["item", "count"]}, "max_tokens": 400, "system": "Answer with JSON alone."}]
PHASES = ("start", "load", "compile", "kv_cache", "autotune", "capture", "listening", "healthy")
HEAD = "(Worker_TP3 pid=20663) ERROR 03-02 04:11:28 [multiproc_executor.py:751]"
UNIT = {"name": "vllm-kimi.service", "scope": "system", "state": "active", "sub": "running", "result": "success", "restarts": 0, "enabled": "enabled",
        "needs_reload": False, "launcher_installed": True, "problem": None}
LAUNCH = {"mark": "5f0c1d2e3a4b5c6d",
          "flags": ["--tensor-parallel-size", "8", "--gpu-memory-utilization", "0.92", "--max-model-len", "131072", "--reasoning-parser", "kimi_k2",
                    "--enable-auto-tool-choice", "--override-generation-config", '{"temperature": 0.6}'],
          "env": {"NCCL_P2P_DISABLE": "1", "VLLM_API_KEY": "[redacted]", "CUDA_HOME": "/usr/local/cuda-13.0"},
          "env_files": ["-/etc/vllm/kimi.env"], "secret_names": ["VLLM_API_KEY", "HF_TOKEN"], "pending": False}


def warmups(count: int = 6, *, now: float | None = None) -> list[dict[str, Any]]:
    """Oldest first; every third with a cold compile cache."""
    now = time.time() if now is None else now
    rows = []
    for n in range(count):
        miss = n % 3 == 0
        took = (46.0, 439.0 + 9 * (n % 4), 112.0 if miss else 14.0, 26.0, 9.0, 134.0 - 2 * n, 3.0, 3.0)
        rows.append({"at": now - (count - n) * 40_000, "release": "20260227-181500-0.16.0rc2.dev313-practice", "total_s": sum(took),
                     "cache": "miss" if miss else "hit", "phases": dict(zip(PHASES, took, strict=True))})
    return rows


def diagnosis(**changed: Any) -> dict[str, Any]:
    """An out-of-memory at the start, whose fix is a flag."""
    text = "ValueError: Free memory on device cuda:3 (7.31/95.59 GiB) on startup is less than desired GPU memory utilization (0.92, 87.94 GiB)."
    return {"fault": True, "line": 74, "lines": 195, "text": text, "kind": "gpu memory taken",
            "diagnosis": "Another process holds memory of GPU 3, so vLLM cannot take the share that it was told to take",
            "fix": "End the process that holds the memory (`nvidia-smi` names it), or lower `--gpu-memory-utilization`", "rule": "gpu-memory-taken",
            "preflight": True, "state": "failed", "family": "memory", "source": "log", "action": "end-leftovers", "action_hint": "",
            "context": [{"number": 72, "text": f'{HEAD}   File ".../gpu_worker.py"'}, {"number": 73, "text": f"{HEAD}     raise ValueError("},
                        {"number": 74, "text": f"{HEAD} {text}"},
                        {"number": 75, "text": "(EngineCore_DP0 pid=20598) ERROR 03-02 04:11:31 [core.py:946] EngineCore failed to start."}],
            **changed}


def failures(*, now: float | None = None, action: str = "end-leftovers") -> list[dict[str, Any]]:
    """Newest last: a generic one, an engine that died (code 0), one without a cause, one that cannot be read, and what holds it down now."""
    now = time.time() if now is None else now
    generic = diagnosis(rule="generic", kind="engine died", action="", fix="", preflight=None,
                        text="RuntimeError: CUDA error: an illegal memory access",
                        diagnosis="The engine ended with: an illegal memory access was encountered")
    common = {"release": "20260227-181500-0.16.0rc2.dev313-practice", "invocation": "a" * 32, "restarts": None, "detail": "", "problem": ""}
    return [{**common, "at": now - 900_000 + n, "ended_at": now - 900_000 + n, "exit_code": 1, "diagnosis": generic} for n in range(3)] + [
        {**common, "at": now - 700_000, "ended_at": now - 700_002, "exit_code": 1, "diagnosis": generic},
        {**common, "at": now - 500_000, "ended_at": now - 500_002, "exit_code": 0, "detail": "Its process ended by itself", "diagnosis": diagnosis(
            source="kernel", kind="gpu fell off", rule="xid-79", action="", diagnosis="GPU 2 fell off the bus (Xid 79), and the engine died with it",
            fix="Reset or reboot the machine, and look at the card's power and riser")},
        {**common, "at": now - 300_000, "ended_at": now - 300_001, "exit_code": -9, "diagnosis": None, "detail": "It ended by SIGKILL"},
        {**common, "at": now - 200_000, "ended_at": now - 200_001, "exit_code": None, "diagnosis": None, "problem":
         "The journal of `vllm-kimi.service` may not be read: the agent's user is in none of the groups adm and systemd-journal"},
        {**common, "at": now - 60, "ended_at": now - 62, "exit_code": 1, "restarts": 7, "diagnosis": diagnosis(action=action)}]


LEFTOVERS = {"service": "kimi-k25", "at": 1_772_430_000.0, "processes": [
    {"pid": 20661, "start_ticks": 88121, "started_at": 1_772_400_000.0, "user": "llm", "unit": "vllm-kimi.service", "command": "VLLM::Worker_TP1",
     "gpus": [{"index": 1, "used_bytes": 94_600_000_000}], "own": True, "why": "it was one of its processes while it ran", "service": None},
    {"pid": 20662, "start_ticks": 88122, "started_at": 1_772_400_000.0, "user": "llm", "unit": "vllm-kimi.service", "command": "VLLM::Worker_TP2",
     "gpus": [{"index": 2, "used_bytes": 94_600_000_000}, {"index": 3, "used_bytes": None}], "own": True},
    {"pid": 41877, "start_ticks": 90211, "started_at": 1_772_420_000.0, "user": "anna", "unit": "user@1001.service",
     "command": "python3 -m notebook --port 8888", "gpus": [{"index": 7, "used_bytes": 966_000_000}], "own": False}],
    "gpus": [{"index": 1, "used_bytes": 94_600_000_000, "allowed_bytes": 67_108_864, "problem": None}], "running": False, "problems": [
        "The processes of other users cannot be looked into: which of them has a file in `/dev/shm` open is not known"],
    "ports": [{"port": 8000, "pid": 20661, "command": "VLLM::Worker_TP1", "own": True}],
    "shm": [{"path": f"/dev/shm/psm_{n:08x}", "size_bytes": 33_554_432} for n in range(3)],
    "ipc": [{"path": "/tmp/vllm_dist_8f2a", "what": "socket that nobody listens on"}]}
NOTHING_LEFT = {"service": "kimi-k25", "at": 1_772_430_000.0, "processes": [], "ports": [], "shm": [], "ipc": []}
SETTINGS = {"flags": {"before": ["--tensor-parallel-size", "8", "--max-model-len", "131072", "--enforce-eager"],
                      "after": ["--tensor-parallel-size", "8", "--max-model-len", "65536", "--enable-prefix-caching"]},
            "env": [{"name": "NCCL_DEBUG", "change": "set", "secret": False, "before": "", "after": "WARN"},
                    {"name": "CUDA_HOME", "change": "changed", "secret": False, "before": "/usr/local/cuda", "after": "/usr/local/cuda-13.0"},
                    {"name": "HF_TOKEN", "change": "changed", "secret": True, "before": "", "after": ""},
                    {"name": "VLLM_USE_V1", "change": "removed", "secret": False, "before": "1", "after": ""}],
            "files": ["/srv/roundhouse/node/services/kimi-k25/launch.json", "/srv/roundhouse/node/services/kimi-k25/env.json"],
            "applies": "at the next start"}
PREFLIGHT = [
    *({"part": "host", "look": look, "level": "ok", "title": title, "why": "", "fix": ""} for look, title in (
        ("gpus", "8 of 8 GPUs can be read"), ("port", "Port 8000 is the service's own"), ("disk", "412 GB free at `/srv`"),
        ("shm", "`/dev/shm` has 62 GB free"))),
    {"part": "host", "look": "files", "level": "warning", "title": "The open-file limit is 1,024", "why": "Under load each connection takes one",
     "fix": "Set `LimitNOFILE=65536` in the unit"},
    {"part": "host", "look": "nvcc", "level": "stop", "title": "`nvcc` is 12.8, but this GPU needs 12.9 or newer",
     "why": "The first request compiles kernels for sm_120", "fix": "Install CUDA toolkit 12.9 or newer, and set `CUDA_HOME` in the launch settings"},
    *({"part": "release", "look": look, "level": "ok", "title": title, "why": "", "fix": ""} for look, title in (
        ("coupling", "Coupled packages agree"), ("flags", "All 6 flags are known to `vllm serve`"))),
    {"part": "release", "look": "parsers", "level": "note", "title": "The reasoning parser `kimi_k2` is known to the new release", "why": "",
     "fix": ""}]
FUNCTION = "```python\ndef is_prime(n):\n    return n > 1 and all(n % d for d in range(2, n))\n```"


def _asked(name: str, title: str, kind: str, outcome: str, summary: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "title": title, "kind": kind, "outcome": outcome, "summary": summary, "took_s": 3.1, "detail": "", "prompt": "",
            "answer": "", "reasoning": "", "finish_reason": "stop", "cut": False, **more}


SMOKE: list[dict[str, Any]] = [
    _asked("fact", "Factual question", "factual", "passed", "“…Canberra.”", prompt="What is the capital of Australia?",
           answer="The capital of Australia is Canberra."),
    _asked("code", "Code generation", "code", "passed", "parses as Python; `is_prime` is in it", took_s=8.2, prompt="Write `is_prime(n)` in Python.",
           answer=FUNCTION, reasoning="The user wants a function."),
    _asked("reasoning", "Reasoning present", "reasoning", "failed", prompt="How many r are in this word?", reasoning="Let me count. " * 40,
           summary="the answer ended by length before any content: `max_tokens` 256 is too few, 1,024 would do", finish_reason="length", cut=True),
    _asked("tool", "Tool call", "tool", "left out", "no tool parser is set", took_s=None, finish_reason=None)]
