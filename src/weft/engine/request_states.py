"""Converts the scheduler's sequences to `RequestStates`, between two steps and without changing them."""

from itertools import islice

import numpy as np
import numpy.typing as npt

from weft.core.observe.stats import SequenceTimes
from weft.core.values.engine_snapshots import MAX_LISTED, RequestPhase, RequestState, RequestStates
from weft.engine.scheduling.scheduler import Scheduler
from weft.engine.scheduling.sequence import Sequence, SequenceStatus


def read_states(scheduler: Scheduler, rank: int) -> RequestStates:
    """Returns the current requests and blocks; takes some microseconds per answer, 1 to 2 nanoseconds per block."""
    now = scheduler.stopwatch.now()
    cache = scheduler.cache
    num_holders = _num_holders(scheduler)
    listed = [
        _state(sequence, now, num_holders)
        for sequence in islice(scheduler.open_sequences(), MAX_LISTED)
    ]
    return RequestStates(
        data_parallel_rank=rank,
        requests=listed,
        num_unlisted=len(scheduler.queues.running) + scheduler.queues.num_waiting - len(listed),
        finished=[
            _finished(number, now - at, times)
            for number, at, times in reversed(scheduler.stopwatch.finished)
        ],
        num_blocks=cache.pool.num_blocks,
        num_held_blocks=cache.pool.num_held,
        num_shared_blocks=int(np.count_nonzero(num_holders > 1)),
        num_cached_blocks=cache.pool.num_free_labelled,
    )


def _num_holders(scheduler: Scheduler) -> npt.NDArray[np.intp]:
    """Returns the number of holders of each block; sequences that are not listed count too."""
    cache = scheduler.cache
    held = [np.asarray(s.block_ids, np.int32) for s in scheduler.open_sequences() if s.block_ids]
    held.append(np.asarray([] if cache.lent is None else [*cache.lent], np.int32))
    return np.bincount(np.concatenate(held), minlength=cache.pool.num_blocks)


def _state(sequence: Sequence, now: float, num_holders: npt.NDArray[np.intp]) -> RequestState:
    queued, scheduled, first = sequence.queued_at, sequence.scheduled_at, sequence.first_token_at
    block_ids = np.asarray(sequence.block_ids, np.int32)
    return RequestState(
        number=sequence.number,
        phase=_phase(sequence),
        is_running=sequence.status is SequenceStatus.RUNNING,
        queue_s=_between(queued, scheduled, now),
        prefill_s=_between(scheduled, first, now),
        decode_s=_between(first, None, now),
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_cached_tokens=sequence.num_cached_tokens or 0,
        num_computed_tokens=sequence.num_computed_tokens,
        num_output_tokens=sequence.num_output_tokens,
        num_preemptions=sequence.num_preemptions,
        num_blocks=len(block_ids),
        num_shared_blocks=int(np.count_nonzero(num_holders[block_ids] > 1)),
    )


def _phase(sequence: Sequence) -> RequestPhase:
    if sequence.scheduled_at is None:
        return RequestPhase.QUEUED
    return RequestPhase.PREFILL if sequence.first_token_at is None else RequestPhase.DECODE


def _finished(number: int, finished_s: float, times: SequenceTimes) -> RequestState:
    return RequestState(
        number=number,
        phase=RequestPhase.FINISHED,
        queue_s=times.queue_s,
        prefill_s=times.prefill_s,
        decode_s=times.decode_s,
        finished_s=max(0.0, finished_s),
        num_prompt_tokens=times.num_prompt_tokens,
        num_cached_tokens=times.num_cached_tokens,
        num_output_tokens=times.num_output_tokens,
    )


def _between(start: float | None, end: float | None, now: float) -> float | None:
    """Returns the duration of a phase in seconds; a phase without an end lasts until `now`, one without a start is
    None.
    """
    return None if start is None else max(0.0, (now if end is None else end) - start)
