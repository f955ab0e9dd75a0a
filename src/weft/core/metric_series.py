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
    Series("num_requests_running", Kind.GAUGE, "Sequences that hold KV blocks."),
    Series("num_requests_waiting", Kind.GAUGE, "Sequences that wait to be scheduled."),
    Series(
        "kv_cache_usage_perc", Kind.GAUGE, "Share of the KV pool that sequences hold, 0 to 1."
    ),
    Series(
        "engine_sleep_state",
        Kind.GAUGE,
        "1 for the state that the engine is in.",
        ("sleep_state",),
    ),
    Series(
        "cache_config_info",
        Kind.GAUGE,
        "Always 1; the labels describe the KV pool.",
        CACHE_CONFIG_LABELS,
    ),
    Series(
        "lora_requests_info",
        Kind.GAUGE,
        "Unix time; the labels list the adapters that requests run with, and that they wait for.",
        LORA_LABELS,
    ),
    Series(
        "prefix_cache_queries", Kind.COUNTER, "Tokens looked up in the prefix cache."
    ),
    Series("prefix_cache_hits", Kind.COUNTER, "Tokens found in the prefix cache."),
    Series(
        "expert_load_tokens",
        Kind.COUNTER,
        "Tokens of an expert, added up over steps and layers: of the mean expert, and of the busiest (max). The "
        "increase of one over that of the other is balancedness, 1 at best. 0 where a model has no experts.",
        ("expert",),
    ),
    Series(
        "external_prefix_cache_queries",
        Kind.COUNTER,
        "Tokens that the pool had not, looked up in the second tier.",
    ),
    Series(
        "external_prefix_cache_hits", Kind.COUNTER, "Tokens that came from the second tier."
    ),
    Series(
        "kv_offload_total_bytes",
        Kind.COUNTER,
        "Bytes of blocks that went to the second tier, and came from it.",
        ("transfer_type",),
    ),
    Series(
        "kv_offload_usage_bytes", Kind.GAUGE, "Bytes that the second tier takes."
    ),
    Series(
        "kv_offload_lost_blocks",
        Kind.COUNTER,
        "Blocks that the second tier evicted, dropped because it was busy, or found damaged.",
        ("reason",),
    ),
    Series(
        "nixl_xfer_time_seconds",
        Kind.HISTOGRAM,
        "Time to fetch a prompt's blocks from another engine, by whichever connector.",
        buckets=_TRANSFER_SECONDS,
    ),
    Series(
        "nixl_bytes_transferred",
        Kind.HISTOGRAM,
        "Bytes of a prompt that was fetched from another engine.",
        buckets=_TRANSFER_BYTES,
    ),
    Series(
        "nixl_num_descriptors",
        Kind.HISTOGRAM,
        "Blocks of a prompt that was fetched from another engine.",
        buckets=_TRANSFER_BLOCKS,
    ),
    Series(
        "nixl_num_failed_transfers",
        Kind.COUNTER,
        "Prompts that could not be fetched whole from another engine.",
    ),
    Series(
        "nixl_num_failed_notifications",
        Kind.COUNTER,
        "Prompts that another engine could not be told to lend no longer.",
    ),
    Series(
        "nixl_num_kv_expired_reqs",
        Kind.COUNTER,
        "Prompts that were lent, and whose lease ran out.",
    ),
    Series("kv_transfer_sent_bytes", Kind.COUNTER, "Bytes of blocks sent to other engines."),
    Series("kv_transfer_sent_blocks", Kind.COUNTER, "Blocks sent to other engines."),
    Series(
        "kv_transfer_sent_seconds",
        Kind.COUNTER,
        "Time of sending blocks to other engines, waits for them included.",
    ),
    Series(
        "kv_transfer_failed_sends",
        Kind.COUNTER,
        "Prompts of which another engine wanted a block that did not go.",
    ),
    Series("num_preemptions", Kind.COUNTER, "Times a sequence gave way."),
    Series(
        "corrupted_requests",
        Kind.COUNTER,
        "Sequences ended because their logits were not numbers.",
    ),
    Series("spec_decode_num_drafts", Kind.COUNTER, "Drafts that went into a step."),
    Series("spec_decode_num_draft_tokens", Kind.COUNTER, "Tokens that were drafted."),
    Series(
        "spec_decode_num_accepted_tokens", Kind.COUNTER, "Tokens that came as drafted."
    ),
    Series(
        "spec_decode_num_accepted_tokens_per_pos",
        Kind.COUNTER,
        "Drafts that were right at a place, counted from 0.",
        ("position",),
    ),
    Series("prompt_tokens", Kind.COUNTER, "Prompt tokens of sequences that began to answer."),
    Series("generation_tokens", Kind.COUNTER, "Generated tokens."),
    Series(
        "request_success", Kind.COUNTER, "Answers that ended, by why.", ("finished_reason",)
    ),
    Series(
        "iteration_tokens_total",
        Kind.HISTOGRAM,
        "Tokens computed in a step.",
        buckets=_STEP_TOKENS,
    ),
    Series("request_prompt_tokens", Kind.HISTOGRAM, "Prompt tokens of an answer."),
    Series("request_generation_tokens", Kind.HISTOGRAM, "Generated tokens of an answer."),
    Series(
        "request_max_num_generation_tokens",
        Kind.HISTOGRAM,
        "Generated tokens of a request's longest answer.",
    ),
    Series(
        "request_params_n", Kind.HISTOGRAM, "Answers requested (n).", buckets=_ANSWERS
    ),
    Series("request_params_max_tokens", Kind.HISTOGRAM, "Most tokens requested (max_tokens)."),
    Series(
        "request_prefill_kv_computed_tokens",
        Kind.HISTOGRAM,
        "Prompt tokens that the prefix cache did not have.",
    ),
    Series(
        "time_to_first_token_seconds",
        Kind.HISTOGRAM,
        "From a request's arrival, before it is tokenised, to an answer's first token.",
        buckets=_FIRST_TOKEN_SECONDS,
    ),
    Series(
        "inter_token_latency_seconds",
        Kind.HISTOGRAM,
        "Between successive tokens of a sequence.",
        buckets=_TOKEN_SECONDS,
    ),
    Series(
        "request_time_per_output_token_seconds",
        Kind.HISTOGRAM,
        "Mean over an answer's tokens after its first.",
        buckets=_TOKEN_SECONDS,
    ),
    Series(
        "e2e_request_latency_seconds",
        Kind.HISTOGRAM,
        "From a request's arrival to an answer's end.",
        buckets=_REQUEST_SECONDS,
    ),
    Series(
        "request_queue_time_seconds",
        Kind.HISTOGRAM,
        "From arrival in the engine to first scheduled.",
        buckets=_REQUEST_SECONDS,
    ),
    Series(
        "request_inference_time_seconds",
        Kind.HISTOGRAM,
        "From first scheduled to last token; preemptions included.",
        buckets=_REQUEST_SECONDS,
    ),
    Series(
        "request_prefill_time_seconds",
        Kind.HISTOGRAM,
        "From first scheduled to first token; preemptions included.",
        buckets=_REQUEST_SECONDS,
    ),
    Series(
        "request_decode_time_seconds",
        Kind.HISTOGRAM,
        "From first to last token; preemptions included.",
        buckets=_REQUEST_SECONDS,
    ),
)  # fmt: skip

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
