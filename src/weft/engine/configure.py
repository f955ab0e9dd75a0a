"""`resolve`: from the user's options, the model and the free memory to what the engine runs with.

Pure, but for a look at directories that it is given. Every refusal is a `ConfigError` of one line that
names the flag, the number and what is allowed; a model that does not fit is refused with flags that would
make it fit.
"""

import math
from dataclasses import dataclass

import msgspec

from weft.compute.backends import choose, shares_weights
from weft.core.config import (
    CacheConfig,
    ComputeConfig,
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
from weft.core.elastic import ElasticConfig
from weft.core.errors import ConfigError
from weft.core.kv_cache import KvEventsConfig, KvOffloadingConfig
from weft.core.kv_transfer import KvTransferConfig
from weft.core.ranks import RanksConfig
from weft.core.readable import format_bytes
from weft.core.speculation import DraftModelConfig
from weft.core.weight_transfer import WeightTransferConfig
from weft.engine.configure_pooler import resolve_pooler
from weft.engine.configure_ranks import check_elsewhere
from weft.engine.given import check_between
from weft.engine.kv_events import FLAG, check_is_countable, read_kv_events
from weft.engine.kv_tier_stores import SIZE_FLAG, check_copyable, read_kv_offloading
from weft.engine.profiler import read_profiler
from weft.engine.speculation import read_speculation
from weft.engine.transfer.settings import FLAG as TRANSFER_FLAG
from weft.engine.transfer.settings import read_kv_transfer
from weft.engine.weight_transfer import read_weight_transfer
from weft.model.card import ModelCard
from weft.model.overrides import read_overrides

# The pool is no larger than this by default, unless one sequence of full length needs more.
DEFAULT_POOL_BYTES = 4 << 30

MAX_BLOCK_SIZE = 1024
MAX_STREAM_INTERVAL_MS = 10_000.0
MAX_DATA_PARALLEL_SIZE = 64
MAX_LORAS = 1024
MAX_LORA_RANK = 4096
MIN_MODEL_LEN = 2  # one token in, one token out
_INT32_MAX = 2**31 - 1  # block ids, slots and positions are int32 in a batch
_POLICIES = ("fcfs", "priority")


def resolve(
    options: EngineOptions,
    card: ModelCard,
    free_bytes: int,
    ranks: RanksConfig | None = None,
    draft: DraftModelConfig | None = None,
) -> EngineConfig:
    """Decide everything that was left open, and refuse what cannot work. `draft` is the model that drafts.

    Of several engines each gets the same share of the threads, and of the memory that weights leave which all map;
    those elsewhere (`ranks`) get none.
    """
    size = _bounded("data_parallel_size", options.data_parallel_size, 1, MAX_DATA_PARALLEL_SIZE)
    num_engines = size if ranks is None else max(1, ranks.num_local)
    check_elsewhere(options, ranks)
    compute = choose(options, card)
    weight_bytes, kv_bytes_per_token = card.weight_bytes, card.kv_bytes_per_token
    if draft is not None:
        weight_bytes += draft.weight_bytes
        kv_bytes_per_token += draft.kv_bytes_per_token
    shared_bytes = _shared_bytes(options, weight_bytes, compute)
    free_bytes = (free_bytes - shared_bytes) // num_engines + shared_bytes
    max_model_len = _max_model_len(options, card)
    scheduler = _scheduler_config(options, card, max_model_len, draft)
    lora = _lora_config(options)
    block_size = _bounded("block_size", options.block_size, DEFAULT_BLOCK_SIZE, MAX_BLOCK_SIZE)
    offloading = read_kv_offloading(options, card, block_size)
    others = _others(card, weight_bytes, lora, offloading)
    demand = _Demand(
        max_model_len=max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        block_size=block_size,
        kv_bytes_per_token=kv_bytes_per_token,
        other_bytes=sum(others.values()),
        others=" and ".join(others),
        free_bytes=free_bytes,
        memory_share=_memory_share(options),
        is_sized_in_bytes=options.kv_cache_bytes is not None,
    )
    num_blocks = _num_blocks(options, demand)
    return EngineConfig(
        model_config=_model_config(options, card, max_model_len),
        cache_config=CacheConfig(
            block_size=demand.block_size,
            num_blocks=num_blocks,
            block_bytes=demand.block_bytes,
            kv_cache_dtype=card.kv_dtype,
            enable_prefix_caching=options.enable_prefix_caching and card.is_causal,
        ),
        scheduler_config=scheduler,
        structured_outputs_in_reasoning=options.structured_outputs_in_reasoning,
        pooler_config=resolve_pooler(options, card),
        compute_config=_compute_config(options, compute, num_engines),
        data_parallel_size=size,
        ranks=ranks,
        elastic_config=None
        if not options.enable_elastic_ep
        else ElasticConfig(
            num_threads=compute.num_threads,
            engine_bytes=demand.other_bytes - shared_bytes + num_blocks * demand.block_bytes,
        ),
        lora_config=lora,
        prompt_embeds_size=_prompt_embeds_size(options, card),
        stream_interval_ms=_stream_interval_ms(options),
        kv_events_config=_kv_events_config(options, card),
        kv_offloading_config=offloading,
        kv_transfer_config=_kv_transfer_config(options, card, block_size),
        profiler_config=read_profiler(options.profiler_config),
        weight_transfer_config=_weight_transfer_config(options, compute),
    )


def _shared_bytes(options: EngineOptions, weight_bytes: int, compute: ComputeConfig) -> int:
    """What several engines have once."""
    return weight_bytes if _is_several(options) and shares_weights(compute) else 0


def _is_several(options: EngineOptions) -> bool:
    return options.data_parallel_size > 1 or options.enable_elastic_ep


def _compute_config(
    options: EngineOptions, compute: ComputeConfig, num_engines: int
) -> ComputeConfig:
    if options.num_threads is not None and options.num_threads < num_engines:
        raise ConfigError(
            f"--num-threads {options.num_threads} leaves some of the {num_engines} engines of "
            "this machine without a thread: give as many at least"
        )
    return msgspec.structs.replace(compute, num_threads=max(1, compute.num_threads // num_engines))


def _weight_transfer_config(
    options: EngineOptions, compute: ComputeConfig
) -> WeightTransferConfig | None:
    config = read_weight_transfer(options.weight_transfer_config)
    if config is not None and _is_several(options) and not shares_weights(compute):
        raise ConfigError(
            f"--weight-transfer-config needs --data-parallel-size 1 with --compute {compute.compute}: of several "
            "engines that have weights of their own, one that is started again would serve other ones"
        )
    return config


def _kv_events_config(options: EngineOptions, card: ModelCard) -> KvEventsConfig | None:
    config = read_kv_events(options.kv_events_config)
    if config is not None and not (options.enable_prefix_caching and card.is_causal):
        why = (
            "of this model" if options.enable_prefix_caching else "with --no-enable-prefix-caching"
        )
        raise ConfigError(f"{FLAG}: there are no events {why}, which has no prefix cache")
    if config is not None and _is_several(options):
        check_is_countable(config)
    return config


def _kv_transfer_config(
    options: EngineOptions, card: ModelCard, block_size: int
) -> KvTransferConfig | None:
    config = read_kv_transfer(options.kv_transfer_config)
    if config is not None:
        check_copyable(TRANSFER_FLAG, options, card, block_size)
        last_port = config.port + options.data_parallel_size - 1
        check_between(f"{TRANSFER_FLAG}: kv_port of the last engine", last_port, 0, 2**16 - 1)
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class _Demand:
    """What the pool must hold, and what there is to hold it."""

    max_model_len: int
    max_num_seqs: int
    block_size: int
    kv_bytes_per_token: int
    other_bytes: int  # that are taken beside the pool
    others: str  # what takes them, for messages
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
        return int(self.free_bytes * share) - self.other_bytes

    @property
    def limit_bytes(self) -> int:
        """For the pool, at the very most: beyond this there is no memory."""
        return self.free_bytes - self.other_bytes


def _num_blocks(options: EngineOptions, demand: _Demand) -> int:
    if demand.limit_bytes < demand.block_bytes:
        raise ConfigError(
            f"the model does not fit: its {demand.others} take {format_bytes(demand.other_bytes)} and a "
            f"KV block {format_bytes(demand.block_bytes)}, but {format_bytes(demand.free_bytes)} of memory are free; "
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
            f"--kv-cache-bytes {format_bytes(size)} holds no block; one takes {format_bytes(demand.block_bytes)}"
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
        f"the KV pool asked for takes {format_bytes(num_blocks * demand.block_bytes)}, but beside the "
        f"{demand.others} ({format_bytes(demand.other_bytes)}) only {format_bytes(demand.limit_bytes)} of memory are "
        f"free; try {' or '.join(remedies)}"
    )


def _too_small(demand: _Demand, num_blocks: int) -> str:
    """Why the pool does not hold one sequence, and two sets of flags that would work."""
    needed = demand.blocks_per_sequence * demand.block_bytes
    message = (
        f"the KV pool is too small for one sequence: --max-model-len {demand.max_model_len} needs "
        f"{demand.blocks_per_sequence} blocks ({format_bytes(needed)}), the pool has {num_blocks} "
        f"({format_bytes(num_blocks * demand.block_bytes)}; free memory {format_bytes(demand.free_bytes)}, "
        f"{demand.others} {format_bytes(demand.other_bytes)})"
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
    """That many blocks in MiB or, where there is no room to round up so far, in a smaller unit."""
    num_bytes = num_blocks * demand.block_bytes
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        count = -(-num_bytes >> shift)
        if count << shift <= demand.limit_bytes:
            return f"{count}{unit}"
    return str(num_bytes)


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
    options: EngineOptions, card: ModelCard, max_model_len: int, draft: DraftModelConfig | None
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
        speculation=read_speculation(options.speculative_config, draft),
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
        load_dtype=options.dtype,
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


def _prompt_embeds_size(options: EngineOptions, card: ModelCard) -> int | None:
    if not options.enable_prompt_embeds:
        return None
    if card.embedding_size is None or card.pooling is not None:
        raise ConfigError(f"--enable-prompt-embeds: {card.name} generates nothing from embeddings")
    return card.embedding_size


def _others(
    card: ModelCard,
    weight_bytes: int,
    lora: LoraConfig | None,
    offloading: KvOffloadingConfig | None,
) -> dict[str, int]:
    """What takes memory beside the pool, and how many bytes."""
    others = {"weights": weight_bytes}
    if lora is not None:  # as many as may be loaded, each of the highest rank on every matrix
        of_one = 0 if card.adapter is None else card.adapter.of(lora.max_lora_rank)
        others[f"{lora.max_loras} LoRA adapters"] = lora.max_loras * of_one
    if offloading is not None and offloading.path is None:
        others[f"second tier ({SIZE_FLAG})"] = offloading.num_bytes
    return others


def _bounded(name: str, value: int | None, default: int, most: int = _INT32_MAX) -> int:
    """`value`, or `default` for None; refused below 1 and above `most`."""
    chosen = default if value is None else value
    check_between("--" + name.replace("_", "-"), chosen, 1, most)
    return chosen
