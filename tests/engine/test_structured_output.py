"""Sequences with grammars, one step at a time: what else is asked of them, and who is beside them."""

import pytest

from tests.doubles.fake_runner import FakeRunner, greedy_after
from tests.doubles.stepping import make_engine
from weft.core.values.types import FinishReason
from weft.engine.constraints.grammar import GrammarVocabulary
from weft.engine.constraints.text import to_grammar_text
from weft.model.embedded.byte_tokenizer import tokenizer_files

VOCAB = 300
EOS = (257, 258)
PROMPT = list(b"say: ")
TOKENIZER = tokenizer_files(VOCAB, "<|endoftext|>")["tokenizer.json"].decode()
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "tags": {"type": "array", "items": {"enum": ["a", "bé"]}, "maxItems": 3},
        "n": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["name", "tags", "n"],
    "additionalProperties": False,
}


def grammar(value, kind="regex"):
    """The text of a grammar."""
    return to_grammar_text(kind, value, None)


def make(eos=EOS, **options):
    """An engine that knows grammars."""
    settings = {"vocab_size": VOCAB, "num_blocks": 512, "max_model_len": 256, **options}
    engine = make_engine(FakeRunner(VOCAB), **settings)
    engine.vocabulary = GrammarVocabulary.read(TOKENIZER, VOCAB, eos)
    return engine


def submit(engine, name, prompt=PROMPT, **params):
    """A request to a model with these ends, in the way of most callers."""
    engine.submit(
        name,
        prompt,
        eos_token_ids=EOS,
        **{"temperature": 1.0, "ignore_eos": False, "max_tokens": 200, **params},
    )


def text_of(answer):
    """Without the tokens that are no text."""
    return bytes(token for token in answer.token_ids if token < 256).decode()


def run(text, **params):
    """One answer, alone."""
    engine = make()
    submit(engine, "a", grammar=text, **params)
    engine.run()
    return engine.answers["a"][0]


def test_the_end_is_forced_where_nothing_else_may_follow():
    """With a token of the model for it, and the reason "stop"."""
    answer = run(grammar("abc"))
    assert text_of(answer) == "abc"
    assert answer.token_ids[-1] in EOS
    assert answer.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("pattern", "params", "length", "reason"),
    [
        # The end waits for min_tokens as long as something else may come,
        ("[a-z]+", {"min_tokens": 20, "max_tokens": 20}, 20, FinishReason.LENGTH),
        # and not when only it may.
        ("[a-z]{3}", {"min_tokens": 20}, 4, FinishReason.STOP),
        # Where the end is ignored, the answer goes on as long as it may, and ends where it must.
        ("[a-z]+", {"ignore_eos": True, "max_tokens": 30}, 30, FinishReason.LENGTH),
        ("[a-z]{1,5}", {"ignore_eos": True}, 6, FinishReason.STOP),
        # As many tokens as were asked for, whole or not.
        ("[a-z]{9}", {"max_tokens": 4}, 4, FinishReason.LENGTH),
        # The grammar comes before what else narrows the choice.
        ("[a-c]{2}", {"allowed_token_ids": [ord("x")]}, 3, FinishReason.STOP),
        ("aa", {"bad_token_ids": [[ord("a")]]}, 3, FinishReason.STOP),
        ("a+", {"logit_bias": {ord("b"): 100.0}, "max_tokens": 5, "min_tokens": 5}, 5, "length"),
    ],
)
def test_the_grammar_overrides_other_params(pattern, params, length, reason):
    """And are heard where it leaves a choice."""
    answer = run(grammar(pattern), **params)
    assert (len(answer.token_ids), answer.finish_reason) == (length, reason)


def test_what_else_narrows_the_choice_counts_too():
    """Where the grammar allows it too."""
    answer = run(
        grammar("[a-z]{8}"), allowed_token_ids=[*b"xyz"], bad_token_ids=[[ord("x")], [*b"yz"]]
    )
    text = text_of(answer)
    assert len(text) == 8
    assert set(text) <= {"y", "z"}
    assert "yz" not in text


def test_a_stop_token_ends_the_answer_where_it_is_whole():
    """Though it is no text that the grammar knows; and anywhere, where it is."""
    outside = run(grammar("[a-c]{1,50}"), stop_token_ids=[256], logit_bias={256: 100.0})
    assert (len(outside.token_ids), outside.stop_reason) == (2, 256)
    inside = run(grammar("[a-c]{40}"), stop_token_ids=[ord("b")])
    assert (inside.token_ids[-1], inside.stop_reason) == (ord("b"), ord("b"))


def test_probabilities_are_of_what_may_come():
    """What the grammar bars has none, and is not listed."""
    answer = run(grammar("[ab]"), logprobs=5)
    [first, last] = answer.logprobs
    assert {token for token, _, _ in first} == {*b"ab"}
    assert {token for token, _, _ in last[1:]} == set(EOS)
    assert all(p <= 0 for row in answer.logprobs for _, p, _ in row)


def test_a_model_without_an_end_stops_with_the_text():
    """Its last token is the grammar's."""
    engine = make(eos=())
    answer = engine.finish(
        "a", PROMPT, eos_token_ids=(), grammar=grammar("[a-c]{3}"), max_tokens=50
    )
    assert (len(answer.token_ids), answer.finish_reason) == (3, FinishReason.STOP)


def test_the_answers_of_one_request_follow_it_apart():
    """Each of the n has a state of its own."""
    engine = make()
    submit(engine, "a", grammar=grammar("[a-z]{6}"), n=5)
    engine.run()
    texts = [text_of(answer) for answer in engine.answers["a"]]
    assert [len(text) for text in texts] == [6] * 5
    assert len(set(texts)) > 1


def answers(names, **options):
    """All the answers of these requests, run together."""
    engine = make(**options)
    for name in names:
        submit(
            engine,
            name,
            prompt=[*PROMPT, *name.encode() * 5],
            grammar=grammar(SCHEMA, "json"),
            seed=ord(name[-1]),
            n=2,
            logprobs=1,
            min_tokens=9,
            repetition_penalty=1.1,
        )
    engine.run()
    engine.scheduler.check()
    assert engine.pool.num_held == 0
    return engine, [
        [
            (answer.token_ids, answer.logprobs, answer.finish_reason)
            for answer in engine.answers[name]
        ]
        for name in names
    ]


NAMES = [f"r{letter}" for letter in "abcdefgh"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 5, "max_num_seqs": 4},
        {"num_blocks": 50},
        {"enable_prefix_caching": False, "num_blocks": 70, "max_num_batched_tokens": 16},
    ],
    ids=["batched", "chunked", "preempted", "both"],
)
def test_the_same_whatever_runs_beside(options):
    """Alone, batched, chunked, preempted: token for token and probability for probability."""
    alone = [answers([name])[1][0] for name in NAMES]
    engine, together = answers(NAMES, **options)
    assert together == alone
    assert (engine.scheduler.planner.num_preemptions > 0) == (options.get("num_blocks", 512) < 100)


def test_a_request_waits_for_its_grammar_and_holds_up_nobody():
    """It may not be scheduled before, keeps its place in the order, and can be aborted."""
    engine = make()
    engine.submit("plain", PROMPT, max_tokens=4)
    made = engine.made(grammar("[a-z]{4}"))
    for name in ("first", "second"):
        submit(engine, name, grammar=grammar("[a-z]{4}"), is_grammar_late=True)
    engine.run()
    assert engine.scheduler.queues.num_waiting == 2
    assert not engine.scheduler.has_work
    engine.scheduler.check()
    engine.abort("first")
    engine.attach("second", made)
    engine.attach("first", made)
    engine.run()
    assert engine.answers["plain"][0].token_ids == greedy_after(PROMPT, 4, VOCAB)
    assert engine.answers["first"][0].finish_reason is FinishReason.ABORT
    assert len(text_of(engine.answers["second"][0])) == 4


@pytest.mark.parametrize(
    "bad",
    [
        grammar("(a"),
        # Begins well, and is more than the library follows.
        grammar(r"x(\p{L}{1,200}b?){1,200}"),
    ],
    ids=["built", "followed"],
)
def test_a_grammar_that_fails_ends_its_request_alone(bad):
    """With an error that says what; the others' tokens are those they have alone."""
    engine = make()
    engine.submit("plain", PROMPT, max_tokens=30)
    submit(engine, "bad", grammar=bad, min_tokens=100)
    submit(engine, "good", grammar=grammar("[a-z]{30}"), seed=5)
    engine.run()
    [failed] = engine.answers["bad"]
    assert failed.finish_reason is FinishReason.ERROR
    assert failed.error
    assert failed.num_endings == 1
    assert engine.answers["plain"][0].token_ids == greedy_after(PROMPT, 30, VOCAB)
    assert engine.answers["good"][0].token_ids == run(grammar("[a-z]{30}"), seed=5).token_ids
    assert engine.pool.num_held == 0
