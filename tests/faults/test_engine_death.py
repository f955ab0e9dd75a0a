"""The engine's process dies, or stands still: callers learn of it soon, and nothing is left behind."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx2
import psutil
import pytest

from tests.busy import PATIENCE_S, is_within, stretched
from tests.cli.running import Server, running
from tests.faults.watching import (
    Caller,
    generate_request,
    health_of,
    is_busy,
    is_idle,
    is_listening,
    load_of,
    stub_of,
    until,
)
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub

pytestmark = pytest.mark.slow

SLOW_ECHO = "embedded:echo?itl_ms=20"
PROMPT = list(range(100, 140))
# Several calls of each kind; none ends by itself within forty seconds.
OPEN_CALLS = [
    generate_request(PROMPT, stream=stream, max_tokens=2000, n=n)
    for stream in (True, False)
    for n in (1, 2)
]


@contextmanager
def calling(server: Server) -> Iterator[tuple[VllmEngineStub, list[Caller]]]:
    """The open calls, all of them at work."""
    with stub_of(server.address) as stub:
        callers = [Caller(stub, request) for request in OPEN_CALLS]
        until(lambda: load_of(stub).num_running_reqs == 6)
        yield stub, callers


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """What was seen of a server after kill -9 of its engine; times are seconds since then."""

    statuses: list[grpc.StatusCode | None]
    details: list[str]
    calls_ended_after_s: float
    not_serving_after_s: float
    exited_after_s: float
    exit_status: int
    log: str
    survivors: list[psutil.Process]
    is_listening: bool
    has_directory: bool


@pytest.fixture(scope="module")
def death() -> Death:
    """One server, with calls open and its health watched, whose engine is killed."""
    with (
        running(SLOW_ECHO) as server,
        calling(server) as (_, callers),
        grpc.insecure_channel(server.address) as channel,
    ):
        family = [psutil.Process(server.process.pid), server.engine]
        directory = _private_directory(family[0])
        assert health_of(channel) == "SERVING"
        killed_at = time.monotonic()
        server.engine.kill()
        not_serving_after_s = until(lambda: not _is_serving(channel), 10)
        exit_status, log = server.wait()
        exited_at = time.monotonic()
        for caller in callers:
            caller.join(PATIENCE_S)
        return Death(
            statuses=[caller.status for caller in callers],
            details=[caller.detail for caller in callers],
            calls_ended_after_s=max(caller.ended_at for caller in callers) - killed_at,
            not_serving_after_s=not_serving_after_s,
            exited_after_s=exited_at - killed_at,
            exit_status=exit_status,
            log=log,
            survivors=psutil.wait_procs(family, timeout=PATIENCE_S)[1],
            is_listening=is_listening(server.address),
            has_directory=directory.exists(),
        )


def test_every_open_call_ends_unavailable_within_two_seconds(death):
    """Nobody waits for an answer that cannot come, and everybody is told why."""
    assert death.statuses == [grpc.StatusCode.UNAVAILABLE] * len(OPEN_CALLS)
    assert all("the engine process ended unexpectedly (signal 9)" in d for d in death.details)
    assert is_within(death.calls_ended_after_s, 2.0)


def test_health_flips_within_two_seconds(death):
    """From then on nobody who asks is told "serving"."""
    assert is_within(death.not_serving_after_s, 2.0)


def test_the_server_ends_with_the_cause(death):
    """Status 1 for a supervisor; the cause last on standard error for a reader."""
    assert death.exit_status == 1
    assert is_within(death.exited_after_s, 5.0)
    assert "the engine process ended unexpectedly (signal 9)" in death.log.splitlines()[-1]
    assert "Traceback" not in death.log


def test_nothing_is_left_behind(death):
    """No process, no port, no directory with sockets."""
    assert death.survivors == []
    assert not death.is_listening
    assert not death.has_directory


def test_a_crash_in_native_code_ends_the_server_too():
    """The status is the same for every signal that kills the engine."""
    with running(SLOW_ECHO) as server:
        server.engine.send_signal(signal.SIGSEGV)
        status, err = server.wait()
    assert status == 1
    assert "(signal 11)" in err.splitlines()[-1]


def test_the_engine_leaves_the_terminals_signals_to_the_server():
    """Ctrl-C reaches both processes: the engine must live until the drain is over."""
    with running(SLOW_ECHO) as server, calling(server) as (stub, callers):
        for number in (signal.SIGINT, signal.SIGTERM):
            server.engine.send_signal(number)
        assert stub.HealthCheck(pb.HealthCheckRequest(), timeout=PATIENCE_S).healthy
        num_tokens = len(callers[0].token_ids)
        until(lambda: len(callers[0].token_ids) > num_tokens + 5)


def test_an_engine_does_not_outlive_its_server():
    """kill -9 of the server in the midst of work: the engine is gone within five seconds.

    It takes their directory of sockets along, which the server can no longer remove.
    """
    with running(SLOW_ECHO) as server, calling(server) as (_, callers):
        engine = server.engine
        directory = _private_directory(psutil.Process(server.process.pid))
        server.process.kill()
        assert psutil.wait_procs([engine], timeout=stretched(5))[1] == []
        for caller in callers:
            caller.join(PATIENCE_S)
    assert {caller.status for caller in callers} == {grpc.StatusCode.UNAVAILABLE}
    assert not is_listening(server.address)
    assert not directory.exists()


def test_an_engine_that_stood_still_goes_on():
    """SIGSTOP for three seconds, then SIGCONT: no stream ends, and no token is lost or repeated."""
    prompt = list(range(100, 200)) * 3  # six seconds, in which all of them are found running
    with running(SLOW_ECHO) as server, stub_of(server.address) as stub:
        callers = [
            Caller(stub, generate_request(prompt, max_tokens=len(prompt), ignore_eos=False))
            for _ in range(3)
        ]
        until(lambda: is_busy(stub, len(callers)))
        with _stopped(server.engine):
            started = time.monotonic()
            assert load_of(stub).num_used_tokens > 0  # the last load that is known
            assert is_within(time.monotonic() - started, 2.0)
            time.sleep(3)  # the fault itself, not a wait for something
            assert all(caller.status is None for caller in callers)
        for caller in callers:
            caller.join(PATIENCE_S)
        assert [caller.status for caller in callers] == [grpc.StatusCode.OK] * 3
        assert [caller.token_ids for caller in callers] == [prompt] * 3
        until(lambda: is_idle(stub))


def test_a_caller_can_leave_while_the_engine_stands_still():
    """The abort waits in the mailbox: the blocks are free as soon as the engine goes on."""
    with running(SLOW_ECHO) as server, stub_of(server.address) as stub:
        call = stub.Generate(generate_request(PROMPT, max_tokens=1000))
        next(call)
        with _stopped(server.engine):
            call.cancel()
        until(lambda: is_idle(stub))


def test_a_server_whose_engine_stands_still_can_be_ended():
    """SIGTERM: the drain runs out, the engine is killed after its grace, and nothing is left."""
    with (
        running(SLOW_ECHO, "--shutdown-timeout", "0.5") as server,
        calling(server) as (_, callers),
    ):
        engine = server.engine
        with _stopped(engine):
            started = time.monotonic()
            server.send(signal.SIGTERM)
            server.wait()
            assert is_within(time.monotonic() - started, 15)
            assert psutil.wait_procs([engine], timeout=PATIENCE_S)[1] == []
        for caller in callers:
            caller.join(PATIENCE_S)
    assert None not in {caller.status for caller in callers}


def test_health_flips_when_the_engine_stands_still_and_back():
    """After thirty seconds without a sign of it; with the first sign all is well again."""
    with running(SLOW_ECHO) as server, grpc.insecure_channel(server.address) as channel:
        with _stopped(server.engine):
            took_s = until(lambda: health_of(channel) == "NOT_SERVING", 40)
            assert took_s > 25
        until(lambda: health_of(channel) == "SERVING")


def test_a_server_with_several_engines_lives_on_without_one():
    """The health says so; ranks are named over HTTP and gRPC; loads and metrics are of the ranks that are there."""
    body = {"prompt": PROMPT, "max_tokens": 2}
    with (
        running(SLOW_ECHO, "--data-parallel-size", "2") as server,
        stub_of(server.address) as stub,
        grpc.insecure_channel(server.address) as channel,
        httpx2.Client(base_url=server.http, timeout=PATIENCE_S) as http,
    ):

        def status(rank: int) -> int:
            headers = {"X-data-parallel-rank": str(rank)}
            return http.post("/v1/completions", json=body, headers=headers).status_code

        def is_degraded() -> bool:
            return http.get("/health").text == "degraded"

        def has_another_for(engine: psutil.Process) -> bool:
            engines = server.front.children()
            return len(engines) == 2 and engine not in engines

        assert [status(rank) for rank in (0, 1, 2)] == [200, 200, 400]
        beyond = generate_request(PROMPT)
        beyond.data_parallel_rank = 2
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.Generate(beyond))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert [load.dp_rank for load in stub.GetLoads(pb.GetLoadsRequest()).loads] == [0, 1]
        for rank in (0, 1):
            assert f'vllm:generation_tokens_total{{engine="{rank}",' in http.get("/metrics").text
        was_degraded = False
        while not was_degraded:  # from before what is asked until after it: else it had come back
            doomed = server.front.children()[0]
            doomed.kill()
            until(lambda: is_degraded() or has_another_for(doomed))  # noqa: B023 - called here only
            found = (
                health_of(channel),
                sorted(status(rank) for rank in (0, 1)),
                http.post("/v1/completions", json=body).status_code,
            )
            was_degraded = is_degraded()
            until(lambda: http.get("/health").text == "")
        assert found == ("SERVING", [200, 503], 200)
        assert [status(rank) for rank in (0, 1)] == [200, 200]
        server.send(signal.SIGTERM)
        assert "fork" not in server.wait()[1]


@contextmanager
def _stopped(process: psutil.Process) -> Iterator[None]:
    process.suspend()
    try:
        yield
    finally:
        if process.is_running():
            process.resume()


def _is_serving(channel: grpc.Channel) -> bool:
    try:
        return health_of(channel) == "SERVING"
    except grpc.RpcError:
        return False


def _private_directory(front: psutil.Process) -> Path:
    """Where the sockets between the two processes are."""
    [directory] = {
        os.path.dirname(connection.laddr)
        for connection in front.net_connections("unix")
        if isinstance(connection.laddr, str) and connection.laddr.endswith("/commands")
    }
    return Path(directory)
