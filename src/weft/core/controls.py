"""What an operator may ask of any engine that pauses and sleeps: checked here, for every client alike."""

from collections.abc import Iterable
from enum import StrEnum

from weft.core.errors import BadRequest
from weft.core.types import PauseMode

MAX_SLEEP_LEVEL = 2
STALL_S = 30.0  # an engine that answers nothing for so long is unhealthy; no step takes as long
HUNG_S = 60.0  # a process of an engine, or a node, that does not answer for so long is ended
STUCK_S = 300.0  # so is an engine whose process answers, and whose loop does not
SERVER_HUNG_S = (
    20.0  # an API server, which never computes, and for it the process that has the engines
)
START_S = (
    120.0  # more for one that starts: what it imports and reads takes its time on a busy machine
)


class SleepTag(StrEnum):
    """What `wake_up` brings back."""

    WEIGHTS = "weights"
    KV_CACHE = "kv_cache"
    SCHEDULING = "scheduling"


def read_pause_mode(mode: PauseMode | str, *, is_wait: bool = False) -> PauseMode:
    """The mode of a pause; `is_wait` is the older spelling of "wait"."""
    if mode not in list(PauseMode):
        raise BadRequest("mode", f"mode must be one of {', '.join(PauseMode)}, got {mode!r}", mode)
    return PauseMode.WAIT if is_wait else PauseMode(mode)


def check_sleep_level(level: int) -> None:
    """Refuse what is no level of sleep."""
    if level not in range(MAX_SLEEP_LEVEL + 1):
        message = f"level must be from 0 to {MAX_SLEEP_LEVEL}, got {level!r}"
        raise BadRequest("level", message, level)


def read_sleep_tags(tags: Iterable[str] | None) -> list[str]:
    """What is to wake; None is everything."""
    named = list(SleepTag) if tags is None else list(tags)
    for tag in named:
        if tag not in list(SleepTag):
            allowed = ", ".join(SleepTag)
            raise BadRequest("tags", f"tags must be of {allowed}, got {tag!r}", tag)
    return [str(tag) for tag in named]
