"""SIGTERM while there is work: what is open may finish, what is new is refused, and the status is 0."""

import signal
import subprocess
import time
from collections.abc import Callable

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.busy import PATIENCE_S, is_within
from tests.cli.running import SMALL, WEFT, clean_environment, running
from tests.faults.watching import (
    Caller,
    generate_request,
    health_of,
    is_busy,
    is_idle,
    is_listening,
    stub_of,
    until,
)
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub

ECHO = "embedded:echo?itl_ms=20"
PROMPT = list(range(50, 250)) * 2  # eight seconds at that pace
ENDLESS = generate_request(PROMPT, max_tokens=10_000)
SLOW_TO_LOAD = "embedded:random?layers=24&hidden=1024&vocab=32000&max_len=1024"


def whole(stub: VllmEngineStub) -> Caller:
    """A stream that ends by itself."""
    return Caller(stub, generate_request(PROMPT, max_tokens=len(PROMPT), ignore_eos=False))


def refusal(stub: VllmEngineStub) -> grpc.StatusCode:
    """How a new request ends."""
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Generate(generate_request(PROMPT), timeout=PATIENCE_S))
    assert isinstance(caught.value, grpc.Call)
    return caught.value.code()


def test_health_is_down_at_once_and_open_streams_finish():
    """NOT_SERVING in all three places, new requests UNAVAILABLE, and every token of the open ones."""
    with (
        running(ECHO) as server,
        stub_of(server.address) as stub,
        grpc.insecure_channel(server.address) as channel,
    ):
        callers = [whole(stub), whole(stub)]
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        until(lambda: is_busy(stub, 2))

        sent_at = time.monotonic()
        server.send(signal.SIGTERM)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert is_within(time.monotonic() - sent_at, 0.5)
        assert health_of(channel) == "NOT_SERVING"
        assert not stub.HealthCheck(pb.HealthCheckRequest(), timeout=PATIENCE_S).healthy
        assert refusal(stub) == grpc.StatusCode.UNAVAILABLE
        assert all(caller.status is None for caller in callers)  # they were open all that time

        status, err = server.wait()
        for caller in callers:
            caller.join(PATIENCE_S)
    assert [caller.token_ids for caller in callers] == [PROMPT, PROMPT]
    assert [caller.reasons for caller in callers] == [["length"], ["length"]]
    assert status == 0
    assert "Traceback" not in err


def test_streams_beyond_the_timeout_end_with_abort():
    """Not cut off: each gets its last message, with what there is, and status OK."""
    with (
        running(ECHO, "--shutdown-timeout", "0.5") as server,
        stub_of(server.address) as stub,
    ):
        streamed, at_once = (
            Caller(stub, ENDLESS),
            Caller(stub, generate_request(PROMPT, stream=False, max_tokens=10_000)),
        )
        until(lambda: is_busy(stub, 2))
        sent_at = time.monotonic()
        server.send(signal.SIGTERM)
        status, _ = server.wait()
        took_s = time.monotonic() - sent_at
        for caller in (streamed, at_once):
            caller.join(PATIENCE_S)
    assert [streamed.status, at_once.status] == [grpc.StatusCode.OK] * 2
    assert [streamed.reasons, at_once.reasons] == [["abort"]] * 2
    assert status == 0
    assert took_s >= 0.5
    assert is_within(took_s, 4.0)


@pytest.mark.slow
def test_a_second_signal_forces_the_end():
    """Open streams are not waited for; they end UNAVAILABLE, and nothing is left."""
    with running(ECHO) as server, stub_of(server.address) as stub:
        family = [psutil.Process(server.process.pid), server.engine]
        caller = Caller(stub, ENDLESS)
        until(lambda: is_busy(stub))
        server.send(signal.SIGTERM)
        server.read_log_until("open requests get 30 s to finish")
        sent_at = time.monotonic()
        server.send(signal.SIGTERM)
        server.wait()
        took_s = time.monotonic() - sent_at
        caller.join(PATIENCE_S)
    assert is_within(took_s, 3.0)
    assert caller.status == grpc.StatusCode.UNAVAILABLE
    assert psutil.wait_procs(family, timeout=PATIENCE_S)[1] == []
    assert not is_listening(server.address)


def test_a_signal_with_a_dead_engine_still_ends_the_server():
    """The two can come together, as when a container is stopped: no hang, and no traceback."""
    with running(ECHO) as server, stub_of(server.address) as stub:
        caller = Caller(stub, ENDLESS)
        until(lambda: is_busy(stub))
        server.send(signal.SIGTERM)
        server.read_log_until("open requests get 30 s to finish")
        killed_at = time.monotonic()
        server.engine.kill()
        _, err = server.wait()
        took_s = time.monotonic() - killed_at
        caller.join(PATIENCE_S)
    assert is_within(took_s, 5.0)
    assert caller.status == grpc.StatusCode.UNAVAILABLE
    assert "Traceback" not in err


def test_a_drain_waits_for_nobody_who_has_left():
    """A caller that leaves during the drain is done: the server ends then, not at its timeout."""
    with running(ECHO) as server, stub_of(server.address) as stub:
        call = stub.Generate(ENDLESS)
        next(call)
        server.send(signal.SIGTERM)
        server.read_log_until("open requests get 30 s to finish")
        sent_at = time.monotonic()
        call.cancel()
        status, _ = server.wait()
    assert is_within(time.monotonic() - sent_at, 3.0)
    assert status == 0


def is_importing(process: psutil.Process) -> bool:
    """Past the parser, in the midst of what `weft serve` needs: nobody handles signals yet."""
    return any("_multiarray_umath" in part.path for part in process.memory_maps())


def is_loading(process: psutil.Process) -> bool:
    """The engine's process is there, and reads the model."""
    return bool(process.children())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("has_reached", [is_importing, is_loading])
def test_a_signal_during_start_up_ends_it(
    number: signal.Signals, has_reached: Callable[[psutil.Process], bool]
):
    """Soon, with a status that says so, without traceback, ready block or orphan."""
    process = subprocess.Popen(
        [*WEFT, "serve", SLOW_TO_LOAD, "--grpc-port", "0", "--port", "0", "--num-gpu-blocks-override", "64"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(),
    )  # fmt: skip
    try:
        front = psutil.Process(process.pid)
        until(lambda: has_reached(front))
        family = front.children(recursive=True)
        sent_at = time.monotonic()
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
        took_s = time.monotonic() - sent_at
    finally:
        process.kill()
        process.communicate()
    assert is_within(took_s, 5.0)
    assert process.returncode in (128 + number, -number)
    assert out == ""
    assert "Traceback" not in err
    assert psutil.wait_procs(family, timeout=PATIENCE_S)[1] == []


@pytest.mark.slow
def test_a_server_can_be_started_again_on_its_port():
    """After a drain, while connections to it linger, its port is free at once."""
    host = ("--host", "127.0.0.4")  # where nobody else takes the port meanwhile
    with running(SMALL, *host) as first, stub_of(first.address) as stub:
        assert is_idle(stub)
        first.send(signal.SIGTERM)
        assert first.wait()[0] == 0
        second = subprocess.Popen(
            [*WEFT, "serve", SMALL, *host, "--port", "0", "--grpc-port", first.address.rpartition(":")[2]],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=clean_environment(),
        )  # fmt: skip
        try:
            until(lambda: is_listening(first.address))
        finally:
            second.terminate()
            assert second.wait(PATIENCE_S) == 0
