"""Bad values and full queues, through a real server process: its engine never sees the first."""

import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tests.busy import PATIENCE_S, is_within
from tests.cli.running import running
from tests.faults.watching import (
    CANARY,
    answer_of,
    generate_request,
    is_idle,
    load_of,
    stub_of,
    sung_alone,
    until,
)
from tests.rpc.calls import request
from tests.rpc.test_bad_input import INPUTS, PARAMETERS
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub

# The table's limits: a vocabulary of 512, and a context of 256 tokens.
MODEL = "embedded:random?layers=2&hidden=64&vocab=512&max_len=256"


@pytest.fixture(scope="module")
def shared() -> Iterator[VllmEngineStub]:
    """One server for the whole table."""
    with running(MODEL) as server, stub_of(server.address) as stub:
        yield stub


@pytest.fixture(scope="module")
def reference() -> list[int]:
    return sung_alone(MODEL)


@pytest.fixture
def stub(shared: VllmEngineStub, reference: list[int]) -> Iterator[VllmEngineStub]:
    """The client; afterwards the canary sings, and health is good."""
    yield shared
    until(lambda: is_idle(shared))
    assert answer_of(shared, generate_request(CANARY)) == reference
    assert shared.HealthCheck(pb.HealthCheckRequest(), timeout=PATIENCE_S).healthy


def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    """Status and text of a call that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert isinstance(caught.value, grpc.Call)
    return caught.value.code(), caught.value.details() or ""


@pytest.mark.parametrize(
    ("name", "fields"), PARAMETERS + INPUTS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_bad_value_is_refused_by_name(stub: VllmEngineStub, name: str, fields: dict[str, Any]):
    """Rows 23 to 37, 51 and 53."""
    status, detail = refusal(stub.Generate(request(**fields), timeout=PATIENCE_S))
    assert status == grpc.StatusCode.INVALID_ARGUMENT
    assert name in detail


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("json", {"json_schema": '{"type": 1}'}),
        ("json", {"json_schema": '{"$ref": "#"}'}),
        ("json", {"json_schema": '{"items":' * 1000 + "{}" + "}" * 1000}),
        ("regex", {"regex": "(a"}),
        ("regex", {"regex": "(?<=a)b"}),
        ("regex", {"regex": "a{1000000}"}),
        ("grammar", {"grammar": "start: " + "(" * 30_000 + '"a"' + ")" * 30_000}),
        ("grammar", {"grammar": "root ::= " + "(" * 30_000}),
        ("choice", {"choice": pb.ChoiceConstraint(choices=["a"] * 100_000)}),
        ("structural_tag", {"structural_tag": "{}"}),
    ],
    ids=range(10),
)
def test_a_constraint_that_cannot_be_is_refused_in_time(
    stub: VllmEngineStub, name: str, fields: dict[str, Any]
):
    """Rows 41 to 44: within the two seconds that building one may take."""
    assert list(
        stub.Generate(request(choice=pb.ChoiceConstraint(choices=["warm"])), timeout=PATIENCE_S)
    )
    began = time.monotonic()
    status, detail = refusal(stub.Generate(request(**fields), timeout=PATIENCE_S))
    assert is_within(time.monotonic() - began, 3)
    assert status == grpc.StatusCode.INVALID_ARGUMENT
    assert name in detail


def test_an_expression_that_others_choke_on_is_served(stub: VllmEngineStub):
    """Row 42: nested quantifiers cost nothing where nothing backtracks."""
    fields: dict[str, Any] = {"regex": "(a+)+$", "max_tokens": 20}
    [answer] = stub.Generate(request(**fields), timeout=PATIENCE_S)
    assert set(answer.complete.output_ids) <= {ord("a"), 256, 257, 258}


def test_a_full_queue_refuses_and_recovers():
    """Row 62: RESOURCE_EXHAUSTED, counted in sequences; what is open is not harmed."""
    flags = ("--max-num-seqs", "2", "--max-num-queued-reqs", "4")
    with running("embedded:echo?itl_ms=20", *flags) as server, stub_of(server.address) as stub:
        # Four seconds, in which it is found running.
        long = generate_request(list(range(100, 200)), n=2, max_tokens=200)
        calls = [stub.Generate(long), stub.Generate(long)]
        until(lambda: load_of(stub).num_running_reqs + load_of(stub).num_waiting_reqs == 4)
        status, detail = refusal(stub.Generate(generate_request(CANARY), timeout=PATIENCE_S))
        assert status == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "--max-num-queued-reqs" in detail
        calls[1].cancel()
        until(lambda: load_of(stub).num_waiting_reqs == 0)
        assert len(answer_of(stub, generate_request(CANARY, max_tokens=3))) == 3
        assert sum(response.HasField("complete") for response in calls[0]) == 2


@pytest.mark.slow
def test_too_many_queued_tokens_refuse():
    """Row 62: one prompt of any length is let in, the next one waits outside."""
    flags = ("--max-num-seqs", "1", "--max-num-queued-tokens", "50")
    with running("embedded:echo?itl_ms=20", *flags) as server, stub_of(server.address) as stub:
        running_call = stub.Generate(generate_request([100] * 100, max_tokens=1000))
        next(running_call)
        waiting_call = stub.Generate(generate_request([101] * 100, max_tokens=1000))
        until(lambda: load_of(stub).num_waiting_reqs == 1)
        status, detail = refusal(stub.Generate(generate_request(CANARY), timeout=PATIENCE_S))
        assert status == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "--max-num-queued-tokens" in detail
        waiting_call.cancel()
        running_call.cancel()
        until(lambda: is_idle(stub))
        assert len(answer_of(stub, generate_request(CANARY, max_tokens=3))) == 3
