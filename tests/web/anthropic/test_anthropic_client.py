"""The official client against the real server: typed messages, streams, tools, counts, errors."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import anthropic
import httpx2
import pytest
from anthropic.types import Message

from tests.busy import PATIENCE_S
from tests.doubles.fake_engine import FakeEngine, overloaded
from tests.web.anthropic.calls import HELLO, weather_tool
from tests.web.serving import ECHO, QWEN, RANDOM, SCRIPT, TINY, http_serving, serving
from weft.cli.options import ServeOptions
from weft.cli.serving.loading import to_api_options
from weft.core.errors import DeadlineExceeded, GenerationError, Unsupported
from weft.model.open import open_model

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"unit": "c"}}\n</tool_call>'
TOOLS = [weather_tool()]
# Says what the first message says, and when there is a result, what that says.
CALLING = "{{ messages[-1].content if messages[-1].role == 'tool' else messages[0].content }}"


@asynccontextmanager
async def client_of(model=RANDOM, *, http=None, **settings):
    """A client of a server of that model, and what it serves."""
    async with (
        serving(model, **settings) as served,
        http_serving(served, **(http or {})) as address,
        anthropic.AsyncAnthropic(base_url=address, api_key="none", max_retries=0) as client,
    ):
        yield client, served


def without_ids(message):
    """A message as JSON, without the ids that are drawn."""
    made = message.to_dict()
    for block in made["content"]:
        block.pop("id", None)
        block.pop("parsed_output", None)
    return {**made, "id": ""}


async def test_a_message_is_what_the_client_types():
    """Every field where its model has it; a strict check of the types finds nothing."""
    async with client_of(ECHO) as (client, _):
        made = await client.messages.create(model=ECHO, messages=HELLO, max_tokens=3)
    assert Message.model_validate(made.to_dict(), strict=True)
    assert made.id.startswith("msg_")
    assert made.content[0].type == "text"
    assert made.stop_reason == "max_tokens"
    assert made.usage.output_tokens == 3
    assert made._request_id == made.id.removeprefix("msg_")


async def test_a_stream_adds_up_to_the_message_in_one_piece():
    """Reasoning, text and calls, in the client's own accumulator."""
    async with client_of(ECHO, options=QWEN, template=SCRIPT, enable_prefix_caching=False) as (
        client,
        _,
    ):
        said = {"role": "user", "content": f"<think>Hm.</think>\n\nSure.{CALL}"}
        request = {"model": ECHO, "messages": [said], "tools": TOOLS, "max_tokens": 200}
        whole = await client.messages.create(**request)
        async with client.messages.stream(**request) as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_message()
    assert without_ids(streamed) == without_ids(whole)
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
    assert {"thinking", "signature", "text", "input_json", "message_stop"} <= set(kinds)


async def test_a_conversation_with_tools_goes_round():
    """The answer is sent back as it came, with its call's result; the model reads both."""
    template = SCRIPT + "{{ messages[2]['content'] if messages[2] is defined }}"
    async with client_of(ECHO, options=QWEN, template=template) as (client, _):
        request = {"model": ECHO, "tools": TOOLS, "max_tokens": 200}
        said = [{"role": "user", "content": f"<think>Hm.</think>Sure.{CALL}"}]
        made = await client.messages.create(**request, messages=said)
        call = made.content[-1]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "12 degrees"}
        said += [made.to_param(), {"role": "user", "content": [result]}]
        last = await client.messages.create(**request, messages=said)
    assert made.stop_reason == "tool_use"
    assert call.input == {"unit": "c"}
    assert last.content[-1].text == "12 degrees"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
async def test_a_small_model_is_served_as_from_the_command_line(choice):
    """With the parsers that its template needs: forced calls stream, and their result is taken."""
    options = to_api_options(ServeOptions(), open_model(TINY).chat_template)
    async with client_of(TINY, options=options, max_model_len=2048) as (client, _):
        request = {"model": TINY, "tools": TOOLS, "max_tokens": 200}
        choice = {**choice, "disable_parallel_tool_use": True}
        async with client.messages.stream(**request, messages=HELLO, tool_choice=choice) as stream:
            made = await stream.get_final_message()
        (call,) = made.content
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "12 degrees"}
        said = [*HELLO, made.to_param(), {"role": "user", "content": [result]}]
        assert (await client.messages.create(**request, messages=said)).content
    assert made.stop_reason == "tool_use"
    assert call.input["unit"] in {"c", "f"}


async def test_a_small_model_thinks_calls_and_reads_the_result():
    """Of its own choice, in a stream; what it is sent back is the whole of its answer."""
    options = to_api_options(ServeOptions(), open_model(TINY).chat_template)
    tool = weather_tool(
        input_schema={
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        }
    )
    said = [{"role": "user", "content": "What is the weather in Paris?"}]
    async with client_of(TINY, options=options, max_model_len=2048) as (client, _):
        request = {
            "model": TINY,
            "tools": [tool],
            "max_tokens": 200,
            "thinking": {"type": "enabled", "budget_tokens": 100},
            "extra_body": {"temperature": 0},
        }
        async with client.messages.stream(**request, messages=said) as stream:
            made = await stream.get_final_message()
        reasoning, call = made.content
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "12 degrees"}
        said += [made.to_param(), {"role": "user", "content": [result]}]
        last = await client.messages.create(**request, messages=said)
    assert (reasoning.type, call.type) == ("thinking", "tool_use")
    assert reasoning.thinking
    assert call.input == {"city": "Paris"}
    assert made.stop_reason == "tool_use"
    assert last.usage.cache_read_input_tokens > 0
    assert last.stop_reason in {"end_turn", "max_tokens", "tool_use"}


async def test_counts_and_schemas():
    """The other endpoint, and the client's helper for answers of a type."""
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    async with client_of(RANDOM) as (client, _):
        counted = await client.messages.count_tokens(
            model=RANDOM, messages=HELLO, system="Be brief.", tools=TOOLS
        )
        made = await client.messages.create(
            model=RANDOM,
            messages=HELLO,
            max_tokens=50,
            output_config={"format": {"type": "json_schema", "schema": schema}},
        )
    assert counted.input_tokens > 0
    assert made.content[0].text == "{}"


async def test_the_beta_client_is_served_too():
    """Its path has a query, and its headers name betas."""
    async with client_of(ECHO) as (client, _):
        made = await client.beta.messages.create(
            model=ECHO, messages=HELLO, max_tokens=3, betas=["interleaved-thinking-2025-05-14"]
        )
    assert made.stop_reason == "max_tokens"


async def test_a_key_comes_in_either_header():
    """As a bearer's, which this client sends, and as x-api-key, which others do."""
    async with client_of(ECHO, http={"api_keys": ("secret",)}) as (client, _):
        request = {"model": ECHO, "messages": HELLO, "max_tokens": 1}
        with pytest.raises(anthropic.AuthenticationError) as caught:
            await client.messages.create(**request)
        assert await client.with_options(api_key="secret").messages.create(**request)
        async with httpx2.AsyncClient(base_url=client.base_url, timeout=PATIENCE_S) as other:
            made = await other.post("/v1/messages", json=request, headers={"x-api-key": "secret"})
    assert made.status_code == 200
    assert caught.value.body["error"]["type"] == "authentication_error"
    assert caught.value.request_id == caught.value.body["request_id"]


async def test_errors_are_the_clients_own():
    """Class, type and request id, for an answer and for a stream that never began."""
    async with client_of(ECHO, max_model_len=64, http={"max_body_bytes": 50_000}) as (client, _):
        request = {"model": ECHO, "messages": HELLO, "max_tokens": 1}
        with pytest.raises(anthropic.NotFoundError) as stranger:
            await client.messages.create(**{**request, "model": "x"})
        with pytest.raises(anthropic.BadRequestError) as bad:
            await client.messages.create(**{**request, "max_tokens": 0}, stream=True)
        with pytest.raises(anthropic.BadRequestError) as long:
            await client.messages.create(**{**request, "max_tokens": 64})
        with pytest.raises(anthropic.BadRequestError) as wrong:
            await client.messages.create(**request, extra_body={"top_k": "many"})
        with pytest.raises(anthropic.ContentTooLargeError) as large:
            await client.messages.create(**{**request, "system": "x" * 100_000})
    for caught in (stranger, bad, long, wrong, large):
        assert caught.value.body["type"] == "error"
        assert caught.value.request_id == caught.value.body["request_id"]
    assert stranger.value.body["error"]["type"] == "not_found_error"
    assert bad.value.body["error"]["type"] == "invalid_request_error"
    assert large.value.body["error"]["type"] == "request_too_large"


class FailingEngine(FakeEngine):
    """Fails every request, at once or behind its first output."""

    def __init__(self, error, num_outputs):
        super().__init__()
        self.error, self.num_outputs = error, num_outputs

    async def run(self, request):
        """As many outputs as there are to be, and the error."""
        num_left = self.num_outputs
        async for output in super().run(request):
            if num_left == 0:
                raise self.error
            num_left -= 1
            yield output


@asynccontextmanager
async def client_of_failing(error, num_outputs=0):
    """A client of a server whose engine fails so."""
    async with serving(ECHO) as served:
        broken = replace(served, client=FailingEngine(error, num_outputs))
        async with (
            http_serving(broken) as address,
            anthropic.AsyncAnthropic(base_url=address, api_key="none", max_retries=0) as client,
        ):
            yield client


async def read_kinds(stream, kinds):
    """Note the kind of every event of a stream."""
    async for event in stream:
        kinds += [event.type]


FAKE = {"model": "fake-model", "messages": HELLO, "max_tokens": 9}


@pytest.mark.parametrize(
    ("error", "kind", "name"),
    [
        (overloaded(), anthropic.RateLimitError, "rate_limit_error"),
        (DeadlineExceeded("late"), anthropic.APIStatusError, "timeout_error"),
        (GenerationError("NaN"), anthropic.InternalServerError, "api_error"),
        (Unsupported("no"), anthropic.APIStatusError, "invalid_request_error"),
    ],
)
async def test_every_failure_of_an_engine_has_its_class(error, kind, name):
    """In Anthropic's words, streamed and not."""
    async with client_of_failing(error) as client:
        for is_streamed in (False, True):
            with pytest.raises(kind) as caught:
                await client.messages.create(**FAKE, stream=is_streamed)
            assert caught.value.body["error"]["type"] == name


async def test_a_dead_engine_is_overloaded():
    """529, which is this API's word for 503."""
    async with serving(ECHO) as served:
        engine = FakeEngine()
        await engine.die()
        async with (
            http_serving(replace(served, client=engine)) as address,
            anthropic.AsyncAnthropic(base_url=address, api_key="none", max_retries=0) as client,
        ):
            with pytest.raises(anthropic.APIStatusError) as caught:
                await client.messages.create(**FAKE)
    assert caught.value.status_code == 529
    assert caught.value.body["error"]["type"] == "overloaded_error"


async def test_a_stream_that_fails_ends_in_an_error_event():
    """After what there was of it, and never looks complete."""
    async with client_of_failing(GenerationError("NaN"), num_outputs=1) as client:
        stream = await client.messages.create(**FAKE, stream=True)
        kinds: list[str] = []
        with pytest.raises(anthropic.APIStatusError) as caught:
            await read_kinds(stream, kinds)
    assert kinds[0] == "message_start"
    assert "message_stop" not in kinds
    assert caught.value.body["error"]["type"] == "api_error"


async def test_a_client_that_leaves_ends_its_request():
    """The engine does no more for a stream that nobody reads."""
    async with client_of(ECHO + "?itl_ms=50", template=SCRIPT) as (client, served):
        stream = await client.messages.create(
            model=served.client.model_config.served_model_name,
            messages=[{"role": "user", "content": "x" * 500}],
            max_tokens=400,
            stream=True,
        )
        await anext(aiter(stream))
        assert served.client.num_active_requests == 1
        await stream.close()
        async with asyncio.timeout(PATIENCE_S):
            while served.client.num_active_requests:  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.01)


async def test_the_tool_runner_goes_on_without_a_thread():
    """It asks for a thread first; by the details of the refusal it sends the whole conversation instead."""

    @anthropic.beta_async_tool
    async def get_weather(unit: str) -> str:
        """The weather.

        Args:
            unit: of the degrees.
        """
        return f"18 {unit}"

    async with client_of(ECHO, options=QWEN, template=CALLING) as (client, _):
        runner = client.beta.messages.tool_runner(
            model=ECHO,
            max_tokens=100,
            tools=[get_weather],
            messages=[{"role": "user", "content": CALL}],
        )
        last = await runner.until_done()
    assert last.content[0].text == "18 c"
