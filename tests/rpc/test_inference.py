"""`vllm.Inference`: answers, streams, ends, and what holds for requests of every service."""

import asyncio
from typing import Any

import grpc
import pytest
from msgspec import structs

from tests.busy import PATIENCE_S
from tests.contract.engines import MODEL, local
from tests.doubles.fake_engine import FakeEngine, make_config, reference_tokens
from tests.doubles.fake_inputs import EOS_ID
from tests.rpc.calls import PROMPT, channel_to, refusal
from weft.core.errors import GenerationError, Overloaded
from weft.core.values.types import CompletionOutput, FinishReason, RequestOutput, SamplingParams
from weft.model.open import open_model
from weft.pb import vllm_control_pb2 as control
from weft.pb import vllm_engine_pb2 as older
from weft.pb import vllm_inference_pb2 as pb
from weft.pb.vllm_control_pb2_grpc import ControlStub
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.pb.vllm_inference_pb2_grpc import InferenceStub
from weft.rpc.convert.inference_output import InferenceReply
from weft.rpc.convert.inference_request import Shape

FINISH = pb.FinishInfo
IDS = {"output_token_ids": True}


@pytest.fixture
def inference(channel: grpc.aio.Channel) -> InferenceStub:
    """The generated client."""
    return InferenceStub(channel)


def request(**fields: Any) -> pb.GenerateRequest:
    """A request for the ids of three tokens after PROMPT."""
    usual = {"stopping": {"max_new_tokens": 3}, "response": IDS}
    if "text" not in fields:
        usual["token_ids"] = {"ids": PROMPT}
    return pb.GenerateRequest(**{**usual, **fields})


async def pieces(inference: InferenceStub, message: pb.GenerateRequest, **options: Any) -> list:
    return [one async for one in inference.GenerateStream(message, **options)]


# -- answers ----------------------------------------------------------------------------------


async def test_one_answer_comes_whole(inference: InferenceStub):
    """The prompt's size, all tokens, and how the answer ended."""
    answer = await inference.Generate(request())
    outputs, end = answer.outputs, answer.outputs.finish_info
    assert answer.prompt_info == pb.PromptInfo(num_prompt_tokens=len(PROMPT))
    assert list(outputs.token_ids) == reference_tokens(PROMPT, 3)
    assert (outputs.index, outputs.num_tokens) == (0, 3)
    assert (end.num_output_tokens, end.finish_reason) == (3, FINISH.LENGTH)
    assert end.WhichOneof("stop_reason") is None
    assert end.HasField("num_cached_tokens")
    assert (list(outputs.logprobs), list(outputs.candidate_tokens)) == ([], [])


async def test_a_stream_begins_with_the_prompt_and_then_has_pieces(inference: InferenceStub):
    """Only the last piece of an answer says how it ended, with the number of all its tokens."""
    first, *rest = await pieces(inference, request(response={**IDS, "prompt_token_ids": True}))
    assert list(first.prompt_info.token_ids) == PROMPT
    assert not first.HasField("outputs")
    assert not any(piece.HasField("prompt_info") for piece in rest)
    tokens = [token for piece in rest for token in piece.outputs.token_ids]
    assert tokens == reference_tokens(PROMPT, 3)
    assert sum(piece.outputs.num_tokens for piece in rest) == 3
    assert [piece.outputs.HasField("finish_info") for piece in rest] == [False, False, True]
    assert rest[-1].outputs.finish_info.num_output_tokens == 3


async def test_several_answers_come_by_their_index(inference: InferenceStub):
    """Each with its own end."""
    _, *rest = await pieces(inference, request(sampling={"num_sequences": 2}))
    for index in range(2):
        own = [piece.outputs for piece in rest if piece.outputs.index == index]
        tokens = [token for piece in own for token in piece.token_ids]
        assert tokens == reference_tokens(PROMPT, 3, index)
        assert own[-1].finish_info.num_output_tokens == 3


async def test_only_what_is_asked_for_is_sent(inference: InferenceStub):
    """No ids unless they are asked for, and no text if that is turned off."""
    answer = await inference.Generate(request(response={"output_text": False}))
    assert (list(answer.outputs.token_ids), answer.outputs.text) == ([], "")
    assert answer.outputs.num_tokens == 3


async def test_scores_have_the_chosen_token_first_and_the_others_apart(inference: InferenceStub):
    """One entry for each token, the prompt's too; nothing precedes its first, which has a score of 0."""
    response = {
        **IDS,
        "output_logprobs": True,
        "output_candidates": {"top_n": 2},
        "prompt_logprobs": True,
        "prompt_candidates": {"top_n": 1},
    }
    answer = await inference.Generate(request(response=response))
    outputs, prompt = answer.outputs, answer.prompt_info
    assert list(outputs.logprobs) == [-50.0] * 3
    assert list(outputs.ranks) == [400] * 3
    for token_id, candidates in zip(outputs.token_ids, outputs.candidate_tokens, strict=True):
        assert [one.rank for one in candidates.tokens] == [1, 2]
        assert token_id not in [one.id for one in candidates.tokens]
    assert list(prompt.logprobs) == [0.0, *[-50.0] * (len(PROMPT) - 1)]
    assert [len(one.tokens) for one in prompt.candidate_tokens] == [0, 1, 1, 1]
    first, *rest = await pieces(inference, request(response=response))
    assert list(first.prompt_info.logprobs) == list(prompt.logprobs)
    assert [list(piece.outputs.logprobs) for piece in rest] == [[-50.0]] * 3


SHAPE = Shape(prompt_token_ids=False, text=True, token_ids=True)


def output(**fields: Any) -> RequestOutput:
    answer = CompletionOutput(index=0, token_ids=[7, EOS_ID], **fields)
    return RequestOutput(
        request_id="r", prompt=None, prompt_token_ids=[1], outputs=[answer], is_finished=True
    )


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [
        (FinishReason.LENGTH, None, FINISH(finish_reason=FINISH.LENGTH)),
        (FinishReason.STOP, 7, FINISH(finish_reason=FINISH.STOP, stop_token_id=7)),
        (FinishReason.STOP, "x", FINISH(finish_reason=FINISH.STOP, stop_string="x")),
        (FinishReason.STOP, None, FINISH(finish_reason=FINISH.STOP, eos_token_id=EOS_ID)),
        (FinishReason.ABORT, None, FINISH(finish_reason=FINISH.ABORTED)),
        (FinishReason.REPETITION, None, FINISH(finish_reason=FINISH.ABORTED)),
    ],
)
def test_how_an_answer_ended(reason: FinishReason, stop: int | str | None, expected: FINISH):
    """The token that ends a text is named, whether the caller or the model chose it."""
    reply = InferenceReply(SamplingParams(), SHAPE)
    found = reply.whole(output(finish_reason=reason, stop_reason=stop)).outputs.finish_info
    assert (found.num_output_tokens, found.num_cached_tokens) == (2, 0)
    found.ClearField("num_output_tokens")
    found.ClearField("num_cached_tokens")
    assert found == expected


def test_a_broken_stream_does_not_look_complete():
    """An answer without an end is an error."""
    with pytest.raises(GenerationError):
        InferenceReply(SamplingParams(), SHAPE).end()


def test_a_lender_always_answers_with_an_object():
    """Routers wait for one; a prompt without a whole block has nothing to lend, and the object is empty."""
    lends = SamplingParams(extra_args={"kv_transfer_params": {"do_remote_decode": True}})
    for params, has in ((SamplingParams(), False), (lends, True)):
        response = InferenceReply(params, SHAPE).whole(output(finish_reason=FinishReason.LENGTH))
        assert response.outputs.finish_info.HasField("kv_transfer_params") is has


# -- a real engine ----------------------------------------------------------------------------


async def test_both_protocols_have_the_same_tokens():
    """With the same parameters, from the same engine; text is that of the tokens."""
    async with local() as engine, channel_to(engine, open_model(MODEL).tokenizer_files) as channel:
        message = older.GenerateRequest()
        message.tokenized.input_ids.extend(PROMPT)
        message.sampling_params.CopyFrom(
            older.SamplingParams(
                temperature=0.8, top_p=0.9, seed=5, max_tokens=12, repetition_penalty=1.1
            )
        )
        [expected] = [one async for one in VllmEngineStub(channel).Generate(message)]
        own = request(
            temperature=0.8,
            sampling={"top_p": 0.9, "seed": 5},
            decoding={"repetition_penalty": 1.1},
            stopping={"max_new_tokens": 12},
        )
        inference = InferenceStub(channel)
        answer = await inference.Generate(own)
        streamed = await pieces(inference, own)
        texts = engine.renderer.decode(list(answer.outputs.token_ids))
    assert list(answer.outputs.token_ids) == list(expected.complete.output_ids)
    assert [t for piece in streamed for t in piece.outputs.token_ids] == list(
        answer.outputs.token_ids
    )
    assert answer.outputs.text == texts
    assert "".join(piece.outputs.text for piece in streamed) == texts


async def test_bad_words_are_token_ids_here():
    """The last of a list may not follow the others; a list of one never comes."""
    async with local() as engine, channel_to(engine, open_model(MODEL).tokenizer_files) as channel:
        inference = InferenceStub(channel)
        plain = await inference.Generate(request(stopping={"max_new_tokens": 8}))
        first, second, *_ = plain.outputs.token_ids
        spared = await inference.Generate(
            request(
                stopping={"max_new_tokens": 8},
                decoding={"bad_words_token_ids": [{"ids": [first, second]}, {"ids": [300]}]},
            )
        )
        refused = request(decoding={"bad_words_token_ids": [{"ids": []}]})
        code, details = await refusal(inference.Generate(refused))
    assert spared.outputs.token_ids[0] == first
    assert spared.outputs.token_ids[1] != second
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "each of bad_words_token_ids must have 1 to" in details


# -- refusals ---------------------------------------------------------------------------------

BAD = [
    ("temperature", {"temperature": 3.0}),
    ("temperature", {"temperature": float("nan")}),
    ("top_p", {"sampling": {"top_p": 0.0}}),
    ("num_sequences", {"sampling": {"num_sequences": 200}}),
    ("max_new_tokens", {"stopping": {"max_new_tokens": 2**31}}),
    ("min_new_tokens", {"stopping": {"max_new_tokens": 2, "min_new_tokens": 3}}),
    ("stop_strings", {"stopping": {"stop_strings": [""]}}),
    ("thinking_token_budget", {"stopping": {"thinking_token_budget": -2}}),
    ("logit_bias", {"decoding": {"logit_bias": {99_999: 1.0}}}),
    ("allowed_token_ids", {"decoding": {"allowed_token_ids": [99_999]}}),
    ("bad_words_token_ids", {"decoding": {"bad_words_token_ids": [{"ids": [99_999]}]}}),
    ("json", {"decoding": {"json": "{"}}),
    ("output_candidates", {"response": {"output_logprobs": True, "output_candidates": {"top_n": 9999}}}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": 2**31}),
    ("prompt", {"token_ids": {"ids": []}}),
    ("prompt", {"token_ids": {"ids": [5] * 300}}),
    ("priority", {"priority": 1}),
    ("request_id", {"request_id": "x" * 2000}),
    ("kv_transfer_params", {"kv": {"kv_transfer_params": {"do_remote_decode": True}}}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "fields"), BAD, ids=lambda one: str(one)[:40])
async def test_a_bad_value_is_refused_by_the_field_of_the_message(
    inference: InferenceStub, name: str, fields: dict[str, Any]
):
    """Under the name that the caller wrote, in the metadata after the refusal."""
    call = inference.GenerateStream(request(**fields))
    code, details = await refusal(call)
    assert code is grpc.StatusCode.INVALID_ARGUMENT, details
    trailing = dict(await call.trailing_metadata())
    assert trailing["x-weft-parameter-bin"].decode() == name


@pytest.mark.parametrize(
    ("rank", "code"),
    [
        ("0", None),
        ("1", grpc.StatusCode.INVALID_ARGUMENT),
        ("-1", grpc.StatusCode.INVALID_ARGUMENT),
        ("first", grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_metadata_name_the_rank(
    engine: FakeEngine, inference: InferenceStub, rank: str, code: grpc.StatusCode | None
):
    """As vLLM's servers read it."""
    call = inference.Generate(request(), metadata=(("x-data-parallel-rank", rank),))
    if code is None:
        await call
        assert engine.calls[-1]["data_parallel_rank"] == 0
    else:
        assert (await refusal(call))[0] is code


async def test_an_unknown_adapter_is_not_found(inference: InferenceStub):
    """Never the model in its place."""
    code, details = await refusal(inference.Generate(request(lora_name="sql")))
    assert (code, "'sql'" in details) == (grpc.StatusCode.NOT_FOUND, True)


async def test_an_overloaded_engine_says_so(engine: FakeEngine, inference: InferenceStub):
    """As over the older protocol."""
    engine.refusal = Overloaded("the queue is full")
    assert (await refusal(inference.Generate(request())))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


# -- ends -------------------------------------------------------------------------------------


async def test_a_caller_that_leaves_ends_its_request(engine: FakeEngine, inference: InferenceStub):
    """Of both calls: nothing goes on in the engine."""
    engine.hold()
    stream, whole = inference.GenerateStream(request()), inference.Generate(request())
    waiting = [asyncio.ensure_future(one) for one in (whole.code(), stream.code())]
    async with asyncio.timeout(PATIENCE_S):
        await engine.wait_for_open(2)
        stream.cancel()
        whole.cancel()
        await engine.wait_for_open(0)
    assert len(engine.dropped) == 2
    assert await asyncio.gather(*waiting) == [grpc.StatusCode.CANCELLED] * 2


async def test_a_request_is_aborted_by_its_id_over_either_service(
    engine: FakeEngine, channel: grpc.aio.Channel
):
    """Ids are of the server: the answer ends with what it has."""
    inference = InferenceStub(channel)
    aborts = (
        lambda ids: ControlStub(channel).Abort(control.AbortRequest(request_ids=ids)),
        lambda ids: VllmEngineStub(channel).Abort(older.AbortRequest(request_ids=ids)),
    )
    for abort in aborts:
        engine.hold()
        call = inference.GenerateStream(request(request_id="mine"))
        reading = asyncio.ensure_future(pieces_of(call))
        await engine.wait_for_open(1)
        await abort(["mine", "unknown"])
        async with asyncio.timeout(PATIENCE_S):
            *_, last = await reading
        assert last.outputs.finish_info.finish_reason == FINISH.ABORTED
        await engine.run_freely()


async def pieces_of(call: Any) -> list:
    return [piece async for piece in call]


async def test_an_id_is_taken_once_over_all_services(engine: FakeEngine, channel: grpc.aio.Channel):
    """Until its request has ended."""
    engine.hold()
    call = InferenceStub(channel).GenerateStream(request(request_id="one"))
    reading = asyncio.ensure_future(pieces_of(call))
    await engine.wait_for_open(1)
    message = older.GenerateRequest(request_id="one")
    message.tokenized.input_ids.extend(PROMPT)
    code, _ = await refusal(VllmEngineStub(channel).Generate(message))
    await engine.run_freely()
    await reading
    assert code is grpc.StatusCode.ALREADY_EXISTS


async def test_a_deadline_ends_the_request(engine: FakeEngine, inference: InferenceStub):
    """In the engine too."""
    engine.hold()
    code, _ = await refusal(inference.Generate(request(), timeout=0.2))
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    async with asyncio.timeout(PATIENCE_S):
        await engine.wait_for_open(0)


async def test_a_priority_needs_the_policy():
    """It is taken where the scheduler looks at it."""
    config = make_config()
    scheduler = structs.replace(config.scheduler_config, policy="priority")
    engine = FakeEngine(structs.replace(config, scheduler_config=scheduler))
    async with channel_to(engine) as channel:
        await InferenceStub(channel).Generate(request(priority=-3))
    assert engine.calls[-1]["priority"] == -3


async def test_reasoning_ends_where_the_servers_parser_says(engine: FakeEngine):
    """A constraint or a budget waits for it; the gate says whether the prompt has it already."""
    async with channel_to(engine, reasoning_parser="qwen3") as channel:
        inference = InferenceStub(channel)
        await inference.Generate(request(engine_reasoning_gate={"reasoning_ended": True}))
        assert engine.calls[-1]["reasoning_ended"] is None
        await inference.Generate(
            request(decoding={"regex": "a+"}, engine_reasoning_gate={"reasoning_ended": False})
        )
        assert engine.calls[-1]["reasoning_ended"] is False
        assert engine.calls[-1]["reasoning_parser_kwargs"] == {"end": "</think>"}
        await inference.Generate(request(stopping={"thinking_token_budget": 5}))
        assert engine.calls[-1]["reasoning_parser_kwargs"] == {"end": "</think>"}


async def test_a_closing_server_refuses_new_requests(engine: FakeEngine, server, channel):
    """And lets those in flight end, as those of the older protocol."""
    engine.hold()
    inference = InferenceStub(channel)
    call = asyncio.ensure_future(pieces(inference, request()))
    await engine.wait_for_open(1)
    server.service.generate.close()
    code, _ = await refusal(inference.Generate(request()))
    await engine.run_freely()
    assert code is grpc.StatusCode.UNAVAILABLE
    assert len(await call) == 4


async def test_a_tenant_with_a_key_is_counted(engine: FakeEngine, tmp_path):
    """Limits of an API key hold here too."""
    keys = tmp_path / "keys.json"
    keys.write_text('{"tenants": [{"name": "a", "keys": ["one"], "requests_per_minute": 1}]}')
    metadata = (("authorization", "Bearer one"),)
    async with channel_to(engine, api_key_file=keys) as channel:
        inference = InferenceStub(channel)
        await inference.Generate(request(), metadata=metadata)
        code, _ = await refusal(inference.Generate(request(), metadata=metadata))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
