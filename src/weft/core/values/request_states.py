"""Snapshot of an engine's requests for operators: phases, times and blocks of each answer, but no text."""

from enum import StrEnum

import msgspec

MAX_LISTED = 256
"""Answers under way that one engine lists; how many more there are it says."""
MAX_FINISHED = 32
"""Answers that have ended, of which it still knows the times."""


class RequestPhase(StrEnum):
    """Phase of an answer; a preemption does not return it to an earlier phase."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


class RequestState(msgspec.Struct, frozen=True, kw_only=True):
    """State of one answer of a request. `number` is its place in the order of arrival, and no id for other calls.

    Seconds are the time spent in a phase so far, None for a phase that has not begun; the answer ended `finished_s`
    ago. Of its `num_blocks` blocks, other sequences hold `num_shared_blocks` too. An answer that is not `is_running`
    waits: for scheduling, its grammar, blocks from elsewhere or, after preemption, for free blocks.
    """

    number: int
    phase: RequestPhase
    is_running: bool = False
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    finished_s: float | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_blocks: int = 0
    num_shared_blocks: int = 0


class RequestStates(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of one rank: first the running ones, then the waiting ones, each in the order of service.

    `finished` are the last to end, newest first. The blocks of the KV pool are either held, `num_shared_blocks` of
    them by several holders (leases included), or free; `num_cached_blocks` of the free ones can still be found by
    their prefix.
    """

    data_parallel_rank: int = 0
    requests: list[RequestState] = []
    num_unlisted: int = 0
    finished: list[RequestState] = []
    num_blocks: int = 0
    num_held_blocks: int = 0
    num_shared_blocks: int = 0
    num_cached_blocks: int = 0
