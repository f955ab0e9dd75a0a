"""`resolve`: from the user's options, the model and the free memory to what the engine runs with.

Pure. Every refusal is a `ConfigError` of one line that names the flag, the number and what is
allowed; a model that does not fit is refused with flags that would make it fit.
"""

import math
from dataclasses import dataclass

from weft.compute.backends import choose
from weft.core.config import (
    CacheConfig,
    EngineConfig,
    EngineOptions,
    LogprobsMode,
    LoraConfig,
    ModelConfig,
    SchedulerConfig,
)
from weft.core.defaults import (
    DEFAULT_BLOCK_SIZE,
    DEFAULT_MAX_LORA_RANK,
    DEFAULT_MAX_LORAS,
    DEFAULT_MAX_NUM_BATCHED_TOKENS,
    DEFAULT_MAX_NUM_QUEUED_REQS,
    DEFAULT_MAX_NUM_QUEUED_TOKENS,
    DEFAULT_MAX_NUM_SEQS,
    DEFAULT_MEMORY_SHARE,
    DEFAULT_STREAM_INTERVAL_MS,
)
from weft.core.errors import ConfigError
from weft.engine.configure_pooler import resolve_pooler
from weft.engine.speculation import read_speculation
from weft.model.card import ModelCard
from weft.model.overrides import read_overrides

# The pool is no larger than this by default, unless one sequence of full length needs more.
DEFAULT_POOL_BYTES = 4 << 30

MAX_BLOCK_SIZE = 1024
MAX_STREAM_INTERVAL_MS = 10_000.0
MAX_LORAS = 1024
MAX_LORA_RANK = 4096
MIN_MODEL_LEN = 2  # one token in, one token out
_INT32_MAX = 2**31 - 1  # block ids, slots and positions are int32 in a batch
_POLICIES = ("fcfs", "priority")


def resolve(options: EngineOptions, card: ModelCard, free_bytes: int) -> EngineConfig:
    """Decide everything that was left open, and refuse what cannot work."""
    max_model_len = _max_model_len(options, card)
    scheduler = _scheduler_config(options, card, max_model_len)
    lora = _lora_config(options)
    demand = _Demand(
        max_model_len=max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        block_size=_bounded("block_size", options.block_size, DEFAULT_BLOCK_SIZE, MAX_BLOCK_SIZE),
        kv_bytes_per_token=card.kv_bytes_per_token,
        weight_bytes=card.weight_bytes + _adapter_bytes(lora, card),
        weights="weights" if lora is None else f"weights and {lora.max_loras} LoRA adapters",
        free_bytes=free_bytes,
        memory_share=_memory_share(options),
        is_sized_in_bytes=options.kv_cache_bytes is not None,
    )
    return EngineConfig(
        model_config=_model_config(options, card, max_model_len),
        cache_config=CacheConfig(
            block_size=demand.block_size,
            num_blocks=_num_blocks(options, demand),
            block_bytes=demand.block_bytes,
            kv_cache_dtype=card.kv_dtype,
            enable_prefix_caching=options.enable_prefix_caching and card.is_causal,
        ),
        scheduler_config=scheduler,
        structured_outputs_in_reasoning=options.structured_outputs_in_reasoning,
        pooler_config=resolve_pooler(options, card),
        compute_config=choose(options, card),
        lora_config=lora,
        stream_interval_ms=_stream_interval_ms(options),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Demand:
    """What the pool must hold, and what there is to hold it."""

    max_model_len: int
    max_num_seqs: int
    block_size: int
    kv_bytes_per_token: int
    weight_bytes: int
    weights: str  # what these are, for messages
    free_bytes: int
    memory_share: float | None  # as the user gave it
    is_sized_in_bytes: bool  # by --kv-cache-bytes, so that advice names the same flag

    @property
    def block_bytes(self) -> int:
        return self.block_size * self.kv_bytes_per_token

    @property
    def blocks_per_sequence(self) -> int:
        """Blocks of one sequence of full length."""
        return -(-self.max_model_len // self.block_size)

    @property
    def budget_bytes(self) -> int:
        """For the pool, when the user names no size."""
        share = DEFAULT_MEMORY_SHARE if self.memory_share is None else self.memory_share
        return int(self.free_bytes * share) - self.weight_bytes

    @property
    def limit_bytes(self) -> int:
        """For the pool, at the very most: beyond this there is no memory."""
        return self.free_bytes - self.weight_bytes


def _num_blocks(options: EngineOptions, demand: _Demand) -> int:
    if demand.limit_bytes < demand.block_bytes:
        raise ConfigError(
            f"the model does not fit: its {demand.weights} take {_bytes(demand.weight_bytes)} and a "
            f"KV block {_bytes(demand.block_bytes)}, but {_bytes(demand.free_bytes)} of memory are free; "
            "free some, or serve a smaller model"
        )
    requested = _requested_blocks(options, demand)
    num_blocks = _default_blocks(demand) if requested is None else requested
    if requested is not None and num_blocks * demand.block_bytes > demand.limit_bytes:
        raise ConfigError(_too_large(demand, num_blocks))
    if num_blocks < demand.blocks_per_sequence:
        raise ConfigError(_too_small(demand, num_blocks))
    if num_blocks * demand.block_size > _INT32_MAX:
        raise ConfigError(f"the KV pool has {num_blocks} blocks; at most 2**31 tokens fit a pool")
    return num_blocks


def _requested_blocks(options: EngineOptions, demand: _Demand) -> int | None:
    """The size of the pool as the user gave it, in blocks."""
    if options.kv_cache_bytes is None:
        if options.num_gpu_blocks_override is None:
            return None
        return _bounded("num_gpu_blocks_override", options.num_gpu_blocks_override, 1)
    if options.num_gpu_blocks_override is not None:
        raise ConfigError("give --kv-cache-bytes or --num-gpu-blocks-override, not both")
    size = _bounded("kv_cache_bytes", options.kv_cache_bytes, 1, 2**63 - 1)
    if demand.block_bytes == 0:
        raise ConfigError(
            "--kv-cache-bytes says nothing for a model that keeps no KV; "
            "use --num-gpu-blocks-override"
        )
    if size < demand.block_bytes:
        raise ConfigError(
            f"--kv-cache-bytes {size} holds no block; one takes {_bytes(demand.block_bytes)}"
        )
    return size // demand.block_bytes


def _default_blocks(demand: _Demand) -> int:
    """Room for every sequence at full length, within the budget and the default size."""
    wanted = demand.blocks_per_sequence * demand.max_num_seqs
    if demand.block_bytes == 0:
        return min(wanted, _INT32_MAX // demand.block_size)
    most = _most_blocks(demand, demand.budget_bytes)
    if demand.memory_share is not None:  # that much is meant
        return min(wanted, most)
    usual = max(DEFAULT_POOL_BYTES // demand.block_bytes, demand.blocks_per_sequence)
    return min(wanted, usual, most)


def _most_blocks(demand: _Demand, num_bytes: int) -> int:
    if demand.block_bytes == 0:
        return _INT32_MAX // demand.block_size
    return max(0, num_bytes // demand.block_bytes)


def _too_large(demand: _Demand, num_blocks: int) -> str:
    """What the pool would take, and two sets of flags that there is memory for."""
    most = _most_blocks(demand, demand.limit_bytes)
    least = demand.blocks_per_sequence
    remedies = _remedies(demand, most, least * demand.block_bytes)
    if most >= least:
        usual = max(least, _default_blocks(demand))
        remedies = [_flags(demand, demand.max_model_len, size) for size in (usual, most)]
    return (
        f"the KV pool asked for takes {_bytes(num_blocks * demand.block_bytes)}, but beside the "
        f"{demand.weights} ({_bytes(demand.weight_bytes)}) only {_bytes(demand.limit_bytes)} of memory are "
        f"free; try {' or '.join(remedies)}"
    )


def _too_small(demand: _Demand, num_blocks: int) -> str:
    """Why the pool does not hold one sequence, and two sets of flags that would work."""
    needed = demand.blocks_per_sequence * demand.block_bytes
    message = (
        f"the KV pool is too small for one sequence: --max-model-len {demand.max_model_len} needs "
        f"{demand.blocks_per_sequence} blocks ({_bytes(needed)}), the pool has {num_blocks} "
        f"({_bytes(num_blocks * demand.block_bytes)}; free memory {_bytes(demand.free_bytes)}, "
        f"{demand.weights} {_bytes(demand.weight_bytes)})"
    )
    remedies = _remedies(demand, num_blocks, needed)
    return f"{message}; try {' or '.join(remedies)}" if remedies else message


def _remedies(demand: _Demand, num_blocks: int, needed: int) -> list[str]:
    most = _most_blocks(demand, demand.limit_bytes)
    fitting = max(num_blocks, min(most, 1))
    shorter = min(fitting * demand.block_size, demand.max_model_len)
    remedies = []
    if shorter >= MIN_MODEL_LEN:
        remedies.append(_flags(demand, shorter, fitting))
    if needed <= demand.limit_bytes:
        remedies.append(_flags(demand, demand.max_model_len, demand.blocks_per_sequence))
    elif most > fitting:
        remedies.append(_flags(demand, most * demand.block_size, most))
    elif shorter // 2 >= MIN_MODEL_LEN:
        remedies.append(_flags(demand, shorter // 2, fitting))
    return list(dict.fromkeys(remedies))


def _flags(demand: _Demand, max_model_len: int, num_blocks: int) -> str:
    return f'"--max-model-len {max_model_len} {_pool_flag(demand, num_blocks)}"'


def _pool_flag(demand: _Demand, num_blocks: int) -> str:
    if demand.is_sized_in_bytes:
        return f"--kv-cache-bytes {_size(demand, num_blocks)}"
    return f"--num-gpu-blocks-override {num_blocks}"


def _size(demand: _Demand, num_blocks: int) -> str:
    """That many blocks in MiB, or in bytes where there is no room to round up."""
    num_bytes = num_blocks * demand.block_bytes
    mebibytes = -(-num_bytes // (1 << 20))
    return f"{mebibytes}MiB" if mebibytes << 20 <= demand.limit_bytes else str(num_bytes)


def _max_model_len(options: EngineOptions, card: ModelCard) -> int:
    value = options.max_model_len
    if value is None:
        usual = None if card.pooling is None else card.pooling.default_length
        return min(usual or card.max_position_embeddings, card.max_position_embeddings)
    if value < MIN_MODEL_LEN:
        raise ConfigError(f"--max-model-len must be at least {MIN_MODEL_LEN}, not {value}")
    if value > card.max_position_embeddings:
        raise ConfigError(
            f"--max-model-len {value} is beyond the {card.max_position_embeddings} positions "
            f"that {card.name} has"
        )
    return value


def _scheduler_config(
    options: EngineOptions, card: ModelCard, max_model_len: int
) -> SchedulerConfig:
    if options.scheduling_policy not in _POLICIES:
        raise ConfigError(
            f'--scheduling-policy "{options.scheduling_policy}" is unknown; '
            f"choose from {', '.join(_POLICIES)}"
        )
    # Tokens that see those behind them too can only be computed with the whole prompt.
    least = 1 if card.is_causal else max_model_len
    max_num_batched_tokens = _bounded(
        "max_num_batched_tokens",
        options.max_num_batched_tokens,
        max(DEFAULT_MAX_NUM_BATCHED_TOKENS, least),
    )
    if max_num_batched_tokens < least:
        raise ConfigError(
            f"--max-num-batched-tokens {max_num_batched_tokens} is less than --max-model-len "
            f"{max_model_len}, and {card.name} takes every prompt in one step"
        )
    return SchedulerConfig(
        max_num_seqs=_bounded("max_num_seqs", options.max_num_seqs, DEFAULT_MAX_NUM_SEQS),
        max_num_batched_tokens=max_num_batched_tokens,
        policy=options.scheduling_policy,
        max_num_queued_reqs=_bounded(
            "max_num_queued_reqs", options.max_num_queued_reqs, DEFAULT_MAX_NUM_QUEUED_REQS
        ),
        max_num_queued_tokens=_bounded(
            "max_num_queued_tokens", options.max_num_queued_tokens, DEFAULT_MAX_NUM_QUEUED_TOKENS
        ),
        speculation=read_speculation(options.speculative_config),
        chunks_prompts=card.is_causal,
    )


def _model_config(options: EngineOptions, card: ModelCard, max_model_len: int) -> ModelConfig:
    names = tuple(options.served_model_name or (options.model,))
    if not all(name.strip() for name in names):
        raise ConfigError("--served-model-name must not be empty")
    if options.max_logprobs < -1:
        raise ConfigError(f"--max-logprobs must be at least -1, not {options.max_logprobs}")
    if options.logprobs_mode not in list(LogprobsMode):
        raise ConfigError(
            f'--logprobs-mode "{options.logprobs_mode}" is unknown; '
            f"choose from {', '.join(LogprobsMode)}"
        )
    is_unlimited = options.max_logprobs == -1
    return ModelConfig(
        model=options.model,
        served_model_names=names,
        model_type=card.model_type,
        architectures=card.architectures,
        dtype=card.dtype,
        vocab_size=card.vocab_size,
        max_model_len=max_model_len,
        eos_token_ids=card.eos_token_ids,
        bos_token_id=card.bos_token_id,
        pad_token_id=card.pad_token_id,
        default_sampling_params=dict(card.default_sampling_params),
        max_logprobs=card.vocab_size
        if is_unlimited
        else min(options.max_logprobs, card.vocab_size),
        logprobs_mode=LogprobsMode(options.logprobs_mode),
        revision=options.revision,
        file_overrides=read_overrides(options),
        runner_type="generate" if card.pooling is None else "pooling",
    )


def _memory_share(options: EngineOptions) -> float | None:
    share = options.memory_share
    if share is not None and not 0 < share <= 1:
        raise ConfigError(f"--memory-share must be above 0 and at most 1, not {share:g}")
    return share


def _stream_interval_ms(options: EngineOptions) -> float:
    value = options.stream_interval_ms
    if value is None:
        return DEFAULT_STREAM_INTERVAL_MS
    if not (math.isfinite(value) and 0 <= value <= MAX_STREAM_INTERVAL_MS):
        raise ConfigError(
            f"--stream-interval-ms must be between 0 and {MAX_STREAM_INTERVAL_MS:g}, not {value:g}"
        )
    return value


def _lora_config(options: EngineOptions) -> LoraConfig | None:
    if options.enable_lora:
        return LoraConfig(
            max_loras=_bounded("max_loras", options.max_loras, DEFAULT_MAX_LORAS, MAX_LORAS),
            max_lora_rank=_bounded(
                "max_lora_rank", options.max_lora_rank, DEFAULT_MAX_LORA_RANK, MAX_LORA_RANK
            ),
        )
    for flag, value in (
        ("--max-loras", options.max_loras),
        ("--max-lora-rank", options.max_lora_rank),
    ):
        if value is not None:
            raise ConfigError(f"{flag} needs --enable-lora")
    return None


def _adapter_bytes(lora: LoraConfig | None, card: ModelCard) -> int:
    """Kept free for as many as may be loaded, each of the highest rank on every matrix."""
    if lora is None or card.adapter is None:
        return 0
    return lora.max_loras * card.adapter.of(lora.max_lora_rank)


def _bounded(name: str, value: int | None, default: int, most: int = _INT32_MAX) -> int:
    """`value`, or `default` for None; refused below 1 and above `most`."""
    chosen = default if value is None else value
    if not 1 <= chosen <= most:
        flag = "--" + name.replace("_", "-")
        raise ConfigError(f"{flag} must be between 1 and {most}, not {chosen}")
    return chosen


def _bytes(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.2f} GiB" if num_bytes >= 1 << 28 else f"{num_bytes:,} bytes"
