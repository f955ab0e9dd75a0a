"""What an engine reports of its own work, for metrics and the log: counts and durations, no times of day.

Clocks differ between processes, so the engine subtracts its own stamps and sends what is left.
"""

import msgspec


class SequenceTimes(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Of one sequence that has ended. An interval that never closed is None.

    Queued until first scheduled; then to the first token; then to the last. A preemption lengthens
    the interval it falls into, and so none of them can be negative. `engine_id` is only there for a request
    that belongs to a trace.
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
        """From first scheduled to last token."""
        if self.prefill_s is None or self.decode_s is None:
            return None
        return self.prefill_s + self.decode_s


class TierStats(msgspec.Struct, kw_only=True, array_like=True):
    """Of the KV cache's second tier: what it holds now, and counts since the engine started.

    Queried are blocks that the pool had not; loaded came back into it, dropped found the queue full.
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
    """Of prompts that went to other engines and came from them: counts since the engine started.

    `received` is new since the last one: seconds, bytes and blocks of each prompt that came whole. Failed are
    prompts of which a block did not come, or did not go; expired are leases that ran out.
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
    """What is new since the last one, and counts since the engine started (`total_`).

    `num_computed_tokens` is the size of the step, 0 when there was none. `intervals` are the seconds
    between successive tokens of a sequence, each with how many sequences had just that.
    `total_accepted_at[i]` counts the drafts whose place `i` was right. `total_expert_load` are tokens, added up
    over steps and layers since the weights were loaded: of the mean expert, and of the busiest.
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
