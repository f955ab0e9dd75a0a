"""Calls of `EngineClient` that API servers forward to their supervisor, and the types of arguments and answers.

The calls are those of `weft.core.operator_calls`, and further calls about the state of the engines.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from weft.core.operator_calls import CALLS, OperatorCalls
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.pictures import ItemPreparer

ABORT, LOG_STATS = "abort", "do_log_stats"
CHECK_HEALTH, GET_LOADS = "check_health", "get_loads"
SUBSCRIBE, EXPOSE = "subscribe_kv_events", "expose"


class Health(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `check_health` if the engines are healthy; otherwise the call raises."""

    is_degraded: bool


class Loads(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `get_loads`: the load of each engine, and the number of running requests of all API servers."""

    loads: list[EngineLoad]
    num_active_requests: int


# Type of the answer of each call.
ANSWERS: dict[str, Any] = {
    ABORT: None,
    LOG_STATS: None,
    CHECK_HEALTH: Health,
    GET_LOADS: Loads,
    EXPOSE: bytes,
    **{name: call.answer for name, call in CALLS.items()},
}


class ForwardedCalls(OperatorCalls):
    """Operator calls that an API server forwards to the supervisor, which answers them for all API servers."""

    def __init__(
        self, forward: Callable[..., Awaitable[Any]], pictures: ItemPreparer | None
    ) -> None:
        self._forward = forward
        self._pictures = pictures

    async def answer(self, name: str, *arguments: Any, **named: Any) -> Any:
        if name == "reset_mm_cache" and self._pictures is not None:
            self._pictures.clear()  # each API server prepares pictures itself
        return await self._forward(name, *arguments, **named)


def plain(argument: Any) -> Any:
    """Returns an argument of a call in a form that the channel can encode."""
    if isinstance(argument, Iterable) and not isinstance(argument, str | bytes | dict):
        return list(argument)
    return argument


def with_structures(method: str, arguments: list[Any], named: dict[str, Any]) -> None:
    """Converts the decoded first argument back to the structure that the call takes, in place."""
    kind = None if method not in CALLS else CALLS[method].argument
    if kind is None:
        return
    if arguments:
        arguments[0] = msgspec.convert(arguments[0], kind)
    else:
        named.update({name: msgspec.convert(value, kind) for name, value in named.items()})
