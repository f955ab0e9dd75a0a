"""A server that misbehaves must not confuse its client."""

import inspect
from typing import Any

import grpc
import pytest

from tests.doubles.fake_engine import make_config
from tests.doubles.stepping import make_request
from tests.rpc.calls import PROMPT
from weft.core.client import EngineClient
from weft.core.errors import GenerationError
from weft.core.operator_calls import OperatorCalls
from weft.core.values.types import SamplingParams, SequenceOutput
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.client import RpcClient
from weft.rpc.connection import Connection
from weft.rpc.convert.chunks import RemoteAnswers
from weft.rpc.convert.incoming import to_server_report
from weft.rpc.methods import SERVICE


def take(*responses: pb.GenerateResponse, **params: Any) -> list[SequenceOutput]:
    request = make_request("r", PROMPT, SamplingParams(**params), eos_token_ids=(2,))
    answers = RemoteAnswers(request, has_strict_tops=True)
    return [output for response in responses for output in answers.take(response)]


def chunk(**fields: Any) -> pb.GenerateResponse:
    return pb.GenerateResponse(chunk=pb.GenerateStreamChunk(**fields))


def complete(**fields: Any) -> pb.GenerateResponse:
    return pb.GenerateResponse(complete=pb.GenerateComplete(**fields))


@pytest.mark.parametrize(
    ("responses", "params", "complaint"),
    [
        ([pb.GenerateResponse()], {}, "empty answer"),
        ([chunk(index=1, token_ids=[5])], {}, "answer 1 of 1"),
        ([complete(finish_reason="why")], {}, "unknown finish_reason 'why'"),
        ([complete(finish_reason="stop"), chunk(token_ids=[5])], {}, "after its end"),
        ([chunk(token_ids=[5])], {"logprobs": 1}, "do not match the tokens"),
    ],
)
def test_answers_that_make_no_sense_are_errors(
    responses: list[pb.GenerateResponse], params: dict[str, Any], complaint: str
):
    """Never a traceback from inside, never a wrong output."""
    with pytest.raises(GenerationError, match=complaint):
        take(*responses, **params)


async def test_stream_that_just_ends_is_an_error():
    """OK without a complete is not an answer."""

    async def nothing(_request: bytes, _context: Any) -> None:
        return None

    server = grpc.aio.server()
    handlers = {"Generate": grpc.unary_stream_rpc_method_handler(nothing)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    info = to_server_report(pb.GetServerInfoResponse())
    client = RpcClient(Connection(target), make_config(), info, None)

    with pytest.raises(GenerationError, match="before every answer was finished"):
        await anext(client.generate(PROMPT, SamplingParams(detokenize=False), "r"))

    await client.close()
    await server.stop(0)


def test_no_call_is_accepted_and_ignored():
    """What the client inherits either raises `Unsupported` or answers from a call of its own."""
    inherited = {
        name
        for name, member in (vars(EngineClient) | vars(OperatorCalls)).items()
        if inspect.isfunction(member) and getattr(RpcClient, name) is member and name[0] != "_"
    }

    silent = {
        name
        for name in inherited
        if " unsupported(" not in inspect.getsource(getattr(EngineClient, name))
    }
    assert silent == {
        "answer", "encode", "generate", "get_supported_tasks", "is_scaling_elastic_ep", "is_sleeping",
        "preparing", "run_into",
    }  # fmt: skip
