"""What a client of a remote engine can measure: all that shows in the answers, and no load."""

import asyncio
from contextlib import aclosing, asynccontextmanager

import pytest

from tests.doubles.fake_engine import FakeEngine
from tests.rpc.calls import served
from weft.core.errors import GenerationError, Overloaded, WeftError
from weft.core.observe.metrics import Metrics
from weft.core.values.types import FinishReason, OutputKind, SamplingParams
from weft.rpc.client import RpcClient

PROMPT = [10, 11, 12]


class Remote:
    """A client with metrics, of a fake engine behind a real server."""

    def __init__(self, engine, client, metrics):
        self.engine = engine
        self.client = client
        self._metrics = metrics
        model = client.model_config.served_model_name
        self._labels = {"model_name": model, "engine": "0"}

    def value(self, name, **labels):
        """One sample."""
        every = {**self._labels, **labels}
        return self._metrics.registry.get_sample_value(f"vllm:{name}", every)

    def ended(self):
        """Answers that have ended, by why; those that are none left out."""
        counts = {
            reason.value: self.value("request_success_total", finished_reason=reason.value)
            for reason in FinishReason
        }
        return {reason: count for reason, count in counts.items() if count}

    async def ask(self, **params):
        """The whole answer."""
        asked = SamplingParams(**{"max_tokens": 4, "detokenize": False, **params})
        async with aclosing(self.client.generate(PROMPT, asked, "r")) as outputs:
            return [output async for output in outputs]


@asynccontextmanager
async def remote():
    engine, metrics = FakeEngine(), Metrics()
    async with served(engine, {}) as target:
        client = await RpcClient.connect(target, has_tokenizer=False, metrics=metrics)
        try:
            yield Remote(engine, client, metrics)
        finally:
            await client.close()


@pytest.mark.parametrize("kind", list(OutputKind))
async def test_tokens_and_times_are_counted_from_the_outputs(kind):
    """The same numbers, however the outputs come."""
    async with remote() as far:
        await far.ask(output_kind=kind)
        assert far.ended() == {"length": 1}
        assert far.value("prompt_tokens_total") == 3
        assert far.value("generation_tokens_total") == 4
        assert far.value("request_generation_tokens_sum") == 4
        assert far.value("time_to_first_token_seconds_count") == 1
        assert far.value("e2e_request_latency_seconds_count") == 1


async def test_time_between_outputs_is_observed_when_they_are_streamed():
    """One observation a token after the first output."""
    async with remote() as far:
        await far.ask(output_kind=OutputKind.DELTA)
        assert far.value("inter_token_latency_seconds_count") == 3


async def test_a_caller_who_leaves_is_an_abort():
    """After some output, and before any."""
    async with remote() as far:
        far.engine.hold()
        early = asyncio.create_task(far.ask())
        await far.engine.wait_for_open(1)
        early.cancel()
        with pytest.raises(asyncio.CancelledError):
            await early
        assert far.ended() == {"abort": 1}
        await far.engine.wait_for_open(0)
        await far.engine.run_freely()
        asked = SamplingParams(
            max_tokens=9, detokenize=False, output_kind=OutputKind.DELTA, ignore_eos=True
        )
        async with aclosing(far.client.generate(PROMPT, asked, "r")) as outputs:
            await anext(outputs)
        assert far.ended() == {"abort": 2}


@pytest.mark.parametrize(
    ("failure", "counted"), [(GenerationError("x"), {"error": 1}), (Overloaded("full"), {})]
)
async def test_a_failure_counts_and_a_refusal_does_not(failure: WeftError, counted):
    """As for an engine of our own: what was never accepted is no answer."""
    async with remote() as far:
        far.engine.refusal = failure
        with pytest.raises(type(failure)):
            await far.ask()
        assert far.ended() == counted


async def test_the_load_is_left_to_the_server():
    """Its own /metrics has it; a 0 here would be a claim."""
    async with remote() as far:
        await far.ask()
        assert far.value("num_requests_running") is None
        assert far.value("kv_cache_usage_perc") is None
