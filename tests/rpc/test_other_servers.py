"""Servers that are not ours: what they do not follow is refused, and what they do not tell is unknown."""

import json
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.doubles.other_server import OUTPUT_IDS, OtherServer
from tests.doubles.stepping import make_request
from tests.rpc.test_client import TOKENIZER_FILES
from weft.core.errors import BadRequest, EngineDead, GenerationError
from weft.core.values.kv_transfer import KEY, Prefill
from weft.core.values.types import (
    OutputKind,
    RequestOutput,
    SamplingParams,
    StructuredOutputsParams,
)
from weft.model.embedded.byte_tokenizer import tokenizer_files
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.client import RpcClient
from weft.rpc.fleet import Fleet
from weft.rpc.prefiller import RpcPrefiller

PARAMS = SamplingParams(
    max_tokens=2,
    detokenize=False,
    output_kind=OutputKind.FINAL_ONLY,
    structured_outputs=StructuredOutputsParams(json_object=True),
)
THINK = {"end": "</think>"}


@asynccontextmanager
async def connected(server: OtherServer):
    """A client of it."""
    async with server.serving() as target:
        client = await RpcClient.connect(target, has_tokenizer=False)
        try:
            yield client
        finally:
            await client.close()


async def ask(server: OtherServer, params: SamplingParams = PARAMS, **how: Any) -> RequestOutput:
    """The one output of one request."""
    async with connected(server) as client:
        [output] = [o async for o in client.generate([5, 6], params, "r", **how)]
    return output


@pytest.mark.parametrize("parser", ["", "deepseek_r1", "one_from_the_future"])
async def test_reasoning_that_has_ended_is_the_grammars_first_token(parser: str):
    """The wire's own field says it, whatever parser the server has."""
    server = OtherServer(reasoning_parser=parser)

    await ask(server, reasoning_ended=True, reasoning_parser_kwargs=THINK)

    assert server.requests[0].sampling_params.grammar_from_first_token


@pytest.mark.parametrize("parser", ["deepseek_r1", "one_from_the_future"])
async def test_a_constraint_that_would_wait_for_ever_is_refused(parser: str):
    """Its parser sees no end in the prompt, whatever is said of it; where one is, the constraint begins."""
    files = tokenizer_files(300, "<|endoftext|>")
    server = OtherServer(reasoning_parser=parser, tokenizer_files=files)
    thought = [*b"<think>hm</think>\n"]
    async with server.serving() as target:
        client = await RpcClient.connect(target)
        said = {"reasoning_ended": True, "reasoning_parser_kwargs": THINK}
        with pytest.raises(BadRequest, match="waits for '</think>'") as caught:
            await anext(client.generate([5, 6], PARAMS, "r", **said))
        outputs = [output async for output in client.generate(thought, PARAMS, "r", **said)]
        await client.close()

    assert caught.value.parameter == "reasoning_ended"
    assert outputs[-1].is_finished
    assert len(server.requests) == 1


@pytest.mark.parametrize("parser", ["deepseek_r1", "one_from_the_future"])
@pytest.mark.parametrize("ended", [False, None])
async def test_open_reasoning_is_left_to_the_servers_parser(parser: str, ended: bool | None):
    """It finds the end by itself."""
    server = OtherServer(reasoning_parser=parser)

    await ask(server, reasoning_ended=ended, reasoning_parser_kwargs=THINK)

    assert not server.requests[0].sampling_params.grammar_from_first_token


@pytest.mark.parametrize(
    ("server", "complaint"),
    [
        pytest.param(OtherServer(), "begin at the first token", id="no parser"),
        pytest.param(
            OtherServer(reasoning_parser="deepseek_r1", constrained_decoding_start="first_token"),
            "begin at the first token",
            id="not waited for",
        ),
        pytest.param(OtherServer(reasoning_parser="mistral"), "ends reasoning with", id="another"),
    ],
)
async def test_open_reasoning_is_refused_where_it_would_be_overlooked(
    server: OtherServer, complaint: str
):
    """A constraint that ruled the reasoning, or never began, would be a wrong answer without a word."""
    with pytest.raises(BadRequest, match=complaint):
        await ask(server, reasoning_ended=False, reasoning_parser_kwargs=THINK)

    assert not server.requests


async def test_without_a_constraint_nothing_is_said_of_reasoning():
    """There is nothing that could begin too early."""
    params = SamplingParams(max_tokens=2, detokenize=False, output_kind=OutputKind.FINAL_ONLY)

    output = await ask(OtherServer(), params, reasoning_ended=False, reasoning_parser_kwargs=THINK)

    assert output.outputs[0].token_ids == list(OUTPUT_IDS)


@pytest.mark.parametrize(
    ("parser", "start", "expected"),
    [
        pytest.param("", "", True, id="no parser"),
        pytest.param("deepseek_r1", "", False, id="a parser"),
        pytest.param("deepseek_r1", "after_reasoning", False, id="after reasoning"),
        pytest.param("deepseek_r1", "first_token", True, id="at once"),
    ],
)
async def test_the_configuration_says_where_constraints_begin(
    parser: str, start: str, expected: bool
):
    """So a server of HTTP APIs knows whether an answer under a constraint begins with reasoning."""
    server = OtherServer(reasoning_parser=parser, constrained_decoding_start=start)
    async with connected(server) as client:
        assert client.info.structured_outputs_in_reasoning is expected


@pytest.mark.parametrize(
    ("token_ids", "values", "expected"),
    [
        pytest.param([], [], {7: None}, id="none listed"),
        pytest.param([7], [-3.0], {7: None}, id="it alone: the list is full"),
        pytest.param([7, 1], [-3.0, -1.0], {7: None, 1: 1}, id="put first, and last by value"),
        pytest.param([7, 1, 2], [-3.0, -1.0, -4.0], {7: 2, 1: 1, 2: 3}, id="among the best"),
        pytest.param([1, 2], [-1.0, -2.0], {7: None, 1: 1, 2: 2}, id="not listed"),
    ],
)
async def test_a_rank_that_the_wire_does_not_tell_is_unknown(
    token_ids: list[int], values: list[float], expected: dict[int, int | None]
):
    """The token that came stands first in such a list, which says nothing of its rank."""
    tops = pb.TopLogProbs(token_ids=token_ids, values=values)
    params = SamplingParams(
        max_tokens=2, logprobs=2, detokenize=False, output_kind=OutputKind.FINAL_ONLY
    )

    output = await ask(OtherServer(top_logprobs=tops), params)

    row = output.outputs[0].logprobs[0]
    assert {token_id: entry.rank for token_id, entry in row.items()} == expected
    assert next(iter(row)) == 7


async def test_without_alternatives_only_the_token_has_a_value():
    """The reference sends no list of others then."""
    params = SamplingParams(
        max_tokens=2, logprobs=0, detokenize=False, output_kind=OutputKind.FINAL_ONLY
    )
    output = await ask(OtherServer(), params)
    rows = output.outputs[0].logprobs
    assert [{i: entry.logprob for i, entry in row.items()} for row in rows] == [
        {token_id: -3.0} for token_id in OUTPUT_IDS
    ]


async def test_what_is_said_of_a_transfer_goes_through_unread():
    """Other engines' connectors have parameters that ours does not know; they judge them."""
    given = {"do_remote_decode": True, "transfer_id": "x-1", "tp_size": 8}
    server = OtherServer(transfer_json='{"remote_block_ids": [[1], [2]], "connector": "other"}')
    params = SamplingParams(
        max_tokens=2,
        detokenize=False,
        output_kind=OutputKind.FINAL_ONLY,
        extra_args={KEY: given},
    )

    output = await ask(server, params)

    assert json.loads(server.requests[0].kv_transfer_params_json) == given
    assert output.kv_transfer_params == {"remote_block_ids": [[1], [2]], "connector": "other"}
    for bad, words in (([], "must be an object"), ({"at": b"x"}, "must be JSON")):
        with pytest.raises(BadRequest, match=f"{KEY} {words}"):
            await ask(server, SamplingParams(detokenize=False, extra_args={KEY: bad}))


@pytest.mark.parametrize("is_foreign", [True, False])
async def test_what_another_engine_lends_is_judged_by_its_own_connector(is_foreign: bool):
    """Ours knows what it can fetch, and computes the prompt itself where it is anything else."""
    lent = {"do_remote_prefill": True, "transfer_id": "x-1"}
    server = OtherServer(transfer_json=json.dumps(lent))
    request = make_request("r", [*range(40)])
    prefiller = RpcPrefiller(["127.0.0.0/8"], 16, is_foreign=is_foreign)
    async with server.serving() as target:
        made = await prefiller.compute(request, Prefill(address=target))

    assert json.loads(server.requests[0].kv_transfer_params_json) == {"do_remote_decode": True}
    assert made.params.extra_args == ({KEY: lent} if is_foreign else None)


async def test_an_engine_that_died_is_told_from_a_failed_request():
    """Both are INTERNAL on such a server; its health says which it was."""
    with pytest.raises(EngineDead, match="has stopped"):
        await ask(OtherServer(dies=True))
    with pytest.raises(GenerationError, match="encountered an issue"):
        await ask(OtherServer(fails=True))


async def test_a_fleet_goes_on_without_the_server_whose_engine_died():
    """Nothing of the request had come there, and another server takes it."""
    first, second = (OtherServer(dies=dies, tokenizer_files=TOKENIZER_FILES) for dies in (1, 0))
    async with first.serving() as one, second.serving() as other:
        fleet = await Fleet.connect([one, other])
        outputs = [output async for output in fleet.generate([5, 6], PARAMS, "r")]
        fleet.shutdown()
        await fleet.wait_closed()

    assert outputs[-1].is_finished
    assert [len(server.requests) for server in (first, second)] == [1, 1]


async def test_a_server_that_tells_no_load_is_healthy():
    """GetLoads is younger than the protocol; what lacks it serves."""
    server = OtherServer(tokenizer_files=TOKENIZER_FILES)
    async with server.serving() as target:
        fleet = await Fleet.connect([target])
        [member] = fleet._members.all
        await member.refresh()
        is_healthy = member.is_healthy
        fleet.shutdown()
        await fleet.wait_closed()

    assert is_healthy


async def test_the_type_of_weights_is_named_as_ours():
    """That server says it as PyTorch does."""
    async with connected(OtherServer()) as client:
        assert client.model_config.dtype == "bfloat16"


async def test_a_pool_of_unknown_size_is_no_limit():
    """Servers that stand before this client go by the same limits: the context alone bounds an answer."""
    async with connected(OtherServer()) as client:
        assert client.info.limits.max_sequence_len == client.model_config.max_model_len
