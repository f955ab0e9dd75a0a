"""How many slots there are for the states of recurrent layers, and how often a snapshot of one is kept."""

from weft.core.config import EngineOptions
from weft.core.defaults import DEFAULTS
from weft.core.errors import ConfigError
from weft.core.kv_cache import StateCacheConfig
from weft.engine.given import bounded
from weft.model.card import ModelCard

FLAG = "--mamba-block-size"
# Slots take no more than this by default, unless two of them do.
_USUAL_BYTES = 4 << 30
_LEAST_SLOTS = 2  # a snapshot that a sequence reads, and what it writes


def configure_states(
    options: EngineOptions, card: ModelCard, max_num_seqs: int, block_size: int, spare_bytes: int
) -> StateCacheConfig | None:
    """One slot for each sequence that may run and as many for snapshots, in half of what is spare at most."""
    slot_bytes = card.state_bytes_per_slot
    if not slot_bytes:
        if options.mamba_block_size is not None:
            raise ConfigError(f"{FLAG}: {card.name} keeps no states of whole sequences")
        return None
    usual = -(-DEFAULTS["mamba_block_size"] // block_size) * block_size
    interval = bounded(options, "mamba_block_size", default=usual)
    if interval % block_size:
        raise ConfigError(
            f"{FLAG} must be a multiple of --block-size ({block_size}), not {interval}"
        )
    most = min(_USUAL_BYTES, spare_bytes // 2) // slot_bytes
    num_slots = max(_LEAST_SLOTS, min(2 * max_num_seqs, most))
    return StateCacheConfig(num_slots=num_slots, slot_bytes=slot_bytes, mamba_block_size=interval)
