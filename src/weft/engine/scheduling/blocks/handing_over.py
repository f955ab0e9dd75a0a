"""Lends the blocks of a request that another engine continues: the engine is drained, or leaves."""

from typing import Any

from weft.core.values.kv_transfer import lends_prompt
from weft.engine.scheduling.blocks.kv_cache import PrefixCache
from weft.engine.scheduling.sequence import Sequence


def hand_over(cache: PrefixCache, sequence: Sequence) -> dict[str, Any] | None:
    """Lends the full blocks that a sequence has computed. Returns the transfer params with which another engine fetches
    them; None if this engine lends no blocks, or if others know these by another hash.

    States of recurrent layers are not lent, because they lie at the end of the sequence and not of a block.
    """
    request, num_full = sequence.request, sequence.num_computed_tokens // cache.block_size
    if cache.lent is None or cache.states is not None or not num_full:
        return None
    if cache.nonce_for(request.lora_name) or lends_prompt(request.params.extra_args):
        return None
    cache.extend_hashes(sequence, num_full)
    block_ids, hashes = sequence.block_ids[:num_full].tolist(), sequence.block_hashes[:num_full]
    return cache.lent.hand_over(request.engine_id, block_ids, hashes)


def hands_over_for_s(cache: PrefixCache) -> float:
    """Returns the seconds for which an engine that stops still waits for others to fetch what it has handed over."""
    return 0.0 if cache.lent is None else cache.lent.waits_for_s
