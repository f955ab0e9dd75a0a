"""Control of the engine, for holders of a control key: pause, sleep, cached blocks, aborts."""

from typing import Any

import msgspec

from weft.core.errors import BadRequest
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


class Reset(msgspec.Struct, frozen=True):
    """Whether the cache is empty now; if not, nothing was dropped."""

    success: bool


class AbortBody(msgspec.Struct, frozen=True, kw_only=True):
    """Ids as the engine knows them; those of nothing open are passed over."""

    request_ids: list[str]


async def _pause(call: Call) -> Answer:
    await call.served.client.pause_generation(
        mode=call.query.get("mode", PauseMode.ABORT.value),
        wait_for_inflight_requests=_boolean(call, "wait_for_inflight_requests", default=False),
        clear_cache=_boolean(call, "clear_cache", default=True),
    )
    return Status("paused")


async def _resume(call: Call) -> Answer:
    await call.served.client.resume_generation()
    return Status("resumed")


async def _is_paused(call: Call) -> Answer:
    return Paused(await call.served.client.is_paused())


async def _is_sleeping(call: Call) -> Answer:
    return Sleeping(await call.served.client.is_sleeping())


async def _sleep(call: Call) -> Answer:
    level = call.query.get("level", "1")
    if level not in _LEVELS:
        raise BadRequest("level", f"level must be one of {', '.join(_LEVELS)}, got {level[:40]!r}")
    mode = call.query.get("mode", PauseMode.ABORT.value)
    await call.served.client.sleep(int(level), mode)
    return Status("sleeping")


async def _wake_up(call: Call) -> Answer:
    """Once `tags` have brought back all memory; before that it sleeps on."""
    tags = call.query["tags"].split(",") if "tags" in call.query else None
    is_awake = await call.served.client.wake_up(tags)
    return Status("awake" if is_awake else "sleeping")


async def _reset_prefix_cache(call: Call) -> Answer:
    is_done = await call.served.client.reset_prefix_cache(
        reset_running_requests=_boolean(call, "reset_running_requests", default=False),
        reset_connector=_boolean(call, "reset_external", default=False),
    )
    return Reset(is_done)


async def _reset_mm_cache(call: Call) -> Answer:
    await call.served.client.reset_mm_cache()
    return Reset(success=True)


async def _reset_encoder_cache(call: Call) -> Answer:
    await call.served.client.reset_encoder_cache()
    return Reset(success=True)


async def _abort(call: Call) -> Answer:
    ids = call.body.request_ids
    if len(ids) > MAX_ABORT_IDS:
        raise HttpError(413, f"request_ids takes at most {MAX_ABORT_IDS} ids, got {len(ids)}")
    if ids:
        await call.served.client.abort(ids)
    return Status("aborted")


def _boolean(call: Call, name: str, *, default: bool) -> bool:
    text = call.query.get(name)
    if text is None:
        return default
    if text.lower() not in _BOOLEANS:
        raise BadRequest(name, f"{name} must be true or false, got {text[:40]!r}")
    return _BOOLEANS[text.lower()]


def control_endpoint(
    method: str,
    path: str,
    handler: Handler,
    summary: str,
    answer: type | None = None,
    *,
    query: tuple[str, ...] = (),
    **fields: Any,
) -> Endpoint:
    """One for holders of a control key, which refuses what it does not know: fields, and names not in `query`."""

    async def checked(call: Call) -> Answer:
        for name in call.query:
            if name not in query:
                raise BadRequest(name[:100], f"unknown parameter {name[:100]!r}")
        return await handler(call)

    return Endpoint(
        method=method,
        path=path,
        handler=checked,
        summary=summary,
        access=Access.CONTROL,
        answer=answer,
        is_strict=True,
        **fields,
    )


ENDPOINTS = (
    control_endpoint(
        "POST",
        "/pause",
        _pause,
        "Stop scheduling; ?mode=abort, wait or keep.",
        Status,
        query=("mode", "wait_for_inflight_requests", "clear_cache"),
    ),
    control_endpoint("POST", "/resume", _resume, "Schedule again.", Status),
    control_endpoint("GET", "/is_paused", _is_paused, "Whether a pause is in force.", Paused),
    control_endpoint(
        "POST",
        "/sleep",
        _sleep,
        "Pause (?mode=abort, wait or keep) and, from ?level=1, give memory back to the system.",
        Status,
        query=("level", "mode"),
    ),
    control_endpoint(
        "POST",
        "/wake_up",
        _wake_up,
        "Bring memory back, all or by ?tags=weights, kv_cache, scheduling; then schedule again.",
        Status,
        query=("tags",),
        repeatable=("tags",),
    ),
    control_endpoint(
        "GET",
        "/is_sleeping",
        _is_sleeping,
        "Whether scheduling is paused or memory is not there.",
        Sleeping,
    ),
    control_endpoint(
        "POST",
        "/reset_prefix_cache",
        _reset_prefix_cache,
        "Drop every cached block, unless requests hold some (?reset_running_requests=true: of theirs too).",
        Reset,
        query=("reset_running_requests", "reset_external"),
    ),
    control_endpoint(
        "POST", "/reset_mm_cache", _reset_mm_cache, "Nothing is cached of other inputs.", Reset
    ),
    control_endpoint(
        "POST",
        "/reset_encoder_cache",
        _reset_encoder_cache,
        "Nothing is cached of encoders.",
        Reset,
    ),
    control_endpoint(
        "POST",
        "/abort_requests",
        _abort,
        "End requests by their ids.",
        Status,
        body=AbortBody,
        example={"request_ids": ["request-1"]},
    ),
)
