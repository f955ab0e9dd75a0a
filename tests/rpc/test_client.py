"""RpcClient against the server: the caller should not notice the wire between."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from tests.doubles.fake_engine import (
    VOCAB_SIZE,
    FakeEngine,
    make_config,
    overloaded,
    position_logprobs,
    reference_tokens,
)
from tests.rpc.calls import PROMPT, served
from weft.core.errors import (
    AlreadyExists,
    BadRequest,
    Code,
    EngineDead,
    NotFound,
    Overloaded,
    Unavailable,
    Unsupported,
    WeftError,
)
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.kv_cache import AllBlocksCleared, BlockRemoved, BlockStored, KvEventBatch
from weft.core.values.types import (
    FinishReason,
    LoRARequest,
    OutputKind,
    RequestOutput,
    SamplingParams,
    StreamingInput,
)
from weft.rpc.client import RpcClient
from weft.text.tokenizer import Tokenizer


def make_tokenizer_files() -> dict[str, bytes]:
    """Words w0, w1, ... for the ids; text is the words with spaces between."""
    vocabulary = {f"w{i}": i for i in range(VOCAB_SIZE)}
    library = LibraryTokenizer(WordLevel(vocabulary, unk_token="w0"))
    library.pre_tokenizer = Whitespace()
    return {"tokenizer.json": library.to_str().encode()}


TOKENIZER_FILES = make_tokenizer_files()
DELTA = OutputKind.DELTA


@pytest.fixture
def engine() -> FakeEngine:
    """An engine that reads and writes the words."""
    engine = FakeEngine()
    engine.renderer = Tokenizer.from_files(TOKENIZER_FILES)
    engine.input_processor._renderer = engine.renderer
    return engine


@pytest.fixture
async def target(engine: FakeEngine) -> AsyncIterator[str]:
    """host:port of its server."""
    async with served(engine, TOKENIZER_FILES, heartbeat_s=0.05, health_interval_s=0.05) as target:
        yield target


@pytest.fixture
async def client(target: str) -> AsyncIterator[RpcClient]:
    """A client of that server."""
    client = await RpcClient.connect(target)
    yield client
    await client.close()


async def collect(client: RpcClient, prompt: Any = PROMPT, **params: Any) -> list[RequestOutput]:
    """Everything one request gives."""
    chosen = SamplingParams(**{"max_tokens": 3, **params})
    return [output async for output in client.generate(prompt, chosen, "r1")]


def words(token_ids: list[int]) -> str:
    return " ".join(f"w{token_id}" for token_id in token_ids)


async def failure(client: RpcClient, prompt: Any = PROMPT, **params: Any) -> WeftError:
    """The error of a request that must fail."""
    with pytest.raises(WeftError) as caught:
        await collect(client, prompt, **params)
    return caught.value


async def test_final_output_is_whole(client: RpcClient):
    """One output with ids, text, reason and the prompt."""
    [output] = await collect(client, output_kind=OutputKind.FINAL_ONLY)

    assert output.is_finished
    assert output.prompt_token_ids == PROMPT
    [answer] = output.outputs
    assert answer.token_ids == reference_tokens(PROMPT, 3)
    assert answer.text.strip() == words(answer.token_ids)
    assert answer.finish_reason is FinishReason.LENGTH


async def test_deltas_add_up(client: RpcClient):
    """Ids and text of the deltas are those of the whole; only the last is finished."""
    outputs = await collect(client, output_kind=DELTA)

    assert [output.is_finished for output in outputs] == [False] * 3 + [True]
    ids = [token for output in outputs for token in output.outputs[0].token_ids]
    assert ids == reference_tokens(PROMPT, 3)
    text = "".join(output.outputs[0].text for output in outputs)
    assert text.strip() == words(ids)


async def test_cumulative_outputs_grow(client: RpcClient):
    """Each output holds all n answers as far as they are."""
    outputs = await collect(client, n=2)

    lengths = [[len(answer.token_ids) for answer in output.outputs] for output in outputs]
    assert lengths[0] == [1, 0]
    assert lengths[-1] == [3, 3]
    assert [a.token_ids for a in outputs[-1].outputs] == [
        reference_tokens(PROMPT, 3, index) for index in range(2)
    ]


async def test_text_prompt_is_tokenised_with_the_server_s_tokenizer(
    client: RpcClient, engine: FakeEngine
):
    """The ids travel, and the text as their label."""
    [output] = await collect(client, "w10 w11", output_kind=OutputKind.FINAL_ONLY)

    assert output.prompt == "w10 w11"
    assert output.prompt_token_ids == [10, 11]
    assert output.outputs[0].token_ids == reference_tokens([10, 11], 3)
    assert engine.calls[0]["prompt"] == {"prompt_token_ids": [10, 11]}
    assert engine.calls[0]["prompt_text"] == "w10 w11"


async def test_stop_string_is_cut_from_the_text(client: RpcClient):
    """As a local engine does it: ids whole, text up to the stop string."""
    tokens = reference_tokens(PROMPT, 3)
    stop = f"w{tokens[2]}"

    outputs = await collect(client, max_tokens=10, stop=[stop], output_kind=DELTA)

    last = outputs[-1].outputs[0]
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, stop)
    text = "".join(output.outputs[0].text for output in outputs)
    assert text.strip() == words(tokens[:2])
    assert [t for output in outputs for t in output.outputs[0].token_ids] == tokens


async def test_stop_token_has_no_text(client: RpcClient):
    """Unless the caller wants the stop in the output."""
    tokens = reference_tokens(PROMPT, 3)
    shown = [
        (await collect(client, stop_token_ids=[tokens[2]], include_stop_str_in_output=included))[-1]
        for included in (False, True)
    ]

    assert [output.outputs[0].stop_reason for output in shown] == [tokens[2]] * 2
    texts = [output.outputs[0].text.strip() for output in shown]
    assert texts == [words(tokens[:2]), words(tokens)]


async def test_logprobs_come_back(client: RpcClient):
    """Sampled token first, then the best; prompt positions with None for the first."""
    [output] = await collect(
        client, logprobs=2, prompt_logprobs=1, output_kind=OutputKind.FINAL_ONLY
    )

    answer = output.outputs[0]
    expected = position_logprobs(PROMPT, answer.token_ids[0], 2)
    assert list(answer.logprobs[0]) == list(expected)
    assert [entry.logprob for entry in answer.logprobs[0].values()] == [-50.0, -1.0, -2.0]
    assert [entry.rank for entry in answer.logprobs[0].values()] == [None, 1, 2]
    assert answer.logprobs[0][answer.token_ids[0]].decoded_token == f"w{answer.token_ids[0]}"
    assert answer.cumulative_logprob == -150.0
    assert output.prompt_logprobs[0] is None
    assert [next(iter(position)) for position in output.prompt_logprobs[1:]] == PROMPT[1:]


async def test_truncated_prompt_is_reported_as_it_ran(client: RpcClient):
    """The ids that the server kept."""
    [output] = await collect(client, truncate_prompt_tokens=2, output_kind=OutputKind.FINAL_ONLY)

    assert output.prompt_token_ids == PROMPT[2:]


async def test_parameters_travel_unchanged(client: RpcClient, engine: FakeEngine):
    """What the engine gets is what the caller gave."""
    params = SamplingParams(
        n=2,
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        presence_penalty=0.3,
        frequency_penalty=-0.2,
        repetition_penalty=1.1,
        seed=-7,
        stop=["w9 w9"],
        stop_token_ids=[400, 401],
        include_stop_str_in_output=True,
        ignore_eos=True,
        max_tokens=5,
        min_tokens=2,
        logprobs=3,
        prompt_logprobs=0,
        logit_bias={5: -1.5, 6: 0.1},
        truncate_prompt_tokens=100,
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        output_kind=DELTA,
    )

    async for _ in client.generate(PROMPT, params, "r1", data_parallel_rank=0):
        pass

    assert engine.calls[0]["params"] == params
    assert engine.calls[0]["data_parallel_rank"] == 0


async def test_closing_generate_aborts_on_the_server(client: RpcClient, engine: FakeEngine):
    """A caller that leaves in the middle leaves nothing running."""
    engine.hold()
    outputs = client.generate(PROMPT, SamplingParams(output_kind=DELTA), "left")
    async with aclosing(outputs):
        first = asyncio.ensure_future(anext(outputs))
        await engine.wait_for_open(1)
        await engine.allow(1)
        await first
        assert client.num_active_requests == 1

    await engine.wait_for_open(0)
    assert engine.dropped == ["left"]
    assert client.num_active_requests == 0


async def test_abort_gives_a_last_output(client: RpcClient, engine: FakeEngine):
    """As with a local engine."""
    engine.hold()
    task = asyncio.create_task(collect(client, output_kind=DELTA))
    await engine.wait_for_open(1)

    await client.abort("r1")

    outputs = await task
    assert outputs[-1].outputs[0].finish_reason is FinishReason.ABORT


async def test_errors_keep_their_kind(client: RpcClient, engine: FakeEngine):
    """BadRequest, Overloaded and a dead engine, with their texts."""
    bad = await failure(client, [VOCAB_SIZE])
    engine.refusal = overloaded()
    full = await failure(client)
    engine.refusal = None
    await engine.die()
    dead = await failure(client)

    assert isinstance(bad, BadRequest)
    assert "prompt_token_ids must be in the vocabulary" in str(bad)
    assert isinstance(full, Overloaded)
    assert dead.code is Code.UNAVAILABLE


async def test_duplicate_id_is_already_exists(client: RpcClient, engine: FakeEngine):
    """Both requests are from this client."""
    engine.hold()
    first = asyncio.create_task(collect(client))
    await engine.wait_for_open(1)

    assert isinstance(await failure(client), AlreadyExists)

    await engine.run_freely()
    assert (await first)[-1].is_finished


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("allowed_token_ids", {"allowed_token_ids": [5]}),
        ("skip_reading_prefix_cache", {"skip_reading_prefix_cache": True}),
        ("seed", {"seed": 2**31}),
        ("top_p", {"top_p": 0.0}),
        ("n", {"n": 0}),
        ("repetition_penalty", {"repetition_penalty": 0.0}),
    ],
)
async def test_what_the_wire_cannot_carry_is_refused(
    client: RpcClient, engine: FakeEngine, name: str, params: dict[str, Any]
):
    """By name, before anything is sent; also zeros, which the wire would read as unset."""
    error = await failure(client, **params)

    assert isinstance(error, BadRequest)
    assert error.parameter == name
    assert engine.calls == []


@pytest.mark.parametrize("name", ["regex", "größe", "x" * 1000])
@pytest.mark.parametrize("kind", [BadRequest, NotFound])
async def test_a_refusal_by_the_server_names_the_field(
    client: RpcClient, engine: FakeEngine, kind: type[WeftError], name: str
):
    """What only the server can judge is refused as it would be without a wire between."""
    engine.refusal = BadRequest(name, "why") if kind is BadRequest else NotFound("why", name)

    error = await failure(client)

    assert (type(error), str(error), error.parameter) == (kind, "why", name[:200])


@pytest.mark.parametrize("token_ids", [[], [-1], [2**32], [VOCAB_SIZE], [5] * 256])
@pytest.mark.parametrize("kept", [None, 256], ids=["whole", "truncated"])
async def test_bad_prompts_are_refused_on_either_side(
    client: RpcClient, token_ids: list[int], kept: int | None
):
    """Ids that do not even fit the wire are BadRequest too, whatever is to be cut."""
    error = await failure(client, token_ids, truncate_prompt_tokens=kept)

    assert isinstance(error, BadRequest)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (
            "load_inplace",
            {
                "lora_request": LoRARequest(
                    lora_name="l", lora_int_id=1, lora_path="", load_inplace=True
                )
            },
        ),
        ("priority", {"priority": 1}),
    ],
)
async def test_arguments_without_a_field_are_refused(
    client: RpcClient, name: str, arguments: dict[str, Any]
):
    """The protocol has no place for them."""
    with pytest.raises(BadRequest, match=f"{name} cannot be sent over gRPC"):
        await anext(client.generate(PROMPT, SamplingParams(), "r1", **arguments))


async def test_what_is_said_beside_the_messages_travels(client: RpcClient, engine: FakeEngine):
    """Where reasoning ends, in any script, and the trace: in metadata, which a server of ours follows."""
    engine.is_traced = True
    said = {
        "reasoning_ended": False,
        "reasoning_parser_kwargs": {"end": "◁/think▷"},
        "trace_headers": {"traceparent": "00-1-2-01"},
    }
    async for _ in client.generate(PROMPT, SamplingParams(max_tokens=1), "r1", **said):
        pass

    assert {name: engine.calls[0][name] for name in said} == said


async def test_a_prompt_in_pieces_is_refused(client: RpcClient):
    """A request is one message on this wire."""

    async def pieces():
        yield StreamingInput(PROMPT)

    with pytest.raises(BadRequest, match="a prompt in pieces cannot be sent over gRPC"):
        await anext(client.generate(pieces(), SamplingParams(), "r1"))


async def test_cache_salt_is_refused(client: RpcClient):
    """Dropping it would let one caller's blocks serve another."""
    error = await failure(client, {"prompt_token_ids": PROMPT, "cache_salt": "s"})

    assert "cache_salt cannot be sent over gRPC" in str(error)


async def test_config_is_learnt_from_the_server(client: RpcClient):
    """What can be known from outside."""
    expected = make_config().model_config

    assert client.model_config == expected
    assert client.info.block_size == 16
    assert client.info.max_num_seqs == 8
    assert client.renderer.encode("w3 w4") == [3, 4]
    assert await client.get_supported_tasks() == ("generate",)


async def test_state_is_the_server_s(client: RpcClient, engine: FakeEngine):
    """Loads, pause, cache and health are asked for each time."""
    engine.load = EngineLoad(num_running=2, max_running=8, gen_throughput=1.5)
    await engine.pause_generation()
    engine.num_resets_refused = 1

    assert await client.get_loads() == [engine.load]
    assert await client.is_paused()
    assert await client.is_sleeping()
    assert [await client.reset_prefix_cache() for _ in range(2)] == [False, True]
    await client.check_health()
    await engine.die()
    with pytest.raises(Unavailable, match="Engine is not alive"):
        await client.check_health()


async def test_events_are_followed(client: RpcClient, engine: FakeEngine):
    """Load records are left out; hashes are the eight bytes that travelled."""
    stored = BlockStored(
        block_hashes=[b"\xee" * 32],
        parent_block_hash=None,
        token_ids=[1, 2],
        block_size=2,
    )
    removed = BlockRemoved(block_hashes=[b"\xee" * 32])
    await engine.publish(
        KvEventBatch(sequence_number=0, timestamp=1.5, events=[stored, removed, AllBlocksCleared()])
    )

    async with aclosing(client.subscribe_kv_events(0)) as batches:
        batch = await anext(batches)
        upcoming = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0.12)  # two heartbeats
        await engine.publish(KvEventBatch(sequence_number=1, timestamp=2.5, events=[]))
        assert (await upcoming).sequence_number == 1

    assert batch.events[0].block_hashes == [b"\xee" * 8]
    assert batch.events[0].token_ids == [1, 2]
    assert batch.events[1].block_hashes == [b"\xee" * 8]
    assert batch.events[2] == AllBlocksCleared()
    with pytest.raises(BadRequest, match="start_sequence_number is needed"):
        await anext(client.subscribe_kv_events())


@pytest.mark.parametrize(
    "call",
    ["pause_generation", "resume_generation", "sleep", "wake_up", "do_log_stats"],
)
async def test_calls_that_the_protocol_lacks_are_unsupported(client: RpcClient, call: str):
    """By name."""
    with pytest.raises(Unsupported, match=call):
        await getattr(client, call)()


async def test_profiling_is_passed_on(client: RpcClient, engine: FakeEngine):
    """With the engine's own answer."""
    with pytest.raises(Unsupported, match="start_profile is not supported by this engine"):
        await client.start_profile()

    engine.has_profiler = True
    await client.start_profile(max_iterations=7)
    assert engine.profiles == [(None, None, 7)]
    for field in ({"profile_prefix": "x"}, {"delay_iterations": 1}):
        with pytest.raises(BadRequest, match="cannot be sent over gRPC"):
            await client.start_profile(**field)
    await client.stop_profile()


async def test_tokenizer_files_are_the_server_s(client: RpcClient):
    """By name and content."""
    assert await client.get_tokenizer_files() == TOKENIZER_FILES


async def test_closed_client_is_dead(client: RpcClient):
    """Closing leaves the server alone and ends the client."""
    await client.close()

    await client.wait_closed()
    assert (client.is_running, client.errored) == (False, True)
    assert isinstance(client.dead_error, EngineDead)
