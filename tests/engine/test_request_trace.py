"""What the front tells a tracer of a request, of an engine that the test plays by hand."""

import asyncio

import pytest

from tests.engine.test_front import LOAD, HandClient
from weft.core.errors import EngineDead
from weft.core.observe.metrics import Metrics
from weft.core.observe.stats import SequenceTimes, StepStats
from weft.core.observe.tracing import Span, Tracer
from weft.core.values.types import FinishReason, SamplingParams, SequenceOutput
from weft.engine.ipc.messages import Add, Failed, StepOutput

HEADERS = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
PARTS = ["queue", "prefill", "decode"]


class Traced:
    """A client played by hand, and the spans that were to be exported."""

    def __init__(self, headers=HEADERS, **params):
        self.spans: list[Span] = []
        self.tracer = Tracer(
            lambda _name, _trace_id, parent: bool(parent and parent.is_sampled), self.spans.append
        )
        self.client = HandClient(Metrics(tracer=self.tracer))
        self._headers, self._params = headers, {"max_tokens": 50, **params}

    async def begin(self) -> asyncio.Task:
        """A request that the engine has."""

        async def read():
            params = SamplingParams(**self._params)
            stream = self.client.generate([65, 66], params, "r", trace_headers=self._headers)
            return [output async for output in stream]

        task = asyncio.create_task(read())
        while not any(isinstance(command, Add) for command in self.client.sent):  # noqa: ASYNC110
            await asyncio.sleep(0)
        return task

    def say(self, *outputs, times=()):
        """What one step brought."""
        (engine_id,) = self.client.engine_ids
        made = [SequenceOutput(engine_id=engine_id, **{"index": 0, **one}) for one in outputs]
        ended = [SequenceTimes(engine_id=engine_id, **one) for one in times]
        self.client._on_event(StepOutput(outputs=made, load=LOAD, stats=StepStats(ended=ended)))

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]


TIMES = {"queue_s": 1.0, "prefill_s": 2.0, "decode_s": 4.0}


async def test_parts_stand_one_behind_the_other():
    """As long as the engine says, from the request's arrival on."""
    traced = Traced()
    task = await traced.begin()
    traced.say({"token_ids": [70], "finish_reason": FinishReason.LENGTH}, times=[TIMES])
    await task

    assert traced.names == [*PARTS, "llm_request"]
    *parts, whole = traced.spans
    assert {part.parent_id for part in parts} == {whole.span_id}
    assert [part.ended_ns - part.started_ns for part in parts] == [10**9, 2 * 10**9, 4 * 10**9]
    starts = [part.started_ns for part in parts]
    assert starts == [whole.started_ns, parts[0].ended_ns, parts[1].ended_ns]
    assert whole.attributes["gen_ai.latency.time_in_model_inference"] == 6.0
    assert whole.error is None


async def test_a_stop_string_waits_for_what_the_engine_measured():
    """The reader has its end before the engine knows of it."""
    traced = Traced(stop="F")
    task = await traced.begin()
    traced.say({"token_ids": [70]})
    await task
    assert traced.names == []
    traced.say(times=[TIMES])
    assert traced.names == [*PARTS, "llm_request"]
    assert traced.spans[-1].attributes["gen_ai.response.finish_reasons"] == ("stop",)


async def test_what_the_engine_never_says_is_exported_at_the_end():
    """A server that stops sends what it has."""
    traced = Traced(stop="F")
    task = await traced.begin()
    traced.say({"token_ids": [70]})
    await task
    traced.tracer.close()
    traced.tracer.close()
    assert traced.names == ["llm_request"]


async def test_a_request_that_is_given_up_is_an_error():
    """Whoever left: the engine still says how far it was."""
    traced = Traced()
    task = await traced.begin()
    traced.say({"token_ids": [70]})
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    traced.say(times=[TIMES])
    assert traced.names == [*PARTS, "llm_request"]
    assert traced.spans[-1].error == "aborted"


async def test_a_dead_engine_leaves_an_error_and_nothing_to_wait_for():
    """It will say nothing more."""
    traced = Traced()
    task = await traced.begin()
    traced.client._on_event(Failed("gone"))
    with pytest.raises(EngineDead):
        await task
    assert traced.names == ["llm_request"]
    assert traced.spans[0].error == "failed"


@pytest.mark.parametrize("headers", [None, {"traceparent": HEADERS["traceparent"][:-2] + "00"}])
async def test_a_request_without_a_sampled_trace_has_no_spans(headers):
    """And the engine's times of it are nobody's."""
    traced = Traced(headers)
    task = await traced.begin()
    traced.say({"token_ids": [70], "finish_reason": FinishReason.LENGTH}, times=[TIMES])
    await task
    assert traced.names == []
