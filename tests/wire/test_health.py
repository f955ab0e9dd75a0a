"""The health service that every server of ours has."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2

from weft.wire.health import HEALTH_SERVICE, Health
from weft.wire.ports import client_args

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def test_our_clients_ping_no_more_often_than_any_server_bears():
    """A server that sets nothing takes pings every five minutes on a silent call, and ends connections with more."""
    assert dict(client_args(max_message_bytes=1))["grpc.keepalive_time_ms"] >= 300_000


class Details:
    """Names a call to a handler."""

    invocation_metadata = ()

    def __init__(self, name: str) -> None:
        self.method = f"/{HEALTH_SERVICE}/{name}"


class Watcher:
    """A caller who takes what is written when the test says so."""

    def __init__(self) -> None:
        self.written = asyncio.Queue[int](maxsize=1)

    async def write(self, response: health_pb2.HealthCheckResponse) -> None:
        await self.written.put(response.status)


class Aborted(Exception):
    """What `abort` raises."""


class Refused:
    """A caller who is refused."""

    status: grpc.StatusCode | None = None

    async def abort(self, status: grpc.StatusCode, _detail: str) -> None:
        self.status = status
        raise Aborted


def ask(health: Health, name: str, message: bytes, context) -> asyncio.Task:
    """A call without a connection."""
    handler = health.handler().service(Details(name))
    request = (
        message if handler.request_deserializer is None else handler.request_deserializer(message)
    )
    return asyncio.ensure_future((handler.unary_unary or handler.unary_stream)(request, context))


async def test_a_watcher_who_does_not_read_holds_up_nobody():
    """Changes are made at once, and told to the others; it is told the last of them."""
    health = Health(["", "a"])
    slow, quick = Watcher(), Watcher()
    calls = [ask(health, "Watch", b"", watcher) for watcher in (slow, quick)]
    assert await quick.written.get() == NOT_SERVING

    health.set_serving(True)
    assert await quick.written.get() == SERVING
    health.set_serving(False)
    assert await quick.written.get() == NOT_SERVING
    health.set_serving(True)

    first, last = await slow.written.get(), await slow.written.get()
    assert (first, last) == (NOT_SERVING, SERVING)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_each_service_has_its_own_state():
    """One may serve while another does not."""
    health = Health(["", "a"])
    health.set_serving(True, ["a"])

    listed = await ask(health, "List", b"", None)

    assert (health.is_serving(), health.is_serving("a")) == (False, True)
    assert {name: r.status for name, r in listed.statuses.items()} == {
        "": NOT_SERVING,
        "a": SERVING,
    }


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (b"\x0a\x01b", grpc.StatusCode.NOT_FOUND),
        (b"\x0a\xff", grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_what_cannot_be_answered_is_refused(message: bytes, status: grpc.StatusCode):
    """An unknown service, and bytes that are no message."""
    context = Refused()

    with pytest.raises(Aborted):
        await ask(Health([""]), "Check", message, context)

    assert context.status is status
