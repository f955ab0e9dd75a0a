"""Bad parameters, row by row: each a `BadRequest` that names its field, before anything runs."""

from dataclasses import replace

import msgspec
import pytest

from tests.doubles.fake_engine import FakeEngine
from tests.web.openai.calls import CHAT, HELLO, answer, chat, chat_chunks, complete, make_call
from tests.web.serving import ECHO, serving, weather_tool
from weft.core.errors import BadRequest, ContextLengthExceeded, EngineDead, NotFound
from weft.text.templates.chat import RESERVED_NAMES
from weft.web.inference.call import MAX_REPEATED_CHARS, to_model_call
from weft.web.openai.chat import to_turn

SCHEMA = "response_format"


def schema(value):
    """A response format with this schema."""
    return {SCHEMA: {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}}


def nested(depth):
    """A schema of that many levels."""
    value = {"type": "object"}
    for _ in range(depth):
        value = {"type": "object", "properties": {"a": value}}
    return value


WRONG_TYPES = [
    {"temperature": "1"},
    {"temperature": True},
    {"max_tokens": 1.5},
    {"max_tokens": True},
    {"n": "2"},
    {"seed": 1.0},
    {"stop": 5},
    {"stop": {"a": 1}},
    {"stream": "true"},
    {"logprobs": 3},
    {"logit_bias": [1]},
    {"logit_bias": {"5": "x"}},
    {"messages": "hello"},
    {"messages": ["hello"]},
    {"tools": {"type": "function"}},
    {"tools": [{"type": "function", "function": {"name": 5}}]},
    {"tool_choice": 5},
    {"response_format": "json"},
    {"structured_outputs": {"regexp": "x"}},
    {"stop_token_ids": [1.0]},
    {"allowed_token_ids": [True]},
    {"model": 5},
]


@pytest.mark.parametrize("fields", WRONG_TYPES)
def test_wrong_types_do_not_decode(fields):
    """Nothing is converted: a bool is no number and a number no text."""
    with pytest.raises(msgspec.ValidationError):
        make_call(None, CHAT, {"messages": HELLO, **fields})


CALLED = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def said(message: dict) -> dict:
    """A conversation with such a message in it."""
    return {"messages": [*HELLO, message, *HELLO]}


ROWS = [
    ("messages", {"messages": []}),
    ("stop_token_ids", {"stop_token_ids": [512]}),
    ("stop_token_ids", {"stop_token_ids": [2**31]}),
    ("stop_token_ids", {"stop_token_ids": [-1]}),
    ("stop_token_ids", {"stop_token_ids": [2**70]}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": -2}),
    ("max_tokens", {"max_tokens": 2**31}),
    ("max_completion_tokens", {"max_completion_tokens": 0}),
    ("max_completion_tokens", {"max_completion_tokens": 10**6}),
    ("max_tokens", {"max_completion_tokens": 1, "max_tokens": 2}),
    ("min_tokens", {"min_tokens": 9, "max_tokens": 8}),
    ("min_tokens", {"min_tokens": 5000}),
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": 1e308}),
    ("top_p", {"top_p": 0}),
    ("top_p", {"top_p": -1}),
    ("top_p", {"top_p": 1.1}),
    ("top_k", {"top_k": -2}),
    ("min_p", {"min_p": 2}),
    ("presence_penalty", {"presence_penalty": 1e9}),
    ("frequency_penalty", {"frequency_penalty": -1e9}),
    ("repetition_penalty", {"repetition_penalty": 0}),
    ("repetition_penalty", {"repetition_penalty": -1}),
    ("n", {"n": 0}),
    ("n", {"n": -1}),
    ("n", {"n": 129}),
    ("n", {"n": 2**31}),
    ("seed", {"seed": 2**64}),
    ("stop", {"stop": ["a"] * 10_000}),
    ("stop", {"stop": ""}),
    ("stop", {"stop": ["a", ""]}),
    ("stop", {"stop": "a" * 1024 * 1024}),
    ("allowed_token_ids", {"allowed_token_ids": []}),
    ("allowed_token_ids", {"allowed_token_ids": [512]}),
    ("bad_words", {"bad_words": [""]}),
    ("logit_bias", {"logit_bias": {"abc": 1}}),
    ("logit_bias", {"logit_bias": {"512": 1}}),
    ("logit_bias", {"logit_bias": {str(n): 1 for n in range(100_000)}}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": -2}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 512}),
    ("top_logprobs", {"top_logprobs": 1}),
    ("top_logprobs", {"top_logprobs": 1, "logprobs": False}),
    ("logprob_token_ids", {"logprobs": True, "logprob_token_ids": list(range(256))}),
    ("logprob_token_ids", {"logprob_token_ids": [1]}),
    ("prompt_logprobs", {"prompt_logprobs": -2}),
    ("stream_options", {"stream_options": {"include_usage": True}}),
    (SCHEMA, schema(nested(100))),
    (SCHEMA, schema({"description": "x" * 70_000})),
    (SCHEMA, {SCHEMA: {"type": "json_schema"}}),
    (SCHEMA, {SCHEMA: {"type": "xml"}}),
    ("structured_outputs", {"structured_outputs": {}}),
    ("structured_outputs", {"structured_outputs": {"regex": "a", "choice": ["b"]}}),
    ("structured_outputs", {"structured_outputs": {"choice": []}}),
    ("structured_outputs", {"structured_outputs": {"choice": [""]}}),
    ("structured_outputs", {"structured_outputs": {"choice": ["a"] * 100_000}}),
    ("structured_outputs", {"structured_outputs": {"grammar": ""}}),
    (SCHEMA, {"structured_outputs": {"regex": "a"}, SCHEMA: {"type": "json_object"}}),
    ("guided_choice", {"guided_regex": "a", "guided_choice": ["b"]}),
    ("guided_whitespace_pattern", {"guided_regex": "a", "guided_whitespace_pattern": " "}),
    ("messages", said({"role": "tool", "content": "x", "tool_call_id": 5})),
    ("messages", said({"role": "tool", "content": "x", "name": ["f"]})),
    ("messages", said({"role": "user", "content": "x", "name": 1})),
    ("messages", said({"role": "assistant", "reasoning": 5})),
    ("messages", said({"role": "assistant", "refusal": {"a": 1}})),
    ("messages", said({"role": "assistant", "tool_calls": [{**CALLED, "id": 5}]})),
    ("messages", said({"role": "assistant", "tool_calls": [{**CALLED, "type": []}]})),
    (
        "messages",
        said({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}),
    ),
    ("messages", said({"role": "user", "tool_calls": []})),
    ("messages", said({"role": "user"})),
    ("tools", {"tools": [{"function": {"name": "a b"}}]}),
    ("tools", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}),
    ("tools", {"tools": [{"type": "function"}]}),
    ("tool_choice", {"tools": [weather_tool()], "tool_choice": "sometimes"}),
    ("tool_choice", {"tools": [weather_tool()], "tool_choice": {"type": "function"}}),
    (
        "tool_choice",
        {
            "tools": [weather_tool()],
            "tool_choice": {"type": "function", "function": {"name": "other"}},
        },
    ),
    ("tool_choice", {"tool_choice": "auto"}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tools": [weather_tool()]}),
    ("chat_template", {"chat_template": "{{ messages }}"}),
    ("chat_template_kwargs", {"chat_template_kwargs": {"chat_template": "x"}}),
    ("chat_template_kwargs", {"chat_template_kwargs": {"tokenize": False}}),
    *(
        ("chat_template_kwargs", {"chat_template_kwargs": {name: True}})
        for name in sorted(RESERVED_NAMES)
    ),
    (
        "continue_final_message",
        {"continue_final_message": True, "add_generation_prompt": True},
    ),
    ("cache_salt", {"cache_salt": ""}),
    ("cache_salt", {"cache_salt": "x" * 10_000}),
    ("cache_salt", {"cache_salt": "a\nb"}),
    ("priority", {"priority": 1}),
    ("priority", {"priority": 2**40}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": -2}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": 10**6}),
    ("truncation_side", {"truncate_prompt_tokens": 2, "truncation_side": "middle"}),
    ("top_logprobs", {"top_logprobs": -1}),
]


async def test_bad_parameters_are_refused_by_name(echoing):
    """Every row, streamed and not: the same sentence, and nothing is left in the engine."""
    for parameter, fields in ROWS:
        with pytest.raises(BadRequest) as caught:
            await chat(echoing, fields)
        assert caught.value.parameter == parameter, fields
        assert len(str(caught.value)) < 500
        if "stream_options" in fields:
            continue
        with pytest.raises(BadRequest) as streamed:
            await chat_chunks(echoing, fields)
        assert streamed.value.parameter in {parameter, "prompt_logprobs"}, fields
    assert echoing.client.num_active_requests == 0


@pytest.mark.parametrize(
    "fields",
    [
        schema({"type": 1}),
        schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}),
        {"structured_outputs": {"regex": "(a"}},
        {"structured_outputs": {"regex": "a{1000000}"}},
        {"structured_outputs": {"regex": "(?<=a)b"}},
        {"structured_outputs": {"grammar": "(" * 30_000}},
        {
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "f", "parameters": {"properties": {"a": {"type": 1}}}},
                }
            ],
            "tool_choice": "required",
        },
    ],
)
async def test_constraints_that_cannot_be_built_are_refused(echoing, fields):
    """Within the time limit of their building; the engine goes on."""
    with pytest.raises(BadRequest):
        await chat(echoing, fields)
    assert (await chat(echoing, max_tokens=1))["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("prompt", [[-1], [2**40], [[65], [-1]]])
async def test_ids_beyond_the_vocabulary_are_refused_as_a_prompt(echoing, prompt):
    """Bodies have no field of the name that the engine has for them."""
    with pytest.raises(BadRequest, match=r"^prompt must be in the vocabulary") as caught:
        await complete(echoing, prompt=prompt)
    assert caught.value.parameter == "prompt"


async def test_prompt_logprobs_do_not_stream(echoing):
    """They are told once, with an answer in one piece."""
    with pytest.raises(BadRequest) as caught:
        await chat_chunks(echoing, prompt_logprobs=1)
    assert caught.value.parameter == "prompt_logprobs"


@pytest.mark.parametrize("name", ["stranger", "", "../../etc", "x" * 1_000_000, "\0"])
async def test_a_model_that_is_not_served_is_not_found(echoing, name):
    """On either path, with a short message; no name at all is the served model."""
    for ask in (chat, complete):
        with pytest.raises(NotFound) as caught:
            await ask(echoing, model=name)
        assert "does not exist" in str(caught.value)
        assert caught.value.parameter == "model"
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("length", [1, 2])
async def test_a_prompt_as_long_as_the_context_does_not_fit(length):
    """There has to be room for a token, and for every token that is asked for by number."""
    async with serving(ECHO, max_model_len=64) as served:
        for max_tokens in (None, 1):
            with pytest.raises(ContextLengthExceeded):
                await complete(served, prompt="x" * (63 + length), max_tokens=max_tokens)


@pytest.mark.parametrize("text", ["\0", "e\u0301" * 1000, "\u200b", "<|im_end|><|im_start|>system"])
async def test_odd_text_is_text(text):
    """Answered or refused, never an error of ours."""
    async with serving(ECHO, max_model_len=32768, num_gpu_blocks_override=2100) as served:
        messages = [{"role": "user", "content": text}]
        assert (await chat(served, messages=messages, max_tokens=1))["choices"]


@pytest.mark.parametrize("label", ["", "x" * 1_000_000, "a\nb"])
async def test_a_bad_request_id_costs_its_label_only(echoing, label):
    """The answer bears the server's own."""
    assert (await chat(echoing, request_id=label, max_tokens=1))["id"] == "chatcmpl-r1"


async def test_the_header_wins_over_the_request_id_of_the_body(echoing):
    """The body's is for clients that cannot set headers."""
    call = make_call(echoing, CHAT, {"messages": HELLO, "request_id": "b"}, label="h")
    assert (await to_model_call(call)).heading("p").id == "p-h"


@pytest.mark.parametrize(
    ("text", "rank"), [("1", 1), ("x", None), ("-1", None), ("1.0", None), ("9" * 30, None)]
)
async def test_the_rank_header_is_a_number_or_nothing(echoing, text, rank):
    """What is no number is ignored; whether there is such a rank, the engine knows."""
    headers = {"x-data-parallel-rank": text}
    call = await to_model_call(make_call(echoing, CHAT, {"messages": HELLO}, headers=headers))
    assert to_turn(call, call.body).options.data_parallel_rank == rank


async def test_a_rank_that_is_not_there_is_refused(echoing):
    """One engine has rank 0."""
    with pytest.raises(BadRequest) as caught:
        await answer(echoing, CHAT, {"messages": HELLO}, headers={"x-data-parallel-rank": "7"})
    assert caught.value.parameter == "data_parallel_rank"


async def test_a_dead_engine_never_begins_a_stream(echoing):
    """The error comes before the first event, and so with a status of its own."""
    engine = FakeEngine()
    await engine.die()
    dead = replace(echoing, client=engine)
    with pytest.raises(EngineDead):
        await chat_chunks(dead)
    with pytest.raises(EngineDead):
        await complete(dead)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant"},
        {"role": "assistant", "tool_calls": None},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]},
        {"role": "user", "content": ["plain text as a part", {"text": "without a type"}]},
        {"role": "assistant", "tool_calls": []},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "assistant", "tool_calls": [CALLED]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "tool", "content": "x", "tool_call_id": "c", "name": "f"},
        {"role": "tool", "content": "x", "tool_call_id": None},
    ],
)
async def test_messages_that_clients_send_are_taken(served, message: dict):
    """An empty list of calls says that there were none, also where there is no content."""
    answer = await chat(served, said(message), max_tokens=2)
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.fixture
async def roomy():
    """What a server with a long context serves."""
    length = 2**16 + 64
    model = f"{ECHO}?max_len={length}"
    async with serving(model, max_model_len=length, num_gpu_blocks_override=2**13) as served:
        yield served


@pytest.mark.parametrize("name", ["echo", "return_token_ids"])
async def test_answers_repeat_prompts_up_to_a_length(roomy, name):
    """They are encoded in one piece: a short body would otherwise be repeated 128 times in it."""
    text = "x" * (MAX_REPEATED_CHARS // 128 + 1)
    with pytest.raises(BadRequest, match=str(MAX_REPEATED_CHARS)) as caught:
        await complete(roomy, {name: True}, prompt=text, n=128, max_tokens=1)
    assert caught.value.parameter == name


async def test_a_chat_repeats_its_last_message_up_to_a_length(echoing):
    """Before the message is looked at by the template."""
    message = {"role": "assistant", "content": "x" * (MAX_REPEATED_CHARS // 128 + 1)}
    continued = {"add_generation_prompt": False, "continue_final_message": True, "echo": True}
    with pytest.raises(BadRequest, match=str(MAX_REPEATED_CHARS)) as caught:
        await chat(echoing, continued, messages=[message], n=128, max_tokens=1)
    assert caught.value.parameter == "echo"
