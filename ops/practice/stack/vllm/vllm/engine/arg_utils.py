"""The flags of `vllm serve`: their names, kinds, defaults and help; and which of them were set."""

import argparse
from typing import Any

from vllm.version import __version__

TOOL_PARSERS = ("deepseek_v3", "deepseek_v31", "glm45", "glm47", "hermes", "jamba", "kimi_k2", "llama3_json", "llama4_pythonic", "minimax",
                "minimax_m2", "mistral", "openai", "pythonic", "qwen3_coder", "qwen3_xml", "step3", "xlam")
REASONING_PARSERS = ("deepseek_r1", "deepseek_v3", "glm45", "hunyuan_a13b", "kimi_k2", "minimax_m2", "minimax_m2_append_think", "mistral", "olmo3",
                     "openai_gptoss", "qwen3", "seed_oss", "step3")
_DTYPES = ("auto", "bfloat16", "float", "float16", "float32", "half")
_KV_DTYPES = ("auto", "bfloat16", "fp8", "fp8_ds_mla", "fp8_e4m3", "fp8_e5m2", "fp8_inc")

Flag = tuple[str, dict[str, Any]]


def _switch(name: str, default: bool | None, text: str) -> Flag:
    return name, {"action": argparse.BooleanOptionalAction, "default": default, "help": text}


def _value(name: str, kind: Any, default: Any, text: str, **more: Any) -> Flag:
    return name, {"type": kind, "default": default, "help": text, **more}


def _length(text: str) -> int:
    """A number of tokens; `128k` is 128,000 and `128K` is 131,072."""
    scale = {"k": 1000, "K": 1024, "m": 10**6, "M": 2**20}.get(text[-1:], 1)
    return int(float(text[:-1]) * scale) if scale > 1 else int(text)


GROUPS: dict[str, list[Flag]] = {
    "Frontend": [
        _value("--host", str, None, "Host name."),
        _value("--port", int, 8000, "Port number."),
        _value("--uvicorn-log-level", str, "info", "Log level for uvicorn."),
        _switch("--disable-uvicorn-access-log", False, "Disable uvicorn access log."),
        _value("--api-key", str, None, "If provided, the server will require one of these keys in the header.", nargs="+"),
        _value("--root-path", str, None, "FastAPI root_path when app is behind a path based routing proxy."),
        _value("--chat-template", str, None, "The file path to the chat template."),
        _value("--chat-template-content-format", str, "auto", "The format to render message content within a chat template.",
               choices=("auto", "openai", "string")),
        _value("--response-role", str, "assistant", "The role name to return."),
        _switch("--enable-auto-tool-choice", False, "Enable auto tool choice for supported models."),
        _value("--tool-call-parser", str, None, f"Select the tool call parser: {', '.join(TOOL_PARSERS)}."),
        _switch("--enable-server-load-tracking", False, "If set, the server tracks the number of requests in flight (/load)."),
        _switch("--enable-force-include-usage", False, "If set, usage is included in every stream."),
    ],
    "ModelConfig": [
        _value("--served-model-name", str, None, "The model name(s) used in the API.", nargs="+"),
        _value("--tokenizer", str, None, "Name or path of the tokenizer."),
        _value("--tokenizer-mode", str, "auto", "Tokenizer mode."),
        _switch("--trust-remote-code", False, "Trust remote code when downloading the model and tokenizer."),
        _value("--dtype", str, "auto", "Data type for model weights and activations.", choices=_DTYPES),
        _value("--seed", int, 0, "Random seed."),
        _value("--revision", str, None, "The specific model version to use."),
        _value("--max-model-len", _length, None, "Model context length (prompt and output)."),
        _value("--quantization", str, None, "Method used to quantize the weights."),
        _switch("--enforce-eager", False, "Whether to always use eager-mode PyTorch."),
        _value("--hf-overrides", str, None, "Arguments to be forwarded to the Hugging Face config, as JSON."),
        _value("--generation-config", str, "auto", "The folder path to the generation config."),
        _value("--override-generation-config", str, None, "Overrides of the generation config, as JSON."),
        _switch("--enable-sleep-mode", False, "Enable sleep mode for the engine."),
    ],
    "LoadConfig": [
        _value("--load-format", str, "auto", "The format of the model weights to load."),
        _value("--download-dir", str, None, "Directory to download and load the weights."),
        _value("--safetensors-load-strategy", str, "lazy", "Specifies the loading strategy for safetensors weights."),
    ],
    "StructuredOutputsConfig": [
        _value("--reasoning-parser", str, None, f"Select the reasoning parser: {', '.join(REASONING_PARSERS)}."),
        _value("--structured-outputs-config", str, None, "Structured outputs configuration, as JSON."),
    ],
    "ParallelConfig": [
        _value("--tensor-parallel-size", int, 1, "Number of tensor parallel groups."),
        _value("--pipeline-parallel-size", int, 1, "Number of pipeline parallel groups."),
        _value("--data-parallel-size", int, 1, "Number of data parallel groups."),
        _switch("--enable-expert-parallel", False, "Use expert parallelism instead of tensor parallelism for MoE layers."),
        _switch("--disable-custom-all-reduce", False, "Disable the custom all-reduce kernel and fall back to NCCL."),
        _value("--distributed-executor-backend", str, None, "Backend to use for distributed model workers.", choices=("mp", "ray", "uni")),
        _value("--decode-context-parallel-size", int, 1, "Number of decode context parallel groups."),
    ],
    "CacheConfig": [
        _value("--block-size", int, None, "Size of a contiguous cache block in number of tokens."),
        _value("--gpu-memory-utilization", float, 0.9, "The fraction of GPU memory to be used for the model executor."),
        _value("--swap-space", float, 4, "Size of the CPU swap space per GPU (in GiB)."),
        _value("--kv-cache-dtype", str, "auto", "Data type for kv cache storage.", choices=_KV_DTYPES),
        _switch("--enable-prefix-caching", None, "Whether to enable prefix caching."),
    ],
    "SchedulerConfig": [
        _value("--max-num-batched-tokens", _length, None, "Maximum number of tokens to be processed in a single iteration."),
        _value("--max-num-seqs", int, None, "Maximum number of sequences to be processed in a single iteration."),
        _switch("--enable-chunked-prefill", None, "Prefill requests can be chunked based on the remaining token budget."),
        _switch("--async-scheduling", None, "Perform async scheduling."),
        _value("--stream-interval", int, 1, "The interval (or buffer size) for streaming in terms of token length."),
    ],
    "VllmConfig": [
        _value("--speculative-config", str, None, "Speculative decoding configuration, as JSON."),
        _value("--kv-transfer-config", str, None, "The configurations for distributed KV cache transfer, as JSON."),
        _value("--compilation-config", str, None, "Compilation configuration, as JSON."),
        _value("--attention-backend", str, None, "Attention backend to use."),
        _value("--limit-mm-per-prompt", str, None, "The maximum number of multi-modal inputs per prompt, as JSON."),
        _value("--mm-encoder-tp-mode", str, "weights", "How multi-modal encoder inference uses tensor parallelism.", choices=("data", "weights")),
        _switch("--disable-log-stats", False, "Disable logging statistics."),
        _switch("--enable-log-requests", False, "Enable logging requests."),
    ],
}
ALIASES = {"--tensor-parallel-size": "-tp", "--pipeline-parallel-size": "-pp", "--data-parallel-size": "-dp", "--quantization": "-q",
           "--compilation-config": "-O"}
if ".dev313" in __version__:  # nightlies drop old flags: this one is gone in dev344
    GROUPS["VllmConfig"].append(_switch("--disable-log-requests", True, "[DEPRECATED] Disable logging requests."))


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """All flags of `vllm serve`, in their groups."""
    parser.add_argument("model_tag", nargs="?", default="Qwen/Qwen3-0.6B", help="The model tag to serve.")
    for title, flags in GROUPS.items():
        group = parser.add_argument_group(title)
        for name, settings in flags:
            names = [name, *([ALIASES[name]] if name in ALIASES else [])]
            group.add_argument(*names, **settings)


def with_dashes(argv: list[str]) -> list[str]:
    """`--max_model_len` is the same flag as `--max-model-len`."""
    out = []
    for word in argv:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            word = name.replace("_", "-") + equals + value
        out.append(word)
    return out


def non_default(args: argparse.Namespace) -> dict[str, Any]:
    """What was set on the command line, with `model` added, as the line `non-default args` shows it."""
    defaults = {name.removeprefix("--").replace("-", "_"): settings["default"] for flags in GROUPS.values() for name, settings in flags}
    found: dict[str, Any] = {"model_tag": args.model_tag}
    found |= {name: getattr(args, name) for name, default in defaults.items() if getattr(args, name) != default}
    found["model"] = args.model_tag
    if "api_key" in found:
        found["api_key"] = ["***"]
    return found
