"""The engine's Prometheus series; names, types, labels and buckets are exactly those of vLLM.

Some series have no counterpart in vLLM: content and losses of the second tier, prompts sent to other engines, load of
experts. Dashboards and pickers rely on these names; `docs/reference/metrics.md` is generated from this table.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

PREFIX: Final = "vllm:"
# Limits the length of label values, which callers may choose, so that the metrics page stays readable.
MAX_LABEL_CHARS: Final = 256
# Labels of every series, before the series' own labels.
ENGINE_LABELS: Final = ("model_name", "engine")


class Kind(StrEnum):
    """Types of Prometheus series. A counter's name on the wire ends in `_total`."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Series:
    """A metric family.

    A histogram with `buckets` None counts tokens, in buckets 1, 2, 5, 10 ... up to the context length.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class OlderName:
    """A former name of a series, which vLLM had up to `last_version`."""

    name: str
    current: str
    last_version: tuple[int, int]


def _counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Series:
    return Series(name, Kind.COUNTER, text, labels)


def _gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Series:
    return Series(name, Kind.GAUGE, text, labels)


def _histogram(name: str, text: str, buckets: tuple[float, ...] | None = None) -> Series:
    return Series(name, Kind.HISTOGRAM, text, buckets=buckets)


_REQUEST_SECONDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
                    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
_FIRST_TOKEN_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5,
                        5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
                  10.0, 20.0, 40.0, 80.0)  # fmt: skip
_STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0,
                16384.0)  # fmt: skip
_TRANSFER_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
_TRANSFER_BYTES = tuple(float(1 << power) for power in range(11, 35, 2))
_TRANSFER_BLOCKS = (10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0, 400.0, 1000.0, 2000.0, 4000.0,
                    10000.0, 20000.0, 50000.0)  # fmt: skip
_ANSWERS = (1.0, 2.0, 5.0, 10.0, 20.0)

CACHE_CONFIG_LABELS: Final = (
    "block_size",
    "num_gpu_blocks",
    "block_bytes",
    "cache_dtype",
    "enable_prefix_caching",
    "mamba_block_size",
)
LORA_LABELS: Final = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")

SERIES: Final = (
    _gauge("num_requests_running", "Number of running sequences, which hold KV blocks."),
    _gauge("num_requests_waiting", "Number of sequences waiting to be scheduled."),
    _gauge(
        "kv_cache_usage_perc",
        "KV cache usage: share of the KV pool that running sequences hold, 0 to 1.",
    ),
    _gauge(
        "engine_sleep_state",
        "Sleep state of the engine: 1 for the current state, 0 for the others.",
        ("sleep_state",),
    ),
    _gauge(
        "cache_config_info",
        "Configuration of the KV cache, in labels. The value is always 1.",
        CACHE_CONFIG_LABELS,
    ),
    _gauge(
        "lora_requests_info",
        "LoRA adapters of running and waiting requests, in labels. The value is the Unix time of the report.",
        LORA_LABELS,
    ),
    _counter("prefix_cache_queries", "Prefix cache queries, in tokens."),
    _counter("prefix_cache_hits", "Prefix cache hits, in tokens."),
    _counter(
        "mm_cache_queries",
        "Lookups in the cache of encoder outputs: pictures, and windows of recordings.",
    ),
    _counter(
        "mm_cache_hits", "Pictures, and windows of recordings, whose encoder output was cached."
    ),
    _counter(
        "expert_load_tokens",
        "Expert load: tokens summed over steps and layers, for the mean expert and for the busiest one (max). "
        "rate(mean) / rate(max) is the balance of the experts, 1 at best. Always 0 for models without experts.",
        ("expert",),
    ),
    _counter(
        "external_prefix_cache_queries",
        "Second-tier cache queries, in tokens that the KV pool did not have.",
    ),
    _counter("external_prefix_cache_hits", "Second-tier cache hits, in tokens."),
    _counter(
        "kv_offload_total_bytes",
        "Bytes transferred between the KV pool and the second tier, by direction.",
        ("transfer_type",),
    ),
    _gauge("kv_offload_usage_bytes", "Bytes stored in the second tier."),
    _counter(
        "kv_offload_lost_blocks",
        "Blocks that the second tier lost, by reason: evicted, dropped because it was busy, or damaged.",
        ("reason",),
    ),
    _histogram(
        "nixl_xfer_time_seconds",
        "KV transfer: time to fetch the blocks of a prompt from another engine, over any connector.",
        _TRANSFER_SECONDS,
    ),
    _histogram(
        "nixl_bytes_transferred",
        "KV transfer: bytes fetched per prompt.",
        _TRANSFER_BYTES,
    ),
    _histogram(
        "nixl_num_descriptors",
        "KV transfer: blocks fetched per prompt.",
        _TRANSFER_BLOCKS,
    ),
    _counter(
        "nixl_num_failed_transfers", "KV transfer: prompts whose blocks could not all be fetched."
    ),
    _counter(
        "nixl_num_failed_notifications",
        "KV transfer: failed notifications that tell another engine to release a prompt's blocks.",
    ),
    _counter(
        "nixl_num_kv_expired_reqs",
        "KV transfer: prompts held for another engine whose lease expired.",
    ),
    _counter("kv_transfer_sent_bytes", "Bytes of blocks sent to other engines."),
    _counter("kv_transfer_sent_blocks", "Blocks sent to other engines."),
    _counter(
        "kv_transfer_sent_seconds",
        "Seconds spent on sending blocks to other engines, including waits.",
    ),
    _counter(
        "kv_transfer_failed_sends",
        "Prompts of which a block requested by another engine could not be sent.",
    ),
    _counter("num_preemptions", "Number of preemptions."),
    _counter(
        "resumed_requests",
        "Number of requests that this engine has continued after the engine before it had ended.",
    ),
    _counter(
        "corrupted_requests",
        "Sequences that failed because their logits contained NaN or infinity.",
    ),
    _counter("spec_decode_num_drafts", "Speculative decoding: number of drafts."),
    _counter("spec_decode_num_draft_tokens", "Speculative decoding: number of draft tokens."),
    _counter(
        "spec_decode_num_accepted_tokens", "Speculative decoding: number of accepted draft tokens."
    ),
    _counter(
        "spec_decode_num_accepted_tokens_per_pos",
        "Speculative decoding: accepted draft tokens by position in the draft, from 0.",
        ("position",),
    ),
    _counter(
        "prompt_tokens",
        "Number of prompt tokens, counted when a sequence generates its first token.",
    ),
    _counter("generation_tokens", "Number of generated tokens."),
    _counter(
        "request_success", "Number of finished sequences, by finish reason.", ("finished_reason",)
    ),
    _histogram("iteration_tokens_total", "Number of tokens computed per step.", _STEP_TOKENS),
    _histogram("request_prompt_tokens", "Prompt tokens per sequence."),
    _histogram("request_generation_tokens", "Generated tokens per sequence."),
    _histogram(
        "request_max_num_generation_tokens",
        "Generated tokens of the longest sequence of a request.",
    ),
    _histogram("request_params_n", "Value of n in requests.", _ANSWERS),
    _histogram("request_params_max_tokens", "Value of max_tokens in requests."),
    _histogram(
        "request_prefill_kv_computed_tokens",
        "Prompt tokens per sequence that were computed, not taken from the prefix cache.",
    ),
    _histogram(
        "time_to_first_token_seconds",
        "Time to first token: from the arrival of the request, before tokenization, to the first token of a "
        "sequence.",
        _FIRST_TOKEN_SECONDS,
    ),
    _histogram(
        "inter_token_latency_seconds",
        "Inter-token latency: time between successive tokens of a sequence.",
        _TOKEN_SECONDS,
    ),
    _histogram(
        "request_time_per_output_token_seconds",
        "Time per output token: mean inter-token latency of a sequence.",
        _TOKEN_SECONDS,
    ),
    _histogram(
        "e2e_request_latency_seconds",
        "End-to-end latency: from the arrival of the request to the last token of a sequence.",
        _REQUEST_SECONDS,
    ),
    _histogram(
        "request_queue_time_seconds",
        "Queue time: from arrival in the engine to the first scheduled step.",
        _REQUEST_SECONDS,
    ),
    _histogram(
        "request_inference_time_seconds",
        "Inference time: from the first scheduled step to the last token, including preemptions.",
        _REQUEST_SECONDS,
    ),
    _histogram(
        "request_prefill_time_seconds",
        "Prefill time: from the first scheduled step to the first token, including preemptions.",
        _REQUEST_SECONDS,
    ),
    _histogram(
        "request_decode_time_seconds",
        "Decode time: from the first to the last token, including preemptions.",
        _REQUEST_SECONDS,
    ),
)

# Names that --show-hidden-metrics-for-version shows again, for dashboards that still use them.
OLDER_NAMES: Final = (
    OlderName("gpu_cache_usage_perc", "kv_cache_usage_perc", (0, 10)),
    OlderName("gpu_prefix_cache_queries", "prefix_cache_queries", (0, 10)),
    OlderName("gpu_prefix_cache_hits", "prefix_cache_hits", (0, 10)),
    OlderName("time_per_output_token_seconds", "inter_token_latency_seconds", (0, 11)),
)

# Series of vLLM that Weft lacks, each with the reason for its absence.
ABSENT: Final = {
    "kv_block_lifetime_seconds, kv_block_idle_before_evict_seconds, kv_block_reuse_gap_seconds": (
        "Weft does not sample block lifetimes (--kv-cache-metrics)"
    ),
    "nixl_post_time_seconds": "Weft's connectors request a transfer in one message; there is no post operation",
    "model_forward_time_milliseconds, model_execute_time_milliseconds": (
        "Weft does not trace steps in detail (--collect-detailed-traces)"
    ),
    "avg_prompt_throughput_toks_per_s, avg_generation_throughput_toks_per_s": (
        "removed from vLLM; use the rate of prompt_tokens_total and generation_tokens_total"
    ),
    "num_requests_swapped, cpu_cache_usage_perc": "removed from vLLM; nothing is swapped",
    "time_in_queue_requests": "removed from vLLM; the same as request_queue_time_seconds",
    "tokens_total": "vLLM never had it either",
}
