"""A checkpoint that drafts for another: found, checked, and beside it through all that an engine goes through."""

import asyncio
import json
import os
import shutil
from contextlib import aclosing, asynccontextmanager
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest

from tests.contract.engines import MODEL, stop
from tests.model.adapters import write_adapter
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.core.values.types import LoRARequest, OutputKind, SamplingParams
from weft.engine.clients.data_parallel import DataParallelClient
from weft.engine.clients.local_client import LocalClient
from weft.engine.clients.process_client import ProcessClient
from weft.engine.settings.speculation import read_speculation
from weft.engine.start.capacity import capacity_of
from weft.engine.start.fit import find_and_fit
from weft.model.open import open_model

TINY = Path(str(files("weft.model.embedded"))) / "tiny"
ITSELF = {"model": MODEL, "num_speculative_tokens": 4}
PROMPT = {"prompt_token_ids": list(range(100, 140))}
SAMPLED = SamplingParams(
    temperature=0.8,
    max_tokens=24,
    seed=5,
    n=2,
    logprobs=2,
    ignore_eos=True,
    output_kind=OutputKind.FINAL_ONLY,
)


def fitted(model=MODEL, **options):
    """A model that is found, with its draft."""
    settings = {"max_model_len": 256, "num_gpu_blocks_override": 64, **options}
    return find_and_fit(EngineOptions(model=model, **settings)).with_tokenizer()


@asynccontextmanager
async def engine(client_class=LocalClient, **options):
    """An engine that drafts with the very model that it serves."""
    found = fitted(**{"speculative_config": ITSELF, **options})
    client = await client_class.start(found.checkpoint, found.config)
    try:
        yield client
    finally:
        await stop(client)


async def answer(client, params=SAMPLED, prompt=PROMPT, request_id="r", **options):
    """What came: tokens and log-probabilities of each answer."""
    stream = client.generate(prompt, params, request_id, **options)
    async with aclosing(stream) as outputs:
        [last] = [output async for output in outputs if output.is_finished]
    return [(one.token_ids, one.logprobs) for one in last.outputs]


async def num_accepted(client):
    """Of all engines."""
    return sum(load.num_accepted_tokens for load in await client.get_loads())


@pytest.fixture(scope="module")
def plain():
    """The answer without drafts."""

    async def ask():
        async with engine(speculative_config=None) as client:
            return await answer(client)

    return asyncio.run(ask())


@pytest.mark.parametrize("wish", [{"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.9, "n": 3}])
async def test_a_rounded_copy_drafts_for_a_trained_model(wish):
    """Eight bits of the same weights: most drafts come true, greedy or sampled, and every bit is the same."""
    params = SamplingParams(
        **{"max_tokens": 48, "seed": 3, "logprobs": 1, "ignore_eos": True, **wish},
        output_kind=OutputKind.FINAL_ONLY,
    )
    copy = {"model": "embedded:tiny", "num_speculative_tokens": 3, "quantization": "int8"}
    got = []
    for config in (None, copy):
        async with engine(model="embedded:tiny", speculative_config=config) as client:
            got.append(await answer(client, params, "Tell me about the sea."))
            [load] = await client.get_loads()
    assert got[0] == got[1]
    assert load.num_accepted_tokens > load.num_draft_tokens / 2


@pytest.mark.parametrize("level", [1, 2])
async def test_it_sleeps_and_wakes_with_the_model(plain, level):
    """Its weights and pool go too, and come back."""
    async with engine() as client:
        assert await answer(client) == plain
        before = await num_accepted(client)
        await client.sleep(level)
        await client.wake_up()
        assert await answer(client) == plain
        assert await num_accepted(client) > before


async def test_preempted_requests_draft_on(plain):
    """A reset takes their blocks, the draft's too."""
    async with engine() as client:
        params = msgspec.structs.replace(SAMPLED, output_kind=OutputKind.CUMULATIVE)
        async with aclosing(client.generate(PROMPT, params, "r")) as outputs:
            last = await anext(outputs)
            await client.reset_prefix_cache(reset_running_requests=True)
            async for output in outputs:
                last = output
        assert [(one.token_ids, one.logprobs) for one in last.outputs] == plain


async def test_an_adapter_changes_the_model_and_not_the_draft(tmp_path):
    """Drafts come from the base model; what comes true is the adapter's to say."""
    path = write_adapter(tmp_path / "a", open_model(MODEL).spec, seed=1)
    lora = LoRARequest(lora_name="a", lora_int_id=1, lora_path=str(path))
    got = []
    for config in (None, ITSELF):
        async with engine(enable_lora=True, speculative_config=config) as client:
            got.append(await answer(client, lora_request=lora))
    assert got[0] == got[1]


@pytest.mark.slow
async def test_several_engines_have_its_weights_once(plain):
    """And each a pool of its own."""
    options = {"data_parallel_size": 2, "num_threads": 2}
    async with engine(DataParallelClient, **options) as client:
        both = await asyncio.gather(*(answer(client, request_id=f"r{i}") for i in range(2)))
        assert both == [plain, plain]
        assert all(load.num_accepted_tokens for load in await client.get_loads())
    one, two = (capacity_of(fitted(speculative_config=ITSELF, **wish)) for wish in ({}, options))
    assert (one.draft_weight_bytes, two.num_copies) == (two.draft_weight_bytes, 1)


def test_its_memory_is_in_the_plan():
    """Its weights beside the model's; its K/V in the pool, whose blocks hold as much more."""
    without, found = (capacity_of(fitted(speculative_config=c)) for c in (None, ITSELF))
    assert (without.draft_weight_bytes, found.draft_weight_bytes) == (0, without.weight_bytes)
    assert found.kv_bytes_per_token == 2 * without.kv_bytes_per_token
    assert found.pool_bytes == 2 * without.pool_bytes
    assert found.total_bytes - without.total_bytes == without.weight_bytes + without.pool_bytes


def copied(directory: Path) -> Path:
    """The embedded model's files, to be damaged."""
    shutil.copytree(TINY, directory)
    return directory


def refusal(draft, **fields) -> str:
    """Why the embedded model is not served with that draft."""
    config = {"model": str(draft), "num_speculative_tokens": 2, **fields}
    with pytest.raises(ConfigError) as caught:
        fitted("embedded:tiny", speculative_config=config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_another_vocabulary_is_refused_by_the_first_token_that_differs(tmp_path):
    """The same number of tokens is not enough."""
    path = copied(tmp_path / "draft")
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = (next(t for t, i in vocabulary.items() if i == at) for at in (10, 11))
    vocabulary[first], vocabulary[second] = 11, 10
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    words = refusal(path)
    assert words.startswith(f"--speculative-config: model {path} must have the same vocabulary")
    assert "token 10 is" in words


def test_the_same_tokens_written_in_another_way_are_the_same(tmp_path):
    """Files of one family differ in white space and settings."""
    path = copied(tmp_path / "draft")
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    (path / "tokenizer.json").write_text(json.dumps(tokenizer, indent=1))
    config = {"model": str(path), "num_speculative_tokens": 2}
    assert fitted("embedded:tiny", speculative_config=config).draft is not None


def _cut_weights(path: Path) -> None:
    os.truncate(path / "model.safetensors", 100_000)


def _cut_config(path: Path) -> None:
    (path / "config.json").write_text('{"model_type": ')


def _forget_weights(path: Path) -> None:
    (path / "model.safetensors").unlink()


@pytest.mark.parametrize("damage", [_cut_weights, _cut_config, _forget_weights])
def test_a_damaged_draft_is_one_sentence(tmp_path, damage):
    """With the flag, and the file."""
    path = copied(tmp_path / "draft")
    damage(path)
    words = refusal(path)
    assert words.startswith(f"--speculative-config: {path}")


@pytest.mark.slow
async def test_a_draft_of_no_numbers_stops_the_start(tmp_path):
    """They are seen while they are read, in the engine's process."""
    path = copied(tmp_path / "draft")
    with (path / "model.safetensors").open("r+b") as file:
        file.seek(-4096, os.SEEK_END)
        file.write(b"\xff" * 4096)
    found = fitted(
        "embedded:tiny", speculative_config={"model": str(path), "num_speculative_tokens": 2}
    )
    with pytest.raises(ConfigError, match=r"--speculative-config: .*NaN"):
        await ProcessClient.start(found.checkpoint, found.config)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "embedded:nothing"}, "embedded:nothing: unknown"),
        ({"model": "embedded:echo"}, "has no weights"),
        ({"draft_load_config": {}}, "draft_load_config"),
        ({"method": "eagle3"}, 'method must be "ngram", "draft_model" or "mtp", not \'eagle3\''),
        ({"method": "ngram"}, "model cannot be combined with method ngram"),
        ({"prompt_lookup_max": 3}, "prompt_lookup_max cannot be combined with method draft_model"),
        ({"draft_tensor_parallel_size": 2}, "draft_tensor_parallel_size must be 1"),
        ({"quantization": "int3"}, '"int3" is unknown'),
        ({"max_model_len": 1}, "max_model_len of embedded:tiny must be between 2 and 2048"),
        ({"revision": "main"}, "revision"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(fields, words):
    """With the flag's name and what is allowed."""
    assert words in refusal(
        **{"draft": "embedded:tiny", **fields}
        if "model" not in fields
        else fields | {"draft": fields["model"]}
    )


def test_a_model_that_pools_drafts_nothing():
    """It generates no text."""
    with pytest.raises(ConfigError, match=r"--speculative-config: .* generates no text"):
        fitted(runner="pooling", speculative_config={"num_speculative_tokens": 2})


def test_a_draft_method_needs_its_model():
    """vLLM's name of the method may be left out; the model not."""
    with pytest.raises(ConfigError, match="model is missing"):
        read_speculation({"method": "draft_model", "num_speculative_tokens": 2})
