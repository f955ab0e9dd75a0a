"""Where blocks of the KV cache lie and what lies beside them, the second tier, and where changes are published."""

from enum import StrEnum

import msgspec


class Medium(StrEnum):
    """Where cached blocks lie, as routers call it: the pool that is computed on, or its second tier."""

    POOL = "GPU"
    MEMORY = "CPU"
    DISK = "DISK"


class StateCacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What recurrent layers keep of sequences: `num_slots` of `slot_bytes`, beside the KV pool.

    A snapshot that others may go on from is taken every `mamba_block_size` tokens, a multiple of the block size.
    """

    num_slots: int
    slot_bytes: int
    mamba_block_size: int

    @property
    def num_bytes(self) -> int:
        """Of all slots."""
        return self.num_slots * self.slot_bytes


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The KV pool: `num_blocks` usable blocks of `block_size` tokens, `block_bytes` each."""

    block_size: int
    num_blocks: int
    block_bytes: int
    kv_cache_dtype: str
    enable_prefix_caching: bool
    states: StateCacheConfig | None = None  # of recurrent layers

    @property
    def num_state_slots(self) -> int:
        """Slots of states beside the pool."""
        return 0 if self.states is None else self.states.num_slots

    @property
    def max_total_tokens(self) -> int:
        """Tokens the whole pool holds."""
        return self.num_blocks * self.block_size


class KvOffloadingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The second tier of the prefix cache: `num_bytes` of files below `path`, or of memory without one."""

    num_bytes: int
    path: str | None

    @property
    def medium(self) -> Medium:
        """Where its blocks lie."""
        return Medium.MEMORY if self.path is None else Medium.DISK


class KvEventsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where changes of the prefix cache are published over ZeroMQ. Ports are those of rank 0.

    `endpoint` is listened on if `binds`, else connected to; a `replay_endpoint` is always listened on, and
    answers with up to `buffer_steps` batches. Up to `hwm` wait for one subscriber, and are then dropped.
    Hashes go out as 64 bits, or in full without `has_int_hashes`.
    """

    endpoint: str
    binds: bool
    replay_endpoint: str | None
    buffer_steps: int
    hwm: int
    topic: str
    has_int_hashes: bool = True
