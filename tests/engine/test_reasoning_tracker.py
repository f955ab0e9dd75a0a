"""Thoughts: where they end, and what begins there."""

import re

import pytest

from tests.doubles.fake_runner import greedy_after
from tests.engine.test_structured_output import EOS, PROMPT, VOCAB, grammar, make, submit, text_of
from weft.core.errors import BadRequest
from weft.core.values.prompts import OpenReasoning
from weft.core.values.types import FinishReason, SamplingParams, StructuredOutputsParams
from weft.engine.constraints.reasoning_tracker import ReasoningTracker
from weft.model.embedded.byte_tokenizer import tokenizer_files
from weft.model.open import open_model
from weft.text.reasoning import read_reasoning
from weft.text.tokenizer import Tokenizer

BYTES = Tokenizer.from_files(tokenizer_files(VOCAB, "<|endoftext|>"))
TINY = Tokenizer.from_files(open_model("embedded:tiny").tokenizer_files)
# Random logits write this soon, in tokens of a byte; nudged, they write little else.
END = OpenReasoning(end="zq", end_token_ids=[*b"zq"])
NUDGE = {ord("z"): 5.0, ord("q"): 5.0}


def pieces(*texts):
    """A watch's pieces, numbered from 0."""
    return lambda token_id: texts[token_id]


@pytest.mark.parametrize(
    ("texts", "over_at"),
    [
        ([b"a", b"</think>", b"b"], 1),
        ([b"<", b"/th", b"ink", b">"], 3),
        ([b"</", b"</think", b">\n\n"], 2),
        ([b"x</think>y"], 0),
        ([b"</thin", b"</think>"], 1),
        ([b"</think", b" >", b"think>"], None),
    ],
)
def test_the_end_is_found_however_it_is_cut(texts, over_at):
    """In one token, over several, or inside one; never where other text is between."""
    watch = ReasoningTracker(OpenReasoning(end="</think>", end_token_ids=[1]), pieces(*texts))
    states = []
    for token_id in range(len(texts)):
        watch.push(token_id)
        states.append(watch.is_over)
    assert (states.index(True) if True in states else None) == over_at


@pytest.mark.parametrize(
    ("prompt", "ended", "kwargs", "is_open"),
    [
        ("Hi", None, None, False),
        ("Hi", True, None, False),
        ("Hi", None, {}, False),
        ("Hi", None, {"end": "</think>"}, True),
        ("Hi", False, {"end": "</think>"}, True),
        ("Hi", True, {"end": "</think>"}, False),
        ("<think>\n\n</think>\n\n", None, {"end": "</think>"}, False),
        ("<think>\n\n</think>\n\n", False, {"end": "</think>"}, True),
        ("<think>a</think>b", None, {"end": "</think>"}, True),
    ],
)
def test_reasoning_is_open_unless_the_caller_or_the_prompt_ends_it(prompt, ended, kwargs, is_open):
    """What the caller says comes first; else what the prompt's text ends with."""
    reasoning = read_reasoning(SamplingParams(), ended, kwargs, TINY.encode(prompt), TINY)
    assert (reasoning is not None) == is_open


def test_the_end_is_known_in_the_tokens_of_the_model():
    """One where the tokenizer has one for it; else as many as it takes."""
    kwargs = {"end": "</think>"}
    assert len(read_reasoning(SamplingParams(), None, kwargs, [5], TINY).end_token_ids) == 1
    assert read_reasoning(SamplingParams(), None, kwargs, [5], BYTES).end_token_ids == [
        *b"</think>"
    ]


@pytest.mark.parametrize(
    ("ended", "kwargs", "parameter", "words"),
    [
        ("no", None, "reasoning_ended", "true, false or None"),
        (False, None, "reasoning_parser_kwargs", "needs the text"),
        (None, {"start": "<think>"}, "reasoning_parser_kwargs", "unknown .*start"),
        (None, {"end": ""}, "reasoning_parser_kwargs", "1 to 64"),
        (None, {"end": " \n"}, "reasoning_parser_kwargs", "1 to 64"),
        (None, {"end": 5}, "reasoning_parser_kwargs", "1 to 64"),
        (None, {"end": "x" * 65}, "reasoning_parser_kwargs", "1 to 64"),
        (None, {"end": "\ud800"}, "reasoning_parser_kwargs", "surrogate"),
    ],
)
def test_arguments_that_give_no_end_are_refused(ended, kwargs, parameter, words):
    """By name, with what is allowed."""
    with pytest.raises(BadRequest, match=words) as caught:
        read_reasoning(SamplingParams(), ended, kwargs, [5], TINY)
    assert caught.value.parameter == parameter


def think(engine, name, **params):
    """A request whose answer begins with reasoning, and has a form after it."""
    settings = {"grammar": grammar("[a-c]{6}"), "reasoning": END, "logit_bias": NUDGE, **params}
    submit(engine, name, prompt=[*PROMPT, *name.encode() * 5], seed=ord(name[-1]), **settings)


def test_the_grammar_begins_behind_the_reasoning():
    """Anything before the marker, what the grammar says after it, and then the end."""
    engine = make()
    think(engine, "a")
    engine.run()
    [answer] = engine.answers["a"]
    text = bytes(token for token in answer.token_ids if token < 256)
    reasoning, _, rest = text.partition(b"zq")
    assert set(reasoning) - set(b"abc")
    assert re.fullmatch(b"[a-c]{6}", rest)
    assert answer.token_ids[-1] in EOS
    assert answer.finish_reason is FinishReason.STOP


def test_probabilities_in_the_reasoning_are_of_every_token():
    """What the grammar bars is barred only where it rules."""
    engine = make()
    think(engine, "a", logprobs=3)
    engine.run()
    [answer] = engine.answers["a"]
    num_reasoning = bytes(t % 256 for t in answer.token_ids).index(b"zq") + 2
    listed = [{token for token, _, _ in row[1:]} for row in answer.logprobs]
    assert any(tokens - set(b"abc") for tokens in listed[:num_reasoning])
    assert all(tokens <= {*b"abc", *EOS} for tokens in listed[num_reasoning:])


def test_a_grammar_from_the_first_token_waits_for_no_reasoning():
    """Though one is open."""
    engine = make()
    think(engine, "a", grammar_from_first_token=True)
    engine.run()
    assert len(text_of(engine.answers["a"][0])) == 6


def test_reasoning_that_never_ends_is_cut_by_length():
    """No grammar ever ruled."""
    engine = make()
    think(engine, "a", logit_bias={ord("q"): -100.0}, max_tokens=40, ignore_eos=True)
    engine.run()
    [answer] = engine.answers["a"]
    assert (len(answer.token_ids), answer.finish_reason) == (40, FinishReason.LENGTH)


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_reasoning_beyond_its_budget_is_ended(budget):
    """By the marker, token by token, against every other wish; and then the form begins."""
    engine = make()
    never = {"logit_bias": {ord("z"): -100.0, ord("q"): -100.0}, "bad_token_ids": [[ord("q")]]}
    think(engine, "a", thinking_token_budget=budget, min_tokens=30, logprobs=2, **never)
    engine.run()
    [answer] = engine.answers["a"]
    assert answer.token_ids[budget : budget + 2] == [*b"zq"]
    assert re.fullmatch("[a-c]{6}", bytes(answer.token_ids[budget + 2 : -1]).decode())
    assert [row[0][0] for row in answer.logprobs] == answer.token_ids


def test_a_budget_ends_reasoning_where_the_form_is_free():
    """Beside a plain request, whose tokens it leaves alone; and not twice."""
    engine = make()
    think(engine, "a", grammar=None, thinking_token_budget=3, max_tokens=60, ignore_eos=True)
    engine.finish("plain", PROMPT, max_tokens=20)
    [answer] = engine.answers["a"]
    assert answer.token_ids[3:5] == [*b"zq"]
    assert len(answer.token_ids) == 60
    assert engine.answers["plain"][0].token_ids == greedy_after(PROMPT, 20, VOCAB)


def test_a_marker_that_was_begun_is_completed():
    """Its first tokens are not written a second time."""
    watch = ReasoningTracker(
        OpenReasoning(end="aab", end_token_ids=[*b"aab"]), lambda t: bytes([t]), 3
    )
    forced = []
    for token_id in b"xaaab":
        watch.push(token_id)
        forced.append(watch.forced_token_id)
    assert forced == [None, None, ord("b"), ord("b"), None]
    assert watch.is_over


@pytest.mark.parametrize(
    ("params", "kwargs", "words"),
    [
        ({}, None, "needs the text"),
        (
            {
                "structured_outputs": StructuredOutputsParams(regex="a"),
                "grammar_from_first_token": True,
            },
            {"end": "x"},
            "applies to the reasoning",
        ),
    ],
)
def test_a_budget_that_cannot_be_followed_is_refused(params, kwargs, words):
    """Rather than passed over."""
    with pytest.raises(BadRequest, match=words) as caught:
        read_reasoning(SamplingParams(thinking_token_budget=3, **params), None, kwargs, [5], TINY)
    assert caught.value.parameter == "thinking_token_budget"


NAMES = [f"r{letter}" for letter in "abcdef"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 5, "max_num_seqs": 4},
        {"num_blocks": 40},
        {"enable_prefix_caching": False, "num_blocks": 40, "max_num_batched_tokens": 16},
    ],
    ids=["batched", "chunked", "preempted", "both"],
)
def test_reasoning_ends_the_same_whatever_runs_beside(options):
    """Alone, batched, chunked, preempted: where the reasoning ends is never counted twice or lost."""
    alone = []
    for name in NAMES:
        engine = make()
        think(engine, name, n=2, logprobs=1, thinking_token_budget=60)
        engine.run()
        alone.append(engine.answers[name])
    engine = make(**options)
    for name in NAMES:
        think(engine, name, n=2, logprobs=1, thinking_token_budget=60)
    engine.run()
    assert [engine.answers[name] for name in NAMES] == [
        [*map(same_but_cached, engine.answers[name], answers)]
        for name, answers in zip(NAMES, alone, strict=True)
    ]
    assert (engine.scheduler.planner.num_preemptions > 0) == (options.get("num_blocks", 512) < 100)


def same_but_cached(got, expected):
    """What is found in the cache depends on who was there before."""
    expected.num_cached_tokens = got.num_cached_tokens
    return expected
