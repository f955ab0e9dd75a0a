"""What peers can make the picker count for nobody, or read for nothing."""

import asyncio
import sys

import pytest

from tests.doubles.fake_director import FakeDirector, make_ticket
from tests.epp.server.messages import Stream, grpc_headers, request_body, request_headers
from weft.epp.decision.tickets import Decision, Ending
from weft.epp.request.values import InferenceRequest


async def test_a_client_that_leaves_while_its_body_is_written_anew_counts_nowhere():
    """A large body has its model changed in another process; the request is counted by then."""
    director = FakeDirector()
    stream = Stream(director)
    body = b'{"model":"m","prompt":[' + b"1," * 20_000 + b"1]}"
    sending = asyncio.create_task(
        stream.send(request_headers("/v1/completions"), request_body(body))
    )

    def choose(_: InferenceRequest) -> Decision:
        asyncio.get_running_loop().call_soon(sending.cancel)
        endpoints = ("10.0.0.1:8000",)
        return Decision(
            endpoints=endpoints, ticket=make_ticket(), tracks_response=True, rewritten_model="other"
        )

    director.choose = choose
    await asyncio.wait([sending])
    assert sending.cancelled()
    stream.exchange.close()
    await stream.reader.close()
    assert director.endings == [Ending.DISCONNECTED]
    assert stream.held.num_bytes == 0


async def test_of_too_many_headers_the_first_are_read():
    """Enough to refuse them in the protocol that the client speaks."""
    message = grpc_headers()
    for _ in range(100_000):
        message.request_headers.headers.headers.add(key="a", raw_value=b"b")
    stream = Stream()
    await stream.send(message)
    assert stream.refusal.status.code == 431
    assert stream.refusal.HasField("grpc_status")
    assert len(stream.exchange._headers["a"]) < 1000


async def test_a_request_that_waits_holds_no_message():
    """Of thousands that wait for room each would be kilobytes: its bytes are there already."""
    director = FakeDirector()
    director.delay_s = 30.0
    stream = Stream(director)
    await stream.send(request_headers())
    message = request_body()
    before = sys.getrefcount(message)
    waiting = asyncio.ensure_future(stream.exchange.receive(message))
    while not director.requests:  # noqa: ASYNC110 - it has no event to wait on
        await asyncio.sleep(0)
    assert sys.getrefcount(message) == before
    waiting.cancel()
    await asyncio.wait([waiting])


@pytest.mark.parametrize("hint", ["," * 2**20, "10.0.0.1:8000," * 2**16, ["x"] * 8193])
async def test_a_subset_hint_of_megabytes_is_refused(hint: object):
    """Reading it would hold every other stream."""
    stream = Stream(FakeDirector(endpoints=("10.0.0.1:8000",)))
    await stream.send(request_headers(subset=hint))  # type: ignore[arg-type]
    assert stream.refusal.status.code == 431
    assert b"the subset hint has more than" in stream.refusal.body
