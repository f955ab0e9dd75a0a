import asyncio

import grpc

from tests.busy import PATIENCE_S
from tests.contract.engines import MODEL, local
from tests.doubles.fake_engine import FakeEngine, FakeRenderer, overloaded, reference_tokens
from tests.rpc.calls import (
    PROMPT,
    channel_to,
    check_canary,
    completes,
    refusal,
    request,
    responses,
)
from weft.model.open import open_model
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub


async def test_whole_answer_comes_in_one_complete(stub: VllmEngineStub, engine: FakeEngine):
    """Without streaming there is one message per answer, with every token and the counts."""
    engine.cached_tokens = 2

    [answer] = await completes(stub, max_tokens=5)

    assert list(answer.output_ids) == reference_tokens(PROMPT, 5)
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (4, 5, 2)
    assert (answer.finish_reason, answer.index) == ("length", 0)
    assert answer.WhichOneof("matched_stop") is None
    assert not answer.HasField("output_logprobs")
    assert not answer.HasField("input_logprobs")


async def test_streamed_chunks_hold_only_what_is_new(stub: VllmEngineStub):
    """Each chunk is a delta with its own count; the complete repeats the last delta."""
    answers = await responses(stub, request(stream=True))

    kinds = [answer.WhichOneof("response") for answer in answers]
    assert kinds == ["chunk", "chunk", "chunk", "complete"]
    chunks = [answer.chunk for answer in answers[:3]]
    assert [list(c.token_ids) for c in chunks] == [[t] for t in reference_tokens(PROMPT, 3)]
    assert [c.completion_tokens for c in chunks] == [1, 1, 1]
    assert [c.prompt_tokens for c in chunks] == [4, 4, 4]
    end = answers[3].complete
    assert list(end.output_ids) == list(chunks[-1].token_ids)
    assert (end.completion_tokens, end.prompt_tokens, end.finish_reason) == (1, 4, "length")


async def test_a_chunk_may_hold_several_tokens(stub: VllmEngineStub, engine: FakeEngine):
    """What the engine's client merged while we were slow goes out as one chunk."""
    engine.tokens_per_output = 4

    answers = await responses(stub, request(stream=True, max_tokens=6))

    chunks = [answer.chunk for answer in answers if answer.HasField("chunk")]
    assert [c.completion_tokens for c in chunks] == [4, 2]
    ids = [token for chunk in chunks for token in chunk.token_ids]
    assert ids == reference_tokens(PROMPT, 6)
    assert list(answers[-1].complete.output_ids) == ids[4:]


async def test_answers_of_one_request_are_told_apart_by_index(stub: VllmEngineStub):
    """n=3 gives three completes in order, each with its own tokens."""
    answers = await completes(stub, n=3)

    assert [answer.index for answer in answers] == [0, 1, 2]
    expected = [reference_tokens(PROMPT, 3, index) for index in range(3)]
    assert [list(answer.output_ids) for answer in answers] == expected


async def test_streamed_answers_interleave_and_end_on_their_own(stub: VllmEngineStub):
    """An answer that stops early gets its complete right after its last chunk; the other goes on."""
    early = reference_tokens(PROMPT, 2, index=1)[1]

    answers = await responses(stub, request(stream=True, n=2, max_tokens=4, stop_token_ids=[early]))

    order = [(a.WhichOneof("response"), a.chunk.index or a.complete.index) for a in answers]
    assert order == [
        ("chunk", 0),
        ("chunk", 1),
        ("chunk", 0),
        ("chunk", 1),
        ("complete", 1),
        ("chunk", 0),
        ("chunk", 0),
        ("complete", 0),
    ]


async def test_stop_token_is_named_and_kept(stub: VllmEngineStub):
    """A stop id is part of the ids and the count, and is reported as what matched."""
    stop = reference_tokens(PROMPT, 3)[2]

    [answer] = await completes(stub, max_tokens=10, stop_token_ids=[stop])

    assert list(answer.output_ids) == reference_tokens(PROMPT, 3)
    assert (answer.finish_reason, answer.matched_token_id) == ("stop", stop)


async def test_stop_string_is_named_and_its_tokens_are_kept(stub: VllmEngineStub):
    """A stop string turns detokenising on; its tokens are not cut out of the ids."""
    tokens = reference_tokens(PROMPT, 3)
    stop = FakeRenderer().decode(tokens[1:])

    [answer] = await completes(stub, max_tokens=10, stop=[stop])

    assert list(answer.output_ids) == tokens
    assert (answer.finish_reason, answer.matched_stop_str) == ("stop", stop)


async def test_text_is_only_made_when_stop_strings_need_it(
    stub: VllmEngineStub, engine: FakeEngine
):
    """The caller gets ids, so detokenising for nobody is left out."""
    await completes(stub)
    await completes(stub, stop=["zzzz"])

    assert [call["params"].detokenize for call in engine.calls] == [False, True]


async def test_text_input_is_tokenised_by_the_engine(stub: VllmEngineStub, engine: FakeEngine):
    """`text` reaches the engine as text."""
    [answer] = await completes(stub, text="hey")

    assert list(answer.output_ids) == reference_tokens(FakeRenderer().encode("hey"), 3)
    assert answer.prompt_tokens == 4
    assert engine.calls[0]["prompt"] == "hey"


async def test_original_text_only_labels_the_prompt(stub: VllmEngineStub, engine: FakeEngine):
    """The ids are what runs, whatever text came with them."""
    tokenized = pb.TokenizedInput(original_text="label", input_ids=PROMPT)

    [answer] = await completes(stub, tokenized=tokenized)

    assert list(answer.output_ids) == reference_tokens(PROMPT, 3)
    assert engine.calls[0]["prompt_text"] == "label"


async def test_truncation_is_honoured_for_token_ids(stub: VllmEngineStub):
    """The last k ids are kept, also when all of them would not fit the context."""
    long = pb.TokenizedInput(input_ids=[7] * 400 + PROMPT)

    [answer] = await completes(stub, tokenized=long, truncate_prompt_tokens=4)

    assert list(answer.output_ids) == reference_tokens(PROMPT, 3)
    assert answer.prompt_tokens == 4


async def test_abort_ends_a_stream_with_a_last_message(stub: VllmEngineStub, engine: FakeEngine):
    """Abort by id gives a complete of reason "abort" and status OK, not an error."""
    engine.hold()
    call = stub.Generate(request(stream=True, request_id="mine"))
    await engine.wait_for_open(1)
    await engine.allow(1)
    answers = aiter(call)
    first = await anext(answers)

    await stub.Abort(pb.AbortRequest(request_ids=["other", "min", "mine"]))

    rest = [response async for response in answers]
    assert list(first.chunk.token_ids) == reference_tokens(PROMPT, 1)
    assert [r.complete.finish_reason for r in rest] == ["abort"]
    assert await call.code() == grpc.StatusCode.OK


async def test_abort_ends_a_request_that_is_not_streamed(stub: VllmEngineStub, engine: FakeEngine):
    """The tokens so far come with reason "abort"."""
    engine.hold()
    call = stub.Generate(request(request_id="mine", n=2))
    await engine.wait_for_open(1)

    await stub.Abort(pb.AbortRequest(request_ids=["mine"]))

    answers = [response.complete async for response in call]
    assert [(a.index, a.finish_reason) for a in answers] == [(0, "abort"), (1, "abort")]


async def test_headers_come_before_the_first_answer(stub: VllmEngineStub, engine: FakeEngine):
    """A caller that is not streamed to has a stream it can cancel while the engine still works."""
    engine.hold()
    call = stub.Generate(request())

    async with asyncio.timeout(PATIENCE_S):
        await call.initial_metadata()

    assert not call.done()
    call.cancel()
    await engine.wait_for_open(0)


async def test_request_id_in_use_is_refused(stub: VllmEngineStub, engine: FakeEngine):
    """The second request fails with ALREADY_EXISTS; the first is not touched; later the id is free."""
    engine.hold()
    first = stub.Generate(request(request_id="twin"))
    await engine.wait_for_open(1)

    status, detail = await refusal(stub.Generate(request(request_id="twin")))

    assert status == grpc.StatusCode.ALREADY_EXISTS
    assert "twin" in detail
    await engine.run_freely()
    answers = [response async for response in first]
    assert list(answers[0].complete.output_ids) == reference_tokens(PROMPT, 3)
    assert len(await completes(stub, request_id="twin")) == 1


async def test_empty_request_ids_do_not_collide(stub: VllmEngineStub, engine: FakeEngine):
    """Two requests without an id each get one of the server's."""
    engine.hold()
    calls = [stub.Generate(request()) for _ in range(2)]
    await engine.wait_for_open(2)

    await engine.run_freely()

    for call in calls:
        assert [len(r.complete.output_ids) async for r in call] == [3]


async def test_full_queue_is_resource_exhausted(stub: VllmEngineStub, engine: FakeEngine):
    """Gateways turn this status into 429, and UNAVAILABLE into 503."""
    engine.refusal = overloaded()

    status, detail = await refusal(stub.Generate(request()))

    assert status == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "64 requests are queued" in detail


async def test_want_of_memory_is_for_a_retry(stub: VllmEngineStub, engine: FakeEngine):
    """UNAVAILABLE, as for any server that cannot take a request now."""
    engine.failure = MemoryError()
    status, detail = await refusal(stub.Generate(request()))
    assert status == grpc.StatusCode.UNAVAILABLE
    assert "memory" in detail


async def test_unknown_exception_never_leaks_its_text(
    stub: VllmEngineStub, engine: FakeEngine, caplog
):
    """INTERNAL with an id; the traceback is logged under that id, once; the next request works."""
    engine.failure = RuntimeError("secret at /etc/key 0xdeadbeef")

    status, detail = await refusal(stub.Generate(request(stream=True)))

    assert status == grpc.StatusCode.INTERNAL
    assert detail.startswith("internal error, id=")
    [record] = [r for r in caplog.records if r.name == "weft.rpc" and r.levelname == "ERROR"]
    assert detail.removeprefix("internal error, ") in record.getMessage()
    assert "secret" in str(record.exc_info)
    engine.failure = None
    await check_canary(stub)


async def test_refusal_inside_a_call_aborts_it_once(stub: VllmEngineStub, caplog):
    """A status is set outside the try that would catch it: nothing complains of a second abort."""
    status, _ = await refusal(stub.Generate(request(top_p=-1.0)))

    assert status == grpc.StatusCode.INVALID_ARGUMENT
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_trace_headers_reach_a_traced_engine(stub: VllmEngineStub, engine: FakeEngine):
    """W3C headers are passed on, and nothing else of the metadata."""
    engine.is_traced = True
    metadata = (("traceparent", "00-1-2-01"), ("x-other", "1"))

    [_] = [r async for r in stub.Generate(request(), metadata=metadata)]

    assert engine.calls[0]["trace_headers"] == {"traceparent": "00-1-2-01"}


async def test_rank_is_passed_through(stub: VllmEngineStub, engine: FakeEngine):
    """0 is a rank; unset is not."""
    await completes(stub, data_parallel_rank=0)
    await completes(stub)

    assert [call["data_parallel_rank"] for call in engine.calls] == [0, None]


async def test_a_constraint_begins_behind_the_thought():
    """With a reasoning parser; at once where the prompt ended the thought, or the caller says so."""
    files = open_model(MODEL).tokenizer_files
    async with (
        local() as engine,
        channel_to(engine, files, reasoning_parser="deepseek_r1") as channel,
    ):
        stub = VllmEngineStub(channel)
        asked = {"regex": "[a-c]{8}", "max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
        answers = [
            await completes(stub, **asked, **how)
            for how in (
                {},
                {"grammar_from_first_token": True},
                {"tokenized": pb.TokenizedInput(input_ids=b"no.</think>\n")},
            )
        ]
    ruled = [set(answer.output_ids) <= set(b"abc") for [answer] in answers]
    assert ruled == [False, True, True]


async def test_without_a_reasoning_parser_a_constraint_begins_at_once(
    stub: VllmEngineStub, engine: FakeEngine
):
    """The engine is told nothing of thoughts."""
    await completes(stub, regex="a")
    assert engine.calls[0].get("reasoning_parser_kwargs") is None
