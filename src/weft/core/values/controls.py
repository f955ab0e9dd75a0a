"""Arguments and answers of operators' calls that pause, sleep and drain; shared by all clients."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from weft.core.errors import BadRequest

MAX_SLEEP_LEVEL = 2
STALL_S = 30.0  # an engine that does not answer for this long is unhealthy; no step takes so long
HUNG_S = 60.0  # an engine process or node that does not answer for this long is killed
STUCK_S = 300.0  # an engine whose process answers but whose loop is stuck for this long is killed
# Limit for API servers, which never compute, and for the supervisor as seen by API servers.
SERVER_HUNG_S = 20.0
START_S = 120.0  # extra time for a starting process: imports and reads are slow on a busy machine


class PauseMode(StrEnum):
    """Treatment of in-flight requests during a pause."""

    ABORT = "abort"
    WAIT = "wait"
    KEEP = "keep"


class SleepTag(StrEnum):
    """A part of the engine that `wake_up` restores."""

    WEIGHTS = "weights"
    KV_CACHE = "kv_cache"
    SCHEDULING = "scheduling"


def read_pause_mode(mode: PauseMode | str, *, is_wait: bool = False) -> PauseMode:
    """Returns the mode of a pause; `is_wait` is the older spelling of "wait"."""
    if mode not in list(PauseMode):
        raise BadRequest("mode", f"mode must be one of {', '.join(PauseMode)}, got {mode!r}", mode)
    return PauseMode.WAIT if is_wait else PauseMode(mode)


def check_sleep_level(level: int) -> None:
    """Raises `BadRequest` for an unknown sleep level."""
    if level not in range(MAX_SLEEP_LEVEL + 1):
        message = f"level must be from 0 to {MAX_SLEEP_LEVEL}, got {level!r}"
        raise BadRequest("level", message, level)


def read_sleep_tags(tags: Iterable[str] | None) -> list[str]:
    """Returns the parts to restore, checked; None stands for all parts."""
    named = list(SleepTag) if tags is None else list(tags)
    for tag in named:
        if tag not in list(SleepTag):
            allowed = ", ".join(SleepTag)
            raise BadRequest("tags", f"each of tags must be one of {allowed}, got {tag!r}", tag)
    return [str(tag) for tag in named]


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a drained engine, counted by where they went.

    `moved` has the number of requests that continue at another engine, by the rank of that engine. `transferred` of
    them fetch their KV blocks from the drained engine, `recomputed` compute them again. `waited` requests could not
    move and have finished at the drained engine; `running` ones have not finished within the call's time. `left`
    requests had a caller that left, or has not read on yet.
    """

    data_parallel_rank: int
    moved: dict[int, int] = {}
    transferred: int = 0
    recomputed: int = 0
    waited: int = 0
    running: int = 0
    left: int = 0
