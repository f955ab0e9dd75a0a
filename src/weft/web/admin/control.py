"""Control of the engine, for holders of a control key: pause, sleep, cached blocks, aborts."""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from weft.core.errors import BadRequest, FailedPrecondition
from weft.core.types import PauseMode
from weft.web.http.endpoint import Access, Answer, Call, Endpoint, Handler
from weft.web.http.problem import HttpError

MAX_ABORT_IDS = 10_000
_LEVELS = ("0", "1", "2")
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


class Paused(msgspec.Struct, frozen=True):
    """Whether a pause is in force."""

    is_paused: bool


class Sleeping(msgspec.Struct, frozen=True):
    """Whether scheduling is paused or memory is not resident."""

    is_sleeping: bool


class Status(msgspec.Struct, frozen=True):
    """What was done."""

    status: str


class AbortBody(msgspec.Struct, frozen=True, kw_only=True):
    """Ids as the engine knows them; those of nothing open are passed over."""

    request_ids: list[str]


async def _pause(call: Call) -> Answer:
    names = ("mode", "wait_for_inflight_requests", "clear_cache")
    _refuse_others(call.query, names)
    await call.served.client.pause_generation(
        mode=call.query.get("mode", PauseMode.ABORT.value),
        wait_for_inflight_requests=_boolean(call.query, names[1], default=False),
        clear_cache=_boolean(call.query, names[2], default=True),
    )
    return Status("paused")


async def _resume(call: Call) -> Answer:
    _refuse_others(call.query, ())
    await call.served.client.resume_generation()
    return Status("resumed")


async def _is_paused(call: Call) -> Answer:
    return Paused(await call.served.client.is_paused())


async def _is_sleeping(call: Call) -> Answer:
    return Sleeping(await call.served.client.is_sleeping())


async def _sleep(call: Call) -> Answer:
    _refuse_others(call.query, ("level", "mode"))
    level = call.query.get("level", "1")
    if level not in _LEVELS:
        raise BadRequest("level", f"level must be one of {', '.join(_LEVELS)}, got {level[:40]!r}")
    mode = call.query.get("mode", PauseMode.ABORT.value)
    await call.served.client.sleep(int(level), mode)
    return Status("sleeping")


async def _wake_up(call: Call) -> Answer:
    """Once `tags` have brought back all memory; before that it sleeps on."""
    _refuse_others(call.query, ("tags",))
    tags = call.query["tags"].split(",") if "tags" in call.query else None
    is_awake = await call.served.client.wake_up(tags)
    return Status("awake" if is_awake else "sleeping")


async def _reset_prefix_cache(call: Call) -> Answer:
    names = ("reset_running_requests", "reset_external")
    _refuse_others(call.query, names)
    is_done = await call.served.client.reset_prefix_cache(
        reset_running_requests=_boolean(call.query, names[0], default=False),
        reset_connector=_boolean(call.query, names[1], default=False),
    )
    if not is_done:
        raise FailedPrecondition("requests in flight hold cached blocks; nothing was dropped")
    return Response()


async def _abort(call: Call) -> Answer:
    ids = call.body.request_ids
    if len(ids) > MAX_ABORT_IDS:
        raise HttpError(413, f"request_ids takes at most {MAX_ABORT_IDS} ids, got {len(ids)}")
    if ids:
        await call.served.client.abort(ids)
    return Status("aborted")


def _refuse_others(query: Mapping[str, str], names: tuple[str, ...]) -> None:
    for name in query:
        if name not in names:
            raise BadRequest(name[:100], f"unknown parameter {name[:100]!r}")


def _boolean(query: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = query.get(name)
    if text is None:
        return default
    if text.lower() not in _BOOLEANS:
        raise BadRequest(name, f"{name} must be true or false, got {text[:40]!r}")
    return _BOOLEANS[text.lower()]


def _control(
    method: str,
    path: str,
    handler: Handler,
    summary: str,
    answer: type | None = None,
    **fields: Any,
) -> Endpoint:
    return Endpoint(
        method=method,
        path=path,
        handler=handler,
        summary=summary,
        access=Access.CONTROL,
        answer=answer,
        **fields,
    )


ENDPOINTS = (
    _control("POST", "/pause", _pause, "Stop scheduling; ?mode=abort, wait or keep.", Status),
    _control("POST", "/resume", _resume, "Schedule again.", Status),
    _control("GET", "/is_paused", _is_paused, "Whether a pause is in force.", Paused),
    _control(
        "POST",
        "/sleep",
        _sleep,
        "Pause (?mode=abort, wait or keep) and, from ?level=1, give memory back to the system.",
        Status,
    ),
    _control(
        "POST",
        "/wake_up",
        _wake_up,
        "Bring memory back, all or by ?tags=weights, kv_cache, scheduling; then schedule again.",
        Status,
        repeatable=("tags",),
    ),
    _control(
        "GET",
        "/is_sleeping",
        _is_sleeping,
        "Whether scheduling is paused or memory is not there.",
        Sleeping,
    ),
    _control("POST", "/reset_prefix_cache", _reset_prefix_cache, "Drop every cached block."),
    Endpoint(
        method="POST",
        path="/abort_requests",
        handler=_abort,
        summary="End requests by their ids.",
        access=Access.CONTROL,
        body=AbortBody,
        answer=Status,
        is_strict=True,
    ),
)
