"""The server around the streams: limits, failures, health, and every way to stop."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.busy import PATIENCE_S
from tests.doubles.fake_director import FakeDirector, make_ticket
from tests.epp.pools import until
from tests.epp.server.messages import (
    ALL_PARSERS,
    CHAT,
    request_body,
    request_headers,
    response_body,
    response_headers,
    set_headers,
)
from weft.core.errors import ConfigError
from weft.core.headers import DROPPED_REASON
from weft.epp.decision.tickets import Decision, Ending
from weft.epp.metrics.series import PickerMetrics
from weft.epp.request.values import Refused
from weft.epp.server.health import Standing
from weft.epp.server.limits import PickerLimits
from weft.epp.server.options import ServerOptions
from weft.epp.server.server import Observers, PickerServer, Ports
from weft.pb.ext_proc_pb2 import ProcessingRequest
from weft.pb.ext_proc_pb2_grpc import ExternalProcessorStub

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
PROCESSOR = "envoy.service.ext_proc.v3.ExternalProcessor"


@pytest.fixture
def director() -> FakeDirector:
    """Decides as it is told."""
    return FakeDirector()


@pytest.fixture
def limits() -> PickerLimits:
    """A test overrides these."""
    return PickerLimits()


@pytest.fixture
async def server(director: FakeDirector, limits: PickerLimits) -> AsyncIterator[PickerServer]:
    """A server that was not started."""
    options = ServerOptions(grpc_port=0, grpc_health_port=0, limits=limits)
    server = PickerServer(director, ALL_PARSERS, options)
    yield server
    await server.stop()


@pytest.fixture
async def ports(server: PickerServer) -> Ports:
    """It was started."""
    return await server.start()


@pytest.fixture
async def channel(ports: Ports) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to it."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{ports.grpc}") as channel:
        yield channel


async def opened(channel: grpc.aio.Channel, *messages: ProcessingRequest):
    """A stream on which these were sent; it stays open."""
    call = ExternalProcessorStub(channel).Process()
    for message in messages:
        await call.write(message)
    return call


async def answers(call) -> Sequence[str | None]:
    """What sort each answer is, to the end of the stream."""
    kinds = []
    while (answer := await call.read()) is not grpc.aio.EOF:
        kinds.append(answer.WhichOneof("response"))
    return kinds


async def health(port: int, service: str) -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        return (await check(health_pb2.HealthCheckRequest(service=service))).status


async def test_a_stream_ends_with_the_last_answer(channel: grpc.aio.Channel):
    """OK, without waiting for the gateway to hang up."""
    call = await opened(channel, request_headers(), request_body())
    assert await answers(call) == ["request_headers", "request_body"]
    assert await call.code() is grpc.StatusCode.OK


async def test_a_followed_stream_goes_on(director: FakeDirector, channel: grpc.aio.Channel):
    """To the end of the response."""
    director.decision = {"tracks_response": True}
    call = await opened(channel, request_headers(), request_body(CHAT))
    await call.write(response_headers())
    await call.write(response_body(b"{}", end=True))
    assert await answers(call) == [
        "request_headers", "request_body", "response_headers", "response_body",
    ]  # fmt: skip
    assert director.endings == [Ending.NATURAL]


async def test_a_gateway_that_hangs_up_is_noticed(
    director: FakeDirector, server: PickerServer, channel: grpc.aio.Channel
):
    """As it does when its client leaves."""
    director.decision = {"tracks_response": True}
    call = await opened(channel, request_headers(), request_body())
    await call.read()
    call.cancel()
    await until(lambda: not server.num_streams)
    assert director.endings == [Ending.DISCONNECTED]


@pytest.mark.parametrize(
    "messages",
    [(), (request_headers(),), (request_headers(), request_body(end=False)),
     (request_headers(), request_body()),
     (request_headers(), request_body(), response_headers())],
)  # fmt: skip
async def test_a_gateway_that_hangs_up_is_no_failure_of_the_picker(
    messages: Sequence[ProcessingRequest],
    director: FakeDirector,
    server: PickerServer,
    channel: grpc.aio.Channel,
    caplog: pytest.LogCaptureFixture,
):
    """Wherever it is in a request: clients leave all the time, and nobody is to be woken for it."""
    director.decision = {"tracks_response": True}
    for _ in range(5):
        call = await opened(channel, *messages)
        await until(lambda: server.num_streams)
        call.cancel()
        await until(lambda: not server.num_streams)
    assert [each.message for each in caplog.records if each.levelno > logging.DEBUG] == []


async def test_a_half_closed_stream_without_a_body_is_no_clean_end(channel: grpc.aio.Channel):
    """That would let the request pass unrouted."""
    call = await opened(channel, request_headers())
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.CANCELLED


async def test_bytes_that_are_no_message_end_their_stream(
    channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
):
    """With the status for that, and without a traceback in the log; the server lives on."""
    process = channel.stream_stream(f"/{PROCESSOR}/Process")
    call = process()
    await call.write(b"\xff" * 100)
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "no ProcessingRequest" in (await call.details() or "")
    assert "Traceback" not in caplog.text
    call = await opened(channel, request_headers(), request_body())
    assert await answers(call) == ["request_headers", "request_body"]


async def test_messages_out_of_turn_are_an_error(channel: grpc.aio.Channel):
    """Not a clean end either."""
    call = await opened(channel, request_body())
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_failure_inside_is_a_500(director: FakeDirector, channel: grpc.aio.Channel, caplog):
    """The client gets an answer, the log the cause, and nobody else notices."""
    director.error = ZeroDivisionError("a bug")
    call = await opened(channel, request_headers(), request_body())
    answer = await call.read()
    assert answer.immediate_response.status.code == 500
    assert b"a bug" not in answer.immediate_response.body
    assert "a bug" in caplog.text
    assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("limits", [PickerLimits(max_streams=2)])
async def test_requests_beyond_the_limit_get_503(server: PickerServer, channel: grpc.aio.Channel):
    """Said properly, and only to those beyond it."""
    held = [await opened(channel, request_headers()) for _ in range(2)]
    await until(lambda: server.num_streams == 2)
    call = await opened(channel, request_headers())
    answer = await call.read()
    assert answer.immediate_response.status.code == 503
    for call in held:
        await call.write(request_body())
        assert await answers(call) == ["request_headers", "request_body"]


async def test_stopping_answers_what_is_open(
    director: FakeDirector, server: PickerServer, channel: grpc.aio.Channel
):
    """Whether it waits for a body or for a decision: 503, with the reason, and a clean end."""
    director.delay_s = 30
    gathering = await opened(channel, request_headers())
    thinking = await opened(channel, request_headers(), request_body())
    await until(lambda: bool(director.requests) and server.num_streams == 2)
    stopping = asyncio.create_task(server.stop())
    for call in (gathering, thinking):
        answer = await call.read()
        assert answer.immediate_response.status.code == 503
        assert await call.code() is grpc.StatusCode.OK
    await stopping


async def test_draining_turns_health_before_anything_else(
    server: PickerServer, ports: Ports, channel: grpc.aio.Channel
):
    """It is still live, and still answers: the gateway has not noticed yet."""
    held = await opened(channel, request_headers())
    await until(lambda: server.num_streams == 1)
    draining = asyncio.create_task(server.drain(10 * PATIENCE_S))
    await asyncio.sleep(0)
    told = {name: await health(ports.health, name) for name in ("", "readiness", PROCESSOR)}
    assert set(told.values()) == {NOT_SERVING}
    assert await health(ports.grpc, "liveness") == SERVING
    call = await opened(channel, request_headers(), request_body())
    assert await answers(call) == ["request_headers", "request_body"]
    await held.write(request_body())
    assert await answers(held) == ["request_headers", "request_body"]
    await asyncio.wait_for(draining, PATIENCE_S)


async def test_draining_ends_when_time_is_up(server: PickerServer, channel: grpc.aio.Channel):
    """What is still open then gets its 503."""
    held = await opened(channel, request_headers())
    await until(lambda: server.num_streams == 1)
    await server.drain(0.2)
    assert (await held.read()).immediate_response.status.code == 503


async def test_readiness_follows_the_director(director: FakeDirector, ports: Ports):
    """The processor itself goes on serving: its 503 says more than a gateway's error."""
    director.is_ready = False
    async with asyncio.timeout(PATIENCE_S):
        while await health(ports.health, "readiness") == SERVING:  # noqa: ASYNC110 - polled
            await asyncio.sleep(0.05)
    assert await health(ports.grpc, PROCESSOR) == SERVING


async def test_a_picker_that_does_not_lead_is_not_ready(director: FakeDirector):
    """It lives and serves, for whoever follows neither its readiness nor the processor's health."""
    leads: list[str] = []
    options = ServerOptions(grpc_port=0, grpc_health_port=0)
    standing = Standing(may_be_called=lambda: bool(leads))
    server = PickerServer(director, ALL_PARSERS, options, standing=standing)
    ports = await server.start()
    names = ("", "liveness", "readiness", PROCESSOR)
    try:
        told = [await health(ports.health, name) for name in names]
        assert told == [SERVING, SERVING, NOT_SERVING, NOT_SERVING]
        leads.append("this one")
        async with asyncio.timeout(PATIENCE_S):
            while await health(ports.health, PROCESSOR) == NOT_SERVING:  # noqa: ASYNC110 - polled
                await asyncio.sleep(0.05)
        assert {await health(ports.health, name) for name in names} == {SERVING}
    finally:
        await server.stop()


async def test_a_picker_that_does_not_know_where_to_send_does_not_serve(director: FakeDirector):
    """It lives; once it knows, it serves."""
    knows: list[str] = []
    options = ServerOptions(grpc_port=0, grpc_health_port=0)
    standing = Standing(may_serve=lambda: bool(knows))
    server = PickerServer(director, ALL_PARSERS, options, standing=standing)
    ports = await server.start()
    try:
        told = {name: await health(ports.health, name) for name in ("", "readiness", PROCESSOR)}
        assert set(told.values()) == {NOT_SERVING}
        assert await health(ports.health, "liveness") == SERVING
        knows.append("all")
        async with asyncio.timeout(PATIENCE_S):
            while await health(ports.health, PROCESSOR) == NOT_SERVING:  # noqa: ASYNC110 - polled
                await asyncio.sleep(0.05)
        assert await health(ports.health, "readiness") == SERVING
    finally:
        await server.stop()


async def test_a_taken_port_is_refused(ports: Ports):
    """With the flag that names another one."""
    other = PickerServer(FakeDirector(), ALL_PARSERS, ServerOptions(grpc_port=ports.grpc))
    with pytest.raises(ConfigError, match="choose another with --grpc-port"):
        await other.start()
    await other.stop()


async def test_a_connection_that_says_nothing_is_closed(director: FakeDirector):
    """It holds a descriptor; on both ports."""
    options = ServerOptions(grpc_port=0, grpc_health_port=0, handshake_timeout_s=0.2)
    server = PickerServer(director, ALL_PARSERS, options)
    ports = await server.start()
    for port in (ports.grpc, ports.health):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(PATIENCE_S):
            with suppress(ConnectionResetError):
                await reader.read()
        writer.close()
    await server.stop()


async def measured(director: FakeDirector, *messages: ProcessingRequest) -> PickerMetrics:
    """The series of a server that these were sent to."""
    metrics = PickerMetrics()
    options = ServerOptions(grpc_port=0, grpc_health_port=0, measures_streams=True)
    server = PickerServer(director, ALL_PARSERS, options, Observers(metrics=metrics))
    ports = await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{ports.grpc}") as channel:
            call = await opened(channel, *messages)
            await call.done_writing()
            with suppress(grpc.aio.AioRpcError):
                await answers(call)
    finally:
        await server.stop()
    return metrics


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ((request_headers(), request_body()), "OK"),
        ((request_headers(),), "Canceled"),
        ((request_body(),), "InvalidArgument"),
    ],
)
async def test_streams_are_measured_by_how_they_end(
    director: FakeDirector, messages: Sequence[ProcessingRequest], code: str
):
    """Under gRPC's names for it, as Go spells them."""
    read = (await measured(director, *messages)).registry.get_sample_value
    assert read("llm_d_epp_extproc_streams_total", {"code": code}) == 1
    assert read("llm_d_epp_extproc_stream_duration_seconds_count") == 1
    assert read("llm_d_epp_extproc_streams_inflight") == 0


async def test_streams_are_measured_only_on_demand():
    """Their series are not there otherwise."""
    text = PickerMetrics().text()
    assert b"extproc" not in text


async def test_the_pickers_own_time_is_measured(director: FakeDirector):
    """To the answer for the request; for a response that is followed, message by message."""
    director.decision = {"tracks_response": True}
    messages = (request_headers(), request_body(), response_headers(), response_body(b"", end=True))
    read = (await measured(director, *messages)).registry.get_sample_value
    assert read("llm_d_epp_request_processing_duration_seconds_count") == 1
    assert read("llm_d_epp_response_processing_duration_seconds_count") == 1


async def test_requests_that_nobody_can_read_are_counted(director: FakeDirector):
    """The director never hears of them."""
    metrics = await measured(director, request_headers(), request_body(b"x"))
    labels = dict.fromkeys(("model_name", "target_model_name", "fairness_id", "priority"), "")
    read = metrics.registry.get_sample_value
    assert read("llm_d_epp_request_total", labels) == 1
    assert read("llm_d_epp_request_error_total", labels | {"error_code": "BadRequest"}) == 1


async def test_refusals_of_the_director_are_left_to_its_own_count(director: FakeDirector):
    """Twice would be wrong."""
    director.refusal = Refused(429, "full")
    metrics = await measured(director, request_headers(), request_body())
    assert b"request_error_total{" not in metrics.text()


@pytest.mark.parametrize("is_answering", [False, True])
async def test_a_request_that_was_sent_on_can_be_ended(
    is_answering: bool, director: FakeDirector, server: PickerServer, channel: grpc.aio.Channel
):
    """429 with its reason, whether or not the response has begun; the director hears of it once."""
    ticket = make_ticket()
    director.choose = lambda _: Decision(
        endpoints=("10.0.0.1:8000",), tracks_response=True, ticket=ticket
    )
    call = await opened(channel, request_headers(), request_body())
    num_answers = 2
    if is_answering:
        await call.write(response_headers())
        num_answers += 1
    for _ in range(num_answers):
        await call.read()
    assert ticket.revoke is not None
    ticket.revoke()
    answer = await call.read()
    assert answer.immediate_response.status.code == 429
    assert set_headers(answer.immediate_response.headers)[DROPPED_REASON] == "evicted"
    assert await call.read() is grpc.aio.EOF
    await until(lambda: not server.num_streams)
    assert director.endings == [Ending.EVICTED]


async def test_a_response_that_is_not_followed_cannot_be_ended(
    director: FakeDirector, channel: grpc.aio.Channel
):
    """Its stream is over."""
    ticket = make_ticket()
    director.choose = lambda _: Decision(endpoints=("10.0.0.1:8000",), ticket=ticket)
    await answers(await opened(channel, request_headers(), request_body()))
    assert ticket.revoke is None
