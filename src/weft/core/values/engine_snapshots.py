"""Snapshots of an engine: its load, and its requests with phases, times and blocks of each answer, but no text."""

from enum import StrEnum

import msgspec

MAX_LISTED = 256
"""Maximum number of running and waiting answers that one engine lists; further answers are only counted."""
MAX_FINISHED = 32
"""Maximum number of ended answers whose times an engine stores."""


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of one rank's scheduler and cache, which the engine takes after a step.

    `gen_throughput` is generated tokens per second, and `cache_hit_rate` the fraction of queried prompt tokens found in
    the prefix cache, both over a recent window. `num_loras` adapters are loaded; `max_loras` is 0 without adapters.
    """

    data_parallel_rank: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_used_tokens: int = 0
    max_total_tokens: int = 0
    max_running: int = 0
    num_waiting_uncached_tokens: int = 0
    gen_throughput: float = 0.0
    cache_hit_rate: float = 0.0
    num_held_blocks: int = 0
    num_blocks: int = 0
    num_steps: int = 0
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_loras: int = 0
    max_loras: int = 0

    @property
    def token_usage(self) -> float:
        """Fraction of the KV pool that running sequences hold, 0..1."""
        return self.num_used_tokens / self.max_total_tokens if self.max_total_tokens else 0.0


class RequestPhase(StrEnum):
    """Phase of an answer; a preempted answer stays in its phase."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


class RequestState(msgspec.Struct, frozen=True, kw_only=True):
    """State of one answer of a request. `number` is the place of the answer in the order of arrival, not an id.

    Seconds are the time spent in a phase so far, None for a phase that has not begun; the answer ended `finished_s`
    seconds ago. `num_shared_blocks` of its `num_blocks` blocks are also held by other sequences. An answer without
    `is_running` waits: for scheduling, for its grammar, for blocks from elsewhere or, after a preemption, for free
    blocks.
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
    """Answers of one rank: first the running ones, then the waiting ones, each in the order in which they are
    scheduled.

    `finished` are the answers that ended last, newest first. The blocks of the KV pool are either held or free.
    `num_shared_blocks` of the held blocks have several holders (leases included); `num_cached_blocks` of the free
    blocks are still in the prefix cache.
    """

    data_parallel_rank: int = 0
    requests: list[RequestState] = []
    num_unlisted: int = 0
    finished: list[RequestState] = []
    num_blocks: int = 0
    num_held_blocks: int = 0
    num_shared_blocks: int = 0
    num_cached_blocks: int = 0
