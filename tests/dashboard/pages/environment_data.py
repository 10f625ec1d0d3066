"""What a node says of environments, releases, guards, recipes and edits: the data that worlds of the factory are furnished with."""

from __future__ import annotations

from typing import Any

OLD, NEW = "20260227-181500-0.16.0rc2.dev313-practice", "20260302-102208-0.16.0rc2.dev344-practice"
BUILT = "20260303-090000-0.16.0rc2.dev350-practice"
ROOT = "/srv/roundhouse/node/services/kimi-k25"
OTHERS = ("anyio", "cachetools", "certifi", "charset-normalizer", "click", "cloudpickle", "compressed-tensors", "diskcache", "einops", "fastapi",
          "filelock", "fsspec", "gguf", "h11", "httpcore", "httptools", "httpx", "huggingface-hub", "idna", "interegular", "jinja2", "jiter",
          "jsonschema", "lark", "llguidance", "lm-format-enforcer", "markupsafe", "mistral-common", "msgspec", "networkx", "numba", "openai",
          "opencv-python-headless", "outlines-core", "packaging", "pillow", "prometheus-client", "protobuf", "psutil", "pydantic", "pyyaml",
          "regex", "requests", "safetensors", "sentencepiece", "sympy", "tiktoken", "tokenizers", "tqdm", "triton", "uvicorn", "uvloop")


def distribution(name: str, version: str, *, size: int | None = 1_200_000, requested: bool = False, source: str = "wheelhouse /srv/roundhouse/wheels",
                 installer: str | None = "uv") -> dict[str, Any]:
    return {"name": name, "version": version, "installer": installer, "requested": requested, "size_bytes": size, "source": source}


def environment(*, release: str, mismatch: bool = False, broken: bool = False) -> dict[str, Any]:
    """`broken`: with a finding of every kind."""
    vllm = "0.16.0rc2.dev344+practice" if release == NEW else "0.16.0rc2.dev313+practice"
    flashinfer = "0.6.4+practice" if release == NEW or mismatch else "0.6.3+practice"
    rows = [distribution("vllm", vllm, size=1_043_000_000, requested=True), distribution("flashinfer-python", flashinfer, size=38_000_000),
            distribution("flashinfer-cubin", "0.6.3+practice" if mismatch else flashinfer, size=4_641_000_000, requested=True),
            distribution("torch", "2.9.1+practice", size=2_312_000_000), distribution("transformers", "4.57.3+practice", size=96_000_000),
            distribution("kernel-notes", "0.0.1", size=None, source="editable /home/llm/kernel-notes", installer="pip"),
            *(distribution(name, f"1.{n}.{n % 7}", source="" if n % 11 == 0 else "wheelhouse /srv/roundhouse/wheels")
              for n, name in enumerate(OTHERS))]
    return {"release": release, "path": f"{ROOT}/releases/{release}", "adopted": None, "python": "3.12.1", "distributions": rows,
            "duplicates": [distribution("pillow", "10.4.0", installer="pip")] if broken else [],
            "problems": ["`/srv/…/site-packages/notes-0.1.dist-info` has no METADATA"] if broken else [],
            "requirements": REQUIREMENTS if broken else [], "cuda": CUDA if broken else [], "coupling": [MISMATCH] if mismatch else [],
            "kernels": KERNELS_LACKING if broken else KERNELS, "at": 1_772_440_000.0}


MISMATCH = {"level": "stop", "packages": {"flashinfer-python": "0.6.4+practice", "flashinfer-cubin": "0.6.3+practice"},
            "title": "Packages do not agree: `flashinfer-python` is 0.6.4+practice, `flashinfer-cubin` is 0.6.3+practice",
            "why": "`import flashinfer` raises RuntimeError, so the service cannot start",
            "fix": "Install `flashinfer-cubin==0.6.4`, then start the service again", "action": {"do": "install", "package": "flashinfer-cubin",
                                                                                                 "version": "0.6.4"}}
REQUIREMENTS = [
    {"package": "vllm", "needs": "torch==2.10.0", "found": "2.9.1+practice", "kind": "conflict", "marker": ""},
    {"package": "mistral-common", "needs": "pillow>=11", "found": "10.4.0", "kind": "conflict", "marker": ""},
    {"package": "openai", "needs": "sniffio", "found": None, "kind": "missing", "marker": ""},
    {"package": "numba", "needs": "llvmlite<0.45,>=0.44.0dev0", "found": None, "kind": "missing", "marker": 'python_version >= "3.10"'}]
CUDA = [{"level": "warning", "title": "Wheels for two CUDAs: `nvidia-nccl-cu12` beside torch for cu130", "why": "Both bring a libnccl.so.2",
         "fix": "A redeploy leaves the one out that torch does not ask for", "packages": {"nvidia-nccl-cu12": "2.27.5", "torch": "2.9.1+cu130"}}]
KERNELS = {"torch": "2.9.1", "cuda": "13.0", "architectures": ["sm_90", "sm_100", "sm_120"], "covered": {"12.0": "binary"}, "missing": [],
           "findings": [], "problem": None}
KERNELS_LACKING = {
    "torch": "2.9.1", "cuda": "13.0", "architectures": ["sm_80", "sm_90"], "covered": {"12.0": "missing"}, "missing": ["12.0"], "problem": None,
    "findings": [{"level": "stop", "title": "torch 2.9.1 has no kernels for compute capability 12.0",
                  "why": "It was built for sm_80, sm_90. The first kernel would end with: no kernel image is available for execution",
                  "fix": "Install a build that lists sm_120"}]}


def release(name: str, *, built_at: float | None, kind: str = "built", current: bool = False, good: bool = False, unfinished: bool = False,
            size: int | None = 11_400_000_000) -> dict[str, Any]:
    return {"name": name, "path": f"{ROOT}/releases/{name}", "kind": kind, "version": name.split("-")[2] if name.count("-") > 1 else None,
            "built_at": built_at, "size_bytes": size, "verified": not unfinished, "is_current": current, "is_last_good": good,
            "unfinished": unfinished}


def releases(current: str) -> list[dict[str, Any]]:
    """Kept: one built and not used yet, two that were, the adopted one."""
    return [release(BUILT, built_at=1_772_528_400.0), release(NEW, built_at=1_772_446_928.0, current=current == NEW, good=current == NEW),
            release(OLD, built_at=1_772_216_100.0, current=current == OLD, good=current == OLD),
            release("adopted", built_at=None, kind="adopted", size=None)]


WORDS = ["`flashinfer-python` was 0.6.3, is 0.6.4", "4 installed files were edited, in `vllm`", "`--max-model-len` was 65536, is 131072",
         "the driver was 570.133.20, is 580.95.05"]
MODEL = [{"level": "warning", "title": "The model brings code of its own: `auto_map` in `config.json`",
          "why": "vLLM runs it at start, because `--trust-remote-code` is set", "fix": ""}]


def guards(*, holding: bool) -> list[dict[str, Any]]:
    rows = []
    for file, key in (("config.json", "quantization_config.kv_cache_scheme"), ("hf_quant_config.json", "quantization.kv_cache_quant_algo")):
        rows.append({"guard": {"kind": "key_absent", "file": file, "key": key, "value": None}, "holds": holding,
                     "explains": f"`{key}` is not in `{file}`" if holding else f"`{key}` stands in `{file}`",
                     "path": f"/data/models/Kimi-K2.5-NVFP4/{file}", "sha256": "b" * 64, "found": None if holding else "FP8",
                     "fix": "" if holding else f"Take `{key}` out of `{file}`: SM120 has no FP8 KV cache"})
    rows.append({"guard": {"kind": "shards_complete", "file": "model.safetensors.index.json", "key": "", "value": None}, "holds": True,
                 "explains": "All 119 shards of the index are there", "path": "/data/models/Kimi-K2.5-NVFP4/model.safetensors.index.json",
                 "sha256": "c" * 64, "found": None, "fix": ""})
    return rows


GUARD_DIFF = """--- a/hf_quant_config.json
+++ b/hf_quant_config.json
@@ -4,6 +4,5 @@
     "quantization": {
         "quant_algo": "NVFP4",
-        "kv_cache_quant_algo": "FP8",
         "group_size": 16,
         "exclude_modules": ["lm_head"]
     }
"""
APPLIED = [{"file": "hf_quant_config.json", "backup": f"{ROOT}/guard-backups/20260303-101010-hf_quant_config.json", "diff": GUARD_DIFF}]
RECIPE = {"name": "kimi-k25-0.16.0rc2.dev344.json", "recipe": {
    "schema": "roundhouse.recipe/1", "label": "all 8 GPUs, long context", "from": {"service": "kimi-k25", "node": "practice", "release": NEW},
    "hash": "ab" * 32, "flags": ["--tensor-parallel-size", "8"], "env": {}, "flags_to_set": ["--api-key"], "env_to_set": ["HF_TOKEN"],
    "guards": [g["guard"] for g in guards(holding=True)], "reference": {"single_stream_tok_s": 61.0},
    "packages": [{"name": "vllm", "version": "0.16.0rc2.dev344+practice", "sha256": "d" * 64},
                 {"name": "flashinfer-python", "version": "0.6.4+practice", "sha256": "e" * 64}]}}
WAYS = [{"mode": "restore", "download_bytes": 0, "packages": 1, "files": 4, "why": "The wheel of `vllm` is in the wheelhouse"},
        {"mode": "full", "download_bytes": None, "packages": 14, "files": 4, "why": ""}]
DEBRIS = [{"line": 121, "text": 'torch.save(hidden_states, f"/tmp/debug_tensor_{self.layer_idx}.pt")', "what": "`torch.save` in a forward path"}]
CONFLICT = {"kind": "no_solution", "what": "`vllm==0.17.1` needs `torch==2.10.0`, but `torch==2.9.1` is asked for", "hint":
            "Choose another version or another channel; nothing has been changed",
            "why": "Because vllm==0.17.1 depends on torch==2.10.0 and you require torch==2.9.1, we can conclude that your requirements and "
                   "vllm==0.17.1 are incompatible.", "facts": {"conflicts": ["`vllm==0.17.1` needs `torch==2.10.0`", "`torch==2.9.1` is asked for"]}}
CAME_BACK = ("The edit to `vllm/model_executor/models/deepseek_v2.py` came back through uv's cache: the cache had the edited file, so a new "
             "environment got it too. It was cleaned and installed anew")


ADOPTED = {
    "name": "glm-5", "manager": "systemd", "unit": "vllm.service", "root": "/srv/roundhouse/node/services/glm-5",
    "model_path": "/data/models/GLM-5-FP8", "served_model_name": "glm-5", "base_url": "http://127.0.0.1:8000",
    "flags": ["--tensor-parallel-size", "8", "--port", "8000", "--max-model-len", "131072", "--tool-call-parser", "glm45"],
    "env": {"NCCL_DEBUG": "WARN", "HF_TOKEN": "[redacted]"}, "gpus": list(range(8)), "guards": [], "artifact_roots": [], "target_tok_s": [],
    "practice": False, "environment": "/opt/vllm", "in_place": False, "env_files": ["-/etc/vllm.env"], "keep_releases": 5, "keep_bytes": None}
DROP_IN = """# /etc/systemd/system/vllm.service.d/50-roundhouse.conf
# Starts service `glm-5` by Roundhouse's launcher. An admin installs it once.
[Service]
ExecStart=
ExecStart=/usr/bin/numactl --interleave=all /srv/roundhouse/node/services/glm-5/launch
"""


def adoption(*, stops: bool = False, lines: bool = False, stored: bool = False, process: bool = False) -> dict[str, Any]:
    """What a real node says of a unit that it read."""
    record = {**ADOPTED, **({"manager": "process", "unit": ""} if process else {})}
    findings = [
        {"level": "warning", "title": "`HF_TOKEN` stands in the unit in clear text",
         "why": "Every user of this host can read it by `systemctl show`; it comes into the record, which only the agent's user can read",
         "fix": "Move it into a file of mode 0600, and name that in EnvironmentFile="},
        {"level": "note", "title": "`/usr/bin/numactl \u2026` stays in front of the launcher, in the drop-in", "why": "It is no part of the record",
         "fix": ""},
        {"level": "note", "title": "Until its drop-in is installed, the unit starts what it started before",
         "why": "Start, stop and restart work without it; a redeploy, a rollback and a switch of the release need it",
         "fix": "An admin runs, once: python -m ops adopt --unit vllm.service --apply --install"},
        {"level": "ok", "title": "Model folder `/data/models/GLM-5-FP8`", "why": "", "fix": ""},
        {"level": "ok", "title": "Environment `/opt/vllm`: Python 3.12.3, 214 packages, vllm 0.17.1", "why": "", "fix": ""}]
    if stops:
        findings.insert(0, {"level": "stop", "title": "The environment was not found", "why": "`exec $SERVER` is decided at the start",
                            "fix": "Name it with --environment"})
    toml = ['model_roots = ["/data/models"]', 'units = ["vllm.service"]'] if lines else []
    if lines:
        findings.insert(0, {"level": "warning", "title": "`/srv/roundhouse/node/node.toml` does not allow it yet",
                            "why": "Jobs on this service are refused until its owner adds: " + "; ".join(toml),
                            "fix": "Change these lines of /srv/roundhouse/node/node.toml, then start the node again"})
    return {"unit": "vllm.service", "files": ["/etc/systemd/system/vllm.service", "/etc/systemd/system/vllm.service.d/gpus.conf"], "user": "llm",
            "record": record, "findings": findings, "node_toml": toml, "adopted_before": stored, "hash": "a" * 64,
            "drop_in": {"path": "/etc/systemd/system/vllm.service.d/50-roundhouse.conf", "text": DROP_IN, "hidden": False},
            "asked": {"unit": "vllm", "name": "glm-5", "environment": "", "in_place": False, "manager": record["manager"]},
            "stored": "/srv/roundhouse/node/services.d/glm-5.json" if stored else None}
