"""Structural tags: free text in which some parts have a form."""

import json
import re

import pytest

from tests.engine.test_structured_output import EOS, TOKENIZER, VOCAB, make, submit
from weft.compute.protocols.masks import flags_of
from weft.engine.constraints.grammar import GrammarFailed, GrammarState, GrammarVocabulary, build
from weft.engine.constraints.structural_tag import to_grammar

VOCABULARY = GrammarVocabulary.read(TOKENIZER, VOCAB, EOS)
# Two ids of the byte tokenizer that stand for themselves, under names that models have for them.
CHANNEL, CALL = 260, 261
SPECIALS = {"<|channel|>": CHANNEL, "<call>": CALL}
INTEGER = {"type": "json_schema", "json_schema": {"type": "integer"}}
ANY = {"type": "any_text"}


def const(value):
    """A text as it stands."""
    return {"type": "const_string", "value": value}


def regex(pattern):
    """A text of this pattern."""
    return {"type": "regex", "pattern": pattern}


def tag(begin, content, end):
    """A part with a beginning and an end."""
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def triggered(*tags, triggers=("<f",), **options):
    """Free text with these tags."""
    return {"type": "triggered_tags", "triggers": [*triggers], "tags": [*tags], **options}


def read(whole, tokens, specials=SPECIALS):
    """ "whole", "open", or "no": what the grammar says of these tokens, a text or a list."""
    matcher = build(VOCABULARY, to_grammar(whole, specials))
    for token in tokens.encode() if isinstance(tokens, str) else tokens:
        if not flags_of(GrammarState(matcher, VOCABULARY).mask(), VOCABULARY.width)[token]:
            return "no"
        matcher.consume_token(token)
    return "whole" if matcher.is_accepting() else "open"


OLD = {
    "structures": [
        {"begin": "<f=a>", "schema": {"enum": [1, 22]}, "end": "</f>"},
        {"begin": "<f=b>", "schema": {"type": "boolean"}, "end": "</f>"},
    ],
    "triggers": ["<f"],
}


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("", "whole"),
        ("free < text\n", "whole"),
        ("free <f", "open"),
        ("free <f=c", "no"),
        ("<f=a>22", "open"),
        ("<f=a>3", "no"),
        ("<f=a>22</f>", "whole"),
        ("<f=a>22</f> then <f=b>true</f>.", "whole"),
        ("<f=a>22</f><f=b>1", "no"),
    ],
)
def test_text_is_free_until_a_trigger(text, verdict):
    """Then a tag must follow, as it was described; and the text is free again."""
    assert read(OLD, text) == verdict


F = tag("<f>", INTEGER, "</f>")


@pytest.mark.parametrize(
    ("whole", "text", "verdict"),
    [
        (const('aé/"\n'), 'aé/"\n', "whole"),
        (const("ab"), "abc", "no"),
        (INTEGER, "12", "whole"),
        (regex("[a-z]+/?"), "ab/", "whole"),
        (tag("<", regex("[a-z]+"), "end"), "<abend", "whole"),
        (tag("<", regex("[a-z]+"), "end"), "<ab", "open"),
        ({"type": "grammar", "grammar": 'root ::= "a" root "b" | ""'}, "aabb", "whole"),
        ({"type": "grammar", "grammar": "start: /x+/"}, "xx", "whole"),
        (tag("<", ANY, ">"), "<any < text>", "whole"),
        (tag("<", ANY, ">"), "<any>more", "no"),
        (tag("<", INTEGER, [">", "/>"]), "<1/>", "whole"),
        ({"type": "or", "elements": [const("a"), const("b")]}, "b", "whole"),
        (
            {"type": "sequence", "elements": [const("a"), ANY, const("."), INTEGER]},
            "a x.5",
            "whole",
        ),
        ({"type": "sequence", "elements": [const("a"), ANY, const("."), INTEGER]}, "a x", "open"),
        (triggered(F), "x<f>1</f>y<f>2</f>", "whole"),
        (triggered(F, at_least_one=True), "", "open"),
        (triggered(F, at_least_one=True), "x", "no"),
        (triggered(F, at_least_one=True), "<f>1</f>x<f>2</f>", "whole"),
        (triggered(F, stop_after_first=True), "x<f>1</f>", "whole"),
        (triggered(F, stop_after_first=True), "x<f>1</f>y", "no"),
        (tag("[", triggered(F), "]"), "[a<f>1</f>b]", "whole"),
        (tag("[", triggered(F, stop_after_first=True), "]"), "[a<f>1</f>]", "whole"),
        *(
            ({"type": "tags_with_separator", "tags": [F], "separator": ",", **options}, *case)
            for options, *case in [
                ({}, "", "whole"),
                ({}, "<f>1</f>,<f>2</f>", "whole"),
                ({}, "<f>1</f>,", "open"),
                ({"at_least_one": True}, "", "open"),
                ({"stop_after_first": True}, "<f>1</f>,", "no"),
            ]
        ),
    ],
)
def test_each_format_allows_what_it_declares(whole, text, verdict):
    """And nothing else; nested ones too."""
    assert read({"format": whole}, text) == verdict


CALLS = {"format": triggered(tag("<call>", INTEGER, "</call>"), triggers=["<call>"])}
TALK = {
    "format": triggered(tag("<|channel|>say:", INTEGER, "<|channel|>"), triggers=["<|channel|>say"])
}


@pytest.mark.parametrize(
    ("whole", "tokens", "verdict"),
    [
        (CALLS, [*b"a", CALL, *b"1</call>"], "whole"),
        (CALLS, [*b"a<call>1</call>b"], "whole"),
        (CALLS, [CALL, *b"x"], "no"),
        (CALLS, [*b"a", CHANNEL, *b"b"], "whole"),
        (TALK, [CHANNEL, *b"say:1", CHANNEL], "whole"),
        (TALK, [CHANNEL, *b"say:1<|channel|>"], "whole"),
        (TALK, [*b"<|channel|>say:1", CHANNEL, *b"x"], "whole"),
        (TALK, [CHANNEL, *b"say1"], "no"),
        (TALK, [CHANNEL, *b"sing", CHANNEL, CALL], "whole"),
        (TALK, [CHANNEL, *b"sing<|channel|>say1"], "no"),
        ({"format": tag("<", ANY, "<call>")}, [*b"<a", CHANNEL, *b"b", CALL], "whole"),
        ({"format": tag("<", ANY, "<call>")}, [*b"<a", CALL, *b"x"], "no"),
    ],
)
def test_a_marker_may_come_as_its_own_token(whole, tokens, verdict):
    """Or be spelled out; and one that only begins a trigger is free to go on otherwise."""
    assert read(whole, tokens) == verdict


@pytest.mark.parametrize(
    ("whole", "words"),
    [
        ({"structures": []}, "structures must not be empty"),
        ({"structures": [{"begin": "<f", "schema": {}, "end": ""}]}, "triggers must be a list"),
        ({**OLD, "triggers": ["<g"]}, "begins with none of the triggers"),
        ({**OLD, "triggers": [""]}, "none of them empty"),
        ({**OLD, "triggers": [5]}, "must hold texts"),
        ({"format": 5}, "type"),
        ({"format": {"type": "harmony"}}, "unknown format type"),
        ({"format": {"type": "any_text", "excludes": ["x"]}}, "unknown keys .*excludes"),
        ({"format": {"type": "regex"}}, "pattern must be text"),
        ({"format": {"type": "json_schema", "json_schema": 5}}, "json_schema must be a schema"),
        ({"format": tag("<", ANY, 5)}, "end of a tag"),
        ({"format": tag("<", "x", ">")}, "content must be an object"),
        ({"format": {"type": "sequence", "elements": [ANY, INTEGER]}}, "any_text in a sequence"),
    ],
)
def test_what_is_no_tag_is_refused_with_what_is_wrong(whole, words):
    """Nothing in it is passed over."""
    with pytest.raises(ValueError, match=words):
        to_grammar(whole, {})


def test_a_schema_that_cannot_be_built_is_refused():
    """With the library's sentence."""
    with pytest.raises(GrammarFailed):
        build(VOCABULARY, to_grammar({"format": {"type": "regex", "pattern": "(a"}}, {}))


@pytest.mark.slow
def test_samples_keep_to_the_tags():
    """Hundreds of random answers: every trigger is followed by a whole tag, with JSON of its schema."""
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [1, 2, 3]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    old = {
        "structures": [{"begin": "<f=a>", "schema": schema, "end": "</f>"}],
        "triggers": ["<f"],
    }
    engine = make(num_blocks=4096, max_num_seqs=64, max_num_batched_tokens=512)
    nudge = {ord("<"): 4.0, ord("f"): 4.0}
    for i in range(8):
        submit(
            engine,
            f"r{i}",
            grammar=to_grammar(old, SPECIALS),
            seed=i * 1000,
            n=50,
            logit_bias=nudge,
        )
    engine.run()
    texts = [
        bytes(token % 256 for token in answer.token_ids).decode(errors="replace")
        for i in range(8)
        for answer in engine.answers[f"r{i}"]
        if answer.finish_reason == "stop"
    ]
    tags = [found for text in texts for found in re.findall("<f(.*?)(?:</f>|$)", text, re.DOTALL)]
    assert len(texts) > 200
    assert len(tags) > 100
    assert all(json.loads(found.removeprefix("=a>"))["n"] in {1, 2, 3} for found in tags)
