"""A checkpoint's own head drafts: the same answers in fewer steps, through all that an engine goes through."""

import asyncio
from contextlib import aclosing, asynccontextmanager

import pytest

from tests.compute.mtp_heads import CASES, write_head
from tests.contract.engines import stop
from tests.model.gguf.files import write_gguf
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.core.values.types import OutputKind, SamplingParams
from weft.engine.clients.local_client import LocalClient
from weft.engine.settings.speculation import MTP_METHODS
from weft.engine.start.capacity import capacity_of
from weft.engine.start.fit import find_and_fit

MTP = {"method": "mtp", "num_speculative_tokens": 3}
PROMPTS = [list(range(first, first + 40)) for first in (60, 60, 90, 120)]
WISHES = [
    {"temperature": 0.0},
    {"temperature": 0.7, "n": 2, "logprobs": 1},
    {"temperature": 1.0, "top_p": 0.9, "repetition_penalty": 1.1},
    {"temperature": 0.0, "max_tokens": 3},
]


@pytest.fixture(
    scope="module", params=["deepseek_v3", "glm4_moe", "glm4_moe, in GGUF", "qwen3_5_text"]
)
def path(request, tmp_path_factory):
    """A checkpoint whose head guesses right, mostly."""
    directory = tmp_path_factory.mktemp("head")
    case, _, form = request.param.partition(", in ")
    path = write_head(*CASES[case], directory, is_right=True).path
    return str(write_gguf(directory / "m.gguf", directory)) if form else path


def fitted(path, **options):
    """A model that is found, with its head."""
    settings = {"max_model_len": 128, "num_gpu_blocks_override": 64, "dtype": "float32", **options}
    return find_and_fit(EngineOptions(model=path, **settings)).with_tokenizer()


@asynccontextmanager
async def engine(path, **options):
    """An engine of that checkpoint."""
    found = fitted(path, **options)
    client = await LocalClient.start(found.checkpoint, found.config)
    try:
        yield client
    finally:
        await stop(client)


async def ask(client, number):
    """What came: tokens and log-probabilities of each answer."""
    params = SamplingParams(
        **{"max_tokens": 24, "seed": number, "ignore_eos": True, **WISHES[number]},
        output_kind=OutputKind.FINAL_ONLY,
    )
    stream = client.generate({"prompt_token_ids": PROMPTS[number]}, params, f"r{number}")
    async with aclosing(stream) as outputs:
        [last] = [output async for output in outputs if output.is_finished]
    return [(one.token_ids, one.logprobs) for one in last.outputs]


async def ask_all(client):
    """All at once."""
    return await asyncio.gather(*(ask(client, number) for number in range(len(PROMPTS))))


async def counts(client):
    """Drafted and accepted tokens."""
    [load] = await client.get_loads()
    return load.num_draft_tokens, load.num_accepted_tokens


@pytest.mark.filterwarnings("ignore")
async def test_answers_are_those_without_drafts(path):
    """Alone, together, in chunks, preempted, and from the cache; and most drafts come true."""
    async with engine(path) as client:
        expected = [await ask(client, number) for number in range(len(PROMPTS))]
    async with engine(path, speculative_config=MTP) as client:
        assert await ask_all(client) == expected
        num_drafted, num_accepted = await counts(client)
        assert num_drafted / 2 < num_accepted
        assert await ask_all(client) == expected  # their prompts are cached, for the head too
        again_drafted, again_accepted = await counts(client)
        assert (again_drafted - num_drafted) / 2 < again_accepted - num_accepted
    few = {"num_gpu_blocks_override": 9, "max_num_batched_tokens": 24, "max_num_seqs": 4}
    async with engine(path, speculative_config=MTP, **few) as client:
        assert await ask_all(client) == expected
        assert (await client.get_loads())[0].num_preemptions > 0
        assert (await counts(client))[1] > 0


@pytest.mark.filterwarnings("ignore")
async def test_it_sleeps_and_wakes_with_the_model(path):
    """Its weights and pool go too, and come back."""
    async with engine(path, speculative_config=MTP) as client:
        expected = await ask(client, 1)
        before = await counts(client)
        await client.sleep(1)
        await client.wake_up()
        assert await ask(client, 1) == expected
        assert (await counts(client))[1] > before[1]


@pytest.mark.filterwarnings("ignore")
def test_its_memory_is_in_the_plan(path):
    """Its layer beside the model's; its K/V in the pool."""
    without, found = (capacity_of(fitted(path, speculative_config=c)) for c in (None, MTP))
    assert 0 < found.draft_weight_bytes < without.weight_bytes
    assert found.kv_bytes_per_token > without.kv_bytes_per_token


@pytest.mark.parametrize("method", MTP_METHODS)
def test_a_model_without_a_head_is_refused(method):
    """By the flag's name, however the method is spelled."""
    with pytest.raises(
        ConfigError, match=r"--speculative-config: embedded:tiny has no layers for multi-token"
    ):
        fitted("embedded:tiny", speculative_config={**MTP, "method": method})


@pytest.mark.parametrize("field", ["model", "revision", "quantization", "max_model_len"])
def test_what_belongs_to_other_models_is_refused(field):
    """The head is the model's own, and computed as it is."""
    value = 64 if field == "max_model_len" else "int8"
    with pytest.raises(ConfigError, match=f"{field} cannot be combined with method mtp"):
        fitted("embedded:tiny", speculative_config={**MTP, field: value})
