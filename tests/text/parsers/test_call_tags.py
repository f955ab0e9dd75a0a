"""Calls that a family's own format forces: the grammar takes what the family's parser reads."""

import json
import random
import re

import pytest

from tests.engine.test_structured_output import EOS, TOKENIZER, VOCAB
from tests.text.parsers.taking_apart import cuts, feed_all, join
from tests.text.parsers.test_round_trip import WRITERS
from weft.compute.protocols.masks import flags_of
from weft.engine.constraints.grammar import GrammarState, GrammarVocabulary, build
from weft.engine.constraints.structural_tag import to_grammar
from weft.text.parsers.call_tags import call_tag
from weft.text.parsers.forms.tagged_calls import TaggedCalls
from weft.text.parsers.table import TOOL_PARSERS, make_output_parser
from weft.text.parsers.tool_families import ALIASES

VOCABULARY = GrammarVocabulary.read(TOKENIZER, VOCAB, EOS)
FAMILIES = sorted(TOOL_PARSERS.keys() - ALIASES.keys())
# Members of every type; the first may be left out, so what stands before the second may be missing.
WEATHER = {
    "type": "object",
    "properties": {
        "note": {"type": "string"},
        "city": {"type": "string", "description": "Where."},
        "unit": {"type": "string", "enum": ["c", "f"]},
        "days": {"type": "integer", "minimum": 1},
        "tags": {"type": "array", "items": {"type": "string"}},
        "exact": {"type": "boolean"},
        "where": {"$ref": "#/$defs/Place"},
        "until": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"Place": {"type": "object", "properties": {"x": {"type": "number"}}}},
}
SCHEMAS = {"get": {"type": "object", "properties": {}}, "get_weather": WEATHER}
PARIS = ("get_weather", {"city": "Paris"})
FULL = (
    "get_weather",
    {
        "note": 'a < b, it\'s "so"',
        "city": "L'Aquila",
        "unit": "f",
        "days": 3,
        "tags": ["x", "y"],
        "exact": True,
        "where": {"x": 1.5},
        "until": "noon",
    },
)
NOTHING = ("get", {})


def matcher_of(family, schemas=SCHEMAS, **options):
    """A matcher of what the family is forced to write."""
    tag = call_tag(TOOL_PARSERS[family], schemas, **{"is_parallel": True, **options})
    assert tag is not None
    return build(VOCABULARY, to_grammar(tag, {}))


def read(matcher, text):
    """ "whole", "open", or "no": what the grammar says of a text."""
    matcher = matcher.deep_copy()
    if matcher.try_consume_tokens([*text.encode()]) < len(text.encode()):
        return "no"
    return "whole" if matcher.is_accepting() else "open"


def parse(family, text, schemas=SCHEMAS):
    """The calls that the family's parser finds, and nothing beside them; whatever the cuts are."""
    tools = [{"name": name, "parameters": schema} for name, schema in schemas.items()]
    found = []
    for pieces in cuts(text):
        parser = make_output_parser(reasoning=None, tool=family, tools=tools)
        found.append(join(feed_all(parser, pieces)))
    assert found == [found[0]] * 3
    assert {part[0] for part in found[0]} == {"call"}
    return [(name, json.loads(arguments)) for _, name, arguments, *_ in found[0]]


def written(family, calls):
    """Calls as the family's template writes them."""
    text = WRITERS[family](calls).replace("{'x': 1.5}", '{"x": 1.5}')  # dicts are forced as JSON
    # The form of its own page; the parser takes line breaks around values too.
    return re.sub(r">\n(.*)\n</par", r">\1</par", text) if family == "seed_oss" else text


@pytest.mark.parametrize("calls", [[PARIS], [FULL], [NOTHING]], ids=["one", "all", "none"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_as_the_template_writes_it_may_be_forced(family, calls):
    """The grammar takes it, and nothing else behind it; the parser reads the same call."""
    text = written(family, calls)
    matcher = matcher_of(family, is_parallel=False)
    assert read(matcher, text) == "whole"
    assert read(matcher, text + "x") == "no"
    assert parse(family, text) == calls


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"openai"}))
def test_more_calls_only_where_they_may_be_parallel(family):
    """As the template writes several; in harmony the end of a call is the end of the turn."""
    text = written(family, [PARIS, NOTHING, FULL])
    assert read(matcher_of(family), text) == "whole"
    assert read(matcher_of(family, is_parallel=False), text) == "no"
    assert parse(family, text) == [PARIS, NOTHING, FULL]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_no_tool_takes_cannot_be_written(family):
    """Another name, a value of another type, one that is not listed, a required one left out."""
    for call in (
        ("get_time", {}),
        ("get_weather", {"city": "Paris", "unit": "k"}),
        ("get_weather", {"city": "Paris", "days": "x"}),
        ("get_weather", {"unit": "c"}),
        ("get_weather", {}),
    ):
        assert read(matcher_of(family), written(family, [call])) == "no"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_grammar_lets_through_is_read_as_calls(family, seed):
    """Of text that the grammar alone wrote: every call has its name, and arguments that fit its schema."""
    schemas = {"get_weather": {**WEATHER, "properties": dict(WEATHER["properties"])}}
    for name in ("tags", "where"):  # they nest, and a walk at random does not come back
        del schemas["get_weather"]["properties"][name]
    text = walk(matcher_of(family, schemas, is_parallel=False), seed, end_of_text(family))
    ((name, arguments),) = parse(family, text, schemas)
    assert name == "get_weather"
    assert isinstance(arguments["city"], str)
    assert arguments.get("unit", "c") in {"c", "f"}
    assert arguments.get("days", 1) >= 1
    assert isinstance(arguments.get("until", ""), str | None)


@pytest.mark.parametrize("space", ["", "\n", "\n\n", " "])
def test_white_space_may_stand_between_a_thought_and_the_call(space):
    """As the model was taught it; without thoughts there is none."""
    text = written("hermes", [PARIS])
    assert read(matcher_of("hermes", has_reasoning=True), space + text) == "whole"
    assert (read(matcher_of("hermes"), space + text) == "whole") == (not space)


def test_white_space_before_another_call_may_end_the_answer():
    """A model that wrote it, and did not mean to call again, need not."""
    matcher = matcher_of("hermes")
    assert read(matcher, written("hermes", [PARIS]) + "\n") == "whole"
    assert read(matcher, written("hermes", [PARIS]) + "\nx") == "no"


THOUGHT = "<|channel|>analysis<|message|>They <ask> so.<|end|><|start|>assistant"


def test_in_harmony_the_thought_is_part_of_the_format():
    """Before the call, if there is one; what ends the turn is left to the turn's end."""
    call = written("openai", [PARIS]).removesuffix("<|call|>")
    options = {"has_reasoning": True, "end_texts": ["<|return|>", "<|call|>"]}
    matcher = matcher_of("openai", **options)
    for text in (call, THOUGHT + call):
        assert read(matcher, text) == "whole"
        assert read(matcher, text + "<|call|>") == "no"
    assert read(matcher, THOUGHT) == "open"
    assert read(matcher, "<|channel|>final<|message|>") == "no"
    parser = make_output_parser(reasoning="openai_gptoss", tool="openai", tools=[])
    assert join(feed_all(parser, [THOUGHT + call])) == [
        ("r", "They <ask> so."),
        ("call", "get_weather", '{"city": "Paris"}'),
    ]


def test_marks_that_are_tokens_may_come_as_tokens():
    """As models write them; the ids of the byte tokenizer beyond its bytes play them."""
    names = ("<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|start|>")
    ids = {name: 260 + place for place, name in enumerate(names)}
    options = {"is_parallel": False, "has_reasoning": True, "end_texts": ["<|call|>"]}
    tag = call_tag(TOOL_PARSERS["openai"], SCHEMAS, **options)
    matcher = build(VOCABULARY, to_grammar(tag, ids))
    pieces = re.split(r"(<\|\w+\|>)", THOUGHT + written("openai", [PARIS])[: -len("<|call|>")])
    tokens = [token for one in pieces for token in ([ids[one]] if one in ids else one.encode())]
    assert matcher.try_consume_tokens(tokens) == len(tokens)
    assert matcher.is_accepting()


@pytest.mark.parametrize(
    ("number", "is_parallel", "verdict"),
    [(2, False, "whole"), (0, False, "no"), (0, True, "whole")],
)
def test_calls_are_numbered_over_the_conversation(number, is_parallel, verdict):
    """A single one has the next number; of more, each is numbered by the model."""
    text = written("kimi_k2", [PARIS]).replace(":0<", f":{number}<")
    matcher = matcher_of("kimi_k2", is_parallel=is_parallel, num_earlier_calls=2)
    assert read(matcher, text) == verdict


UNSAID = {
    "a pattern": {"properties": {"a": {"type": "string", "pattern": "x"}}},
    "one of some that read alike": {"properties": {"a": {"enum": ["1", 1]}}},
    "members by a pattern": {"patternProperties": {"x": {}}},
    "a choice of objects": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "a reference to the whole": {"properties": {"a": {"$ref": "#"}}},
    "a key that no tag can hold": {"properties": {"a b": {"type": "string"}}},
    "one that must be there and is not described": {"required": ["a"]},
}


@pytest.mark.parametrize("schema", UNSAID.values(), ids=UNSAID)
def test_what_a_form_cannot_keep_to_it_does_not_force(schema):
    """In tags, that is; JSON is kept to any schema."""
    tools = {"f": {"type": "object", **schema}}
    assert call_tag(TOOL_PARSERS["qwen3_coder"], tools, is_parallel=False) is None
    assert call_tag(TOOL_PARSERS["hermes"], tools, is_parallel=False) is not None


KEPT = [
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "abc"], ["a", "abcd"]),
    ({"type": ["string", "null"], "enum": ["a", None]}, ["a", None], ["b"]),
    ({"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}, ["a", None], ["c"]),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ["a", None], []),
    ({"const": 7}, [7], [8]),
    ({"type": "string", "format": "date"}, ["2026-01-01"], []),
    ({}, ["text", 1, [True]], []),
    ({"$ref": "#/$defs/Kind", "$defs": {"Kind": {"enum": ["a", 1]}}}, ['"a"', 1], ["b", 2]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), KEPT)
def test_values_in_tags_keep_to_their_schemas(schema, good, bad):
    """A value that the schema takes can be written and is read back; no other can be written."""
    own = {key: value for key, value in schema.items() if key != "$defs"}
    tools = {
        "f": {"type": "object", "properties": {"a": own}, "$defs": schema.get("$defs", {})},
    }
    matcher = matcher_of("minimax_m2", tools, is_parallel=False)
    for value in good:
        text = written("minimax_m2", [("f", {"a": value})])
        meant = json.loads(value) if value == '"a"' else value
        assert read(matcher, text) == "whole"
        assert parse("minimax_m2", text, tools) == [("f", {"a": meant})]
    assert {read(matcher, written("minimax_m2", [("f", {"a": value})])) for value in bad} <= {"no"}


def walk(matcher, seed, free):
    """A text that the grammar allows: at random where there are some ways, and `free` where all are."""
    state = GrammarState(matcher, VOCABULARY)
    rng, out, rest = random.Random(seed), bytearray(), b""
    while not matcher.is_accepting():
        assert len(out) < 10_000
        allowed = [token for token in range(256) if flags_of(state.mask(), 256)[token]]
        if len(allowed) > 40:  # not within a character
            rest = rest or free
            token, rest = rest[0], rest[1:]
        else:
            rest = b""
            token = rng.choice(allowed)
        out.append(token)
        state.advance(token)
    return out.decode()


def end_of_text(family):
    """What is written where any text may come: a little of it, and its end."""
    form = TOOL_PARSERS[family].form
    if not isinstance(form, TaggedCalls):
        return b"ab\"'"
    padding = "\n" if ">\nParis\n<" in TOOL_PARSERS[family].example else ""
    return f"a<b{padding}{form.tags.value_end}".encode()
