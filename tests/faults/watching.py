"""What a test sees of a server from outside: its answers, its load, its processes, its port."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.busy import PATIENCE_S, is_within
from weft import LLM, SamplingParams
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub

CANARY = [11, 12, 13, 14, 15]


@contextmanager
def stub_of(address: str) -> Iterator[VllmEngineStub]:
    """The generated client: it knows nothing of our own."""
    with grpc.insecure_channel(address) as channel:
        yield VllmEngineStub(channel)


def until(is_so: Callable[[], bool], within_s: float = PATIENCE_S) -> float:
    """Wait until it is so, and say how many seconds that took.

    `within_s` is for what there is a rule for; a busy machine is given longer than that.
    """
    started = time.monotonic()
    while not is_so():
        took_s = time.monotonic() - started
        assert is_within(took_s, within_s), f"not so after {took_s:.1f} s"
        time.sleep(0.01)
    return time.monotonic() - started


def load_of(stub: VllmEngineStub) -> pb.SchedulerLoad:
    """What the engine says of itself now."""
    [load] = stub.GetLoads(pb.GetLoadsRequest(), timeout=PATIENCE_S).loads
    return load


def is_idle(stub: VllmEngineStub) -> bool:
    """Whether no request runs or waits, none is open, and no block is held."""
    load = load_of(stub)
    info = stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=PATIENCE_S)
    return not (
        load.num_running_reqs
        or load.num_waiting_reqs
        or load.num_used_tokens
        or info.active_requests
    )


def is_busy(stub: VllmEngineStub, num_requests: int = 1) -> bool:
    """Whether the engine runs so many requests, and holds blocks for them."""
    load = load_of(stub)
    return load.num_used_tokens > 0 and load.num_running_reqs >= num_requests


def health_of(channel: grpc.Channel) -> str:
    """What grpc.health.v1 says."""
    check = health_pb2_grpc.HealthStub(channel).Check
    answer = check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def is_listening(address: str) -> bool:
    """Whether anybody takes connections there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE_S).close()
    except OSError:
        return False
    return True


def generate_request(
    prompt_token_ids: list[int], *, stream: bool = True, request_id: str = "", **params: object
) -> pb.GenerateRequest:
    """A greedy request that runs to its `max_tokens`; `params` change it."""
    fields = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, **params}
    return pb.GenerateRequest(
        request_id=request_id,
        tokenized=pb.TokenizedInput(input_ids=prompt_token_ids),
        sampling_params=pb.SamplingParams(**fields),  # type: ignore[arg-type]
        stream=stream,
    )


def answer_of(stub: VllmEngineStub, request: pb.GenerateRequest) -> list[int]:
    """The token ids of the one answer to a request."""
    token_ids: list[int] = []
    for response in stub.Generate(request, timeout=PATIENCE_S):
        if response.HasField("chunk"):
            token_ids += response.chunk.token_ids
        elif not request.stream:
            token_ids += response.complete.output_ids
    return token_ids


class Caller(threading.Thread):
    """Makes one call and notes what came, how it ended, and when."""

    def __init__(self, stub: VllmEngineStub, request: pb.GenerateRequest) -> None:
        super().__init__(daemon=True)
        self._stub, self._request = stub, request
        self.token_ids: list[int] = []
        self.reasons: list[str] = []
        self.status: grpc.StatusCode | None = None
        self.detail = ""
        self.ended_at = 0.0
        self.start()

    def run(self) -> None:
        """The call."""
        try:
            for response in self._stub.Generate(self._request, timeout=PATIENCE_S):
                self.token_ids += response.chunk.token_ids
                if response.HasField("complete"):
                    self.reasons.append(response.complete.finish_reason)
        except grpc.RpcError as error:
            call = cast(grpc.Call, error)
            self.status, self.detail = call.code(), call.details() or ""
        else:
            self.status = grpc.StatusCode.OK
        finally:
            self.ended_at = time.monotonic()


def sung_alone(model: str) -> list[int]:
    """What the engine answers to the canary without any server."""
    with LLM(model) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
        [output] = llm.generate({"prompt_token_ids": CANARY}, params)
    return output.outputs[0].token_ids
