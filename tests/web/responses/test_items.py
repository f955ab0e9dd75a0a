"""Input items to messages and to the form in which they are listed; what is no item is refused."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.checks.object_ids import new_id
from weft.core.errors import BadRequest
from weft.web.items.items import read_input, to_messages

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm."}],
}
TEXT_PART = {"type": "text", "text": "Sure."}
ANSWER = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Sure.", "annotations": []}],
}
TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def read(*items, find_item=lambda _: None, before=()):
    """What these items come to."""
    return asyncio.run(read_input(list(items), before=before, find_item=find_item))


def test_a_text_is_a_message_of_the_user():
    """Listed with an id, a status and its part."""
    made = asyncio.run(read_input("hello", find_item=lambda _: None))
    (item,) = made.items
    assert item.pop("id").startswith("msg_")
    assert item == {
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "hello"}],
    }
    assert made.messages == [{"role": "user", "content": "hello"}]


def test_one_turn_of_the_model_is_one_message():
    """Reasoning, text and calls belong together; the tool's answer follows."""
    made = read({"role": "user", "content": "x"}, REASONING, ANSWER, CALL, OUTPUT)
    assert made.messages[1:] == [
        {
            "role": "assistant",
            "reasoning": "Hm.",
            "content": [TEXT_PART],
            "tool_calls": [TOOL_CALL],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "rain"},
    ]
    assert [item["id"] for item in made.items[1:3]] == ["rs_1", "msg_1"]


def test_turns_of_the_model_stay_apart():
    """New reasoning, or text behind text, begin another message."""
    made = read(ANSWER, REASONING, ANSWER, ANSWER)
    assert made.messages == [
        {"role": "assistant", "content": [TEXT_PART]},
        {"role": "assistant", "reasoning": "Hm.", "content": [TEXT_PART]},
        {"role": "assistant", "content": [TEXT_PART]},
    ]


def test_reasoning_that_was_only_summed_up_is_its_summary():
    """And those that say nothing make no message."""
    summed = {"type": "reasoning", "id": "x", "summary": [{"type": "summary_text", "text": "S"}]}
    empty = {"type": "reasoning", "id": "y", "summary": []}
    assert read(summed).messages == [{"role": "assistant", "reasoning": "S"}]
    assert read(empty).messages == []
    assert len(read(empty).items) == 1


def test_an_output_may_answer_a_call_of_an_earlier_response():
    """Calls are looked for in all that came before."""
    before = [{"role": "assistant", "tool_calls": [TOOL_CALL]}]
    assert read(OUTPUT, before=before).messages[0]["role"] == "tool"


def test_a_reference_stands_for_its_item():
    """With or without its type; under the item's own id."""
    made = read(
        {"id": "msg_1"}, {"type": "item_reference", "id": "msg_1"}, find_item=lambda _: ANSWER
    )
    assert [item["id"] for item in made.items] == ["msg_1", "msg_1"]
    assert made.messages == [{"role": "assistant", "content": [TEXT_PART]}] * 2


def test_parts_of_a_refusal_and_of_an_output_are_text():
    """What an assistant would not say it said; outputs may be parts."""
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    parts = {**OUTPUT, "output": [{"type": "input_text", "text": "rain"}]}
    made = read(refusal, CALL, parts)
    assert made.messages[0]["content"] == [{"type": "refusal", "refusal": "No."}]
    assert made.messages[-1]["content"] == [{"type": "text", "text": "rain"}]
    assert made.items[-1]["output"] == [{"type": "input_text", "text": "rain"}]


def test_output_items_go_back_as_they_came():
    """What a response said is what the next one reads."""
    made = to_messages([REASONING, ANSWER, CALL])
    assert made == [
        {
            "role": "assistant",
            "reasoning": "Hm.",
            "content": [TEXT_PART],
            "tool_calls": [TOOL_CALL],
        }
    ]


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ({"type": "compaction", "encrypted_content": "x"}, "compaction"),
        ({"type": 1}, "type must be a string"),
        ({}, "id"),
        ({"role": "tool", "content": "x"}, "role must be one of"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}, "input_image"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "text must be a string"),
        ({"role": "user", "content": [1]}, "content"),
        (OUTPUT, "no call has the call_id"),
        ({**CALL, "arguments": {}}, "arguments"),
        ({**CALL, "namespace": 1}, "namespace"),
        ({**REASONING, "content": [{"type": "text", "text": "x"}]}, "reasoning_text"),
        ({"type": "item_reference", "id": "msg_x"}, "no stored item"),
    ],
)
def test_what_is_no_item_is_refused_by_its_place(item, says):
    """The parameter is input, and the message says which item and what of it."""
    with pytest.raises(BadRequest, match=says) as refused:
        read({"role": "user", "content": "x"}, item)
    assert refused.value.parameter == "input"
    assert "input[1]" in str(refused.value)


def test_what_another_model_did_is_left_out():
    """Searches of a server's, and reasoning that only its maker can read: nothing of it is a message."""
    made = read(
        {"role": "user", "content": "x"},
        {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "q"}},
        {"type": "tool_search_call", "call_id": "c1", "arguments": {}},
        {"type": "tool_search_output", "call_id": "c1", "tools": []},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        ANSWER,
    )
    assert [message["role"] for message in made.messages] == ["user", "assistant"]
    assert "reasoning" not in made.messages[-1]


def test_a_summary_stands_for_encrypted_reasoning():
    """It is the part of it that can be read."""
    summary = [{"type": "summary_text", "text": "Hm."}]
    made = read({"type": "reasoning", "summary": summary, "encrypted_content": "x"})
    assert made.messages == [{"role": "assistant", "reasoning": "Hm."}]


def test_references_do_not_multiply_what_they_name():
    """Many short ones to one long item are refused before anything is made of them."""
    item = {"type": "message", "role": "user", "content": "x" * 1_000_000}
    references = [{"type": "item_reference", "id": "msg_1"}] * 20
    with pytest.raises(BadRequest, match=r"input\[16\].*more than"):
        read(*references, find_item=lambda _: item)


WORDS = st.sampled_from(
    ["message", "reasoning", "function_call", "function_call_output", "item_reference", "user",
     "assistant", "input_text", "output_text", "refusal", "reasoning_text", "summary_text", "c1", ""]
)  # fmt: skip
KEYS = st.sampled_from(
    ["type", "role", "content", "id", "call_id", "name", "arguments", "output", "summary", "text",
     "refusal", "status", "encrypted_content", "namespace"]
)  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)
NEARLY = st.sampled_from([CALL, OUTPUT, REASONING, ANSWER, {"role": "user", "content": "x"}])


@settings(max_examples=150, deadline=None)
@given(
    items=st.lists(
        st.dictionaries(KEYS, ANYTHING, max_size=6)
        | st.builds(
            lambda item, change: {**item, **change},
            NEARLY,
            st.dictionaries(KEYS, ANYTHING, max_size=1),
        ),
        max_size=4,
    )
)
def test_whatever_arrives_is_read_or_refused(items):
    """Nothing else can come of it; and what is read can be read again, as it is listed."""
    try:
        made = read(*items)
    except BadRequest:
        return
    assert len(made.items) == len(items)
    again = read(*made.items)
    assert again.items == made.items
    assert [message["role"] for message in again.messages] == [
        message["role"] for message in made.messages
    ]


def test_ids_hold_128_random_bits():
    """Who has one was given it."""
    ids = {new_id("resp") for _ in range(100)}
    assert len(ids) == 100
    assert {len(made) for made in ids} == {len("resp_") + 32}
