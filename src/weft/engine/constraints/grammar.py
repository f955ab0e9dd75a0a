"""Grammars in the engine: built on a thread beside the loop, cached, followed token by token.

A grammar says which tokens may come next. Its state belongs to one sequence, moves only when a token
is committed, and so outlives preemption: the tokens are still there, and are not taken in again.
"""

import logging
import queue
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from weft.compute.masks import Words, clear_bits, resized_mask, set_bits
from weft.core.panics import panics_as

log = logging.getLogger("weft.engine")

# What all grammars together may hold. One of a small schema takes 120 KiB beside its text, measured
# over 500 of them.
MAX_CACHE_BYTES = 64 << 20
_BASE_BYTES = 128 << 10
_BYTES_PER_CHARACTER = 64
# Copies share what they learn of the grammar, which has a limit; so a new one is built now and then.
_MAX_USES = 256


class GrammarFailed(Exception):
    """This grammar cannot be built or followed; the text may be shown to the caller."""

    @property
    def in_answer(self) -> str:
        """What ends an answer that was following it."""
        return f"the grammar cannot be followed any further: {self}"


@dataclass(frozen=True, slots=True)
class GrammarVocabulary:
    """The tokenizer as the library sees it, and the width of the model's logits.

    `hidden_ids` stand for the end of the sequence where the model has no token for it: the library
    needs one, and the model must not choose it.
    """

    tokenizer: LLTokenizer
    width: int
    eos_token_ids: tuple[int, ...]
    hidden_ids: tuple[int, ...] = ()

    def piece(self, token_id: int) -> bytes:
        """What the token adds to the text; of a special token, its name."""
        return self.tokenizer.decode_bytes([token_id])

    def special_ids(self) -> dict[str, int]:
        """The tokens that stand for themselves and end no sequence, by name; walks the vocabulary."""
        tokenizer = self.tokenizer
        ends = {*self.eos_token_ids, *self.hidden_ids}
        special = [
            token_id
            for token_id in range(min(tokenizer.vocab_size, self.width))
            if tokenizer.is_special_token(token_id) and token_id not in ends
        ]
        names = {tokenizer.decode_str([token_id]): token_id for token_id in special}
        # Ids that the tokenizer does not have are special to the library, and are called this.
        return {name: i for name, i in names.items() if name and name != f"<[{i}]>"}

    @classmethod
    def read(
        cls, tokenizer_json: str, width: int, eos_token_ids: Sequence[int]
    ) -> "GrammarVocabulary":
        """Build from the text of tokenizer.json."""
        if eos_token_ids:
            try:
                tokenizer = LLTokenizer(
                    tokenizer_json, n_vocab=width, eos_token=list(eos_token_ids)
                )
                return cls(tokenizer, width, tuple(eos_token_ids))
            except ValueError:  # more tokens than logits, or an end that is no token
                pass
        probe = LLTokenizer(tokenizer_json, eos_token=0)
        size = probe.vocab_size
        ends = [token_id for token_id in eos_token_ids if token_id < size]
        hidden = () if ends else (_least_useful(probe),)
        tokenizer = LLTokenizer(
            tokenizer_json, n_vocab=max(size, width), eos_token=ends or list(hidden)
        )
        return cls(tokenizer, width, tuple(ends), hidden)


def _least_useful(tokenizer: LLTokenizer) -> int:
    """A special token if there is one, for no text needs it; else the last one."""
    ids = range(tokenizer.vocab_size - 1, -1, -1)
    return next((token_id for token_id in ids if tokenizer.is_special_token(token_id)), ids[0])


def build(vocabulary: GrammarVocabulary, text: str) -> LLMatcher:
    """A matcher at its start. `GrammarFailed` says what is wrong with the text."""
    # What one step may take, about 15 ms at most, and all that a grammar may learn, about 100 MB.
    limits = LLParserLimits(verbose_errors=False, max_lexer_states=50_000)
    with panics_as(GrammarFailed):
        matcher = LLMatcher(vocabulary.tokenizer, text, log_level=0, limits=limits)
    if matcher.is_error():
        raise GrammarFailed(one_line(matcher.get_error()))
    return matcher


def one_line(message: str) -> str:
    """The first line of the library's message, and the one that names the error in an expression."""
    lines = message.strip().splitlines() or ["it cannot be built"]
    if lines[0].startswith("NoExtension"):
        return "it allows no text at all"
    return "; ".join([lines[0], *(line for line in lines[1:] if line.startswith("error:"))])[:300]


class GrammarState:
    """Where one sequence is in its grammar.

    `end_ids` are tokens beside the model's own that may end the answer where the grammar lets it end.
    """

    __slots__ = ("_end_ids", "_error", "_has_ended", "_job", "_mask", "_matcher", "_vocabulary")

    def __init__(
        self, matcher: LLMatcher, vocabulary: GrammarVocabulary, end_ids: Sequence[int] = ()
    ) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._end_ids = list(end_ids)
        self._mask: Words | None = None  # of the present state
        self._error: str | None = None
        self._has_ended = False
        self._job: Future[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether the answer has ended: with a token for that, or, if the model has none, without."""
        if self._has_ended or not self._vocabulary.hidden_ids:
            return self._has_ended
        self._compute()
        return self._mask is None and self._error is None

    def mask(self) -> Words:
        """Which tokens may come next, as a `Choice` has them."""
        if self._job is not None:
            self._job.result()
            self._job = None
        if self._mask is None:
            self._compute()
        if self._error is not None or self._mask is None:
            raise GrammarFailed(self._error or "it allows nothing")
        return self._mask

    def advance(self, token_id: int) -> None:
        """Take in the token that came next."""
        self._mask = None
        with panics_as(GrammarFailed):
            is_taken = self._matcher.consume_token(token_id)
        if not is_taken:
            raise GrammarFailed(one_line(self._matcher.get_error()))
        self._has_ended = token_id in self._vocabulary.eos_token_ids

    def fork(self) -> "GrammarState":
        """The same state, to be advanced by itself."""
        with panics_as(GrammarFailed):
            return GrammarState(self._matcher.deep_copy(), self._vocabulary, self._end_ids)

    def _compute(self) -> None:
        try:
            with panics_as(GrammarFailed):
                bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        except GrammarFailed as failure:
            self._error = str(failure)
            return
        if self._matcher.is_error():
            self._error = one_line(self._matcher.get_error())
            return
        mask = resized_mask(bits, self._vocabulary.width)
        if self._end_ids and self._matcher.is_accepting():
            set_bits(mask, self._end_ids)
        clear_bits(mask, self._vocabulary.hidden_ids)
        self._mask = mask if mask.any() else None

    @staticmethod
    def compute_ahead(states: Iterable["GrammarState"], pool: ThreadPoolExecutor) -> None:
        """Make the masks on another thread, while the model computes the logits they are for."""
        wanted = [state for state in states if state._mask is None]
        if wanted:
            job = pool.submit(_compute_all, wanted)
            for state in wanted:
                state._job = job


def _compute_all(states: list[GrammarState]) -> None:
    for state in states:
        state._compute()


@dataclass(slots=True)
class Grammar:
    """A grammar that is ready: it starts as many sequences as one likes.

    `matcher` is None where the form is free, and only the vocabulary was waited for.
    """

    matcher: LLMatcher | None
    vocabulary: GrammarVocabulary
    num_uses: int = 0

    def start(self, end_ids: Sequence[int] = ()) -> GrammarState | None:
        """The state of a sequence that has no output yet. `GrammarFailed` if there can be none."""
        if self.matcher is None:
            return None
        with panics_as(GrammarFailed):
            return GrammarState(self.matcher.deep_copy(), self.vocabulary, end_ids)


class GrammarCompiler:
    """Builds grammars on a thread of its own. Everything else is for the loop's thread.

    The vocabulary is read for the first of them: 150,000 tokens take a second, in which the library
    holds Python's lock, and 100 MB, and most engines never need them. The ids that end a sequence come with
    it; they are the model's, so all requests bring the same. `wake` is called from that thread when one
    is ready.
    """

    def __init__(
        self,
        read_vocabulary: Callable[[Sequence[int]], GrammarVocabulary],
        wake: Callable[[], None],
    ) -> None:
        self.num_pending = 0  # ordered, and not taken yet
        self._wake = wake
        self._ready: queue.SimpleQueue[tuple[str, str | None, Grammar | str]] = queue.SimpleQueue()
        self._cache: OrderedDict[str, Grammar] = OrderedDict()
        self._num_bytes = 0
        self._builder = ThreadPoolExecutor(1, "weft-grammar")
        self.mask_pool = ThreadPoolExecutor(1, "weft-mask")  # its thread starts with its first use
        self._read_vocabulary = read_vocabulary
        self._vocabulary: Future[GrammarVocabulary] | None = None

    def order(self, engine_id: str, text: str | None, eos_token_ids: Sequence[int]) -> None:
        """Ask for a grammar (None: for the vocabulary); `take_ready` gives it, at once if it is cached."""
        self.num_pending += 1
        if self._vocabulary is None:
            self._vocabulary = self._builder.submit(self._read_vocabulary, eos_token_ids)
        grammar = None if text is None else self._cache.get(text)
        if text is not None and grammar is not None and grammar.num_uses < _MAX_USES:
            self._cache.move_to_end(text)
            grammar.num_uses += 1
            self._ready.put((engine_id, text, grammar))
        else:
            self._builder.submit(self._build, engine_id, text, self._vocabulary)

    def take_ready(self) -> list[tuple[str, Grammar | str]]:
        """Engine ids, with the grammar that was ordered for each or a sentence why there is none."""
        ready = []
        while not self._ready.empty():
            engine_id, text, made = self._ready.get()
            if text is not None and isinstance(made, Grammar) and made is not self._cache.get(text):
                self._put(text, made)
            ready.append((engine_id, made))
        self.num_pending -= len(ready)
        return ready

    def close(self) -> None:
        """End the threads; what was ordered never comes."""
        for pool in (self._builder, self.mask_pool):
            # Waits for what runs: it would wake a closed mailbox.
            pool.shutdown(cancel_futures=True)

    @property
    def num_bytes(self) -> int:
        """What the cached grammars are reckoned to hold."""
        return self._num_bytes

    def _put(self, text: str, grammar: Grammar) -> None:
        """Cache it for reuse, and drop the least recently used."""
        if text in self._cache:
            self._num_bytes -= _cost(text)
        self._cache[text] = grammar
        self._cache.move_to_end(text)
        self._num_bytes += _cost(text)
        while self._num_bytes > MAX_CACHE_BYTES:
            oldest, _ = self._cache.popitem(last=False)
            self._num_bytes -= _cost(oldest)

    def _build(self, engine_id: str, text: str | None, read: Future[GrammarVocabulary]) -> None:
        made: Grammar | str
        try:
            with panics_as(ValueError):
                vocabulary = read.result()
            made = Grammar(None if text is None else build(vocabulary, text), vocabulary)
        except GrammarFailed as error:
            made = str(error)
        except ValueError as error:  # with a grammar, the front has refused it already
            made = f"no text of this tokenizer can be followed ({one_line(str(error))})"
        except Exception:  # the root of a thread's work: a request waits for it
            log.exception("a grammar could not be built: engine_id=%s", engine_id)
            made = "internal error while building the grammar"
        self._ready.put((engine_id, text, made))
        self._wake()


def _cost(text: str) -> int:
    return _BASE_BYTES + _BYTES_PER_CHARACTER * len(text)
