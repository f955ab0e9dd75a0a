"""What every `EngineClient` promises of a model that pools."""

import asyncio
import math
from contextlib import aclosing

import pytest
import pytest_asyncio

from tests.busy import until
from tests.contract.engines import ENGINES, shared
from weft.core.errors import BadRequest, ContextLengthExceeded, Overloaded, Unsupported
from weft.core.values.types import LoRARequest, PoolingParams, SamplingParams

PROMPT = {"prompt_token_ids": list(range(100, 140))}
ADAPTER = LoRARequest(lora_name="a", lora_int_id=1, lora_path="a")
EMBED = PoolingParams(task="embed")


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines():
    """Of a model that pools."""
    async with shared(runner="pooling") as lent:
        yield lent


@pytest_asyncio.fixture(loop_scope="module", params=["local", "process", "rpc", "fleet"])
async def engine(request, engines):
    """Each client in turn."""
    async with engines(request.param) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module", params=["local", "process"])
async def in_process(request, engines):
    """The clients without a wire that has one task only."""
    async with engines(request.param) as client:
        yield client


async def encode(engine, params=EMBED, request_id="r", prompt=PROMPT, **options):
    """All outputs of one request."""
    async with aclosing(engine.encode(prompt, params, request_id, **options)) as outputs:
        return [output async for output in outputs]


async def test_one_output_holds_the_embedding(engine):
    """One vector of length 1, of the prompt as it was given."""
    (output,) = await encode(engine)
    assert output.is_finished
    assert (output.request_id, output.shape, len(output.data)) == ("r", (32,), 32)
    assert output.prompt_token_ids == PROMPT["prompt_token_ids"]
    assert math.isclose(sum(x * x for x in output.data), 1.0, rel_tol=1e-5)


async def test_the_same_prompt_gives_the_same_bits(engine):
    """Alone, beside others, and with a warm cache."""
    alone = (await encode(engine))[0].data
    beside = await asyncio.gather(
        *(encode(engine, request_id=f"r{i}") for i in range(4)),
        encode(engine, request_id="other", prompt=list(range(200, 217))),
    )
    assert [outputs[0].data for outputs in beside[:4]] == [alone] * 4


async def test_text_is_tokenised_for_the_caller(engine):
    """A text's embedding is that of its tokens."""
    (of_text,) = await encode(engine, prompt="hello there")
    (of_ids,) = await encode(engine, prompt=of_text.prompt_token_ids)
    assert of_text.data == of_ids.data


async def test_its_tasks_are_told(engine):
    """And generating is none of them."""
    assert "embed" in await engine.get_supported_tasks()
    assert "generate" not in await engine.get_supported_tasks()
    with pytest.raises(Unsupported, match="generate"):
        await anext(engine.generate(PROMPT, SamplingParams(), "g"))


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (PoolingParams(task="classify"), "task"),
        (PoolingParams(task="score"), "task"),
        (PoolingParams(task="embed", dimensions=8), "dimensions"),
        (PoolingParams(task="embed", use_activation=True), "use_activation"),
        (PoolingParams(task="embed", normalize=3), "normalize"),
        (PoolingParams(task="embed", truncate_prompt_tokens=0), "truncate_prompt_tokens"),
        (PoolingParams(task="embed", output_kind="delta"), "output_kind"),
    ],
)
async def test_bad_parameters_are_refused_by_name(engine, params, field):
    """A `BadRequest` with the field, and the engine goes on."""
    with pytest.raises(BadRequest) as caught:
        await encode(engine, params)
    assert caught.value.parameter == field
    assert await encode(engine)


async def test_a_prompt_may_fill_the_context_and_no_more(engine):
    """Nothing has to fit behind it."""
    most = engine.model_config.max_model_len
    (output,) = await encode(engine, prompt=[7] * most)
    assert len(output.prompt_token_ids) == most
    with pytest.raises(ContextLengthExceeded):
        await encode(engine, prompt=[7] * (most + 1))
    with pytest.raises(BadRequest):
        await encode(engine, prompt=[])


async def test_every_token_has_its_own(in_process):
    """token_embed is the default task, and never reads the prefix cache."""
    for _ in range(2):
        (output,) = await encode(in_process, PoolingParams())
        assert (output.shape, len(output.data)) == ((40, 32), 40 * 32)
        assert output.num_cached_tokens == 0


async def test_the_last_token_may_follow_a_cached_prefix(in_process):
    """The same bits, with most of the prompt taken from the cache."""
    await in_process.reset_prefix_cache()
    (first,) = await encode(in_process)
    (second,) = await encode(in_process)
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 32)
    assert first.data == second.data
    (third,) = await encode(in_process, PoolingParams(task="embed", skip_reading_prefix_cache=True))
    assert (third.num_cached_tokens, third.data) == (0, first.data)


async def test_truncation_keeps_the_asked_number_of_tokens(in_process):
    """The end goes first, unless the caller says otherwise."""
    params = PoolingParams(task="embed", truncate_prompt_tokens=5)
    (right,) = await encode(in_process, params)
    (left,) = await encode(in_process, params, tokenization_kwargs={"truncation_side": "left"})
    assert right.prompt_token_ids == PROMPT["prompt_token_ids"][:5]
    assert left.prompt_token_ids == PROMPT["prompt_token_ids"][-5:]


async def test_an_aborted_request_ends_without_numbers(in_process):
    """Queued in a paused engine, it can be ended; the reader gets an empty result."""
    await in_process.pause_generation()
    task = asyncio.create_task(encode(in_process, request_id="queued"))
    await until(lambda: in_process.num_active_requests == 1)
    assert not task.done()
    await in_process.abort("queued")
    (output,) = await task
    assert (output.data, output.shape) == ([], (0,))
    await in_process.resume_generation()


async def test_the_queue_is_bounded():
    """One too many is refused, and those inside are answered."""
    async with ENGINES["local"](runner="pooling", max_num_queued_reqs=2) as engine:
        results = await asyncio.gather(
            *(encode(engine, request_id=str(i)) for i in range(5)), return_exceptions=True
        )
    assert [type(r) for r in results].count(Overloaded) == 3
    assert [type(r) for r in results].count(list) == 2


@pytest.mark.parametrize("given", [{"lora_request": ADAPTER}, {"reasoning_ended": False}], ids=list)
async def test_what_cannot_matter_to_an_embedding_is_refused(engine, given):
    """By name, and not dropped; over a wire too."""
    [name] = given
    with pytest.raises((BadRequest, Unsupported), match=name):
        await encode(engine, **given)
