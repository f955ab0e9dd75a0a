"""What an operator asks of a running engine: a trace of its steps, and calls of its worker by name."""

from typing import Any

import msgspec

from weft.core.errors import BadRequest
from weft.web.admin.control import Status, control_endpoint
from weft.web.http.endpoint import Answer, Call

_COUNTS = ("delay_iterations", "max_iterations")


class WorkerCall(msgspec.Struct, frozen=True, kw_only=True):
    """A method of the table that the engine has; `timeout` is in seconds."""

    method: str
    timeout: float | None = None
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class WorkerResults(msgspec.Struct, frozen=True):
    """One for each worker."""

    results: list[Any]


async def _start_profile(call: Call) -> Answer:
    await call.served.client.start_profile(
        call.query.get("profile_prefix"), *(_count(call, name) for name in _COUNTS)
    )
    return Status("profiling")


async def _stop_profile(call: Call) -> Answer:
    await call.served.client.stop_profile()
    return Status("stopped")


async def _collective_rpc(call: Call) -> Answer:
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


ENDPOINTS = (
    control_endpoint(
        "POST",
        "/start_profile",
        _start_profile,
        "Record a trace of steps into the directory of --profiler-config; ?max_iterations=N ends it.",
        Status,
        query=("profile_prefix", *_COUNTS),
    ),
    control_endpoint("POST", "/stop_profile", _stop_profile, "End the trace.", Status),
    control_endpoint(
        "POST",
        "/collective_rpc",
        _collective_rpc,
        "Call a method of the engine's worker, of a fixed list.",
        WorkerResults,
        body=WorkerCall,
        example={"method": "check_health"},
    ),
)
