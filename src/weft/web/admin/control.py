"""Control of the engine, for holders of a control key: pause, sleep, cached blocks, aborts."""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import msgspec

from weft.core.errors import BadRequest
from weft.core.values.controls import PauseMode
from weft.web.http.endpoint import Access, Answer, Call, Endpoint, Handler, endpoint
from weft.web.http.problem import HttpError

MAX_ABORT_IDS = 10_000
_LEVELS = ("0", "1", "2")
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


class Paused(msgspec.Struct, frozen=True):
    """Whether the engine is paused."""

    is_paused: bool


class Sleeping(msgspec.Struct, frozen=True):
    """Whether scheduling is paused or memory is not resident."""

    is_sleeping: bool


class Status(msgspec.Struct, frozen=True):
    """Result of a control call."""

    status: str


class Reset(msgspec.Struct, frozen=True):
    """Whether the prefix cache is empty now; if not, nothing was dropped."""

    success: bool


class AbortBody(msgspec.Struct, frozen=True, kw_only=True):
    """Request ids of the engine; ids of requests that are not open are ignored."""

    request_ids: list[str]


def control(
    route: str, answer: type | None = None, *, query: tuple[str, ...] = (), **fields: Any
) -> Callable[[Handler], Endpoint]:
    """The `endpoint` for holders of a control key; it refuses unknown fields, and names that are not in `query`."""
    make = endpoint(route, access=Access.CONTROL, answer=answer, is_strict=True, **fields)

    def with_check(handler: Handler) -> Endpoint:
        @wraps(handler)
        async def checked(call: Call) -> Answer:
            for name in call.query:
                if name not in query:
                    raise BadRequest(name[:100], f"unknown parameter {name[:100]!r}")
            return await handler(call)

        return make(checked)

    return with_check


@control("POST /pause", Status, query=("mode", "wait_for_inflight_requests", "clear_cache"))
async def _pause(call: Call) -> Answer:
    """Stop scheduling; ?mode=abort, wait or keep."""
    await call.served.client.pause_generation(
        mode=call.query.get("mode", PauseMode.ABORT.value),
        wait_for_inflight_requests=_boolean(call, "wait_for_inflight_requests", default=False),
        clear_cache=_boolean(call, "clear_cache", default=True),
    )
    return Status("paused")


@control("POST /resume", Status)
async def _resume(call: Call) -> Answer:
    """Schedule again."""
    await call.served.client.resume_generation()
    return Status("resumed")


@control("GET /is_paused", Paused)
async def _is_paused(call: Call) -> Answer:
    """Return whether the engine is paused."""
    return Paused(await call.served.client.is_paused())


@control("GET /is_sleeping", Sleeping)
async def _is_sleeping(call: Call) -> Answer:
    """Return whether scheduling is paused or memory is not resident."""
    return Sleeping(await call.served.client.is_sleeping())


@control("POST /sleep", Status, query=("level", "mode"))
async def _sleep(call: Call) -> Answer:
    """Pause (?mode=abort, wait or keep) and, from ?level=1, give memory back to the system."""
    level = call.query.get("level", "1")
    if level not in _LEVELS:
        raise BadRequest("level", f"level must be one of {', '.join(_LEVELS)}, got {level[:40]!r}")
    mode = call.query.get("mode", PauseMode.ABORT.value)
    await call.served.client.sleep(int(level), mode)
    return Status("sleeping")


@control("POST /wake_up", Status, query=("tags",), repeatable=("tags",))
async def _wake_up(call: Call) -> Answer:
    """Bring memory back, all or by ?tags=weights, kv_cache, scheduling; then schedule again.

    Once `tags` have brought back all memory; before that it sleeps on.
    """
    tags = call.query["tags"].split(",") if "tags" in call.query else None
    is_awake = await call.served.client.wake_up(tags)
    return Status("awake" if is_awake else "sleeping")


@control("POST /reset_prefix_cache", Reset, query=("reset_running_requests", "reset_external"))
async def _reset_prefix_cache(call: Call) -> Answer:
    """Drop every cached block, unless requests hold some (?reset_running_requests=true: of theirs too)."""
    is_done = await call.served.client.reset_prefix_cache(
        reset_running_requests=_boolean(call, "reset_running_requests", default=False),
        reset_connector=_boolean(call, "reset_external", default=False),
    )
    return Reset(is_done)


@control("POST /reset_mm_cache", Reset)
async def _reset_mm_cache(call: Call) -> Answer:
    """Nothing is cached of other inputs."""
    await call.served.client.reset_mm_cache()
    return Reset(success=True)


@control("POST /reset_encoder_cache", Reset)
async def _reset_encoder_cache(call: Call) -> Answer:
    """Nothing is cached of encoders."""
    await call.served.client.reset_encoder_cache()
    return Reset(success=True)


@control("POST /abort_requests", Status, body=AbortBody, example={"request_ids": ["request-1"]})
async def _abort(call: Call) -> Answer:
    """End requests by their ids."""
    ids = call.body.request_ids
    if len(ids) > MAX_ABORT_IDS:
        raise HttpError(413, f"request_ids takes at most {MAX_ABORT_IDS} ids, got {len(ids)}")
    if ids:
        await call.served.client.abort(ids)
    return Status("aborted")


# vLLM has the call under both paths.
_abort_inference = replace(_abort, path="/inference/v1/abort_requests")


def _boolean(call: Call, name: str, *, default: bool) -> bool:
    text = call.query.get(name)
    if text is None:
        return default
    if text.lower() not in _BOOLEANS:
        raise BadRequest(name, f"{name} must be true or false, got {text[:40]!r}")
    return _BOOLEANS[text.lower()]


ENDPOINTS = (
    _pause,
    _resume,
    _is_paused,
    _sleep,
    _wake_up,
    _is_sleeping,
    _reset_prefix_cache,
    _reset_mm_cache,
    _reset_encoder_cache,
    _abort,
    _abort_inference,
)
