"""The same request gives the same tokens whatever else runs beside it, bit for bit."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from tests.compute.runners import load_runner
from tests.contract.engines import GIB, stop
from tests.model.checkpoints import write_checkpoint
from tests.model.test_delta import QWEN35
from weft.core.config.engine_options import EngineOptions
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.types import OutputKind, RequestOutput, SamplingParams
from weft.engine.clients.local_client import LocalClient
from weft.engine.scheduling.draft_payoff import DraftPayoff
from weft.engine.start.configure import resolve
from weft.model.open import open_model
from weft.text.tokenizer import Tokenizer

RANDOM = (
    "embedded:random?layers=2&hidden=64&heads=4&kv_heads=2&head_dim=16&intermediate=128&vocab=512"
)
TINY = "embedded:tiny"
FROM_FILES = "written by the fixture"
MODELS = {
    f"{name}-{compute}": (model, compute)
    for name, model in (("random", RANDOM), ("tiny", TINY))
    for compute in ("reference", "native")
    if (name, compute) != ("tiny", "reference")  # of the same kind as the other, and takes its time
} | {
    "int4-native": (RANDOM, "int4"),
    "experts-native": (f"{RANDOM}&experts=7&experts_per_token=3&shared=70", "native"),
    "hybrid-reference": (f"{RANDOM}&conv=3", "reference"),
    "hybrid-native": (f"{RANDOM.replace('layers=2', 'layers=3')}&conv=4", "native"),
    "delta-reference": (f"{RANDOM.replace('layers=2', 'layers=3')}&delta=4", "reference"),
    "delta-native": (f"{RANDOM.replace('layers=2', 'layers=3')}&delta=4", "native"),
    "qwen3.5-native": (FROM_FILES, "native"),
    "mamba-reference": (f"{RANDOM.replace('layers=2', 'layers=3')}&mamba=8", "reference"),
    "mamba-native": (f"{RANDOM.replace('layers=2', 'layers=3')}&mamba=8", "native"),
    "deepseek-native": (
        f"{RANDOM.replace('&kv_heads=2', '')}&experts=7&latent=32&latent_queries=20",
        "native",
    ),
    "gpt-oss-native": (f"{RANDOM}&experts=7&experts_per_token=3&sinks=true", "native"),
}
SLOW = {"hybrid-reference", "delta-reference", "mamba-reference"}
FLAGS = {"int4": {"compute": "native", "quantization": "int4"}}  # of a runner that more is said of
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
MAX_MODEL_LEN = 128
NUM_REQUESTS = 64

Request = tuple[list[int], SamplingParams]
Answer = list[list[int]]  # token ids of each of the n


def make_requests(seed: int = 2) -> list[Request]:
    """Greedy and seeded, short and long, n from 1 to 3, half of them with a beginning in common."""
    draw = random.Random(seed)
    common = [draw.randrange(3, 256) for _ in range(40)]
    requests = []
    for number in range(NUM_REQUESTS):
        prompt = [draw.randrange(3, 256) for _ in range(draw.choice((1, 5, 17, 33, 70)))]
        if number % 2:
            prompt = common[: draw.choice((16, 35, 40))] + prompt[:40]
        is_greedy = number % 3 == 0
        params = SamplingParams(
            n=1 if is_greedy else draw.choice((1, 1, 1, 2, 3)),
            temperature=0.0 if is_greedy else draw.choice((0.5, 1.0, 1.5)),
            top_p=draw.choice((1.0, 0.9)),
            top_k=draw.choice((0, 30)),
            repetition_penalty=draw.choice((1.0, 1.0, 1.2)),
            seed=None if is_greedy else draw.randrange(2**31),
            max_tokens=draw.choice((1, 4, 9, 14, 28)),
            ignore_eos=True,
            detokenize=False,
            output_kind=OutputKind.DELTA,
        )
        requests.append((prompt, params))
    return requests


REQUESTS = make_requests()
OF_TWO_TOKENS = [
    (prompt, msgspec.structs.replace(params, allowed_token_ids=[7, 8]))
    for prompt, params in REQUESTS[:24]
]


class Bench:
    """A small engine, and what it has been seen doing."""

    def __init__(self, client: LocalClient) -> None:
        self._client = client
        self._ids = itertools.count()
        self.num_cached_tokens = 0
        self.num_aborted = 0

    async def ask(self, request: Request, on_output: Callable[[], None] | None = None) -> Answer:
        """Run one request to its end."""
        prompt, params = request
        answer: Answer = [[] for _ in range(params.n)]
        outputs = self._client.generate({"prompt_token_ids": prompt}, params, f"r{next(self._ids)}")
        async with aclosing(outputs):
            async for output in outputs:
                _extend(answer, output)
                if on_output is not None:
                    on_output()
        self.num_cached_tokens += output.num_cached_tokens
        return answer

    async def ask_all(
        self, requests: Iterable[Request], on_output: Callable[[], None] | None = None
    ) -> list[Answer]:
        """All at once."""
        return await asyncio.gather(*(self.ask(request, on_output) for request in requests))

    async def load(self) -> EngineLoad:
        """What the engine says of itself."""
        return (await self._client.get_loads())[0]


def _extend(answer: Answer, output: RequestOutput) -> None:
    for part in output.outputs:
        answer[part.index] += part.token_ids


@asynccontextmanager
async def bench(model: str, compute: str = "auto", **options: Any) -> AsyncIterator[Bench]:
    """An engine with these options; at its end it must hold nothing."""
    defaults = {"max_model_len": MAX_MODEL_LEN, "num_gpu_blocks_override": 1024}
    checkpoint = open_model(model)
    flags = FLAGS.get(compute, {"compute": compute})
    given = EngineOptions(model=model, **flags, **{**defaults, **options})
    config = resolve(given, checkpoint.card, GIB)
    client = await LocalClient.start_with(
        load_runner(checkpoint, max_model_len=MAX_MODEL_LEN, **flags),
        Tokenizer.from_files(checkpoint.tokenizer_files),
        config,
    )
    try:
        yield (opened := Bench(client))
        load = await opened.load()
        assert (load.num_running, load.num_waiting, load.num_held_blocks) == (0, 0, 0)
    finally:
        await stop(client)


@dataclass(frozen=True, slots=True)
class Model:
    """A model on a runner, and its answers to each request alone: one at a time, without a cache."""

    name: str
    compute: str
    reference: list[Answer]

    def bench(self, **options: Any) -> AbstractAsyncContextManager[Bench]:
        """An engine of this model, on this runner."""
        return bench(self.name, self.compute, **options)

    def check(self, answers: list[Answer]) -> None:
        """Every token of every answer is the reference's, and there are as many as were asked for."""
        assert [len(ids) for answer in answers for ids in answer] == [
            params.max_tokens for _, params in REQUESTS for _ in range(params.n)
        ]
        assert answers == self.reference


async def ask_one_by_one(name: str, compute: str) -> list[Answer]:
    """The reference."""
    async with bench(name, compute, enable_prefix_caching=False) as engine:
        answers = [await engine.ask(request) for request in REQUESTS]
        assert engine.num_cached_tokens == 0
        return answers


@pytest.fixture(
    scope="module",
    params=[
        # The reference takes its time.
        pytest.param(model, id=name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name, model in MODELS.items()
    ],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Each model on each runner."""
    name, compute = request.param
    if name == FROM_FILES:
        name = str(write_checkpoint(tmp_path_factory.mktemp("qwen3.5"), QWEN35))
    return Model(name, compute, asyncio.run(ask_one_by_one(name, compute)))


def test_the_requests_are_worth_comparing():
    """Different answers of different lengths, some of several parts."""
    assert len(REQUESTS) == NUM_REQUESTS
    assert sum(params.n > 1 for _, params in REQUESTS) >= 10
    assert sum(params.is_greedy for _, params in REQUESTS) >= 20


async def test_reference_answers_differ_from_each_other(model: Model):
    """A model that says one thing to everybody would pass all of these tests."""
    texts = {tuple(ids) for answer in model.reference for ids in answer if len(ids) > 1}
    assert len(texts) > 40


async def test_all_together(model: Model):
    """One batch of everything."""
    async with model.bench(enable_prefix_caching=False, max_num_seqs=128) as engine:
        model.check(await engine.ask_all(REQUESTS))
        load = await engine.load()
        assert load.num_steps < sum(params.max_tokens or 0 for _, params in REQUESTS) / 4


async def test_in_chunks_of_sixteen(model: Model):
    """A budget of 16 tokens a step cuts most prompts in pieces."""
    async with model.bench(
        enable_prefix_caching=False, max_num_batched_tokens=16, max_num_seqs=16
    ) as engine:
        model.check(await engine.ask_all(REQUESTS))


async def test_in_steps_sized_by_time(model: Model):
    """Beside streams prompts have as much time as these: where they are cut is the machine's affair."""
    async with model.bench(
        enable_prefix_caching=False, target_itl_ms=0.001, max_num_seqs=16
    ) as engine:
        model.check(await engine.ask_all(REQUESTS))


async def test_with_a_pool_so_small_that_it_preempts(model: Model):
    """Sequences give way, and compute again what they had."""
    async with model.bench(num_gpu_blocks_override=10, max_num_batched_tokens=64) as engine:
        model.check(await engine.ask_all(REQUESTS))
        assert (await engine.load()).num_preemptions > 0


async def test_with_a_warm_cache(model: Model):
    """The second time most of each prompt is taken from the cache."""
    async with model.bench() as engine:
        model.check(await engine.ask_all(REQUESTS))
        num_cached_before = engine.num_cached_tokens
        again = await engine.ask_all(reversed(REQUESTS))
        model.check(again[::-1])
        num_prompt_tokens = sum(len(prompt) for prompt, _ in REQUESTS)
        assert engine.num_cached_tokens - num_cached_before > num_prompt_tokens / 2


async def test_with_a_second_tier(model: Model):
    """What a pool of 30 blocks had to give away comes back from there, states too."""
    async with model.bench(num_gpu_blocks_override=30, kv_offloading_size=0.05) as engine:
        model.check(await engine.ask_all(REQUESTS))
        num_cached_before = engine.num_cached_tokens
        again = await engine.ask_all(reversed(REQUESTS))
        model.check(again[::-1])
        num_prompt_tokens = sum(len(prompt) for prompt, _ in REQUESTS)
        assert engine.num_cached_tokens - num_cached_before > num_prompt_tokens / 2


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_seqs": 128},
        {"max_num_batched_tokens": 40, "max_num_seqs": 16},
        {"num_gpu_blocks_override": 10, "max_num_batched_tokens": 64},
    ],
    ids=["together", "chunks", "preempted"],
)
async def test_with_drafts(model: Model, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    """Most guesses are wrong; of answers of two tokens some are right, and their prompts come from the cache.

    Whether drafts gain time here is left out: they are tried whenever there is room.
    """
    monkeypatch.setattr(DraftPayoff, "wants", lambda *_: True)
    async with model.bench() as engine:
        expected = await engine.ask_all(OF_TWO_TOKENS)
    async with model.bench(speculative_config=DRAFTS, **options) as engine:
        model.check(await engine.ask_all(REQUESTS))
        assert await engine.ask_all(OF_TWO_TOKENS) == expected
        load = await engine.load()
        assert 0 < load.num_accepted_tokens < load.num_draft_tokens


async def test_while_others_are_aborted_at_random(model: Model):
    """About one abort a step, of requests that share blocks, batches and prompts with ours."""
    draw = random.Random(5)
    others: list[asyncio.Task[Answer]] = []

    async with model.bench(num_gpu_blocks_override=40, max_num_batched_tokens=64) as engine:

        def disturb() -> None:
            """Called on every output of ours: one comes, and of those that are there one goes."""
            prompt, params = draw.choice(REQUESTS)
            others.append(asyncio.create_task(engine.ask((prompt, params))))
            if len(others) > 6:
                task = others.pop(draw.randrange(len(others)))
                engine.num_aborted += not task.done()
                task.cancel()

        model.check(await engine.ask_all(REQUESTS, on_output=disturb))
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        assert engine.num_aborted >= (await engine.load()).num_steps / 2
