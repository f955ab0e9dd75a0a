"""Configuration of the KV pool, of recurrent states, of the second tier and of prefix-cache events."""

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
