"""The engine's Prometheus series: names, types, labels and buckets are those of vLLM, to the letter;
of what the second tier holds and loses, of prompts that go to other engines, and of experts, vLLM has none.

Dashboards and pickers know them by these names; `docs/reference/metrics.md` is made from this table.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

PREFIX: Final = "vllm:"
# Whoever wrote them: a page of metrics must stay one that can be read.
MAX_LABEL_CHARS: Final = 256
ENGINE_LABELS: Final = ("model_name", "engine")  # on every series, before its own


class Kind(StrEnum):
    """Types of Prometheus series. A counter's name on the wire ends in `_total`."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Series:
    """One family. A histogram without `buckets` counts tokens: 1, 2, 5, 10 ... up to the model's length."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class OlderName:
    """A name that a series once had, in versions of vLLM up to `last_version`."""

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
    _gauge("num_requests_running", "Sequences that hold KV blocks."),
    _gauge("num_requests_waiting", "Sequences that wait to be scheduled."),
    _gauge("kv_cache_usage_perc", "Share of the KV pool that sequences hold, 0 to 1."),
    _gauge("engine_sleep_state", "1 for the state that the engine is in.", ("sleep_state",)),
    _gauge("cache_config_info", "Always 1; the labels describe the KV pool.", CACHE_CONFIG_LABELS),
    _gauge(
        "lora_requests_info",
        "Unix time; the labels list the adapters that requests run with, and that they wait for.",
        LORA_LABELS,
    ),
    _counter("prefix_cache_queries", "Tokens looked up in the prefix cache."),
    _counter("prefix_cache_hits", "Tokens found in the prefix cache."),
    _counter(
        "expert_load_tokens",
        "Tokens of an expert, added up over steps and layers: of the mean expert, and of the busiest (max). The "
        "increase of one over that of the other is balancedness, 1 at best. 0 where a model has no experts.",
        ("expert",),
    ),
    _counter(
        "external_prefix_cache_queries",
        "Tokens that the pool had not, looked up in the second tier.",
    ),
    _counter("external_prefix_cache_hits", "Tokens that came from the second tier."),
    _counter(
        "kv_offload_total_bytes",
        "Bytes of blocks that went to the second tier, and came from it.",
        ("transfer_type",),
    ),
    _gauge("kv_offload_usage_bytes", "Bytes that the second tier takes."),
    _counter(
        "kv_offload_lost_blocks",
        "Blocks that the second tier evicted, dropped because it was busy, or found damaged.",
        ("reason",),
    ),
    _histogram(
        "nixl_xfer_time_seconds",
        "Time to fetch a prompt's blocks from another engine, by whichever connector.",
        _TRANSFER_SECONDS,
    ),
    _histogram(
        "nixl_bytes_transferred",
        "Bytes of a prompt that was fetched from another engine.",
        _TRANSFER_BYTES,
    ),
    _histogram(
        "nixl_num_descriptors",
        "Blocks of a prompt that was fetched from another engine.",
        _TRANSFER_BLOCKS,
    ),
    _counter(
        "nixl_num_failed_transfers", "Prompts that could not be fetched whole from another engine."
    ),
    _counter(
        "nixl_num_failed_notifications",
        "Prompts that another engine could not be told to lend no longer.",
    ),
    _counter("nixl_num_kv_expired_reqs", "Prompts that were lent, and whose lease ran out."),
    _counter("kv_transfer_sent_bytes", "Bytes of blocks sent to other engines."),
    _counter("kv_transfer_sent_blocks", "Blocks sent to other engines."),
    _counter(
        "kv_transfer_sent_seconds",
        "Time of sending blocks to other engines, waits for them included.",
    ),
    _counter(
        "kv_transfer_failed_sends",
        "Prompts of which another engine wanted a block that did not go.",
    ),
    _counter("num_preemptions", "Times a sequence gave way."),
    _counter("corrupted_requests", "Sequences ended because their logits were not numbers."),
    _counter("spec_decode_num_drafts", "Drafts that went into a step."),
    _counter("spec_decode_num_draft_tokens", "Tokens that were drafted."),
    _counter("spec_decode_num_accepted_tokens", "Tokens that came as drafted."),
    _counter(
        "spec_decode_num_accepted_tokens_per_pos",
        "Drafts that were right at a place, counted from 0.",
        ("position",),
    ),
    _counter("prompt_tokens", "Prompt tokens of sequences that began to answer."),
    _counter("generation_tokens", "Generated tokens."),
    _counter("request_success", "Answers that ended, by why.", ("finished_reason",)),
    _histogram("iteration_tokens_total", "Tokens computed in a step.", _STEP_TOKENS),
    _histogram("request_prompt_tokens", "Prompt tokens of an answer."),
    _histogram("request_generation_tokens", "Generated tokens of an answer."),
    _histogram(
        "request_max_num_generation_tokens", "Generated tokens of a request's longest answer."
    ),
    _histogram("request_params_n", "Answers requested (n).", _ANSWERS),
    _histogram("request_params_max_tokens", "Most tokens requested (max_tokens)."),
    _histogram(
        "request_prefill_kv_computed_tokens", "Prompt tokens that the prefix cache did not have."
    ),
    _histogram(
        "time_to_first_token_seconds",
        "From a request's arrival, before it is tokenised, to an answer's first token.",
        _FIRST_TOKEN_SECONDS,
    ),
    _histogram(
        "inter_token_latency_seconds", "Between successive tokens of a sequence.", _TOKEN_SECONDS
    ),
    _histogram(
        "request_time_per_output_token_seconds",
        "Mean over an answer's tokens after its first.",
        _TOKEN_SECONDS,
    ),
    _histogram(
        "e2e_request_latency_seconds",
        "From a request's arrival to an answer's end.",
        _REQUEST_SECONDS,
    ),
    _histogram(
        "request_queue_time_seconds",
        "From arrival in the engine to first scheduled.",
        _REQUEST_SECONDS,
    ),
    _histogram(
        "request_inference_time_seconds",
        "From first scheduled to last token; preemptions included.",
        _REQUEST_SECONDS,
    ),
    _histogram(
        "request_prefill_time_seconds",
        "From first scheduled to first token; preemptions included.",
        _REQUEST_SECONDS,
    ),
    _histogram(
        "request_decode_time_seconds",
        "From first to last token; preemptions included.",
        _REQUEST_SECONDS,
    ),
)

# Shown again by --show-hidden-metrics-for-version, for dashboards that still ask for them.
OLDER_NAMES: Final = (
    OlderName("gpu_cache_usage_perc", "kv_cache_usage_perc", (0, 10)),
    OlderName("gpu_prefix_cache_queries", "prefix_cache_queries", (0, 10)),
    OlderName("gpu_prefix_cache_hits", "prefix_cache_hits", (0, 10)),
    OlderName("time_per_output_token_seconds", "inter_token_latency_seconds", (0, 11)),
)

# Series of vLLM's that are not there, each with the reason.
ABSENT: Final = {
    "mm_cache_queries_total, mm_cache_hits_total": "no multimodal inputs",
    "kv_block_lifetime_seconds, kv_block_idle_before_evict_seconds, kv_block_reuse_gap_seconds": (
        "blocks are not sampled (--kv-cache-metrics)"
    ),
    "nixl_post_time_seconds": "a transfer is asked for in one message, and nothing is posted",
    "model_forward_time_milliseconds, model_execute_time_milliseconds": (
        "steps are not traced (--collect-detailed-traces)"
    ),
    "avg_prompt_throughput_toks_per_s, avg_generation_throughput_toks_per_s": (
        "removed from vLLM; ask for the rate of prompt_tokens_total and generation_tokens_total"
    ),
    "num_requests_swapped, cpu_cache_usage_perc": "removed from vLLM; nothing is swapped",
    "time_in_queue_requests": "removed from vLLM; the same as request_queue_time_seconds",
    "tokens_total": "never was there in vLLM either",
}
