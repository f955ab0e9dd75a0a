"""Hostile and broken clients against a real server process: it answers, or hangs up, and goes on."""

import asyncio
import gzip
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import grpc
import psutil
import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import Server, running
from tests.faults.watching import (
    CANARY,
    answer_of,
    generate_request,
    health_of,
    is_idle,
    stub_of,
    sung_alone,
    until,
)
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub

MODEL = (
    "embedded:random?layers=2&hidden=64&heads=4&kv_heads=2&head_dim=16&intermediate=128&vocab=512"
)
PATH = "/vllm.grpc.engine.VllmEngine/Generate"
ENDLESS = generate_request([20, 21, 22], max_tokens=4000)
MIB = 2**20


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One server for all of them: what one does must not show in the next."""
    with running(MODEL) as running_server:
        yield running_server


@pytest.fixture(scope="module")
def reference() -> list[int]:
    return sung_alone(MODEL)


@pytest.fixture
def stub(server: Server, reference: list[int]) -> Iterator[VllmEngineStub]:
    """The client; afterwards nothing is held, health is good, and the canary sings."""
    with stub_of(server.address) as stub:
        yield stub
    # A connection of its own, as a next client would have.
    with stub_of(server.address) as stub, grpc.insecure_channel(server.address) as channel:
        until(lambda: is_idle(stub))
        assert answer_of(stub, generate_request(CANARY)) == reference
        assert health_of(channel) == "SERVING"


def code_of(call: object) -> grpc.StatusCode:
    """The status of a call that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        list(call)  # type: ignore[call-overload]
    assert isinstance(caught.value, grpc.Call)
    return caught.value.code()


@contextmanager
def connected(server: Server) -> Iterator[socket.socket]:
    """A plain connection."""
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        yield connection


def front_of(server: Server) -> psutil.Process:
    """The server's process."""
    return psutil.Process(server.process.pid)


# -- other protocols ------------------------------------------------------------------------------

TLS_HELLO = b"\x16\x03\x01" + struct.pack(">H", 512) + bytes(512)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", id="http1"),
        pytest.param(b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", id="http1-post"),
        pytest.param(TLS_HELLO, id="tls"),
        pytest.param(bytes(range(256)) * 16, id="noise"),
        pytest.param(b"\x80\x04cos\nsystem\n(S'touch canary'\ntR.", id="pickle"),
        pytest.param(PREFACE + b"\xff" * 64, id="broken-frames"),
    ],
)
@pytest.mark.usefixtures("stub")
def test_what_is_not_grpc_is_hung_up_on(server: Server, data: bytes):
    """Row 15: the connection is closed, not left to wait."""
    with connected(server) as connection:
        connection.sendall(data)
        try:
            while connection.recv(65536):
                pass
        except ConnectionResetError:
            pass


@pytest.mark.usefixtures("stub")
def test_a_client_that_says_hello_and_no_more_costs_a_descriptor_only(server: Server):
    """Row 16: 500 idle connections, and each is given back when it is closed."""
    before = front_of(server).num_fds()
    with ExitStack() as stack:
        for number in range(500):
            connection = stack.enter_context(connected(server))
            connection.sendall(PREFACE[: number % len(PREFACE)])
        until(lambda: front_of(server).num_fds() >= before + 400)
        with stub_of(server.address) as stub:
            assert len(answer_of(stub, generate_request(CANARY))) == 8
    until(lambda: front_of(server).num_fds() <= before + 5)


# -- sizes ----------------------------------------------------------------------------------------


def test_a_message_over_the_limit_is_refused_before_it_is_held(server, stub):
    """Row 5: 80 MB announced, and the server never grows by as much."""
    before = front_of(server).memory_info().rss
    request = pb.GenerateRequest(text="x" * (80 * MIB))
    assert code_of(stub.Generate(request, timeout=PATIENCE_S)) == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert front_of(server).memory_info().rss - before < 40 * MIB


def test_a_gzip_bomb_is_refused(server, stub):
    """Row 6: a tenth of a megabyte that would be 80 is not unpacked."""
    bomb = pb.GenerateRequest(text="x" * (80 * MIB))
    call = stub.Generate(bomb, compression=grpc.Compression.Gzip, timeout=PATIENCE_S)
    assert code_of(call) == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_garbage_that_claims_to_be_gzip_is_refused(server, stub):
    """A broken compressed message ends its own call."""
    frame = b"\x01" + struct.pack(">I", 8) + gzip.compress(b"x")[:8]
    with grpc.insecure_channel(server.address) as channel:
        call = channel.unary_stream(PATH)(
            frame, metadata=(("grpc-encoding", "gzip"),), timeout=PATIENCE_S
        )
        assert code_of(call) in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL)


@pytest.mark.parametrize("metadata", [(("x-large", "y" * 40_000),), (("x", "y" * 100),) * 400])
def test_metadata_over_the_limit_is_refused(stub, metadata):
    """Row 7: one large value, and many small ones."""
    call = stub.Generate(generate_request(CANARY), metadata=metadata, timeout=PATIENCE_S)
    assert code_of(call) == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_prompt_of_ten_million_tokens_is_refused(server, stub):
    """Row 25: the message alone is larger than any may be, and none of it is kept."""
    request = generate_request([5] * 10_000_000)
    assert code_of(stub.Generate(request, timeout=PATIENCE_S)) == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_text_of_ten_million_characters_is_refused(server, stub):
    """Row 25, as text."""
    request = pb.GenerateRequest(text="word " * 2_000_000)
    assert code_of(stub.Generate(request, timeout=PATIENCE_S)) == grpc.StatusCode.RESOURCE_EXHAUSTED


# -- time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_s", [0.0, 0.001, 0.2])
@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_deadline_ends_the_work(stub, timeout_s, is_streamed):
    """Rows 18 and 55: DEADLINE_EXCEEDED; that the blocks are free the fixture checks."""
    request = generate_request([20, 21, 22], max_tokens=4000, stream=is_streamed)
    call = stub.Generate(request, timeout=timeout_s)
    assert code_of(call) == grpc.StatusCode.DEADLINE_EXCEEDED


# -- floods ---------------------------------------------------------------------------------------


async def test_a_thousand_calls_that_are_reset_at_once_leave_nothing(server, stub):
    """Row 16: each is opened and cancelled, at no, some, or a little more delay."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        method = channel.unary_stream(PATH, pb.GenerateRequest.SerializeToString)

        async def open_and_reset(number: int) -> None:
            call = method(ENDLESS)
            await asyncio.sleep(0.001 * (number % 5))
            call.cancel()

        for _ in range(10):
            await asyncio.gather(*(open_and_reset(number) for number in range(100)))
    until(lambda: is_idle(stub))


@pytest.mark.usefixtures("stub")
def test_connections_that_are_cut_in_the_midst_of_a_call_leave_nothing(server: Server):
    """No reset, no goodbye: the channel is gone while the engine works."""
    for _ in range(50):
        with grpc.insecure_channel(server.address) as channel:
            call = VllmEngineStub(channel).Generate(ENDLESS)
            next(call)


def test_a_reader_that_does_not_read_does_not_hold_the_others(server, stub):
    """One stream is left unread; it merges what waits, and everybody else is served."""
    unread = stub.Generate(ENDLESS)
    next(unread)
    for _ in range(20):
        assert len(answer_of(stub, generate_request(CANARY))) == 8
    unread.cancel()


def test_aborting_ids_that_are_not_there_does_nothing(stub):
    """Row 56: also a prefix of one that is."""
    call = stub.Generate(
        generate_request(CANARY, request_id="precious-1", max_tokens=50), timeout=PATIENCE_S
    )
    next(call)
    for ids in ([], ["nobody"], ["precious"], ["precious-"], [""], ["precious-1x"] * 10_000):
        stub.Abort(pb.AbortRequest(request_ids=ids), timeout=PATIENCE_S)
    assert [r.complete.finish_reason for r in call if r.HasField("complete")] == ["length"]
