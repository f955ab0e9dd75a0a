"""vLLM's engine behind `VllmClient`: what `tests/contract` cannot say of every engine."""

import asyncio
from contextlib import aclosing

import pytest
from msgspec import structs

from tests.busy import PATIENCE_S, until
from tests.vllm.engines import FINAL, LONG, PROMPT, final
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import BadRequest, ConfigError, NotFound, Unsupported
from weft.core.values.kv_cache import BlockStored
from weft.core.values.types import (
    FinishReason,
    LoRARequest,
    RepetitionDetectionParams,
    RequestOptions,
    SamplingParams,
    StreamingInput,
    StructuredOutputsParams,
)
from weft.engine.clients.local_client import LocalClient
from weft.engine.constraints.text import to_grammar_text
from weft.engine.start.configure import resolve
from weft.model.open import open_model
from weft.vllm import engine

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]


async def test_scores_are_those_of_our_engine(client, checkpoint):
    """Of the same float32 checkpoint: the same tokens, and log-probabilities within 1e-3; the prompt's too."""
    found = open_model(str(checkpoint))
    options = EngineOptions(model=str(checkpoint), max_model_len=256, num_gpu_blocks_override=64)
    ours = await LocalClient.start(found, resolve(options, found.card, 1 << 30))
    params = SamplingParams(max_tokens=24, logprobs=5, prompt_logprobs=3, **FINAL)
    try:
        expected = await final(ours, params)
    finally:
        ours.shutdown()
        await ours.wait_closed()
    got = await final(client, params)
    assert got.outputs[0].token_ids == expected.outputs[0].token_ids
    assert got.outputs[0].text == expected.outputs[0].text
    assert got.prompt_logprobs[0] is expected.prompt_logprobs[0] is None
    pairs = [
        *zip(got.outputs[0].logprobs, expected.outputs[0].logprobs, strict=True),
        *zip(got.prompt_logprobs[1:], expected.prompt_logprobs[1:], strict=True),
    ]
    for mine, theirs in pairs:
        assert {i: (entry.rank, entry.decoded_token) for i, entry in mine.items()} == {
            i: (entry.rank, entry.decoded_token) for i, entry in theirs.items()
        }
        assert all(abs(mine[i].logprob - theirs[i].logprob) < 1e-3 for i in mine)


async def test_a_stop_string_ends_one_answer_and_not_the_others(client):
    """Which vLLM hears of as of one of its requests that is over."""
    params = SamplingParams(n=3, seed=3, max_tokens=40, ignore_eos=True, temperature=1.0)
    free = await final(client, params)
    first, *others = free.outputs
    stop = next(
        text
        for text in (first.text[i : i + 3] for i in range(5, len(first.text) - 3))
        if len(text) == 3 and not any(text in other.text for other in others)
    )
    cut = await final(
        client, SamplingParams(n=3, seed=3, max_tokens=40, ignore_eos=True, stop=stop)
    )
    assert cut.outputs[0].stop_reason == stop
    assert cut.outputs[0].text == first.text.partition(stop)[0]
    assert [answer.text for answer in cut.outputs[1:]] == [answer.text for answer in others]
    assert [answer.finish_reason for answer in cut.outputs] == [
        FinishReason.STOP, FinishReason.LENGTH, FinishReason.LENGTH,
    ]  # fmt: skip


async def test_greedy_answers_may_be_several(client):
    """All the same; vLLM alone refuses them."""
    output = await final(client, SamplingParams(n=2, max_tokens=6, **FINAL))
    assert len({tuple(answer.token_ids) for answer in output.outputs}) == 1


async def test_bad_words_do_not_come_and_repetition_ends(client):
    """Of two letters, the other is left; nor does what was said over and over, for long."""
    letters = SamplingParams(max_tokens=8, allowed_token_ids=list(b"ab"), **FINAL)
    first = (await final(client, letters)).outputs[0].text[0]
    spared = await final(client, structs.replace(letters, bad_words=[first]))
    assert set(spared.outputs[0].text) == {"a", "b"} - {first}
    watch = RepetitionDetectionParams(max_pattern_size=4, min_count=3)
    stuck = SamplingParams(
        max_tokens=50, allowed_token_ids=[5], repetition_detection=watch, **FINAL
    )
    answer = (await final(client, stuck)).outputs[0]
    assert (len(answer.token_ids), answer.finish_reason) == (3, FinishReason.REPETITION)


async def test_json_has_no_white_space(client):
    """As from our engine."""
    schema = {
        "type": "object", "properties": {"a": {"enum": ["x"]}, "b": {"enum": [1]}},
        "required": ["a", "b"], "additionalProperties": False,
    }  # fmt: skip
    params = SamplingParams(max_tokens=60, structured_outputs=StructuredOutputsParams(json=schema))
    assert (await final(client, params)).outputs[0].text == '{"a":"x","b":1}'


async def test_changes_of_the_prefix_cache_are_seen(client):
    """The blocks of a prompt, with its tokens and salt, numbered from 0 on."""
    prompt = {"prompt_token_ids": list(range(1, 200)), "cache_salt": "pepper"}
    stored = []
    async with asyncio.timeout(PATIENCE_S), aclosing(client.subscribe_kv_events(None)) as batches:
        running = asyncio.create_task(final(client, SamplingParams(max_tokens=2, **FINAL), prompt))
        async for batch in batches:
            stored += [event for event in batch.events if isinstance(event, BlockStored)]
            if stored:
                break
        await running
    size = stored[0].block_size
    assert size == client.info.block_size
    assert stored[0].token_ids[:size] == prompt["prompt_token_ids"][:size]
    assert (stored[0].cache_salt, stored[0].parent_block_hash) == ("pepper", None)
    assert len(stored[0].block_hashes[0]) == 32


async def test_a_cached_prefix_is_counted(client):
    """In the output, as vLLM found it."""
    prompt = {"prompt_token_ids": list(range(50, 350))}
    params = SamplingParams(max_tokens=2, **FINAL)
    assert (await final(client, params, prompt)).num_cached_tokens == 0
    assert (await final(client, params, prompt)).num_cached_tokens > 100


async def test_the_load_is_of_what_runs(client):
    """While it does."""
    async with aclosing(client.generate(PROMPT, LONG, "busy")) as outputs:
        await anext(outputs)
        (load,) = await client.get_loads()
        assert (load.num_running, client.num_active_requests) == (1, 1)
        assert load.num_held_blocks > 0
    await until(lambda: client.num_active_requests == 0)
    await client.check_health()


async def test_what_vllm_would_not_do_is_refused_by_name(client):
    """An adapter that no operator loaded, a prompt in pieces, reasoning that it cannot see the end of."""
    adapter = LoRARequest(lora_name="sql", lora_int_id=1, lora_path="/adapters/sql")
    with pytest.raises(NotFound, match="sql"):
        await final(client, SamplingParams(), lora_request=adapter)
    with pytest.raises(BadRequest, match="--enable-lora"):
        await client.add_lora(adapter)

    async def pieces():
        yield StreamingInput(PROMPT)

    with pytest.raises(Unsupported, match="pieces"):
        await anext(client.generate(pieces(), SamplingParams(), "p"))
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="[a-c]{3}"))
    with pytest.raises(BadRequest, match="--reasoning-parser"):
        await final(client, params, reasoning_parser_kwargs={"end": "zz"})
    with pytest.raises(Unsupported, match="scale_elastic_ep"):
        await client.scale_elastic_ep(2)


async def test_a_constraint_that_vllm_refuses_names_its_field(client):
    """And nothing is left behind."""
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="(a"))
    request = await client.prepare(PROMPT, params, RequestOptions(request_id="bad"))
    with pytest.raises(BadRequest) as caught:
        await anext(client.run(request))
    assert caught.value.parameter == "regex"
    hopeless = SamplingParams(structured_outputs=StructuredOutputsParams(json={"$ref": "#"}))
    with pytest.raises(BadRequest, match="json"):
        await final(client, hopeless)
    assert client.num_active_requests == 0


async def test_sleep_and_wake(client):
    """As vLLM has it; on a CPU it frees nothing, and says that it sleeps."""
    await client.sleep(0)
    assert await client.is_sleeping()
    assert await client.wake_up()
    assert (await final(client, SamplingParams(max_tokens=3, **FINAL))).is_finished


async def test_calls_of_workers_answer(client):
    """By name; what is private is not called."""
    assert await client.collective_rpc("check_health") == [None]
    for name in ("__class__", "no_such_method"):
        with pytest.raises(BadRequest, match="method"):
            await client.collective_rpc(name)


async def test_words_are_read_as_vllm_reads_them():
    """Only those that are given; what it does not know is refused."""
    words = ["--tensor-parallel-size", "2", "--max-model-len=1k", "--no-enable-prefix-caching"]
    words += ["--structured-outputs-config.backend", "guidance"]
    assert engine.read_words(words) == {
        "structured_outputs_config": {"backend": "guidance"},
        "tensor_parallel_size": 2,
        "max_model_len": 1000,
        "enable_prefix_caching": False,
    }
    with pytest.raises(ConfigError, match="tensor"):
        engine.read_words(["--tensor-parallel-size", "many"])


async def test_another_release_is_refused(monkeypatch):
    """By its number."""
    monkeypatch.setattr(engine.import_vllm(), "__version__", "0.33.0")
    with pytest.raises(ConfigError, match=r"0\.32.*0\.33\.0"):
        engine.import_vllm()


async def test_an_unknown_argument_is_refused():
    """Before anything is loaded."""
    with pytest.raises(ConfigError, match="no_such_argument"):
        engine.start({"model": "m", "no_such_argument": 1}, lambda *_: None)


async def test_an_older_llguidance_refuses_a_pattern_of_white_space():
    """The one that vLLM wants passes over it without a word."""
    with pytest.raises(ValueError, match=r"whitespace_pattern needs llguidance 1\.9"):
        to_grammar_text("json", {}, " ?")
