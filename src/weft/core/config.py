"""What the user said (`EngineOptions`) and what was decided from it (`EngineConfig`): two types.

`weft.engine.configure.resolve` turns the first into the second, once; nothing in an `EngineConfig`
is left to choose. Sizes are in tokens, blocks or bytes, as the name says.
"""

from typing import Literal

import msgspec


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one engine as the user gave them; None means "choose for me"."""

    model: str = "embedded:tiny"
    revision: str | None = None
    served_model_name: list[str] | None = None
    dtype: str = "auto"
    quantization: Literal["int8"] | None = None
    runner: Literal["auto", "reference", "native"] = "auto"
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


class ComputeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What computes: `runner` is "native" or "reference", with `num_threads` threads.

    `quantization` is "int8" where linear layers are to be computed in that, else None.
    """

    runner: Literal["native", "reference"]
    num_threads: int
    quantization: Literal["int8"] | None = None


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one step and of the queue. `policy` is "fcfs" or "priority"."""

    max_num_seqs: int
    max_num_batched_tokens: int
    policy: str
    max_num_queued_reqs: int
    max_num_queued_tokens: int


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one engine runs with."""

    model_config: ModelConfig
    cache_config: CacheConfig
    scheduler_config: SchedulerConfig
    compute_config: ComputeConfig | None = None  # None: it computes on another machine
    data_parallel_size: int = 1
    kv_transfer_config: None = None
