"""What the front tells a tracer of a request, of an engine that the test plays by hand."""

import asyncio

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from tests.engine.test_front import LOAD, HandClient
from weft.core.errors import EngineDead
from weft.core.observe.genai_names import use_latest
from weft.core.observe.metrics import Metrics
from weft.core.observe.stats import SequenceTimes, StepStats
from weft.core.observe.tracing import Span, Tracer
from weft.core.values.types import (
    FinishReason,
    OutputKind,
    PoolingParams,
    Request,
    SamplingParams,
    SequenceOutput,
)
from weft.engine.ipc.messages import Add, Failed, StepOutput

HEADERS = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
PARTS = ["queue", "prefill", "decode"]


class Traced:
    """A client played by hand, and the spans that were to be exported."""

    def __init__(self, headers=HEADERS, uses_latest_names=False, **params):
        self.spans: list[Span] = []
        self.tracer = Tracer(
            lambda _name, _trace_id, parent: bool(parent and parent.is_sampled),
            self.spans.append,
            uses_latest_names=uses_latest_names,
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


LENGTH = {"token_ids": [70], "finish_reason": FinishReason.LENGTH}


async def test_the_latest_names_replace_the_older_ones():
    """Values that the conventions name have that name alone; vLLM's other names stay."""
    traced = Traced(uses_latest_names=True, seed=7, top_k=3, output_kind=OutputKind.DELTA)
    task = await traced.begin()
    traced.say(LENGTH, times=[TIMES | {"num_cached_tokens": 1}])
    await task

    said = traced.spans[-1].attributes
    assert {name: said[f"gen_ai.{name}"] for name in (
        "operation.name", "provider.name", "request.model", "response.model", "request.seed",
        "request.top_k", "request.stream", "request.max_tokens", "usage.input_tokens",
        "usage.output_tokens", "usage.cache_read.input_tokens", "response.finish_reasons",
    )} == {
        "operation.name": "text_completion", "provider.name": "weft", "request.model": "fake",
        "response.model": "fake", "request.seed": 7, "request.top_k": 3, "request.stream": True,
        "request.max_tokens": 50, "usage.input_tokens": 2, "usage.output_tokens": 1,
        "usage.cache_read.input_tokens": 1, "response.finish_reasons": ("length",),
    }  # fmt: skip
    assert said["gen_ai.response.time_to_first_chunk"] >= 0
    older = ("usage.prompt_tokens", "usage.completion_tokens", "request.n",
             "latency.time_to_first_token")  # fmt: skip
    assert not {f"gen_ai.{name}" for name in older} & said.keys()
    assert "gen_ai.request.choice.count" not in said
    assert "error.type" not in said
    assert said["gen_ai.latency.time_in_queue"] == 1.0
    of_vllm = {f"gen_ai.{name}" for name in ("request.id", "usage.num_sequences")}
    ours = {name for name in said if not name.startswith("gen_ai.latency.")} - of_vllm
    named = {value for value in vars(gen_ai_attributes).values() if isinstance(value, str)}
    assert ours <= named


async def test_the_latest_names_say_how_many_answers_and_which_error():
    """The number of answers is there if it is not 1; the prompt's cached tokens are those of the first answer."""
    traced = Traced(uses_latest_names=True, n=2)
    task = await traced.begin()
    cached = [{"index": 1, "num_cached_tokens": 2}, {"index": 0, "num_cached_tokens": 0}]
    traced.say(LENGTH, times=[TIMES | cached[0]])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    traced.say(times=[TIMES | cached[1]])

    said = traced.spans[-1].attributes
    assert said["gen_ai.request.choice.count"] == 2
    assert said["gen_ai.usage.cache_read.input_tokens"] == 0
    assert said["error.type"] == "aborted"


@pytest.mark.parametrize(("task", "operation"), [
    ("embed", "embeddings"), ("token_embed", "embeddings"), ("classify", "classify"),
])  # fmt: skip
async def test_the_latest_names_say_what_a_pooled_prompt_becomes(task: str, operation: str):
    """Embeddings have a word of the conventions; scores do not, and keep their own."""
    traced = Traced(uses_latest_names=True)
    span = traced.tracer.begin("llm_request", HEADERS)
    span.set("gen_ai.response.model", "fake")
    request = Request(
        request_id="r", engine_id="e", prompt_token_ids=[5], params=SamplingParams(),
        eos_token_ids=(0,), seed=0, arrival_time=0.0, pooling=PoolingParams(task=task),
    )  # fmt: skip
    use_latest(span, request, [])
    assert span.attributes["gen_ai.operation.name"] == operation
    assert "gen_ai.request.seed" not in span.attributes
