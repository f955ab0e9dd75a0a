"""The KV cache: configuration of the pool, of recurrent states, of the second tier and of events; and the events."""

import re
from enum import StrEnum

import msgspec

TCP_ENDPOINT = re.compile(r"tcp://(?P<host>\*|\[[0-9a-fA-F:.]+\]|[\w.-]+):(?P<port>\d{1,5})")


class Medium(StrEnum):
    """Storage of cached blocks, in the words of routers: the KV pool, or memory or disk as its second tier."""

    POOL = "GPU"
    MEMORY = "CPU"
    DISK = "DISK"


class StateCacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Memory for the states of recurrent layers beside the KV pool: `num_slots` slots of `slot_bytes` bytes.

    A snapshot that other sequences may continue from is taken every `mamba_block_size` tokens, a multiple of the block
    size.
    """

    num_slots: int
    slot_bytes: int
    mamba_block_size: int

    @property
    def num_bytes(self) -> int:
        """Size of all slots in bytes."""
        return self.num_slots * self.slot_bytes


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The KV pool: `num_blocks` usable blocks of `block_size` tokens; each block takes `block_bytes` bytes."""

    block_size: int
    num_blocks: int
    block_bytes: int
    kv_cache_dtype: str
    enable_prefix_caching: bool
    states: StateCacheConfig | None = None  # for recurrent layers

    @property
    def num_state_slots(self) -> int:
        """Number of state slots beside the pool."""
        return 0 if self.states is None else self.states.num_slots

    @property
    def max_total_tokens(self) -> int:
        """Number of tokens that the whole pool holds."""
        return self.num_blocks * self.block_size


class KvOffloadingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The second tier of the prefix cache: `num_bytes` of files below `path`, or of memory if `path` is None."""

    num_bytes: int
    path: str | None

    @property
    def medium(self) -> Medium:
        """Storage of the second tier's blocks: memory or disk."""
        return Medium.MEMORY if self.path is None else Medium.DISK


class KvEventsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Publication of prefix cache changes over ZeroMQ. The ports are those of rank 0.

    If `binds`, the publisher listens on `endpoint`; otherwise it connects to `endpoint`. It always listens on
    `replay_endpoint` and replays up to `buffer_steps` batches there. At most `hwm` batches wait for one subscriber;
    further batches are dropped. With `has_int_hashes` hashes are sent as 64-bit integers; otherwise as whole hashes.
    """

    endpoint: str
    binds: bool
    replay_endpoint: str | None
    buffer_steps: int
    hwm: int
    topic: str
    has_int_hashes: bool = True


def at_rank(endpoint: str, rank: int) -> str:
    """Returns the endpoint of a rank: the port plus the rank.

    An endpoint without a port is the same for every rank.
    """
    found = TCP_ENDPOINT.fullmatch(endpoint)
    return endpoint if found is None else f"tcp://{found['host']}:{int(found['port']) + rank}"


class BlockStored(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Blocks that entered the prefix cache, consecutive blocks of a prefix in order; hashes are 32 bytes.

    For each block, `media` lists the items with tokens in the block: the item's hash, and the position of its first
    token, counted from the block's first token. `media` is empty if no block has any items.
    """

    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    token_ids: list[int]
    block_size: int
    lora_name: str | None = None
    cache_salt: str | None = None
    medium: Medium = Medium.POOL
    media: list[list[tuple[str, int]]] = []


class BlockRemoved(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Blocks that left the prefix cache."""

    block_hashes: list[bytes]
    medium: Medium = Medium.POOL


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True):
    """The whole prefix cache was dropped, in every storage medium."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KvEventBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of the prefix cache in one step. Sequence numbers start at 0 without gaps; `timestamp` is Unix time."""

    sequence_number: int
    timestamp: float
    events: list[KvEvent]
    data_parallel_rank: int = 0
