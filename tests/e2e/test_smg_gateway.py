"""The real gateway in front of real servers: its HTTP APIs answer what the engine alone answers."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import anthropic
import jsonschema
import openai
import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import running
from tests.e2e.gateway import Gateway, gateway
from tests.faults.watching import is_busy, is_idle, load_of, stub_of, until
from weft import LLM, SamplingParams
from weft.core.values.types import CompletionOutput
from weft.model.open import open_model
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.text.templates.chat import ChatTemplate
from weft.text.tokenizer import Tokenizer

pytestmark = pytest.mark.slow  # the gateway alone takes half a minute to start

TINY = "embedded:tiny"
SLOW = "embedded:echo?itl_ms=50"  # one word takes a quarter of a second
CONTEXT = 2048
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
LONG_TEXT = "word " * 60  # fifteen seconds
# Two steps after the gateway says so; measured 0.05 to 0.15 s, most of it in the gateway.
FREED_WITHIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Stack:
    """The gateway, and a direct line to each server behind it."""

    gateway: Gateway
    tiny: VllmEngineStub
    slow: VllmEngineStub


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Two servers behind one gateway."""
    with (
        running(TINY) as tiny,
        running(SLOW) as slow,
        gateway(tiny.address, slow.address) as front,
        stub_of(tiny.address) as tiny_stub,
        stub_of(slow.address) as slow_stub,
    ):
        yield Stack(front, tiny_stub, slow_stub)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """The same model without servers: the reference."""
    with LLM(TINY) as model:
        yield model


@pytest.fixture(scope="module")
def question_ids() -> list[int]:
    """The question as the model's own template puts it."""
    checkpoint = open_model(TINY)
    tokenizer = Tokenizer.from_files(checkpoint.tokenizer_files)
    assert checkpoint.chat_template is not None
    with ChatTemplate(checkpoint.chat_template, tokenizer.special_tokens) as template:
        return tokenizer.encode(template.render(QUESTION), add_special_tokens=False)


@pytest.fixture
def chat(stack: Stack) -> Iterator[Any]:
    """The openai client, without retries: a failure is a failure."""
    with openai.OpenAI(
        base_url=f"{stack.gateway.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S
    ) as client:
        yield client


@pytest.fixture
def claude(stack: Stack) -> Iterator[Any]:
    """The anthropic client."""
    with anthropic.Anthropic(
        base_url=stack.gateway.url, api_key="none", max_retries=0, timeout=PATIENCE_S
    ) as client:
        yield client


def alone(llm: LLM, prompt: Any, **params: Any) -> list[CompletionOutput]:
    """What the engine answers without a gateway, greedily if nothing else is said."""
    params = {"temperature": 0.0, "max_tokens": 30, **params}
    [output] = llm.generate([prompt], SamplingParams(**params))
    return output.outputs


# -- /v1/chat/completions -------------------------------------------------------------------------


def test_chat_answers_what_the_engine_alone_answers(chat, llm, question_ids):
    """Template, tokens, text, reason and counts, through the gateway's template and tokenizer."""
    [expected] = alone(llm, question_ids)
    answer = chat.chat.completions.create(
        model=TINY, messages=QUESTION, temperature=0, max_tokens=30
    )
    [choice] = answer.choices
    assert choice.message.content == expected.text != ""
    assert choice.finish_reason == expected.finish_reason
    assert answer.usage.prompt_tokens == len(question_ids)
    assert answer.usage.completion_tokens == len(expected.token_ids)


def test_a_streamed_chat_adds_up_to_the_whole_one(chat, llm, question_ids):
    """The same text, one reason, and the usage at the end."""
    [expected] = alone(llm, question_ids)
    stream = chat.chat.completions.create(
        model=TINY, messages=QUESTION, temperature=0, max_tokens=30,
        stream=True, stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    pieces = [choice.delta.content for choice in choices if choice.delta.content]
    reasons = [choice.finish_reason for choice in choices if choice.finish_reason]
    assert "".join(pieces) == expected.text
    assert reasons == [expected.finish_reason]
    assert chunks[-1].usage.completion_tokens == len(expected.token_ids)


def test_a_long_answer_does_not_wait_for_its_end(chat):
    """It fills the context: a short one may be over before the gateway reads the first of it."""
    stream = chat.chat.completions.create(
        model=TINY, messages=QUESTION, temperature=0, stream=True, extra_body={"ignore_eos": True}
    )
    choices = [choice for chunk in stream for choice in chunk.choices]
    assert len([choice for choice in choices if choice.delta.content]) > 1
    assert choices[-1].finish_reason == "length"


SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rom", "東京"]}, "n": {"enum": [1, 2]}},
    "required": ["city", "n"],
    "additionalProperties": False,
}  # fmt: skip


def schema_format(schema: dict[str, Any]) -> Any:
    """How the OpenAI API asks for a schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def test_a_chat_answers_under_a_schema(chat):
    """At temperature 1, whole and streamed; the text ends where it is complete."""
    wanted: dict[str, Any] = {
        "model": TINY, "messages": QUESTION, "temperature": 1, "max_tokens": 200, "seed": 3,
        "response_format": schema_format(SCHEMA),
    }  # fmt: skip
    [whole] = chat.chat.completions.create(**wanted).choices
    chunks = [c for c in chat.chat.completions.create(**wanted, stream=True) if c.choices]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.message.content
    assert whole.finish_reason == "stop"
    jsonschema.validate(json.loads(text), SCHEMA)


def test_a_chat_under_a_schema_that_is_none_is_refused(chat):
    """With 400, and what is wrong."""
    with pytest.raises(openai.BadRequestError, match="type must be a string"):
        chat.chat.completions.create(
            model=TINY, messages=QUESTION, response_format=schema_format({"type": 1})
        )


def test_a_tool_that_must_be_called_is_called(chat):
    """The gateway asks for its arguments, which are valid."""
    tool: Any = {
        "type": "function",
        "function": {"name": "look_up", "description": "A city", "parameters": SCHEMA},
    }
    answer = chat.chat.completions.create(
        model=TINY, messages=QUESTION, tools=[tool], max_tokens=100,
        tool_choice={"type": "function", "function": {"name": "look_up"}},
        temperature=1, seed=1,
    )  # fmt: skip
    [call] = answer.choices[0].message.tool_calls or ()
    assert call.function.name == "look_up"
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)


def test_max_tokens_ends_an_answer(chat, llm, question_ids):
    """The reason is "length", and no token more is counted."""
    [expected] = alone(llm, question_ids, max_tokens=3)
    answer = chat.chat.completions.create(
        model=TINY, messages=QUESTION, temperature=0, max_tokens=3
    )
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 3


def test_two_choices_are_the_engines_two(chat, llm, question_ids):
    """n=2 with a seed: each choice is sampled from its own noise, and is the same everywhere."""
    sampling = {"n": 2, "temperature": 2.0, "top_p": 1.0, "seed": 7, "max_tokens": 20}
    expected = alone(llm, question_ids, top_k=5, **sampling)
    answer = chat.chat.completions.create(
        model=TINY, messages=QUESTION, extra_body={"top_k": 5}, **sampling
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert [choice.message.content for choice in answer.choices] == [o.text for o in expected]
    assert expected[0].text != expected[1].text
    assert answer.usage.completion_tokens == sum(len(o.token_ids) for o in expected)


def test_two_choices_stream_side_by_side(chat, llm, question_ids):
    """Each piece says which choice it belongs to, and each choice ends once."""
    sampling = {"n": 2, "temperature": 2.0, "top_p": 1.0, "seed": 7, "max_tokens": 20}
    expected = alone(llm, question_ids, top_k=5, **sampling)
    stream = chat.chat.completions.create(
        model=TINY, messages=QUESTION, extra_body={"top_k": 5}, stream=True, **sampling
    )
    choices = [choice for chunk in stream for choice in chunk.choices]
    texts = [
        "".join(c.delta.content or "" for c in choices if c.index == index) for index in (0, 1)
    ]
    assert texts == [output.text for output in expected]
    assert sorted(c.index for c in choices if c.finish_reason) == [0, 1]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_logprobs_are_the_engines(chat, llm, question_ids, is_streamed):
    """One entry a token, with the three best of each, sampled token included."""
    [expected] = alone(llm, question_ids, logprobs=3, max_tokens=6)
    answer = chat.chat.completions.create(
        model=TINY, messages=QUESTION, temperature=0, max_tokens=6, logprobs=True, top_logprobs=3,
        stream=is_streamed,
    )  # fmt: skip
    chunks = list(answer) if is_streamed else [answer]
    entries = [
        entry
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs
        for entry in choice.logprobs.content
    ]
    best = [sorted((p.logprob for p in place.values()), reverse=True)[:3]
            for place in expected.logprobs or ()]  # fmt: skip
    assert len(entries) == len(expected.token_ids)
    assert [entry.logprob for entry in entries] == pytest.approx(
        [p[t].logprob for p, t in zip(expected.logprobs or (), expected.token_ids, strict=True)],
        abs=1e-4,
    )
    assert [[top.logprob for top in entry.top_logprobs] for entry in entries] == [
        pytest.approx(values, abs=1e-4) for values in best
    ]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_stop_string_ends_the_engines_work_too(stack, chat, llm, question_ids, is_streamed):
    """Without it the request would fill the context: the gateway reads on until the server ends."""
    [free] = alone(llm, question_ids, ignore_eos=True, max_tokens=12)
    stop = free.text[3:8]  # in the midst of a word, over the borders of tokens
    [expected] = alone(llm, question_ids, ignore_eos=True, max_tokens=None, stop=[stop])
    answer = chat.chat.completions.create(
        model=TINY, messages=QUESTION, temperature=0, stop=[stop], stream=is_streamed,
        extra_body={"ignore_eos": True},
        **({"stream_options": {"include_usage": True}} if is_streamed else {}),
    )  # fmt: skip
    chunks = list(answer) if is_streamed else [answer]
    until(lambda: is_idle(stack.tiny), FREED_WITHIN_S)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    text = "".join(
        (choice.delta if is_streamed else choice.message).content or "" for choice in choices
    )
    assert text == expected.text == free.text[: free.text.index(stop)]
    assert choices[-1].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == len(expected.token_ids) <= 12


def test_a_prompt_beyond_the_context_has_its_own_code(chat):
    """Clients tell it from other mistakes by `context_length_exceeded`."""
    with pytest.raises(openai.BadRequestError) as caught:
        chat.chat.completions.create(
            model=TINY, messages=[{"role": "user", "content": "word " * CONTEXT}]
        )
    assert caught.value.code == "context_length_exceeded"


def test_what_the_engine_refuses_is_the_callers_mistake(chat):
    """A check that the gateway does not make: its status is 400, and the text the engine's."""
    with pytest.raises(openai.BadRequestError, match="stop_token_ids"):
        chat.chat.completions.create(
            model=TINY, messages=QUESTION, extra_body={"stop_token_ids": [10_000_000]}
        )


# -- the other APIs -------------------------------------------------------------------------------


def test_a_completion_is_the_engines(chat, llm):
    """/v1/completions, with its prompt as it is."""
    [expected] = alone(llm, "The capital of France is", max_tokens=12)
    answer = chat.completions.create(
        model=TINY, prompt="The capital of France is", temperature=0, max_tokens=12
    )
    assert answer.choices[0].text == expected.text != ""
    assert answer.usage.completion_tokens == len(expected.token_ids)


def test_a_streamed_completion_is_the_engines(chat, llm):
    """/v1/completions, in pieces."""
    [expected] = alone(llm, "The capital of France is", max_tokens=12)
    stream = chat.completions.create(
        model=TINY, prompt="The capital of France is", temperature=0, max_tokens=12, stream=True
    )
    assert "".join(c.text for chunk in stream for c in chunk.choices) == expected.text


def test_a_batch_of_prompts_is_answered_in_order(chat, llm):
    """The gateway makes one call of each prompt; their ids differ by a suffix."""
    prompts = ["The capital of France is", "The capital of Italy is"]
    expected = [alone(llm, prompt, max_tokens=12)[0].text for prompt in prompts]
    answer = chat.completions.create(model=TINY, prompt=prompts, temperature=0, max_tokens=12)
    assert [choice.text for choice in answer.choices] == expected


def test_a_message_is_the_engines(claude, llm, question_ids):
    """/v1/messages with the anthropic client."""
    [expected] = alone(llm, question_ids)
    answer = claude.messages.create(
        model=TINY, messages=QUESTION, max_tokens=30, extra_body={"temperature": 0}
    )
    assert [block.text for block in answer.content] == [expected.text]
    assert answer.usage.input_tokens == len(question_ids)
    assert answer.usage.output_tokens == len(expected.token_ids)


def test_a_streamed_message_is_the_engines(claude, llm, question_ids):
    """/v1/messages, in pieces."""
    [expected] = alone(llm, question_ids)
    with claude.messages.stream(
        model=TINY, messages=QUESTION, max_tokens=30, extra_body={"temperature": 0}
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == expected.text
    assert final.usage.output_tokens == len(expected.token_ids)


def test_a_response_is_the_engines(chat, llm, question_ids):
    """/v1/responses."""
    [expected] = alone(llm, question_ids)
    answer = chat.responses.create(
        model=TINY, input=QUESTION[0]["content"], temperature=0, max_output_tokens=30
    )
    assert answer.output_text == expected.text
    assert answer.usage.output_tokens == len(expected.token_ids)


def test_a_streamed_response_is_the_engines(chat, llm, question_ids):
    """/v1/responses, in pieces."""
    [expected] = alone(llm, question_ids)
    events = list(
        chat.responses.create(
            model=TINY,
            input=QUESTION[0]["content"],
            temperature=0,
            max_output_tokens=30,
            stream=True,
        )
    )
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(pieces) == expected.text
    assert events[-1].type == "response.completed"


def test_the_gateway_drops_the_prefix_cache(stack, chat):
    """FlushCache: a prompt that was cached is computed again."""
    body = {"model": TINY, "prompt": LONG_TEXT, "max_tokens": 1, "temperature": 0}

    def num_cached() -> int:
        status, answer = stack.gateway.post("/v1/completions", body)
        assert status == 200
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    num_cached()
    assert num_cached() > 0
    assert stack.gateway.post("/flush_cache", {})[0] == 200
    assert num_cached() == 0


# -- disconnects ----------------------------------------------------------------------------------

SLOW_CHAT = MappingProxyType({"messages": [{"role": "user", "content": LONG_TEXT}]})
REQUESTS = (
    pytest.param("/v1/chat/completions", {**SLOW_CHAT}, id="chat"),
    pytest.param(
        "/v1/chat/completions", {**SLOW_CHAT, "n": 2}, id="two-choices", marks=pytest.mark.slow
    ),
    pytest.param(
        "/v1/completions", {"prompt": LONG_TEXT}, id="completions", marks=pytest.mark.slow
    ),
    pytest.param("/v1/messages", {**SLOW_CHAT, "max_tokens": 1000}, id="messages"),
    pytest.param("/v1/responses", {"input": LONG_TEXT}, id="responses", marks=pytest.mark.slow),
)


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_a_reader_that_leaves_a_stream_frees_its_blocks(stack, path, body):
    """The gateway says so with an Abort call of its own."""
    with closing(stack.gateway.connect()) as connection:
        _send(connection, path, {**body, "stream": True})
        assert connection.getresponse().read(20)
        until(lambda: is_busy(stack.slow), 5)  # some APIs begin their stream before the worker does
    until(lambda: is_idle(stack.slow), FREED_WITHIN_S)


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_a_caller_that_leaves_before_the_answer_frees_its_blocks(stack, path, body):
    """Here the gateway only cancels its call."""
    with closing(stack.gateway.connect()) as connection:
        _send(connection, path, body)
        until(lambda: is_busy(stack.slow), 5)
    until(lambda: is_idle(stack.slow), FREED_WITHIN_S)


def test_one_reader_that_leaves_does_not_end_the_other(stack):
    """Two of the same prompt share blocks; those of the one that stays are kept."""
    body = {"prompt": "word " * 10, "stream": True}
    with closing(stack.gateway.connect()) as stays:
        _send(stays, "/v1/completions", body)
        answer = stays.getresponse()
        with closing(stack.gateway.connect()) as leaves:
            _send(leaves, "/v1/completions", body)
            leaves.getresponse().read(20)
        until(lambda: load_of(stack.slow).num_running_reqs == 1, FREED_WITHIN_S)
        events = [line[6:] for line in answer.read().decode().splitlines() if line]
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    assert "".join(choice["text"] for choice in choices) == body["prompt"]
    assert choices[-1]["finish_reason"] == "stop"
    until(lambda: is_idle(stack.slow), FREED_WITHIN_S)


def _send(connection: Any, path: str, body: dict[str, Any]) -> None:
    headers = {"content-type": "application/json"}
    connection.request("POST", path, json.dumps({"model": SLOW, **body}), headers)
