"""Events of a turn in Anthropic's words: the order of the blocks, and their sum in the official client."""

import json

import msgspec
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from weft.core.errors import Unavailable
from weft.text.parsers.parts import Arguments, Content, Reasoning, ToolCall
from weft.web.anthropic.writer import SIGNATURE, MessageShape, MessageWriter
from weft.web.chat.turn import Began, Ended, TurnDelta

_EVENTS = TypeAdapter(RawMessageStreamEvent)


def shape(**changes):
    """An answer of which all is shown."""
    fields = {"id": "msg_1", "model": "m", "shows_reasoning": True, "counts_reasoning": True}
    return MessageShape(**{**fields, **changes})


def written(parts_of_deltas, *, reason="stop", stop=None, cached=2, **changes):
    """The events that deltas of these parts make; five prompt tokens, and one a delta."""
    writer = MessageWriter(shape(**changes))
    deltas = [
        TurnDelta(index=0, parts=parts, token_ids=[7], num_reasoning_tokens=1)
        for parts in parts_of_deltas
    ]
    end = TurnDelta(index=0, parts=[], token_ids=[], finish_reason=reason, stop_reason=stop)
    began = Began(prompt="p", prompt_token_ids=[1, 2, 3, 4, 5], num_cached_tokens=cached)
    turn = [began, *deltas, end, Ended(num_cached_tokens=cached)]
    events = Written(made for event in turn for made in writer.events(event))
    events.message = writer.message
    return events


class Written(list):
    """All events of a message, with the message in one piece."""


def folded(events):
    """The answer in one piece, as JSON."""
    return json.loads(msgspec.json.encode(events.message))


def accumulated(events):
    """The answer as the official client adds it up."""
    snapshot = None
    buffers = {}
    for event in events:
        decoded = json.loads(msgspec.json.encode(event))
        if decoded["type"] == "ping":
            continue
        snapshot = accumulate_event(
            event=_EVENTS.validate_python(decoded), current_snapshot=snapshot, json_bufs=buffers
        )
    return snapshot


def brief(events):
    """Kinds of events, with the kinds of what they hold and their indices."""
    lines = []
    for event in events:
        decoded = json.loads(msgspec.json.encode(event))
        inner = decoded.get("content_block") or decoded.get("delta") or {}
        words = [decoded["type"], inner.get("type"), decoded.get("index")]
        lines.append(" ".join(str(word) for word in words if word is not None))
    return lines


def call(index, name, text, call_id="chatcmpl-tool-9"):
    """A whole call."""
    return [ToolCall(index, name, call_id), Arguments(index, text)]


def test_events_come_in_the_published_order():
    """Blocks do not overlap, each has the next index, reasoning is signed before it ends."""
    events = written(
        [[Reasoning("Hm")], [Reasoning("m."), Content("\n")], [Content("Hi")], call(0, "f", "{}")],
        reason="tool_calls",
    )
    assert brief(events) == [
        "message_start",
        "ping",
        "content_block_start thinking 0",
        "content_block_delta thinking_delta 0",
        "content_block_delta thinking_delta 0",
        "content_block_delta signature_delta 0",
        "content_block_stop 0",
        "content_block_start text 1",
        "content_block_delta text_delta 1",
        "content_block_stop 1",
        "content_block_start tool_use 2",
        "content_block_delta input_json_delta 2",
        "content_block_stop 2",
        "message_delta",
        "message_stop",
    ]


def test_text_after_a_call_is_a_block_of_its_own():
    """The text before it is over, and so is the call."""
    answer = folded(written([[Content("a")], call(0, "f", '{"x":1}'), [Content("b")]]))
    assert [block["type"] for block in answer["content"]] == ["text", "tool_use", "text"]
    assert answer["content"][1]["input"] == {"x": 1}


def test_several_calls_in_one_delta_are_several_blocks():
    """A delta that holds a call's name and input, and then another's, loses neither."""
    answer = folded(written([[*call(0, "f", '{"x":1}'), *call(1, "g", '{"y":2}', "mine:1")]]))
    assert [(block["name"], block["input"]) for block in answer["content"]] == [
        ("f", {"x": 1}),
        ("g", {"y": 2}),
    ]
    assert [block["id"] for block in answer["content"]] == ["toolu_9", "mine:1"]


def test_whitespace_between_calls_is_no_text():
    """Models write line ends around their calls; an answer's own whitespace stays."""
    parts = [[Content("\n")], call(0, "f", "{}"), [Content("\n")], call(1, "g", "{}")]
    assert [block["type"] for block in folded(written(parts))["content"]] == ["tool_use"] * 2
    assert folded(written([[Content("\n")], [Content(" a\n")]]))["content"][0]["text"] == "\n a\n"
    assert folded(written([[Content("\n")]]))["content"] == [{"type": "text", "text": "\n"}]


def test_an_empty_answer_has_an_empty_text():
    """Clients read the first block without asking whether there is one."""
    events = written([[]])
    assert folded(events)["content"] == [{"type": "text", "text": ""}]
    assert accumulated(events).content[0].text == ""


def test_input_never_begins_with_whitespace_alone():
    """The client's reader of unfinished input raises on it."""
    events = written([[ToolCall(0, "f", "x"), Arguments(0, " ")], [Arguments(0, " {}")]])
    assert accumulated(events).content[0].input == {}
    assert folded(events)["content"][0]["input"] == {}


def test_reasoning_that_is_not_shown_keeps_its_place():
    """A block without text, signed all the same."""
    answer = folded(written([[Reasoning("Hm")], [Content("a")]], shows_reasoning=False))
    assert answer["content"] == [
        {"type": "thinking", "thinking": "", "signature": SIGNATURE},
        {"type": "text", "text": "a"},
    ]


@pytest.mark.parametrize(
    ("parts", "reason", "stop", "expected"),
    [
        ([Content("a")], "stop", None, ("end_turn", None)),
        ([Content("a")], "stop", "\n", ("stop_sequence", "\n")),
        ([Content("a")], "length", None, ("max_tokens", None)),
        ([Content("a")], "repetition", None, ("end_turn", None)),
        (call(0, "f", "{}"), "tool_calls", None, ("tool_use", None)),
        (call(0, "f", "{}"), "stop", None, ("tool_use", None)),
        (call(0, "f", "{"), "length", None, ("max_tokens", None)),
        (call(0, "f", "{"), "tool_calls", "}", ("stop_sequence", "}")),
    ],
)
def test_every_reason_has_its_word(parts, reason, stop, expected):
    """A call by name ends as any call does; what cut an answer off is said even of a call."""
    answer = folded(written([parts], reason=reason, stop=stop))
    assert (answer["stop_reason"], answer["stop_sequence"]) == expected


def test_an_aborted_answer_is_an_error():
    """It must not look complete."""
    with pytest.raises(Unavailable):
        written([[Content("a")]], reason="abort")


def test_usage_counts_cached_tokens_apart():
    """Input tokens are those that were computed; the first event counts the prompt already."""
    events = written([[Content("a")], [Content("b")]])
    start = json.loads(msgspec.json.encode(events[0]))["message"]["usage"]
    usage = folded(events)["usage"]
    assert (start["input_tokens"], start["cache_read_input_tokens"]) == (3, 2)
    assert start["output_tokens"] == 0
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (3, 2)
    assert usage["cache_creation_input_tokens"] == 0
    assert usage["output_tokens"] == 2
    assert usage["output_tokens_details"] == {"thinking_tokens": 2}


_TEXTS = st.text(max_size=6) | st.sampled_from(["\n", " ", " \n"])
_INPUTS = st.dictionaries(
    st.text(max_size=3), st.integers() | st.text(max_size=4) | st.lists(st.booleans()), max_size=3
)
_TURNS = st.lists(
    st.one_of(
        st.tuples(st.just("reasoning"), _TEXTS),
        st.tuples(st.just("text"), _TEXTS),
        st.tuples(st.just("call"), st.tuples(_INPUTS, st.sampled_from([None, 1]))),
    ),
    max_size=5,
)


@st.composite
def deltas(draw):
    """The parts of any answer, in any number of deltas; calls cut anywhere, the last maybe cut off."""
    found = []
    num_calls = 0
    for kind, value in draw(_TURNS):
        if kind != "call":
            found.append(Reasoning(value) if kind == "reasoning" else Content(value))
            continue
        text = " " + json.dumps(value[0], indent=value[1])
        found.append(ToolCall(num_calls, "f", f"id{num_calls}"))
        cut = draw(st.integers(0, len(text)))
        found += [Arguments(num_calls, piece) for piece in (text[:cut], text[cut:]) if piece]
        num_calls += 1
    if found and isinstance(found[-1], Arguments):
        text = found[-1].text
        found[-1] = Arguments(found[-1].index, text[: draw(st.integers(1, len(text)))])
    sizes = draw(st.lists(st.integers(0, 3), max_size=6))
    pieces = []
    for size in sizes:
        pieces.append(found[:size])
        found = found[size:]
    return [*pieces, found]


@given(deltas(), st.sampled_from([("stop", None), ("stop", "x"), ("length", None)]), st.booleans())
def test_a_stream_adds_up_to_the_answer_in_one_piece(parts, ending, shows_reasoning):
    """In the official client's own accumulator, whatever the answer and its cuts."""
    events = written(parts, reason=ending[0], stop=ending[1], shows_reasoning=shows_reasoning)
    whole = Message.model_validate(folded(events))
    streamed = accumulated(events)
    assert Message.model_validate(streamed.to_dict()).to_dict() == whole.to_dict()
