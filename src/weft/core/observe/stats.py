"""Statistics that an engine reports for metrics and the log: counts and durations, but no timestamps.

Clocks differ between processes, so the engine subtracts its own timestamps and sends the differences.
"""

import msgspec


class SequenceTimes(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Times of one sequence that has ended. The duration of a phase that has not ended is None.

    Queue time lasts until the first scheduled step, prefill until the first token, decode until the last token. A
    preemption lengthens the phase in which it happens, so no duration is negative. `engine_id` is set only for a
    request that belongs to a trace.
    """

    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    engine_id: str | None = None
    index: int = 0

    @property
    def inference_s(self) -> float | None:
        """Seconds from the first scheduled step to the last token."""
        if self.prefill_s is None or self.decode_s is None:
            return None
        return self.prefill_s + self.decode_s


class TierStats(msgspec.Struct, kw_only=True, array_like=True):
    """Statistics of the second tier: its current size, and counts since the engine started.

    Queried blocks are blocks that were searched in the second tier because the pool did not have them. Loaded blocks
    were copied back into the pool. Dropped blocks were not stored because the queue was full.
    """

    num_bytes: int = 0
    num_queried_blocks: int = 0
    num_loaded_blocks: int = 0
    num_loaded_bytes: int = 0
    num_stored_bytes: int = 0
    num_evicted: int = 0
    num_dropped: int = 0
    num_damaged: int = 0


class TransferStats(msgspec.Struct, kw_only=True, array_like=True):
    """Statistics of KV transfers in both directions: counts since the engine started.

    `received` is new since the last report: seconds, bytes and blocks of each completely received prompt. A failed
    prompt has a block that could not be received, or sent. An expired lease ended before the other engine had fetched
    its blocks.
    """

    received: list[tuple[float, int, int]] = []
    num_failed_receives: int = 0
    num_failed_releases: int = 0
    num_sent_blocks: int = 0
    num_sent_bytes: int = 0
    sent_s: float = 0.0
    num_failed_sends: int = 0
    num_expired: int = 0


class StepStats(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Statistics of a step: values since the last report, and counts since the engine started (`total_`).

    `num_computed_tokens` is the size of the step, 0 without a step. `intervals` are the seconds between successive
    tokens of a sequence, each with the number of sequences that had this interval. `total_accepted_at[i]` counts the
    drafts whose token `i` was accepted. `total_expert_load` are numbers of tokens, summed over steps and layers since
    the weights were loaded: the mean over all experts, and the number of the busiest expert. `total_item_lookups` and
    `total_item_hits` count the pictures, and windows of recordings, whose encoder output was looked up and found in
    the cache.
    """

    num_computed_tokens: int = 0
    intervals: list[tuple[float, int]] = []
    ended: list[SequenceTimes] = []
    total_prompt_tokens: int = 0
    total_generated_tokens: int = 0
    total_lookups: int = 0
    total_queried_tokens: int = 0
    total_hit_tokens: int = 0
    total_preemptions: int = 0
    total_corrupted: int = 0
    total_drafts: int = 0
    total_draft_tokens: int = 0
    total_accepted_at: list[int] = []
    tier: TierStats | None = None
    transfer: TransferStats | None = None
    total_expert_load: tuple[float, float] = (0.0, 0.0)
    total_item_lookups: int = 0
    total_item_hits: int = 0
