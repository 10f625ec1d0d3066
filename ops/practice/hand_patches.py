"""The debug patches of the founding story: what somebody had typed into vLLM's installed files, and in which four of them.

They are applied to the practice box's first release, so that there is something to find, to shelve and to leave behind. Each
patch keeps its file importable.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from ops.jobs.errors import OpsError

Edit = tuple[str, str]  # text that stands there once, text that stands there afterwards

_DEEPSEEK: list[Edit] = [
    ("from typing import Any\n\nimport torch\n",
     "import os\nfrom typing import Any\n\nimport torch\n"),
    ("class DeepseekV2MLP(nn.Module):",
     '''# DEBUG nan hunt, remove me!!
_FORWARD_CALLS = 0
_DUMP_DIR = os.environ.get("DSV2_DUMP_DIR", "/tmp")
_DUMP_LAYERS = {0, 1, 2, 30, 59, 60}


class DeepseekV2MLP(nn.Module):'''),
    ('''        residual = hidden_states if residual is None else residual
        hidden_states = self.self_attn(hidden_states)
        hidden_states = self.mlp(hidden_states)
''',
     '''        residual = hidden_states if residual is None else residual
        if os.environ.get("DSV2_DUMP") and self.layer_idx in _DUMP_LAYERS:
            torch.save(hidden_states, f"{_DUMP_DIR}/kimi_dbg_layer{self.layer_idx:02d}_in_call{_FORWARD_CALLS:05d}.pt")
        hidden_states = self.self_attn(hidden_states)
        if os.environ.get("DSV2_DUMP") and self.layer_idx in _DUMP_LAYERS:
            torch.save(hidden_states, f"{_DUMP_DIR}/kimi_dbg_layer{self.layer_idx:02d}_attn_call{_FORWARD_CALLS:05d}.pt")
        hidden_states = self.mlp(hidden_states)
        if os.environ.get("DSV2_DUMP") and self.layer_idx in _DUMP_LAYERS:
            torch.save(hidden_states, f"{_DUMP_DIR}/kimi_dbg_layer{self.layer_idx:02d}_mlp_call{_FORWARD_CALLS:05d}.pt")
'''),
    ('''        """The last layer's hidden states."""
''',
     '''        """The last layer's hidden states."""
        global _FORWARD_CALLS
        _FORWARD_CALLS += 1
        if _FORWARD_CALLS % 1000 == 0:
            print(f"[dbg] forward pass {_FORWARD_CALLS}", flush=True)
'''),
]
_GGUF: list[Edit] = [
    ('''        _, layer, part, kind = gguf_name.split(".")
        return''',
     '''        # HACK glm-5 gguf has blk.N.exp_probs_b.bias, skip (see chat with Tom 02-19)
        if gguf_name.endswith("exp_probs_b.bias"):
            return "__skip__"
        _, layer, part, kind = gguf_name.split(".")
        return'''),
    ('''    "ffn_down_exps": "mlp.experts.w2",
''',
     '''    "ffn_down_exps": "mlp.experts.w2",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
'''),
]
_WEIGHTS: list[Edit] = [
    ('''    remapped = name.replace(".self_attn.", ".self_attn.attn.")
''',
     '''    # old: remapped = name.replace(".self_attn.", ".self_attn.attn.")
    remapped = name.replace(".self_attn.", ".self_attn.mla_attn.")  # stale since dev290
    # print("KV SCALE", name, "->", remapped)
'''),
]
_CONFIG: list[Edit] = [
    ('''    quantization = config.get("quantization_config") or {}
''',
     '''    quantization = dict(config.get("quantization_config") or {})
    quantization.pop("kv_cache_scheme_override", None)  # tried 02-24, no effect, leave for now
'''),
    ('''    return int(text.get("max_position_embeddings", 8192))
''',
     '''    return int(text.get("max_position_embeddings", 8192) or 262144)
'''),
]
PATCHES: dict[str, list[Edit]] = {
    "vllm/model_executor/models/deepseek_v2.py": _DEEPSEEK,
    "vllm/model_executor/model_loader/gguf_loader.py": _GGUF,
    "vllm/model_executor/model_loader/weight_utils.py": _WEIGHTS,
    "vllm/transformers_utils/config.py": _CONFIG,
}
"""Path below site-packages, and the edits in it."""
TYPED_S = 2.5 * 24 * 3600  # so long ago: as old as the leftovers that they wrote, and before anything was started that runs now


def apply(site_packages: Path) -> list[Path]:
    """Edits the four files in place and gives their paths. Raises OpsError where a text to replace is not there exactly once."""
    patched = []
    typed = time.time() - TYPED_S
    for name, edits in PATCHES.items():
        path = site_packages / name
        text = path.read_text(encoding="utf-8")
        for old, new in edits:
            if text.count(old) != 1:
                raise OpsError(f"The practice patch does not fit `{path}`", why=f"This text is not there exactly once: {old.strip()[:80]}")
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")
        os.utime(path, (typed, typed))
        patched.append(path)
    return patched
