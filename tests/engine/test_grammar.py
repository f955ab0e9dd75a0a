"""Grammars in the engine: their vocabulary, their state, and how many are kept."""

import threading

import numpy as np
import pytest
from llguidance import LLMatcher

from tests.busy import PATIENCE_S
from tests.text.vocabularies import byte_level_library, llama_like_library
from weft.compute.protocols.masks import flags_of
from weft.engine.constraints.grammar import (
    MAX_CACHE_BYTES,
    Grammar,
    GrammarCompiler,
    GrammarFailed,
    GrammarState,
    GrammarVocabulary,
    build,
    one_line,
)
from weft.engine.constraints.text import to_grammar_text
from weft.model.embedded.byte_tokenizer import tokenizer_files
from weft.model.open import open_model

EOS = 256
JSON = tokenizer_files(300, "<|endoftext|>")["tokenizer.json"].decode()
VOCABULARY = GrammarVocabulary.read(JSON, 300, (EOS,))


def state(kind, value, vocabulary=VOCABULARY, end_ids=()):
    """The state at the start of a grammar."""
    return GrammarState(build(vocabulary, to_grammar_text(kind, value, None)), vocabulary, end_ids)


def allowed(grammar):
    """The ids that may come."""
    mask = grammar.mask()
    return set(np.flatnonzero(flags_of(mask, 32 * len(mask))).tolist())


def feed(grammar, text):
    """Take in a text byte by byte."""
    for byte in text.encode():
        assert byte in allowed(grammar)
        grammar.advance(byte)


def test_only_what_fits_may_come():
    """At every token, and the end only where the text is whole."""
    grammar = state("regex", "ab|ac[0-9]?")
    assert allowed(grammar) == {ord("a")}
    feed(grammar, "a")
    assert allowed(grammar) == {ord("b"), ord("c")}
    feed(grammar, "c")
    assert allowed(grammar) == {*b"0123456789", EOS}
    assert not grammar.is_over
    feed(grammar, "5")
    assert allowed(grammar) == {EOS}
    grammar.advance(EOS)
    assert grammar.is_over


def test_a_token_that_does_not_fit_is_an_error():
    """The state is of no use after it, and says so."""
    grammar = state("regex", "ab")
    with pytest.raises(GrammarFailed, match="doesn't satisfy the grammar"):
        grammar.advance(ord("x"))
    with pytest.raises(GrammarFailed):
        grammar.mask()


def test_a_callers_end_tokens_count_where_the_text_is_whole():
    """As the model's own do; elsewhere they are no text, and may not come."""
    grammar = state("regex", "a[0-9]*", end_ids=(258,))
    assert allowed(grammar) == {ord("a")}
    feed(grammar, "a")
    assert allowed(grammar) == {*b"0123456789", EOS, 258}


def test_every_end_of_the_model_counts():
    """Models with several may choose any."""
    vocabulary = GrammarVocabulary.read(JSON, 300, (256, 258))
    grammar = state("choice", ["no"], vocabulary)
    feed(grammar, "no")
    assert allowed(grammar) == {256, 258}
    grammar.advance(258)
    assert grammar.is_over


def test_a_model_without_an_end_stops_where_nothing_may_follow():
    """The library needs a token for it, which this model may never choose."""
    vocabulary = GrammarVocabulary.read(JSON, 300, ())
    grammar = state("regex", "a[0-9]{0,2}", vocabulary)
    feed(grammar, "a1")
    assert allowed(grammar) == set(b"0123456789")
    assert not grammar.is_over
    grammar.advance(ord("1"))
    assert grammar.is_over


@pytest.mark.parametrize("width", [270, 301, 333, 4096])
def test_the_mask_is_as_wide_as_the_logits(width):
    """Narrower or wider than the tokenizer; ids that are no token never come."""
    vocabulary = GrammarVocabulary.read(JSON, width, (EOS,))
    grammar = state("regex", ".*", vocabulary)
    assert len(grammar.mask()) == -(-width // 32)
    assert EOS in allowed(grammar)
    assert max(allowed(grammar)) < min(width, 300)


@pytest.mark.parametrize("model", ["embedded:tiny", "embedded:random"])
def test_embedded_models_write_json(model):
    """Their tokenizers are read from the bytes of tokenizer.json."""
    checkpoint = open_model(model)
    text = checkpoint.tokenizer_files["tokenizer.json"].decode()
    vocabulary = GrammarVocabulary.read(
        text, checkpoint.card.vocab_size, checkpoint.card.eos_token_ids
    )
    grammar = state("json", {"const": "é"}, vocabulary)
    for token_id in vocabulary.tokenizer.tokenize_str('"é"'):
        grammar.advance(token_id)
    assert allowed(grammar) == set(checkpoint.card.eos_token_ids)


@pytest.mark.parametrize("library", [byte_level_library, llama_like_library])
def test_other_kinds_of_tokenizers_are_understood(library):
    """Byte-level, and pieces with a mark for spaces and bytes beside them."""
    vocabulary = GrammarVocabulary.read(library().to_str(), 400, ())
    assert allowed(state("regex", "[a-z]+", vocabulary))


def test_json_has_no_whitespace_unless_requested():
    """A model can write spaces for ever; a pattern lets in as many as it says."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    feed(state("json", schema), '{"a":1')
    assert ord(" ") not in allowed(state("json", schema))
    loose = GrammarState(build(VOCABULARY, to_grammar_text("json", schema, " ?")), VOCABULARY)
    feed(loose, '{ "a": 1')
    with pytest.raises(AssertionError):
        feed(
            GrammarState(build(VOCABULARY, to_grammar_text("json", schema, " ?")), VOCABULARY),
            "{  ",
        )


def test_a_long_list_of_choices_is_one_expression():
    """As alternatives of a rule, two thousand are too many for the library."""
    choices = [f'c{number}."\n/é' for number in range(4096)]
    grammar = state("choice", choices)
    feed(grammar, choices[4000])
    assert allowed(grammar) == {EOS}


def test_sequences_of_one_grammar_do_not_disturb_each_other():
    """Each starts at the start, whatever the others have taken in."""
    grammar = Grammar(build(VOCABULARY, to_grammar_text("regex", "[a-c]{3}", None)), VOCABULARY)
    first, second = grammar.start(), grammar.start()
    feed(first, "abc")
    feed(second, "b")
    assert allowed(first) == {EOS}
    assert allowed(second) == allowed(grammar.start()) == set(b"abc")


def test_masks_made_ahead_are_the_same():
    """On another thread, while the model computes."""
    states = [state("regex", f"[a-{last}]") for last in "bcd"]
    compiler = GrammarCompiler(lambda _: VOCABULARY, lambda: None)
    GrammarState.compute_ahead(states, compiler.mask_pool)
    assert [len(allowed(grammar)) for grammar in states] == [2, 3, 4]
    compiler.close()


def test_no_vocabulary_is_read_before_a_grammar_is_ordered():
    """It takes a second and 100 MB where there are 150,000 tokens, and most engines follow no grammar."""
    rung, reads = threading.Semaphore(0), []
    compiler = GrammarCompiler(lambda ends: reads.append(ends) or VOCABULARY, rung.release)
    assert compiler.take_ready() == []
    compiler.order("a", None, (1, 2))
    assert rung.acquire(timeout=PATIENCE_S)
    compiler.order("b", None, (1, 2))
    assert rung.acquire(timeout=PATIENCE_S)
    compiler.close()
    assert reads == [(1, 2)]


class Compiled:
    """A compiler, and the bell that rings when a grammar is ready."""

    def __init__(self):
        self.rung = threading.Semaphore(0)
        self.compiler = GrammarCompiler(lambda _: VOCABULARY, self.rung.release)

    def make(self, text):
        """Order a grammar and wait for it."""
        self.compiler.order("id", text, (EOS,))
        while not (ready := self.compiler.take_ready()):  # it may have rung for one that was there
            assert self.rung.acquire(timeout=PATIENCE_S)
        [(engine_id, made)] = ready
        assert engine_id == "id"
        return made


@pytest.fixture
def compiled():
    """Closed at the end."""
    opened = Compiled()
    yield opened
    opened.compiler.close()


def test_a_grammar_is_built_once(compiled):
    """The second request with the same text has it at once."""
    text = to_grammar_text("regex", "ab", None)
    first = compiled.make(text)
    assert compiled.make(text) is first
    assert compiled.make(to_grammar_text("regex", "ac", None)) is not first


def test_a_failure_is_a_sentence(compiled):
    """And nothing is kept of it."""
    made = compiled.make(LLMatcher.grammar_from_regex("(a"))
    assert "unclosed group" in made
    assert compiled.compiler.num_bytes == 0


def test_what_is_cached_is_bounded(compiled):
    """However many different grammars come; the one used last is still there."""
    comment = "x" * 10_000
    made = [
        compiled.make(LLMatcher.grammar_from_lark(f'start: "{number}"\n// {comment}\n'))
        for number in range(200)
    ]
    assert all(isinstance(grammar, Grammar) for grammar in made)
    assert compiled.compiler.num_bytes <= MAX_CACHE_BYTES < 200 * (64 * 10_000 + (128 << 10))
    last = LLMatcher.grammar_from_lark(f'start: "199"\n// {comment}\n')
    first = LLMatcher.grammar_from_lark(f'start: "0"\n// {comment}\n')
    assert compiled.make(last) is made[-1]
    assert compiled.make(first) is not made[0]


def test_a_much_used_grammar_is_built_again(compiled):
    """Its copies share what they learn, and that may not grow for ever."""
    text = to_grammar_text("regex", "ab", None)
    first = compiled.make(text)
    grammars = [compiled.make(text) for _ in range(256)]
    assert all(grammar is first for grammar in grammars)
    assert compiled.make(text) is not first


def test_a_tokenizer_that_cannot_be_used_fails_the_request_only():
    """The engine goes on; the sentence has the details."""
    rung = threading.Semaphore(0)
    compiler = GrammarCompiler(lambda ends: GrammarVocabulary.read("{}", 300, ends), rung.release)
    compiler.order("id", to_grammar_text("regex", "ab", None), (1,))
    assert rung.acquire(timeout=PATIENCE_S)
    [(engine_id, reason)] = compiler.take_ready()
    assert (engine_id, reason.partition(" (")[0]) == (
        "id",
        "no grammar works with this tokenizer",
    )
    compiler.close()


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("", "it cannot be built"),
        ("a\nb\nerror: c\n", "a; error: c"),
        ("NoExtensionBias\n<non-verbose/>", "it allows no text at all"),
        ("x" * 1000, "x" * 300),
    ],
)
def test_messages_of_the_library_are_cut_to_a_line(message, line):
    """They quote the grammar, which may be long."""
    assert one_line(message) == line


class PanicException(BaseException):
    """What Python sees of a panic in the library."""


class Panicking:
    """A matcher that panics at every turn; no input is known that has the real one do it."""

    def __getattr__(self, name):
        raise PanicException(f"{name} at src/parser.rs:1")


def test_a_panic_of_the_library_ends_its_own_sequence():
    """As any other failure of a grammar does; the engine goes on."""
    grammar = GrammarState(Panicking(), VOCABULARY)
    with pytest.raises(GrammarFailed, match=r"^compute_bitmask at"):
        grammar.mask()
    with pytest.raises(GrammarFailed, match=r"^consume_token at"):
        grammar.advance(1)
    with pytest.raises(GrammarFailed, match=r"^deep_copy at"):
        Grammar(Panicking(), VOCABULARY).start()


def test_a_panic_while_the_vocabulary_is_read_fails_who_waits():
    """Otherwise the request would wait for ever."""
    woken = threading.Event()

    def read(_eos_token_ids):
        raise PanicException("toktrie")

    compiler = GrammarCompiler(read, woken.set)
    compiler.order("a", to_grammar_text("regex", "a", None), (EOS,))
    assert woken.wait(PATIENCE_S)
    compiler.close()
    [(engine_id, why)] = compiler.take_ready()
    assert (engine_id, "toktrie" in why) == ("a", True)
