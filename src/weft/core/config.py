"""What the user said (`EngineOptions`) and what was decided from it (`EngineConfig`): two types.

`weft.engine.configure.resolve` turns the first into the second, once; nothing in an `EngineConfig`
is left to choose. Sizes are in tokens, blocks or bytes, as the name says.
"""

from typing import Any, Literal

import msgspec

from weft.core.types import LogprobsMode, PoolingKind


class PoolerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a pooling model embeds, where it is not to be as its files say.

    With `enable_chunked_processing` texts longer than the context are embedded in pieces, over HTTP,
    up to `max_embed_len` tokens.
    """

    pooling_type: str | None = None
    normalize: bool | None = None
    enable_chunked_processing: bool = False
    max_embed_len: int | None = None


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one engine as the user gave them; None means "choose for me"."""

    model: str = "embedded:tiny"
    revision: str | None = None
    served_model_name: list[str] | None = None
    dtype: str = "auto"
    runner: str = "auto"
    pooler_config: str | dict[str, Any] | PoolerOptions | None = None
    quantization: Literal["int8"] | None = None
    kv_cache_dtype: Literal["auto", "int8"] = "auto"
    compute: Literal["auto", "reference", "native"] = "auto"
    num_threads: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    num_gpu_blocks_override: int | None = None
    kv_cache_bytes: int | None = None
    enable_prefix_caching: bool = True
    scheduling_policy: str = "fcfs"
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    max_logprobs: int = 20
    logprobs_mode: str = "raw_logprobs"
    structured_outputs_in_reasoning: bool = False
    speculative_config: str | dict[str, Any] | None = None
    stream_interval_ms: float | None = None
    enable_lora: bool = False
    max_loras: int | None = None
    max_lora_rank: int | None = None


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of the served model. `model` is as the user named it; `vocab_size` is the logits width.

    `eos_token_ids[0]` is the primary end-of-sequence id; hitting another reports it as stop reason.
    """

    model: str
    served_model_names: tuple[str, ...]
    model_type: str
    architectures: tuple[str, ...]
    dtype: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    pad_token_id: int | None
    default_sampling_params: dict[str, float | int]
    max_logprobs: int
    logprobs_mode: LogprobsMode = LogprobsMode.RAW_LOGPROBS
    revision: str | None = None
    runner_type: str = "generate"
    is_multimodal_model: bool = False

    @property
    def served_model_name(self) -> str:
        """The first of the names the model answers to."""
        return self.served_model_names[0]

    def get_vocab_size(self) -> int:
        """`vocab_size`, under the name servers written for other engines call."""
        return self.vocab_size


class PoolerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a pooling model can be asked for, and how it embeds.

    `kinds` are the tasks, each with the hidden states it is made of. `dimensions` are the lengths an
    embedding of a matryoshka model may be cut to; none: any. `prompt` leads every text.
    """

    kinds: dict[str, PoolingKind]
    normalize: bool
    embedding_size: int
    is_matryoshka: bool = False
    dimensions: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    lowercases: bool = False
    prompt: str = ""
    enable_chunked_processing: bool = False
    max_embed_len: int | None = None

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of `kinds`."""
        return tuple(self.kinds)


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The KV pool: `num_blocks` usable blocks of `block_size` tokens, `block_bytes` each."""

    block_size: int
    num_blocks: int
    block_bytes: int
    kv_cache_dtype: str
    enable_prefix_caching: bool

    @property
    def max_total_tokens(self) -> int:
        """Tokens the whole pool holds."""
        return self.num_blocks * self.block_size


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tokens are drafted: "ngram" continues an earlier place that ends with the same tokens.

    At most `num_speculative_tokens` a step, after `prompt_lookup_max` to `prompt_lookup_min` equal ones.
    """

    method: str
    num_speculative_tokens: int
    prompt_lookup_max: int
    prompt_lookup_min: int


class ComputeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What computes: `compute` is "native" or "reference", with `num_threads` threads.

    `quantization` is "int8" where linear layers are to be computed in that, else None.
    `kv_cache_dtype` is "int8" where keys and values are to be rounded to that; "auto" leaves them.
    """

    compute: Literal["native", "reference"]
    num_threads: int
    quantization: Literal["int8"] | None = None
    kv_cache_dtype: Literal["auto", "int8"] = "auto"


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one step and of the queue. `policy` is "fcfs" or "priority".

    Without `chunks_prompts` every prompt is computed in one step.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    policy: str
    max_num_queued_reqs: int
    max_num_queued_tokens: int
    speculation: SpeculativeConfig | None = None
    chunks_prompts: bool = True


class LoraConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Adapters that may be loaded at once, and the highest rank of one."""

    max_loras: int
    max_lora_rank: int


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one engine runs with. `pooler_config` is None for a model that generates text.

    `structured_outputs_in_reasoning` lets every grammar rule from the first token, thoughts included.
    Without a `lora_config` there are no adapters. A stream tells its news at most once in
    `stream_interval_ms`; with 0, after every step.
    """

    model_config: ModelConfig
    cache_config: CacheConfig
    scheduler_config: SchedulerConfig
    structured_outputs_in_reasoning: bool = False
    compute_config: ComputeConfig | None = None  # None: it computes on another machine
    data_parallel_size: int = 1
    kv_transfer_config: None = None
    pooler_config: PoolerConfig | None = None
    lora_config: LoraConfig | None = None
    stream_interval_ms: float = 0.0
