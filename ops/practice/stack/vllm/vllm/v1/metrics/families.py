"""Every metric family of /metrics: name, kind, help, labels, buckets. The names and labels are those of a recorded vLLM server.

`series` are the values of the labels beyond `engine` and `model_name`, which exist from the start with the value 0.
"""

from typing import NamedTuple

ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
COUNT = (1, 2, 5, 10, 20)
FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
REQUEST_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
HTTP_FINE_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60)
HTTP_COARSE_S = (0.1, 0.5, 1)


class Family(NamedTuple):
    """One family. `buckets` "lengths" means 1, 2, 5, 10, ... up to the context length."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ("engine", "model_name")
    series: tuple[tuple[str, ...], ...] = ()
    buckets: tuple[float, ...] | str = ()


FAMILIES = (
    Family("vllm:estimated_flops_per_gpu_total", "counter",
           "Estimated number of floating point operations per GPU (for Model Flops Utilization calculations)."),
    Family("vllm:estimated_read_bytes_per_gpu_total", "counter",
           "Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations)."),
    Family("vllm:estimated_write_bytes_per_gpu_total", "counter",
           "Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations)."),
    Family("vllm:num_requests_running", "gauge", "Number of requests in model execution batches."),
    Family("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed."),
    Family("vllm:num_requests_waiting_by_reason", "gauge",
           "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals vllm:num_requests_waiting.",
           labels=("engine", "model_name", "reason"), series=(("capacity",), ("deferred",))),
    Family("vllm:engine_sleep_state", "gauge",
           "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
           labels=("engine", "model_name", "sleep_state"), series=(("awake",), ("weights_offloaded",), ("discard_all",))),
    Family("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage."),
    Family("vllm:prefix_cache_queries_total", "counter", "Prefix cache queries, in terms of number of queried tokens."),
    Family("vllm:prefix_cache_hits_total", "counter", "Prefix cache hits, in terms of number of cached tokens."),
    Family("vllm:external_prefix_cache_queries_total", "counter",
           "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of queried tokens."),
    Family("vllm:external_prefix_cache_hits_total", "counter",
           "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached tokens."),
    Family("vllm:mm_cache_queries_total", "counter", "Multi-modal cache queries, in terms of number of queried items."),
    Family("vllm:mm_cache_hits_total", "counter", "Multi-modal cache hits, in terms of number of cached items."),
    Family("vllm:num_preemptions_total", "counter", "Cumulative number of preemption from the engine."),
    Family("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed."),
    Family("vllm:prompt_tokens_by_source_total", "counter", "Number of prompt tokens by source.", labels=("engine", "model_name", "source"),
           series=(("local_compute",), ("local_cache_hit",), ("external_kv_transfer",))),
    Family("vllm:prompt_tokens_cached_total", "counter", "Number of cached prompt tokens (local + external)."),
    Family("vllm:prompt_tokens_cached_by_source_total", "counter",
           "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
           labels=("engine", "model_name", "source"), series=(("device",), ("host",), ("p2p",), ("disk",), ("external_unspecified",))),
    Family("vllm:generation_tokens_total", "counter", "Number of generation tokens processed."),
    Family("vllm:request_success_total", "counter", "Count of successfully processed requests.",
           labels=("engine", "finished_reason", "model_name"), series=(("stop",), ("length",), ("abort",), ("error",), ("repetition",))),
    Family("vllm:admission_rejections_total", "counter", "Number of admission attempts rejected by a queue limit, by reason.",
           labels=("model_name", "reason"), series=(("max_num_queued_reqs",), ("max_num_queued_tokens",))),
    Family("vllm:request_prompt_tokens", "histogram", "Number of prefill tokens processed.", buckets="lengths"),
    Family("vllm:request_generation_tokens", "histogram", "Number of generation tokens processed.", buckets="lengths"),
    Family("vllm:iteration_tokens_total", "histogram", "Histogram of number of tokens per engine_step.", buckets=ITERATION),
    Family("vllm:request_max_num_generation_tokens", "histogram", "Histogram of maximum number of requested generation tokens.", buckets="lengths"),
    Family("vllm:request_params_n", "histogram", "Histogram of the n request parameter.", buckets=COUNT),
    Family("vllm:request_params_max_tokens", "histogram", "Histogram of the max_tokens request parameter.", buckets="lengths"),
    Family("vllm:time_to_first_token_seconds", "histogram", "Histogram of time to first token in seconds.", buckets=FIRST_TOKEN_S),
    Family("vllm:inter_token_latency_seconds", "histogram", "Histogram of inter-token latency in seconds.", buckets=TOKEN_S),
    Family("vllm:request_time_per_output_token_seconds", "histogram", "Histogram of time_per_output_token_seconds per request.", buckets=TOKEN_S),
    Family("vllm:e2e_request_latency_seconds", "histogram", "Histogram of e2e request latency in seconds.", buckets=REQUEST_S),
    Family("vllm:request_queue_time_seconds", "histogram", "Histogram of time spent in WAITING phase for request.", buckets=REQUEST_S),
    Family("vllm:request_inference_time_seconds", "histogram", "Histogram of time spent in RUNNING phase for request.", buckets=REQUEST_S),
    Family("vllm:request_prefill_time_seconds", "histogram", "Histogram of time spent in PREFILL phase for request.", buckets=REQUEST_S),
    Family("vllm:request_decode_time_seconds", "histogram", "Histogram of time spent in DECODE phase for request.", buckets=REQUEST_S),
    Family("vllm:request_num_preemptions", "histogram", "Histogram of the number of times a request was preempted.", buckets=PREEMPTIONS),
    Family("vllm:request_prefill_kv_computed_tokens", "histogram",
           "Histogram of new KV tokens computed during prefill (excluding cached tokens).", buckets="lengths"),
    Family("http_requests_total", "counter", "Total number of requests by method, status and handler.", labels=("handler", "method", "status")),
    Family("http_request_size_bytes", "summary",
           "Content length of incoming requests by handler. Only value of header is respected. Otherwise ignored. No percentile calculated.",
           labels=("handler",)),
    Family("http_response_size_bytes", "summary",
           "Content length of outgoing responses by handler. Only value of header is respected. Otherwise ignored. No percentile calculated.",
           labels=("handler",)),
    Family("http_request_duration_highr_seconds", "histogram",
           "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations.", labels=(), buckets=HTTP_FINE_S),
    Family("http_request_duration_seconds", "histogram",
           "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important.",
           labels=("handler", "method"), buckets=HTTP_COARSE_S),
    Family("vllm:tool_call_parser_invocations_total", "counter",
           "Total number of ToolParser invocations. Non-streaming increments once per choice; streaming increments once per delta.",
           labels=("mode", "model_name", "outcome", "request_type"),
           series=(("streaming", "tool_call", "chat_completions"), ("streaming", "tool_call", "responses"), ("streaming", "tool_call", "other"), ("streaming", "no_tool_call", "chat_completions"), ("streaming", "no_tool_call", "responses"), ("streaming", "no_tool_call", "other"), ("non_streaming", "tool_call", "chat_completions"), ("non_streaming", "tool_call", "responses"), ("non_streaming", "tool_call", "other"), ("non_streaming", "no_tool_call", "chat_completions"), ("non_streaming", "no_tool_call", "responses"), ("non_streaming", "no_tool_call", "other"))),
)
