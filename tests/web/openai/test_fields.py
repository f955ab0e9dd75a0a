"""Every field of every body is used, refused by name, or in the table of labels."""

from dataclasses import replace

import msgspec
import pytest

from tests.web.openai.calls import CHAT, COMPLETIONS, HELLO, make_call
from tests.web.serving import ECHO, serving, weather_tool
from weft.core.errors import BadRequest
from weft.model.embedded.byte_tokenizer import IM_START_ID, SPECIALS
from weft.model.tokenizers.post_processor import surround
from weft.schema.chat import ChatBody, FunctionBody, ToolBody
from weft.schema.completion import CompletionBody
from weft.schema.sampling import JsonSchemaFormat, ResponseFormat, StreamOptions
from weft.web.chat.answers import forced_format
from weft.web.inference.call import to_model_call
from weft.web.inference.fields import INNER_LABELS, LABELS, REFUSED
from weft.web.openai.chat import to_shape, to_turn
from weft.web.openai.completions import completion_params, to_job

TAG = '{"type":"structural_tag","format":{"type":"any_text"}}'

# A value that asks for something, where that is neither a flag nor any text; and what has to stand beside it
# to be meant.
SAMPLES = {
    "messages": [{"role": "user", "content": "another"}],
    "prompt": "another",
    "n": 2,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 3,
    "min_p": 0.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "repetition_penalty": 1.1,
    "seed": 1,
    "stop_token_ids": [1],
    "max_tokens": 5,
    "max_completion_tokens": 5,
    "min_tokens": 1,
    "prompt_logprobs": 1,
    "logit_bias": {"1": 1.0},
    "allowed_token_ids": [1],
    "bad_words": ["x"],
    "repetition_detection": {"max_pattern_size": 2, "min_count": 2},
    "thinking_token_budget": 5,
    "truncate_prompt_tokens": 3,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "response_format": {"type": "json_object"},
    "structured_outputs": {"regex": "x"},
    "guided_json": {"type": "object"},
    "guided_choice": ["x"],
    "guided_grammar": 'root ::= "x"',
    "guided_decoding_backend": "outlines",
    "structural_tag": TAG,
    "length_penalty": 0.5,
    "logits_processors": ["x"],
    "vllm_xargs": {"x": 1},
    "model": "two",
    "request_id": "mine",
    "priority": 1,
    "kv_transfer_params": {"do_remote_decode": True},
    "mm_processor_kwargs": {"x": 1},
    "metadata": {"x": "y"},
    "moderation": {"x": 1},
    "prompt_cache_options": {"x": 1},
    "prompt_cache_retention": "forever",
    "service_tier": "flex",
    "logprobs": True,
    "tool_choice": "required",
    "functions": [{"name": "x"}],
    "function_call": {"name": "x"},
    "documents": [{"text": "x"}],
    "chat_template_kwargs": {"x": 1},
    "add_generation_prompt": False,
    "include_reasoning": False,
    "parallel_tool_calls": False,
    "reasoning_effort": "low",
    "verbosity": "low",
    "modalities": ["audio"],
    "audio": {"voice": "x"},
    "prediction": {"type": "content", "content": "x"},
    "web_search_options": {"x": 1},
    "best_of": 2,
    "tools": [weather_tool()],
}
BESIDE = {
    "truncation_side": ({"truncate_prompt_tokens": 3}, "right"),
    "stream_options": ({"stream": True}, {"include_usage": True}),
    "logprob_token_ids": ({"logprobs": True}, [1]),
    "top_logprobs": ({"logprobs": True}, 2),
    "tool_choice": ({"tools": [weather_tool()]}, "required"),
    ("chat", "echo"): ({"messages": [{"role": "assistant", "content": "x"}]}, True),
    # A body's own sense of these: in completions a number, and special tokens unless told not to.
    ("completions", "logprobs"): ({}, 1),
    ("completions", "add_special_tokens"): ({}, False),
    ("completions", "logprob_token_ids"): ({"logprobs": 1}, [1]),
    ("completions", "return_tokens_as_token_ids"): ({"logprobs": 1}, True),
}

# A tokenizer that adds a token to every text, so that not adding it can be told.
ADDS_BOS = surround((SPECIALS[1], IM_START_ID), None)


async def chat_outcome(served, fields):
    """All that a chat body becomes."""
    call = await to_model_call(make_call(served, CHAT, {"messages": HELLO, **fields}))
    turn = to_turn(call, call.body)
    shape = to_shape(call, call.body, turn)
    return turn, replace(shape, head=replace(shape.head, created=0))


async def completions_outcome(served, fields):
    """All that a completions body becomes."""
    call = await to_model_call(make_call(served, COMPLETIONS, {"prompt": "hello", **fields}))
    job = await to_job(call, call.body)
    head = replace(job.shape.head, created=0)
    shape = {name: getattr(job.shape, name) for name in job.shape.__slots__ if name != "head"}
    params = completion_params(served, call.body)  # a request no longer tells 1.0 from nothing
    requests = [comparable(request) for request in job.requests]
    return head, shape, params, requests, job.has_prompt_rows, job.length_penalty


def comparable(request):
    """A request without what no two share."""
    return msgspec.structs.replace(
        request, engine_id="", arrival_time=0.0, seed=request.params.seed or 0
    )


OUTCOMES = {"chat": chat_outcome, "completions": completions_outcome}


def sample_of(field: msgspec.structs.FieldInfo, text: str = "x"):
    """A flag that is set, or a text, where the field may have one; None of other types."""
    found = msgspec.inspect.type_info(field.type)
    kinds = {type(one) for one in getattr(found, "types", (found,))}
    if msgspec.inspect.BoolType in kinds:
        return True
    return text if msgspec.inspect.StrType in kinds else None


async def fate(field, api):
    """What becomes of a field: "used", "refused" or "label"."""
    name = field.encode_name
    own = {}, SAMPLES.get(name, sample_of(field))
    companions, value = BESIDE.get((api, name)) or BESIDE.get(name) or own
    assert value is not None, f"no sample for {name}"
    names = ["one", "two"]
    async with serving(ECHO, served_model_name=names, post_processor=ADDS_BOS) as served:
        before = await OUTCOMES[api](served, companions)
        try:
            after = await OUTCOMES[api](served, {**companions, name: value})
        except BadRequest as error:
            return "refused" if error.parameter == name else f"refused as {error.parameter}"
    return "label" if before == after else "used"


def fields_of(struct):
    """Their names, for one test each."""
    return [field.encode_name for field in msgspec.structs.fields(struct)]


@pytest.mark.parametrize(
    ("api", "field"),
    [
        pytest.param(api, field, id=f"{api}-{field.encode_name}")
        for api, body in (("chat", ChatBody), ("completions", CompletionBody))
        for field in msgspec.structs.fields(body)
    ],
)
async def test_every_field_has_a_fate(api, field):
    """A field that changes nothing is in the table of labels, and no other is."""
    expected = {"label"} if field.encode_name in LABELS else {"used", "refused"}
    assert await fate(field, api) in expected


def inner(name, value):
    """A body in which that inner field has that value; None leaves it out."""
    field, *_, last = name.split(".")
    changed = {} if value is None else {last: value}
    if field == "tools":
        function = {"name": "f", "parameters": {"type": "object"}, **changed}
        return {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    schema = {"schema": {"type": "object"}, **changed}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


@pytest.mark.parametrize("name", sorted(INNER_LABELS))
async def test_inner_labels_change_nothing(echoing, name):
    """Of what the engine is asked: the same parameters with and without."""
    value = True if name.endswith("strict") else "x"
    bare, _ = await chat_outcome(echoing, inner(name, None))
    labelled, _ = await chat_outcome(echoing, inner(name, value))
    assert labelled.params == bare.params
    assert forced_format(echoing, labelled) == forced_format(echoing, bare)


def test_inner_fields_are_all_known_here():
    """A new one is either a label or has to be used: this test asks which."""
    used = {"type", "json_schema", "structures", "triggers", "format", "schema"}
    used |= {"function", "name", "description", "parameters"}
    used |= {"include_usage", "continuous_usage_stats", "include_obfuscation"}
    structs = (ResponseFormat, JsonSchemaFormat, ToolBody, FunctionBody, StreamOptions)
    inner_fields = {name for struct in structs for name in fields_of(struct)}
    assert inner_fields == used | {name.rpartition(".")[2] for name in INNER_LABELS}


def test_the_tables_name_fields_that_exist():
    """A field that is gone takes its row along."""
    known = {*fields_of(ChatBody), *fields_of(CompletionBody)}
    assert LABELS.keys() | REFUSED.keys() <= known
    assert not LABELS.keys() & REFUSED.keys()


@pytest.mark.parametrize("name", sorted(REFUSED))
async def test_null_is_never_refused(echoing, name):
    """Clients send null for what they do not set."""
    for api, struct in (("chat", ChatBody), ("completions", CompletionBody)):
        if name in fields_of(struct):
            plain = await OUTCOMES[api](echoing, {})
            assert await OUTCOMES[api](echoing, {name: None}) == plain


NEUTRAL = [
    {"functions": []},
    {"function_call": "auto"},
    {"function_call": "none"},
    {"web_search_options": {}},
    {"max_tokens": -1},
    {"prompt_cache_retention": "24h"},
    {"chat_template_kwargs": {}},
]


@pytest.mark.parametrize("fields", NEUTRAL, ids=str)
async def test_a_value_that_means_nothing_changes_nothing(echoing, fields):
    """Clients and proxies write the default of an option where they could leave it out."""
    assert await chat_outcome(echoing, fields) == await chat_outcome(echoing, {})


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_a_limit_of_minus_one_fills_the_context(echoing, name):
    """Whatever the default of the path is."""
    turn, _ = await chat_outcome(echoing, {name: -1})
    assert turn.params.max_tokens is None
    *_, requests, _, _ = await completions_outcome(echoing, {"max_tokens": -1})
    assert requests[0].params.max_tokens > 1000


async def test_a_tool_without_a_type_is_a_function(echoing):
    """There is no other type of tool."""
    tool = weather_tool()
    bare = {"function": tool["function"]}
    whole, _ = await chat_outcome(echoing, {"tools": [tool]})
    assert (await chat_outcome(echoing, {"tools": [bare]}))[0] == whole


async def test_unknown_fields_are_ignored(echoing):
    """Clients send what newer and other servers know."""
    plain = await chat_outcome(echoing, {})
    assert await chat_outcome(echoing, {"something_new": 1}) == plain
