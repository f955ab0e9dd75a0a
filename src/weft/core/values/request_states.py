"""What an engine holds just now, for people who watch it: phases, times and blocks of each answer, no text."""

from enum import StrEnum

import msgspec

MAX_LISTED = 256
"""Answers under way that one engine lists; how many more there are it says."""
MAX_FINISHED = 32
"""Answers that have ended, of which it still knows the times."""


class RequestPhase(StrEnum):
    """How far an answer has come; a preemption does not bring it back."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


class RequestState(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of a request. `number` is its place in the order of arrival, and a key to nothing.

    Seconds are those spent in a phase so far, None for one that it has not come to; `finished_s` ago it
    ended. Of its `num_blocks`, others hold `num_shared_blocks` too. It waits where it is not `is_running`: for
    its turn, its grammar, blocks from elsewhere or, once preempted, for room.
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
    """Of one rank: its answers, those that run first, then those that wait, each in the order they are served.

    `finished` are the last to end, newest first. The blocks of the KV pool are held (`num_shared_blocks` by
    several, lent ones included), or free; `num_cached_blocks` of the free can still be found by their prefix.
    """

    data_parallel_rank: int = 0
    requests: list[RequestState] = []
    num_unlisted: int = 0
    finished: list[RequestState] = []
    num_blocks: int = 0
    num_held_blocks: int = 0
    num_shared_blocks: int = 0
    num_cached_blocks: int = 0
