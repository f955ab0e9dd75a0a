"""What the front tells the metrics: of an engine that the test plays by hand, and of a real one."""

import asyncio
from contextlib import aclosing

import pytest

from tests.busy import PATIENCE_S
from tests.contract.engines import GIB, MODEL, stop
from tests.engine.test_front import HandClient, begin
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import BadRequest, EngineDead, GenerationError, Overloaded
from weft.core.observe.metrics import Metrics
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.types import FinishReason, OutputKind, SamplingParams
from weft.engine.clients.local_client import LocalClient
from weft.engine.clients.process_client import ProcessClient
from weft.engine.ipc.messages import Failed
from weft.engine.start.configure import resolve
from weft.model.open import open_model


class Clock:
    """Stands still until it is turned."""

    def __init__(self):
        self.now = 50.0

    def __call__(self):
        return self.now


class Watched:
    """A client played by hand, its metrics, and their clock."""

    def __init__(self, **overrides):
        self.clock = Clock()
        self.metrics = Metrics(clock=self.clock)
        self.client = HandClient(self.metrics, **overrides)

    def value(self, name, **labels):
        """One sample."""
        return value_of(self.metrics, "fake", name, **labels)

    def ended(self):
        """Answers that have ended, by why; those that are none left out."""
        return ended_of(self.metrics, "fake")


@pytest.fixture
async def watched():
    """A client with metrics, on a clock that the test turns."""
    return Watched()


def value_of(metrics, model, name, **labels):
    every = {"model_name": model, "engine": "0", **labels}
    return metrics.registry.get_sample_value(f"vllm:{name}", every)


def ended_of(metrics, model):
    counts = {
        reason.value: value_of(
            metrics, model, "request_success_total", finished_reason=reason.value
        )
        for reason in FinishReason
    }
    return {reason: count for reason, count in counts.items() if count}


async def test_times_start_when_the_request_arrives(watched):
    """First token and end are as far from the arrival as the caller saw."""
    task = await begin(watched.client)
    (engine_id,) = watched.client.engine_ids
    watched.clock.now += 2.0
    watched.client.say(engine_id, [70])
    watched.clock.now += 3.0
    watched.client.say(engine_id, [71], finish_reason=FinishReason.LENGTH)
    await task
    assert watched.value("time_to_first_token_seconds_sum") == 2.0
    assert watched.value("time_to_first_token_seconds_count") == 1
    assert watched.value("e2e_request_latency_seconds_sum") == 5.0
    assert watched.ended() == {"length": 1}


async def test_tokenisation_is_part_of_the_time_to_the_first_token():
    """The caller waits for it too."""
    watched = Watched(max_model_len=30_000, num_blocks=8192)
    text = "a " * 6000  # so long that it is tokenised on a thread
    stream = watched.client.generate(text, SamplingParams(max_tokens=1), "r")
    task = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    watched.clock.now += 4.0
    while not watched.client.engine_ids:  # noqa: ASYNC110 - a thread works on it
        await asyncio.sleep(0.001)
    watched.client.say(watched.client.engine_ids[0], [70], finish_reason=FinishReason.LENGTH)
    await task
    await stream.aclose()
    assert watched.value("time_to_first_token_seconds_sum") == 4.0


async def test_each_answer_counts_and_the_request_once(watched):
    """n answers are n sequences; what was asked for, and the longest answer, are the request's."""
    task = await begin(watched.client, n=2)
    (engine_id,) = watched.client.engine_ids
    watched.client.say(engine_id, [70, 71, 72], 0, finish_reason=FinishReason.STOP)
    watched.client.say(engine_id, [70], 1, finish_reason=FinishReason.LENGTH)
    await task
    assert watched.ended() == {"stop": 1, "length": 1}
    assert watched.value("time_to_first_token_seconds_count") == 2
    assert watched.value("request_generation_tokens_sum") == 4
    assert watched.value("request_prompt_tokens_count") == 2
    assert watched.value("request_params_n_sum") == 2
    assert watched.value("request_params_max_tokens_sum") == 50
    assert watched.value("request_max_num_generation_tokens_count") == 1
    assert watched.value("request_max_num_generation_tokens_sum") == 3


async def test_a_stop_string_is_a_stop(watched):
    """The engine does not know about it; what it says afterwards changes nothing."""
    task = await begin(watched.client, stop="B")
    (engine_id,) = watched.client.engine_ids
    watched.client.say(engine_id, [65, 66, 67])
    watched.client.say(engine_id, [68], finish_reason=FinishReason.ABORT)
    await task
    assert watched.ended() == {"stop": 1}


async def test_an_abort_counts_once(watched):
    """By id, while the reader goes on to the end."""
    task = await begin(watched.client)
    watched.client.say(watched.client.engine_ids[0], [70])
    await watched.client.abort("r")
    await watched.client.abort("r")
    await task
    assert watched.ended() == {"abort": 1}
    assert watched.value("request_generation_tokens_sum") == 1


async def test_a_caller_who_leaves_is_an_abort(watched):
    """Each answer that had not ended counts, and none that had."""
    task = await begin(watched.client, n=3)
    watched.client.say(watched.client.engine_ids[0], [70], 1, finish_reason=FinishReason.STOP)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert watched.ended() == {"stop": 1, "abort": 2}


async def test_a_failed_request_is_an_error(watched):
    """Once, though the reader gets an exception."""
    task = await begin(watched.client)
    watched.client.say(
        watched.client.engine_ids[0], finish_reason=FinishReason.ERROR, error="not numbers"
    )
    with pytest.raises(GenerationError):
        await task
    assert watched.ended() == {"error": 1}


async def test_the_engines_death_is_an_error_of_every_request(watched):
    """None is left uncounted."""
    tasks = [await begin(watched.client, name) for name in "ab"]
    watched.client._on_event(Failed("gone"))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [EngineDead] * 2
    assert watched.ended() == {"error": 2}
    assert watched.value("num_requests_running") == 0


async def test_a_refused_request_is_not_counted():
    """It was never the engine's: a bad one, and one too many."""
    watched = Watched(max_num_queued_reqs=1)
    with pytest.raises(BadRequest):
        await (await begin(watched.client, temperature=-1.0))
    with pytest.raises(Overloaded):
        await (await begin(watched.client, n=2))
    assert watched.ended() == {}
    assert watched.value("request_params_n_count") == 0


async def test_gauges_follow_the_engines_last_load(watched):
    """A scrape shows the load after the last step."""
    assert watched.value("num_requests_running") == 1  # as the hand-made engine says when ready
    watched.client._set_load(EngineLoad(num_waiting=3, num_used_tokens=1, max_total_tokens=4))
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    assert [watched.value(name) for name in names] == [0, 3, 0.25]


# -- a real engine ----------------------------------------------------------------------------


async def start(client_class, metrics, **options):
    """A small engine."""
    settings = EngineOptions(**{"model": MODEL, "max_model_len": 256, **options})
    checkpoint = open_model(settings.model)
    config = resolve(settings, checkpoint.card, GIB)
    return await client_class.start(checkpoint, config, metrics)


async def ask(client, prompt, request_id, **params):
    """The whole answer."""
    sampling = SamplingParams(ignore_eos=True, output_kind=OutputKind.DELTA, **params)
    async with aclosing(client.generate(prompt, sampling, request_id)) as outputs:
        return [output async for output in outputs]


async def until_idle(metrics):
    """The engine tells the end of aborted requests a step later."""
    async with asyncio.timeout(PATIENCE_S):
        while value_of(metrics, MODEL, "kv_cache_usage_perc"):  # noqa: ASYNC110 - as a scraper
            await asyncio.sleep(0.01)


def all_samples(metrics):
    """Every number of the engine's, by name and labels."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in metrics.registry.collect()
        if family.name.startswith("vllm:")
        for sample in family.samples
    }


@pytest.mark.parametrize("client_class", [LocalClient, ProcessClient])
async def test_a_real_engine_counts_what_it_did(client_class):
    """Tokens, steps, cache and intervals agree with the requests that were made."""
    metrics = Metrics()
    client = await start(client_class, metrics, num_gpu_blocks_override=64)
    prompt = list(range(3, 43))  # 40 tokens: two full blocks
    await ask(client, prompt, "a", max_tokens=6)
    await ask(client, prompt, "b", max_tokens=4)
    values = {
        name: value_of(metrics, MODEL, name)
        for name in (
            "prompt_tokens_total",
            "generation_tokens_total",
            "prefix_cache_queries_total",
            "prefix_cache_hits_total",
            "request_prefill_kv_computed_tokens_sum",
            "inter_token_latency_seconds_count",
            "iteration_tokens_total_sum",
            "iteration_tokens_total_count",
            "request_queue_time_seconds_count",
            "num_requests_running",
            "kv_cache_usage_perc",
        )
    }
    await stop(client)
    assert list(values.values()) == [80, 10, 80, 32, 48, 8, 48 + 8, 10, 2, 0, 0]


async def test_chunks_of_a_prompt_are_steps_too():
    """They bring no output, and are told all the same."""
    metrics = Metrics()
    client = await start(
        LocalClient, metrics, num_gpu_blocks_override=64, max_num_batched_tokens=16
    )
    await ask(client, list(range(3, 43)), "a", max_tokens=1)
    await stop(client)
    assert value_of(metrics, MODEL, "iteration_tokens_total_count") == 3
    assert value_of(metrics, MODEL, "iteration_tokens_total_sum") == 40


async def test_nothing_is_negative_and_gauges_are_0_after_a_storm():
    """Preemptions, stops, aborts in the queue and in flight: counts agree, and all is given back."""
    metrics = Metrics()
    client = await start(
        LocalClient, metrics, num_gpu_blocks_override=16, max_num_seqs=4, max_num_batched_tokens=16
    )

    async def one(number):
        prompt = [number + 3] * (5 + number % 40)
        length = 40 + 9 * (number % 5)
        try:
            limit = 0.02 if number % 3 == 0 else PATIENCE_S
            async with asyncio.timeout(limit):
                await ask(client, prompt, f"r{number}", max_tokens=length, n=1 + number % 2)
        except TimeoutError:
            assert number % 3 == 0

    await asyncio.gather(*map(one, range(30)))
    await until_idle(metrics)
    samples = all_samples(metrics)
    await stop(client)
    assert min(samples.values()) >= 0
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    assert [value_of(metrics, MODEL, name) for name in names] == [0, 0, 0]
    assert value_of(metrics, MODEL, "num_preemptions_total") > 0
    assert sum(ended_of(metrics, MODEL).values()) == 45
    assert value_of(metrics, MODEL, "e2e_request_latency_seconds_count") == 45


async def test_a_client_without_metrics_observes_nothing():
    """As `weft.LLM` runs it: the same engine, and no numbers kept."""
    client = await start(LocalClient, None, num_gpu_blocks_override=64)
    outputs = await ask(client, [5, 6, 7], "a", max_tokens=3)
    await stop(client)
    assert sum(len(output.outputs[0].token_ids) for output in outputs) == 3


@pytest.mark.parametrize("client_class", [LocalClient, ProcessClient])
async def test_the_loads_of_experts_are_known(client_class):
    """Tokens by layer and expert when asked for; the sums of the mean expert and of the busiest as series."""
    model, metrics = "embedded:random?experts=5&experts_per_token=2", Metrics()
    client = await start(client_class, metrics, model=model)
    assert await client.collective_rpc("expert_loads") == [[[0] * 5] * 2]
    await ask(client, list(range(3, 43)), "a", max_tokens=4)
    [layers] = await client.collective_rpc("expert_loads")
    await stop(client)
    mean, most = (
        value_of(metrics, model, "expert_load_tokens_total", expert=of) for of in ("mean", "max")
    )
    assert sum(layers[0]) == 2 * (40 + 3)
    assert sum(layers[1]) == 2 * 4  # of the last layer only rows that are wanted
    assert mean == pytest.approx(sum(map(sum, layers)) / 5)
    assert mean < most <= sum(map(sum, layers)) / 2  # a token has two experts, and none twice
