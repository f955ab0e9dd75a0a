"""Operator calls to a running engine: traces of steps, and worker calls by name."""

from typing import Any

import msgspec

from weft.core.errors import BadRequest
from weft.web.admin.control import Status, control
from weft.web.http.endpoint import Answer, Call

_COUNTS = ("delay_iterations", "max_iterations")


class WorkerCall(msgspec.Struct, frozen=True, kw_only=True):
    """A method of the table that the engine has; `timeout` is in seconds."""

    method: str
    timeout: float | None = None
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class WorkerResults(msgspec.Struct, frozen=True):
    """One result for each worker."""

    results: list[Any]


@control("POST /start_profile", Status, query=("profile_prefix", *_COUNTS))
async def _start_profile(call: Call) -> Answer:
    """Record a trace of steps into the directory of --profiler-config; ?max_iterations=N ends it."""
    await call.served.client.start_profile(
        call.query.get("profile_prefix"), *(_count(call, name) for name in _COUNTS)
    )
    return Status("profiling")


@control("POST /stop_profile", Status)
async def _stop_profile(call: Call) -> Answer:
    """End the trace."""
    await call.served.client.stop_profile()
    return Status("stopped")


@control("POST /collective_rpc", WorkerResults, body=WorkerCall, example={"method": "check_health"})
async def _collective_rpc(call: Call) -> Answer:
    """Call a method of the engine's worker, of a fixed list."""
    body: WorkerCall = call.body
    results = await call.served.client.collective_rpc(
        body.method, body.timeout, body.args, body.kwargs
    )
    return WorkerResults(results)


def _count(call: Call, name: str) -> int | None:
    text = call.query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise BadRequest(name, f"{name} must be a whole number, got {text[:40]!r}")
    return int(text)


ENDPOINTS = (_start_profile, _stop_profile, _collective_rpc)
