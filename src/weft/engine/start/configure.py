"""`resolve`: computes the configuration of an engine from the user's options, the model and the free memory.

The function has no side effects, and reads only directories that the options name. Every refusal is a `ConfigError` of
one line that names the flag, the number and the allowed values. For a model that does not fit, the error suggests flags
with which it fits.
"""

import msgspec

from weft.compute.backends import choose, shares_weights
from weft.core.config.defaults import DEFAULT_STREAM_INTERVAL_MS, DEFAULTS
from weft.core.config.elastic import ElasticConfig
from weft.core.config.engine import (
    ComputeConfig,
    EngineConfig,
    LoraConfig,
    SchedulerConfig,
)
from weft.core.config.engine_options import EngineOptions
from weft.core.config.ranks import RanksConfig
from weft.core.config.speculation import DraftModelConfig, SpeculativeConfig
from weft.core.errors import ConfigError
from weft.core.values.declare import spelled
from weft.core.values.kv_cache import (
    CacheConfig,
    KvEventsConfig,
    KvOffloadingConfig,
    StateCacheConfig,
)
from weft.core.values.kv_transfer import KvTransferConfig
from weft.core.values.weight_transfer import WeightTransferConfig
from weft.engine.kv.kv_tier_stores import SIZE_FLAG, check_copyable, read_kv_offloading
from weft.engine.settings.given import bounded, check_between, check_ms, count_or_none
from weft.engine.settings.kv_events import FLAG, check_is_countable, read_kv_events
from weft.engine.settings.profiler_config import read_profiler
from weft.engine.settings.speculation import read_speculation
from weft.engine.start.model_config import to_model_config, to_pooler_config
from weft.engine.start.pictures import tower_memory, with_pictures
from weft.engine.start.pool_size import MIN_MODEL_LEN, Demand, num_blocks_of
from weft.engine.step.step_size import step_sizes
from weft.engine.transfer.settings import FLAG as TRANSFER_FLAG
from weft.engine.transfer.settings import read_kv_transfer
from weft.engine.weights.weight_transfer import read_weight_transfer
from weft.model.card import ModelCard

MAX_BLOCK_SIZE = 1024
MAX_DATA_PARALLEL_SIZE = 64
MAX_LORAS = 1024
MAX_LORA_RANK = 4096
_POLICIES = ("fcfs", "priority")
_STATES_FLAG = "--mamba-block-size"
# Default limit of the memory of all state slots; two slots are always allowed.
_USUAL_SLOT_BYTES = 4 << 30
_LEAST_SLOTS = 2  # a sequence reads one slot, a snapshot, and writes another slot


def resolve(
    options: EngineOptions,
    card: ModelCard,
    free_bytes: int,
    ranks: RanksConfig | None = None,
    draft: DraftModelConfig | None = None,
    row_bytes: int = 0,
) -> EngineConfig:
    """Returns the configuration with all open settings decided; raises `ConfigError` for impossible settings.

    A row of a step takes `row_bytes`. Engines of this machine share its threads and free memory; others get none.
    """
    size = bounded(options, "data_parallel_size", MAX_DATA_PARALLEL_SIZE)
    num_engines = size if ranks is None else max(1, ranks.num_local)
    _check_elsewhere(options, ranks)
    compute = choose(options, card)
    weight_bytes = card.weight_bytes + (draft.weight_bytes if draft else 0)
    kv_bytes_per_token = card.kv_bytes_per_token + (draft.kv_bytes_per_token if draft else 0)
    shared_bytes = _shared_bytes(options, weight_bytes, compute)
    free_bytes = (free_bytes - shared_bytes) // num_engines + shared_bytes
    max_model_len = _max_model_len(options, card)
    sizes = step_sizes(options, card, compute, max_model_len, free_bytes, row_bytes)
    scheduler = _scheduler_config(options, card, draft, *sizes)
    block_size = bounded(options, "block_size", MAX_BLOCK_SIZE)
    offloading = read_kv_offloading(options, card, block_size)
    others = _others(options, card, weight_bytes, offloading) | tower_memory(options, card)
    spare_bytes = free_bytes - sum(others.values())
    states = _states_config(options, card, scheduler.max_num_seqs, block_size, spare_bytes)
    demand = Demand(
        max_model_len=max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        block_size=block_size,
        block_bytes=block_size * kv_bytes_per_token + card.state_bytes_per_block,
        others=others | ({} if states is None else {"states": states.num_bytes}),
        free_bytes=free_bytes,
        memory_share=_memory_share(options),
        is_sized_in_bytes=options.kv_cache_bytes is not None,
    )
    cache = _cache_config(options, card, demand, states)
    config = EngineConfig(
        model_config=to_model_config(options, card, max_model_len),
        cache_config=cache,
        scheduler_config=scheduler,
        structured_outputs_in_reasoning=options.structured_outputs_in_reasoning,
        pooler_config=to_pooler_config(options, card),
        compute_config=_compute_config(options, compute, num_engines),
        data_parallel_size=size,
        engine_restarts=count_or_none(options, "engine_restarts"),
        ranks=ranks,
        elastic_config=_elastic_config(options, compute, cache, demand.other_bytes - shared_bytes),
        lora_config=_lora_config(options),
        prompt_embeds_size=_prompt_embeds_size(options, card),
        stream_interval_ms=_stream_interval_ms(options),
        kv_events_config=_kv_events_config(options, card),
        kv_offloading_config=offloading,
        kv_transfer_config=_kv_transfer_config(options, card, block_size),
        profiler_config=read_profiler(options.profiler_config),
        weight_transfer_config=_weight_transfer_config(options, compute),
    )
    return with_pictures(config, options, card)


def _cache_config(
    options: EngineOptions, card: ModelCard, demand: Demand, states: StateCacheConfig | None
) -> CacheConfig:
    return CacheConfig(
        block_size=demand.block_size,
        num_blocks=num_blocks_of(options, demand),
        block_bytes=demand.block_bytes,
        kv_cache_dtype=card.kv_dtype,
        enable_prefix_caching=options.enable_prefix_caching and card.is_causal,
        states=states,
    )


def _elastic_config(
    options: EngineOptions, compute: ComputeConfig, cache: CacheConfig, own_bytes: int
) -> ElasticConfig | None:
    """Returns the settings for a changing number of engines: one more takes `own_bytes` and a pool."""
    if not options.enable_elastic_ep:
        return None
    engine_bytes = own_bytes + cache.num_blocks * cache.block_bytes
    return ElasticConfig(num_threads=compute.num_threads, engine_bytes=engine_bytes)


def _shared_bytes(options: EngineOptions, weight_bytes: int, compute: ComputeConfig) -> int:
    """Returns the number of bytes of weights that several engines share."""
    return weight_bytes if _is_several(options) and shares_weights(compute) else 0


def _is_several(options: EngineOptions) -> bool:
    return options.data_parallel_size > 1 or options.enable_elastic_ep


def _compute_config(
    options: EngineOptions, compute: ComputeConfig, num_engines: int
) -> ComputeConfig:
    if options.num_threads is not None and options.num_threads < num_engines:
        raise ConfigError(
            f"--num-threads {options.num_threads} leaves some of the {num_engines} engines of "
            f"this machine without a thread: increase it to at least {num_engines}"
        )
    return msgspec.structs.replace(compute, num_threads=max(1, compute.num_threads // num_engines))


def _weight_transfer_config(
    options: EngineOptions, compute: ComputeConfig
) -> WeightTransferConfig | None:
    config = read_weight_transfer(options.weight_transfer_config)
    if config is not None and _is_several(options) and not shares_weights(compute):
        raise ConfigError(
            f"--weight-transfer-config needs --data-parallel-size 1 with --compute {compute.compute}: its engines do "
            "not share their weights, and a restarted engine would serve the old ones"
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
    options: EngineOptions,
    card: ModelCard,
    draft: DraftModelConfig | None,
    max_num_batched_tokens: int,
    target_itl_ms: float,
) -> SchedulerConfig:
    if options.scheduling_policy not in _POLICIES:
        raise ConfigError(
            f'--scheduling-policy "{options.scheduling_policy}" is unknown; '
            f"choose from {', '.join(_POLICIES)}"
        )
    return SchedulerConfig(
        max_num_seqs=bounded(options, "max_num_seqs"),
        max_num_batched_tokens=max_num_batched_tokens,
        policy=options.scheduling_policy,
        max_num_queued_reqs=bounded(options, "max_num_queued_reqs"),
        max_num_queued_tokens=bounded(options, "max_num_queued_tokens"),
        speculation=_speculation(options, card, draft),
        chunks_prompts=card.is_causal,
        target_itl_ms=target_itl_ms,
    )


def _speculation(
    options: EngineOptions, card: ModelCard, draft: DraftModelConfig | None
) -> SpeculativeConfig | None:
    config = read_speculation(options.speculative_config, draft)
    if config is None:
        return None
    return msgspec.structs.replace(config, recomputes=card.keeps_states)


def _memory_share(options: EngineOptions) -> float | None:
    share = options.memory_share
    if share is not None and not 0 < share <= 1:
        raise ConfigError(f"--memory-share must be above 0 and at most 1, not {share:g}")
    return share


def _stream_interval_ms(options: EngineOptions) -> float:
    value = options.stream_interval_ms
    if value is None:
        return DEFAULT_STREAM_INTERVAL_MS
    check_ms("stream_interval_ms", value)
    return value


def _lora_config(options: EngineOptions) -> LoraConfig | None:
    if options.enable_lora:
        return LoraConfig(
            max_loras=bounded(options, "max_loras", MAX_LORAS),
            max_lora_rank=bounded(options, "max_lora_rank", MAX_LORA_RANK),
        )
    for name in ("max_loras", "max_lora_rank"):
        if getattr(options, name) is not None:
            raise ConfigError(f"{spelled(name)} needs --enable-lora")
    return None


def _prompt_embeds_size(options: EngineOptions, card: ModelCard) -> int | None:
    if not options.enable_prompt_embeds:
        return None
    if card.embedding_size is None or card.pooling is not None:
        raise ConfigError(f"--enable-prompt-embeds: {card.name} takes no prompt embeddings")
    return card.embedding_size


def _others(
    options: EngineOptions, card: ModelCard, weights: int, offloading: KvOffloadingConfig | None
) -> dict[str, int]:
    """Returns the users of memory besides the pool: name and bytes."""
    others, lora = {"weights": weights}, _lora_config(options)
    if lora is not None:  # the maximum number, each of the highest rank on every matrix
        of_one = 0 if card.adapter is None else card.adapter.of(lora.max_lora_rank)
        others[f"{lora.max_loras} LoRA adapters"] = lora.max_loras * of_one
    if offloading is not None and offloading.path is None:
        others[f"second tier ({SIZE_FLAG})"] = offloading.num_bytes
    return others


def _check_elsewhere(options: EngineOptions, ranks: RanksConfig | None) -> None:
    """Raises `ConfigError` for flags that do not work with ranks on other machines."""
    if ranks is None:
        return
    refused = {
        "--enable-elastic-ep": (
            options.enable_elastic_ep,
            "other servers and nodes rely on the number of ranks",
        )
    }
    if ranks.link is not None:
        refused["--weight-transfer-config"] = (
            options.weight_transfer_config is not None,
            "engines on other machines cannot map the weights that this engine has packed",
        )
        refused["--kv-events-config"] = (
            ranks.is_headless and options.kv_events_config is not None,
            "the head publishes the events of all ranks; give it there",
        )
    for flag, (is_given, why) in refused.items():
        if is_given:
            raise ConfigError(f"{flag} cannot be combined with ranks on other machines: {why}")


def _states_config(
    options: EngineOptions, card: ModelCard, max_num_seqs: int, block_size: int, spare_bytes: int
) -> StateCacheConfig | None:
    """Returns the state slots: one per running sequence, and as many snapshots, in at most half the spare memory."""
    slot_bytes = card.state_bytes_per_slot
    if not slot_bytes:
        if options.mamba_block_size is not None:
            raise ConfigError(f"{_STATES_FLAG}: {card.name} has no recurrent states")
        return None
    usual = -(-DEFAULTS["mamba_block_size"] // block_size) * block_size
    interval = bounded(options, "mamba_block_size", default=usual)
    if interval % block_size:
        raise ConfigError(
            f"{_STATES_FLAG} must be a multiple of --block-size ({block_size}), not {interval}"
        )
    most = min(_USUAL_SLOT_BYTES, spare_bytes // 2) // slot_bytes
    num_slots = max(_LEAST_SLOTS, min(2 * max_num_seqs, most))
    return StateCacheConfig(num_slots=num_slots, slot_bytes=slot_bytes, mamba_block_size=interval)
