"""Lists of content parts: what is in a table is read as its struct, and all else is refused by its place."""

import msgspec
import pytest

from weft.core.errors import BadRequest
from weft.text.content import CHAT_PARTS, PartTypes, Place, Refusal, Text, read_parts, to_wire
from weft.text.templates.history import normalise_messages
from weft.text.templates.template_facts import TemplateFacts

HERE = Place("messages", "messages[0].content")


class Picture(msgspec.Struct):
    """A kind that no table has yet."""

    url: str


TABLE = PartTypes(
    structs={"words": Text, "picture": Picture},
    refused={"song": "nobody listens"},
    if_refused="{part}: no {type}: {reason}",
    if_unknown="{part} in {list}: {type!r} is none of {types}",
    if_untyped="{part} has no type",
    if_malformed="{part}.{field}: {placed_error}",
)


def read(content, types=TABLE):
    """The parts without their places."""
    return [part for _, part in read_parts(content, types, HERE)]


def test_another_kind_of_part_is_a_row():
    """Several types may be of one kind; each part comes with its place."""
    content = [{"type": "words", "text": "x"}, {"type": "picture", "url": "u"}]
    (first, words), (second, picture) = read_parts(content, TABLE, HERE)
    assert (words, picture) == (Text(text="x"), Picture("u"))
    assert [first.path, second.path] == ["messages[0].content[0]", "messages[0].content[1]"]


def test_a_string_is_one_part_of_text():
    """In every API."""
    assert read("x", CHAT_PARTS) == [Text(text="x")]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "song"}, "messages[0].content[0]: no song: nobody listens"),
        (
            {"type": "poem"},
            "messages[0].content[0] in messages[0].content: 'poem' is none of words, picture",
        ),
        ({"type": 7}, "messages[0].content[0] has no type"),
        (
            {"type": "picture", "url": 7},
            "messages[0].content[0].url: Expected `str`, got `int` - at `messages[0].content[0].url`",
        ),
    ],
)
def test_what_is_not_taken_is_refused_in_the_words_of_the_table(part, message):
    """With the body's field as the parameter."""
    with pytest.raises(BadRequest) as refused:
        read([part])
    assert (refused.value.parameter, str(refused.value)) == ("messages", message)


@pytest.mark.parametrize("part", [Text(text="x"), Refusal(refusal="x")])
def test_parts_are_written_as_chat_reads_them(part):
    """There and back."""
    assert read([to_wire(part)], CHAT_PARTS) == [part]


def test_a_template_sees_a_parts_type_and_text():
    """A refusal is text; what else was written beside it could mean another kind to a template."""
    parts = [{"type": "text", "text": "a", "image": "u"}, {"type": "refusal", "refusal": "b"}]
    facts = TemplateFacts(part_roles=frozenset({"user"}))
    (message,) = normalise_messages([{"role": "user", "content": parts}], facts)
    assert message["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
