"""Size of the KV pool in blocks: the demand, the available memory, and advice if the demand exceeds the memory."""

from dataclasses import dataclass

from weft.core.config.defaults import DEFAULT_MEMORY_SHARE
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.core.observe.readable import format_bytes
from weft.core.values.declare import INT32_MAX, INT64_MAX
from weft.engine.settings.given import bounded

# Maximum default size of the pool, unless one sequence of full length needs more.
DEFAULT_POOL_BYTES = 4 << 30
MIN_MODEL_LEN = 2  # one prompt token and one output token

# Maximum number of blocks that hold no keys and values, unless one sequence needs more: each takes memory of Python.
_FREE_BLOCKS = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The sequences that the KV pool must hold, and the memory that is available for the pool."""

    max_model_len: int
    max_num_seqs: int
    block_size: int
    block_bytes: int
    others: dict[str, int]  # other users of memory, in bytes
    free_bytes: int
    memory_share: float | None  # the user's value
    is_sized_in_bytes: bool  # by --kv-cache-bytes, so that advice names the same flag

    @property
    def blocks_per_sequence(self) -> int:
        """Number of blocks that one sequence of full length takes."""
        return -(-self.max_model_len // self.block_size)

    @property
    def other_bytes(self) -> int:
        """Bytes that other users of memory take, besides the pool."""
        return sum(self.others.values())

    @property
    def takers(self) -> str:
        """Names of the other users of memory, for error messages."""
        return " and ".join(self.others)

    @property
    def budget_bytes(self) -> int:
        """Bytes for the pool if the user sets no size."""
        share = DEFAULT_MEMORY_SHARE if self.memory_share is None else self.memory_share
        return int(self.free_bytes * share) - self.other_bytes

    @property
    def limit_bytes(self) -> int:
        """Maximum bytes for the pool: all memory that the other users leave."""
        return self.free_bytes - self.other_bytes


def num_blocks_of(options: EngineOptions, demand: Demand) -> int:
    """Returns the number of blocks of the pool: the user's number, or as many as fit into the memory.

    Raises `ConfigError` if the memory does not hold this pool, or the pool does not hold one sequence of the maximum
    length.
    """
    if demand.limit_bytes < demand.block_bytes:
        raise ConfigError(
            f"the model does not fit: its {demand.takers} take {format_bytes(demand.other_bytes)} and a "
            f"KV block {format_bytes(demand.block_bytes)}, but {format_bytes(demand.free_bytes)} of memory are free; "
            "free some, or serve a smaller model"
        )
    requested = _requested_blocks(options, demand)
    num_blocks = _default_blocks(demand) if requested is None else requested
    if requested is not None and num_blocks * demand.block_bytes > demand.limit_bytes:
        raise ConfigError(_too_large(demand, num_blocks))
    if num_blocks < demand.blocks_per_sequence:
        raise ConfigError(_too_small(demand, num_blocks))
    if num_blocks * demand.block_size > INT32_MAX:
        raise ConfigError(f"the KV pool has {num_blocks} blocks; at most 2**31 tokens fit a pool")
    return num_blocks


def _requested_blocks(options: EngineOptions, demand: Demand) -> int | None:
    """Returns the user's size of the pool in blocks; None if the user sets no size."""
    if options.kv_cache_bytes is None:
        if options.num_gpu_blocks_override is None:
            return None
        return bounded(options, "num_gpu_blocks_override")
    if options.num_gpu_blocks_override is not None:
        raise ConfigError("give --kv-cache-bytes or --num-gpu-blocks-override, not both")
    size = bounded(options, "kv_cache_bytes", INT64_MAX)
    if demand.block_bytes == 0:
        raise ConfigError(
            "--kv-cache-bytes has no effect for a model without KV; use --num-gpu-blocks-override"
        )
    if size < demand.block_bytes:
        raise ConfigError(
            f"--kv-cache-bytes {format_bytes(size)} is below the {format_bytes(demand.block_bytes)} of one block"
        )
    return size // demand.block_bytes


def _default_blocks(demand: Demand) -> int:
    """Returns the number of blocks for all sequences at full length, at most the budget and the default size."""
    wanted = demand.blocks_per_sequence * demand.max_num_seqs
    if demand.block_bytes == 0:
        return min(wanted, max(_FREE_BLOCKS, demand.blocks_per_sequence))
    most = _most_blocks(demand, demand.budget_bytes)
    if demand.memory_share is not None:  # a share that the user sets replaces the default size
        return min(wanted, most)
    usual = max(DEFAULT_POOL_BYTES // demand.block_bytes, demand.blocks_per_sequence)
    return min(wanted, usual, most)


def _most_blocks(demand: Demand, num_bytes: int) -> int:
    if demand.block_bytes == 0:
        return INT32_MAX // demand.block_size
    return max(0, num_bytes // demand.block_bytes)


def _too_large(demand: Demand, num_blocks: int) -> str:
    """Returns an error message with the size of the pool, and two sets of flags that fit the memory."""
    most = _most_blocks(demand, demand.limit_bytes)
    least = demand.blocks_per_sequence
    remedies = _remedies(demand, most, least * demand.block_bytes)
    if most >= least:
        usual = max(least, _default_blocks(demand))
        remedies = [_flags(demand, demand.max_model_len, size) for size in (usual, most)]
    return (
        f"the requested KV pool needs {format_bytes(num_blocks * demand.block_bytes)}, but beside the "
        f"{demand.takers} ({format_bytes(demand.other_bytes)}) only {format_bytes(demand.limit_bytes)} of memory are "
        f"free; try {' or '.join(remedies)}"
    )


def _too_small(demand: Demand, num_blocks: int) -> str:
    """Returns an error message that the pool does not hold one sequence, and two sets of flags that work."""
    needed = demand.blocks_per_sequence * demand.block_bytes
    message = (
        f"the KV pool is too small for one sequence: --max-model-len {demand.max_model_len} needs "
        f"{demand.blocks_per_sequence} blocks ({format_bytes(needed)}), the pool has {num_blocks} "
        f"({format_bytes(num_blocks * demand.block_bytes)}; free memory {format_bytes(demand.free_bytes)}, "
        f"{demand.takers} {format_bytes(demand.other_bytes)})"
    )
    remedies = _remedies(demand, num_blocks, needed)
    return f"{message}; try {' or '.join(remedies)}" if remedies else message


def _remedies(demand: Demand, num_blocks: int, needed: int) -> list[str]:
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


def _flags(demand: Demand, max_model_len: int, num_blocks: int) -> str:
    return f'"--max-model-len {max_model_len} {_pool_flag(demand, num_blocks)}"'


def _pool_flag(demand: Demand, num_blocks: int) -> str:
    if demand.is_sized_in_bytes:
        return f"--kv-cache-bytes {_size(demand, num_blocks)}"
    return f"--num-gpu-blocks-override {num_blocks}"


def _size(demand: Demand, num_blocks: int) -> str:
    """Formats the size of blocks in MiB; in a smaller unit if rounding up to MiB would exceed the limit."""
    num_bytes = num_blocks * demand.block_bytes
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        count = -(-num_bytes >> shift)
        if count << shift <= demand.limit_bytes:
            return f"{count}{unit}"
    return str(num_bytes)
