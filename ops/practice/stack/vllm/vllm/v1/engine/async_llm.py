"""The API server's view of the engine: takes requests, hands out their tokens in time, counts."""

import asyncio
import time
from collections.abc import Callable

from vllm.config.model import BLOCK_TOKENS, VllmConfig
from vllm.logger import log
from vllm.platforms.practice import Box, GpuHolder
from vllm.v1.core.kv_cache_manager import PrefixCache
from vllm.v1.core.scheduler import THROUGHPUT, Scheduler, Sequence
from vllm.v1.engine.core_client import EngineCoreClient
from vllm.v1.metrics.registry import Registry

_ACTIVE_PARAMETERS = 32e9
_WEIGHT_BYTES = 0.5  # NVFP4
_STATS_EVERY_S = 10.0


class AsyncLLM:
    """A server's engine with its scheduler and its metrics. `died` is called if the engine's process ends by itself."""

    def __init__(self, config: VllmConfig, box: Box, close_in_child: list[int]) -> None:
        self.config, self.box = config, box
        self.holder = GpuHolder(box)
        self.engine_core = EngineCoreClient.make_async_mp_client(config, box, self.holder, close_in_child)
        self.metrics = Registry(config.served_names[0], config.max_model_len)
        self.scheduler = Scheduler(box.speed, config.max_num_seqs, self._on_tick)
        self.died: Callable[[], None] = lambda: None
        self._iterations = self.metrics.get("vllm:iteration_tokens_total")
        self._gaps = self.metrics.get("vllm:inter_token_latency_seconds")
        self._watcher: asyncio.Task[None] | None = None
        self._prompt_tokens = self._generated = self._looked_up = self._found = 0
        self.prefixes = PrefixCache(self.engine_core.kv_tokens // BLOCK_TOKENS) if config.prefix_caching else None
        self._describe()

    @classmethod
    def from_vllm_config(cls, config: VllmConfig, box: Box, close_in_child: list[int]) -> "AsyncLLM":
        """Starts the engine and waits for it. Raises RuntimeError if it fails."""
        return cls(config, box, close_in_child)

    def watch(self) -> None:
        """From now on the engine's death is noticed, and load and statistics are kept."""
        asyncio.get_running_loop().add_reader(self.engine_core.reading, self._heard)
        self._watcher = asyncio.create_task(self._keep_load())

    def _heard(self) -> None:
        if not self.engine_core.take():
            asyncio.get_running_loop().remove_reader(self.engine_core.reading)
            self.died()

    def generate(self, prompt_tokens: int, tokens: int, deliver: Callable[[int, int], None], *, max_tokens: int, prompt: str) -> Sequence:
        """Starts a request that will get that many tokens. `prompt` is its text: what another prompt began with is found in the cache."""
        sequence = Sequence(prompt_tokens, tokens, deliver)
        self.metrics.observe("vllm:request_params_max_tokens", max_tokens)
        self.metrics.observe("vllm:request_params_n", 1)
        self.metrics.observe("vllm:request_max_num_generation_tokens", tokens)
        self.metrics.add("vllm:prompt_tokens_total", prompt_tokens)
        cached = self.prefixes.look(prompt, prompt_tokens) if self.prefixes else 0
        self.metrics.add("vllm:prompt_tokens_by_source_total", prompt_tokens - cached, ("local_compute",))
        self.metrics.add("vllm:prompt_tokens_by_source_total", cached, ("local_cache_hit",))
        self.metrics.add("vllm:prompt_tokens_cached_total", cached)
        self.metrics.add("vllm:prompt_tokens_cached_by_source_total", cached, ("device",))
        if self.prefixes:
            self.metrics.add("vllm:prefix_cache_queries_total", prompt_tokens)
            self.metrics.add("vllm:prefix_cache_hits_total", cached)
            self._looked_up, self._found = self._looked_up + prompt_tokens, self._found + cached
        self._prompt_tokens += prompt_tokens
        self.scheduler.add(sequence)
        return sequence

    def delivered(self, sequence: Sequence, count: int) -> None:
        """Counts the gap before each token that has just been handed out; the first token has none."""
        now = time.monotonic()
        if sequence.sent > count:
            self._gaps.observe((now - sequence.arrived - sequence.last) / count, count)
        elif count > 1:
            self._gaps.observe(0.0, count - 1)
        sequence.last = now - sequence.arrived

    def finished(self, sequence: Sequence, reason: str) -> None:
        """Counts a request that has ended: "stop", "length" or "abort"."""
        now = time.monotonic()
        add, observe = self.metrics.add, self.metrics.observe
        add("vllm:request_success_total", 1, (reason,))
        add("vllm:estimated_flops_per_gpu_total", 2 * _ACTIVE_PARAMETERS * (sequence.prompt_tokens + sequence.sent) / self.config.tensor_parallel_size)
        observe("vllm:request_prompt_tokens", sequence.prompt_tokens)
        observe("vllm:request_generation_tokens", sequence.sent)
        observe("vllm:request_prefill_kv_computed_tokens", sequence.prompt_tokens)
        observe("vllm:request_num_preemptions", 0)
        observe("vllm:e2e_request_latency_seconds", now - sequence.arrived)
        if not sequence.begun:
            return
        observe("vllm:request_queue_time_seconds", max(0.0, sequence.begun - sequence.arrived))
        observe("vllm:request_inference_time_seconds", now - sequence.begun)
        if sequence.first_token:
            observe("vllm:time_to_first_token_seconds", sequence.first_token - sequence.arrived)
            observe("vllm:request_prefill_time_seconds", sequence.first_token - sequence.begun)
            observe("vllm:request_decode_time_seconds", now - sequence.first_token)
            if sequence.sent > 1:
                observe("vllm:request_time_per_output_token_seconds", (now - sequence.first_token) / (sequence.sent - 1))

    def abort(self, sequence: Sequence) -> None:
        """The client has gone."""
        if sequence.state != "ended":
            self.scheduler.abort(sequence)
            self.finished(sequence, "abort")

    def _on_tick(self, tokens: int) -> None:
        self._generated += tokens
        self.metrics.add("vllm:generation_tokens_total", tokens)
        self._iterations.observe(tokens)
        weights = _ACTIVE_PARAMETERS * _WEIGHT_BYTES / self.config.tensor_parallel_size
        self.metrics.add("vllm:estimated_read_bytes_per_gpu_total", weights)
        self.metrics.add("vllm:estimated_write_bytes_per_gpu_total", tokens * 70_000.0 / self.config.tensor_parallel_size)

    def gauges(self) -> None:
        """Brings the gauges up to date; called before /metrics is written."""
        waiting = len(self.scheduler.waiting)
        self.metrics.set("vllm:num_requests_running", len(self.scheduler.running))
        self.metrics.set("vllm:num_requests_waiting", waiting)
        self.metrics.set("vllm:num_requests_waiting_by_reason", waiting, ("capacity",))
        self.metrics.set("vllm:kv_cache_usage_perc", self.kv_usage)
        self.metrics.set("vllm:engine_sleep_state", 1, ("awake",))

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache in use, 0 to 1."""
        return min(1.0, self.scheduler.kv_tokens / self.engine_core.kv_tokens)

    async def _keep_load(self) -> None:
        """Once a second: what the GPUs show. Every ten seconds of work: vLLM's line with its averages."""
        highest = THROUGHPUT[-1][1] * self.box.speed
        seen, since, last_load = 0, time.monotonic(), -1.0
        logged_prompt = logged_tokens = 0
        while True:
            await asyncio.sleep(1.0)
            load = min(1.0, (self._generated - seen) / highest)
            seen = self._generated
            if load or last_load:
                self.holder.set_load(load)
            last_load = load
            now = time.monotonic()
            if now - since >= _STATS_EVERY_S:
                prompt, tokens = self._prompt_tokens - logged_prompt, self._generated - logged_tokens
                if prompt or tokens:
                    log.info("loggers.py:259", f"Engine 000: Avg prompt throughput: {prompt / (now - since):.1f} tokens/s, Avg generation throughput: "
                                               f"{tokens / (now - since):.1f} tokens/s, Running: {len(self.scheduler.running)} reqs, Waiting: "
                                               f"{len(self.scheduler.waiting)} reqs, GPU KV cache usage: {100 * self.kv_usage:.1f}%, "
                                               f"Prefix cache hit rate: {100 * self._found / max(1, self._looked_up):.1f}%")
                since, logged_prompt, logged_tokens = now, self._prompt_tokens, self._generated

    def shutdown(self) -> None:
        """Ends the engine; its memory is free afterwards."""
        if self._watcher:
            self._watcher.cancel()
        asyncio.get_running_loop().remove_reader(self.engine_core.reading)
        self.engine_core.shutdown()
        self.holder.release()

    def _describe(self) -> None:
        tokens = self.engine_core.kv_tokens
        self.metrics.info = {
            "_block_size_resolved": "True", "block_size": "64", "cache_dtype": self.config.kv_cache_dtype, "cache_hit_alignment_tokens": "None",
            "effective_attention_block_size": "64", "enable_mamba_shared_prefix_checkpoint": "False", "enable_prefix_caching": str(self.config.prefix_caching), "engine": "0",
            "gpu_memory_utilization": str(self.config.gpu_memory_utilization), "hash_block_size": "None", "is_attention_free": "False",
            "kv_cache_dtype_skip_layers": "[]", "kv_cache_layout": "None", "kv_cache_max_concurrency": f"{tokens / self.config.max_model_len:.2f}",
            "kv_cache_memory_bytes": "None", "kv_cache_size_tokens": str(tokens), "kv_offloading_backend": "native", "kv_offloading_size": "None",
            "kv_sharing_fast_prefill": "False", "mamba_block_size": "None", "mamba_cache_dtype": "auto", "mamba_cache_mode": "none",
            "mamba_page_size_padded": "None", "mamba_ssm_cache_dtype": "auto", "num_cpu_blocks": "None", "num_gpu_blocks": str(tokens // 64),
            "num_gpu_blocks_override": "None", "prefix_cache_retention_interval": "0", "prefix_caching_hash_algo": "sha256",
            "prefix_match_unit": "None", "replayssm_buffer_len": "16", "skip_page_size_padded": "None", "sliding_window": "None",
            "swa_bounded_replay": "True", "use_kda_recoverssm": "False", "use_replayssm": "False", "user_specified_block_size": "False",
        }
