"""A stream that breaks continues at an equal server: the client sees the events of an undisturbed one."""

import pytest
import pytest_asyncio

from tests.web.resuming.streams import read, resumable_site, sequence_numbers, summed
from tests.web.serving import ECHO, QWEN, SCRIPT, TINY, serving

CHAT, COMPLETIONS, MESSAGES, RESPONSES = (
    "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses",
)  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "ok": {"type": "boolean"}},
    "required": ["city", "ok"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "visit", "parameters": SCHEMA}}
HELLO = [{"role": "user", "content": "Tell me about the sea."}]
USAGE = {"stream_options": {"include_usage": True}}
CASES = {
    "chat without a seed": (CHAT, {"messages": HELLO, "max_tokens": 16, **USAGE}),
    "three answers with logprobs": (
        CHAT,
        {"messages": HELLO, "max_tokens": 12, "n": 3, "logprobs": True, "top_logprobs": 2, **USAGE},
    ),
    "schema": (
        CHAT,
        {
            "messages": HELLO,
            "max_tokens": 60,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "v", "schema": SCHEMA},
            },
        },
    ),
    "forced call": (
        CHAT,
        {"messages": HELLO, "max_tokens": 60, "tools": [TOOL], "tool_choice": "required"},
    ),
    "stop strings": (
        COMPLETIONS,
        {
            "prompt": "The sea",
            "max_tokens": 30,
            "n": 2,
            "stop": ["qu", "he", "9"],
            "logprobs": 2,
            **USAGE,
        },
    ),
    "penalties": (
        COMPLETIONS,
        {"prompt": "The sea", "max_tokens": 12, "presence_penalty": 0.7, "ignore_eos": True},
    ),
    "messages": (MESSAGES, {"model": TINY, "messages": HELLO, "max_tokens": 12}),
    "response": (RESPONSES, {"input": "Tell me about the sea.", "max_output_tokens": 12}),
}
WRITTEN = (
    '<think>\nI look.\n</think>\n\nI visit it.\n<tool_call>\n{"name": "visit", "arguments": {"city": "Rome"}}\n'
    '</tool_call>\n<tool_call>\n{"name": "visit", "arguments": {"city": "Bonn", "ok": true}}\n</tool_call>'
)
FLAT_TOOL = {"type": "function", "name": "visit", "parameters": SCHEMA}
THEIR_TOOL = {"name": "visit", "input_schema": SCHEMA}
SAID = [{"role": "user", "content": WRITTEN}]
WRITTEN_CASES = {
    "chat": (CHAT, {"messages": SAID, "max_tokens": 300, "tools": [TOOL]}),
    "messages": (
        MESSAGES,
        {"model": ECHO, "messages": SAID, "max_tokens": 300, "tools": [THEIR_TOOL]},
    ),
    "response": (RESPONSES, {"input": WRITTEN, "max_output_tokens": 300, "tools": [FLAT_TOOL]}),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sites():
    """Two servers of equal engines; the second is never asked for a new stream."""
    async with (
        serving(TINY) as one,
        serving(TINY) as other,
        resumable_site(one) as first,
        resumable_site(other) as second,
    ):
        yield first, second


async def check_breaks(first, second, path, body, num_breaks):
    """Break a stream after its first group, its last one and some between them, and compare."""
    whole = await read(first, path, body)
    assert (whole.status, whole.outcome, whole.is_done, whole.is_off) == (
        *(200, "new", True, False),
    ), whole.error
    expected = summed(whole.events())
    assert whole.groups
    for place in range(num_breaks):
        num_groups = 1 + place * (len(whole.groups) - 1) // (num_breaks - 1)

        rest = await read(second, path, body, whole.position(num_groups))
        assert (rest.status, rest.outcome, rest.is_done) == (200, "continued", True), rest.error
        events = [*whole.events(num_groups), *rest.events()]
        assert summed(events) == expected
        if path == RESPONSES:
            assert sequence_numbers(events) == list(range(len(events)))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", CASES)
async def test_a_broken_stream_continues_wherever_it_breaks(case, sites):
    """Text, calls, log-probabilities, ids, usage and the end are those of the undisturbed stream."""
    await check_breaks(*sites, *CASES[case], 3)


@pytest.mark.parametrize("case", WRITTEN_CASES)
async def test_reasoning_and_calls_continue_wherever_they_break(case):
    """The parsers, the open block and the ids of items and calls are as before the break."""
    async with (
        serving(ECHO, options=QWEN, template=SCRIPT) as served,
        resumable_site(served) as site,
    ):
        await check_breaks(site, site, *WRITTEN_CASES[case], 3)


@pytest.mark.slow
@pytest.mark.parametrize("case", WRITTEN_CASES)
async def test_reasoning_and_calls_continue_at_each_break(case):
    """No event is the wrong place to break."""
    async with (
        serving(ECHO, options=QWEN, template=SCRIPT) as served,
        resumable_site(served) as site,
    ):
        await check_breaks(site, site, *WRITTEN_CASES[case], 40)
