"""Changes of the prefix cache, and load records, to the wire."""

from typing import assert_never

from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.kv_cache import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
    KvEventBatch,
    Medium,
)
from weft.pb import common_pb2 as pb

TIERS = {
    Medium.POOL: pb.KV_CACHE_TIER_DEVICE,
    Medium.MEMORY: pb.KV_CACHE_TIER_HOST,
    Medium.DISK: pb.KV_CACHE_TIER_DISK,
}


class KvEventWriter:
    """Numbers the events and load records of one subscription."""

    def __init__(self) -> None:
        self._num_events = 0
        self._num_samples = 0
        self._last_sequence_number = 0

    def batch(
        self, batch: KvEventBatch, load: EngineLoad | None, *, age_s: float
    ) -> pb.KvEventBatch:
        """The changes of one step, with the load of its rank from `age_s` ago."""
        self._last_sequence_number = batch.sequence_number
        return pb.KvEventBatch(
            sequence_number=batch.sequence_number,
            timestamp=batch.timestamp,
            events=[self._event(event) for event in batch.events],
            dp_rank=batch.data_parallel_rank,
            load=self._load(load, age_s) if load else None,
        )

    def heartbeat(self, load: EngineLoad, now: float) -> pb.KvEventBatch:
        """A load record: no events, and again the sequence number of the last batch."""
        record = self._load(load, age_s=0.0)
        record.load_only = True
        record.cache_hit_rate = load.cache_hit_rate
        record.num_used_tokens = load.num_used_tokens
        record.max_total_num_tokens = load.max_total_tokens
        return pb.KvEventBatch(
            sequence_number=self._last_sequence_number,
            timestamp=now,
            dp_rank=load.data_parallel_rank,
            load=record,
        )

    def _event(self, event: KvEvent) -> pb.KvCacheEvent:
        self._num_events += 1
        return to_event(event, self._num_events)

    def _load(self, load: EngineLoad, age_s: float) -> pb.EngineLoad:
        self._num_samples += 1
        return pb.EngineLoad(
            running_requests=load.num_running,
            waiting_requests=load.num_waiting,
            waiting_uncached_tokens=load.num_waiting_uncached_tokens,
            token_usage=load.token_usage,
            gen_throughput=load.gen_throughput,
            max_running_requests=load.max_running,
            age_ms=int(age_s * 1000),
            sample=self._num_samples,
            lora=_to_lora(load) if load.max_loras else None,
        )


def _to_lora(load: EngineLoad) -> pb.EngineLora:
    return pb.EngineLora(
        slots_used=load.num_loras,
        slots_total=load.max_loras,
        utilization=load.num_loras / load.max_loras,
    )


def to_event(event: KvEvent, event_id: int) -> pb.KvCacheEvent:
    """Converts a change of the cache."""
    match event:
        case BlockStored():
            return pb.KvCacheEvent(event_id=event_id, stored=_to_stored(event))
        case BlockRemoved():
            removed = pb.KvBlocksRemoved(
                block_hashes=[to_int64(block_hash) for block_hash in event.block_hashes],
                tier=TIERS[event.medium],
                medium=_medium(event.medium),
            )
            return pb.KvCacheEvent(event_id=event_id, removed=removed)
        case AllBlocksCleared():
            return pb.KvCacheEvent(event_id=event_id, cleared=pb.KvCacheCleared())
        case _ as unreachable:
            assert_never(unreachable)


def to_int64(block_hash: bytes) -> int:
    """The low 64 bits, as the signed number the wire carries."""
    return int.from_bytes(block_hash[-8:], "big", signed=True)


def _medium(medium: Medium) -> str | None:
    """Name of the medium; None for the pool."""
    return None if medium is Medium.POOL else medium


def _media_keys(event: BlockStored, block: int) -> list[pb.KvBlockExtraKey]:
    """The extra keys by which a block differs from another block with the same tokens."""
    items = event.media[block] if event.media else []
    return [
        pb.KvBlockExtraKey(multimodal=pb.KvMultimodalKey(identifier=name, offset=offset))
        for name, offset in items
    ]


def _to_stored(event: BlockStored) -> pb.KvBlocksStored:
    size = event.block_size
    parent = event.parent_block_hash
    return pb.KvBlocksStored(
        blocks=[
            pb.KvBlock(
                block_hash=to_int64(block_hash),
                token_ids=event.token_ids[i * size : (i + 1) * size],
                block_size=size,
                extra_keys=_media_keys(event, i),
            )
            for i, block_hash in enumerate(event.block_hashes)
        ],
        parent_block_hash=None if parent is None else to_int64(parent),
        tier=TIERS[event.medium],
        medium=_medium(event.medium),
        lora_name=event.lora_name,
        cache_salt=event.cache_salt,
    )
