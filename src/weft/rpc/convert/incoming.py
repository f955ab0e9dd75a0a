"""Converts a server's reports about itself, its load and its cache from the wire."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from weft.core.config.engine import EngineConfig, ModelConfig, PoolerConfig, SchedulerConfig
from weft.core.errors import GenerationError
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.kv_cache import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheConfig,
    KvEvent,
    KvEventBatch,
    Medium,
)
from weft.core.values.types import PoolingKind
from weft.pb import common_pb2
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.convert.kv_events import TIERS
from weft.rpc.convert.media import to_media_config

_MEDIA = {tier: medium for medium, tier in TIERS.items()}
# The protocol has one pooling call, and does not report the model's pooling tasks.
_EMBEDDER = PoolerConfig(kinds={"embed": PoolingKind.LAST}, normalize=True, embedding_size=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReport:
    """A server's report about itself, besides its configuration.

    `constrains_reasoning` is True if the server applies a constraint from the first token, reasoning included.
    Otherwise the constraint begins after the text that ends reasoning for `reasoning_parser`. If `is_ours`, the server
    is a Weft server, and the call's metadata say where the constraint begins. Servers with the same `fingerprint` give
    the same answers, bit for bit; empty is unknown. `adapters` has the digest of each adapter's files, by its name.
    """

    is_paused: bool
    reasoning_parser: str
    constrains_reasoning: bool
    is_ours: bool
    fingerprint: str
    adapters: Mapping[str, str]


def to_server_report(info: pb.GetServerInfoResponse, *, is_ours: bool = False) -> ServerReport:
    """Converts a server's report; a Weft server identifies itself in metadata."""
    begins_at_once = info.constrained_decoding_start == "first_token"
    return ServerReport(
        is_paused=info.is_paused,
        reasoning_parser=info.engine_reasoning_parser,
        constrains_reasoning=begins_at_once or not (is_ours or info.engine_reasoning_parser),
        is_ours=is_ours,
        fingerprint=info.weft_fingerprint,
        adapters=dict(info.weft_adapters),
    )


def to_engine_config(
    model: pb.GetModelInfoResponse,
    server: pb.GetServerInfoResponse,
    report: ServerReport,
    load: EngineLoad,
) -> EngineConfig:
    """Converts the configuration that is visible from outside; queue limits are unknown and stand at 0."""
    return EngineConfig(
        model_config=to_model_config(model, server),
        cache_config=CacheConfig(
            block_size=server.block_size,
            num_blocks=load.max_total_tokens // max(server.block_size, 1),
            block_bytes=0,
            kv_cache_dtype=server.kv_cache_dtype,
            enable_prefix_caching=True,
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=server.max_num_seqs,
            max_num_batched_tokens=0,
            policy="fcfs",
            max_num_queued_reqs=0,
            max_num_queued_tokens=0,
        ),
        data_parallel_size=max(server.data_parallel_size, 1),
        structured_outputs_in_reasoning=report.constrains_reasoning,
        pooler_config=None if model.is_generation else _EMBEDDER,
    )


def to_model_config(info: pb.GetModelInfoResponse, server: pb.GetServerInfoResponse) -> ModelConfig:
    """Converts the model's configuration; the server itself checks the limit on logprobs, which the message lacks."""
    defaults = info.default_sampling_params_json
    return ModelConfig(
        model=info.model_path,
        served_model_names=(info.served_model_name or info.model_path,),
        model_type=info.model_type,
        architectures=tuple(info.architectures),
        dtype=server.model_dtype.removeprefix("torch."),  # the form that vLLM's server sends
        vocab_size=info.vocab_size,
        max_model_len=info.max_context_length,
        eos_token_ids=tuple(info.eos_token_ids),
        bos_token_id=info.bos_token_id or None,
        pad_token_id=info.pad_token_id or None,
        default_sampling_params=_to_numbers(defaults) if defaults else {},
        max_logprobs=-1,
        runner_type="generate" if info.is_generation else "pooling",
        is_multimodal_model=info.supports_vision,
        media=to_media_config(server.weft_max_media) if info.supports_vision else None,
    )


def to_engine_load(load: pb.SchedulerLoad) -> EngineLoad:
    """Converts a load; values that the message lacks are 0."""
    return EngineLoad(
        data_parallel_rank=load.dp_rank,
        num_running=load.num_running_reqs,
        num_waiting=load.num_waiting_reqs,
        num_used_tokens=load.num_used_tokens,
        max_total_tokens=load.max_total_num_tokens,
        max_running=load.max_running_requests,
        num_waiting_uncached_tokens=load.num_waiting_uncached_tokens,
        gen_throughput=load.gen_throughput,
        cache_hit_rate=load.cache_hit_rate,
    )


def to_kv_event_batch(batch: common_pb2.KvEventBatch) -> KvEventBatch:
    """Converts a batch; hashes are the 8 bytes that were sent."""
    return KvEventBatch(
        sequence_number=batch.sequence_number,
        timestamp=batch.timestamp,
        events=[_to_kv_event(event) for event in batch.events],
        data_parallel_rank=batch.dp_rank,
    )


def _to_kv_event(event: common_pb2.KvCacheEvent) -> KvEvent:
    match event.WhichOneof("data"):
        case "stored":
            return _to_stored(event.stored)
        case "removed":
            return BlockRemoved(
                block_hashes=[_to_bytes(h) for h in event.removed.block_hashes],
                medium=_MEDIA.get(event.removed.tier, Medium.POOL),
            )
        case "cleared":
            return AllBlocksCleared()
        case _:
            raise GenerationError("the server sent a prefix-cache event of an unknown kind")


def _to_stored(stored: common_pb2.KvBlocksStored) -> BlockStored:
    has_parent = stored.HasField("parent_block_hash")
    media = [_media_of(block) for block in stored.blocks]
    return BlockStored(
        block_hashes=[_to_bytes(block.block_hash) for block in stored.blocks],
        parent_block_hash=_to_bytes(stored.parent_block_hash) if has_parent else None,
        token_ids=[token_id for block in stored.blocks for token_id in block.token_ids],
        block_size=stored.blocks[0].block_size if stored.blocks else 0,
        lora_name=stored.lora_name if stored.HasField("lora_name") else None,
        cache_salt=stored.cache_salt if stored.HasField("cache_salt") else None,
        medium=_MEDIA.get(stored.tier, Medium.POOL),
        media=media if any(media) else [],
    )


def _media_of(block: common_pb2.KvBlock) -> list[tuple[str, int]]:
    keys = (key.multimodal for key in block.extra_keys if key.HasField("multimodal"))
    return [(key.identifier, key.offset) for key in keys]


def _to_bytes(block_hash: int) -> bytes:
    return block_hash.to_bytes(8, "big", signed=True)


def _to_numbers(text: str) -> dict[str, float | int]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise GenerationError("the server sent default_sampling_params_json that is not an object")
    return {name: value for name, value in values.items() if isinstance(value, int | float)}
