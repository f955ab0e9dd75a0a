"""Grammars in the engine: built on a thread besides the engine loop, cached, advanced token by token.

A grammar decides which tokens may come next. Its state belongs to one sequence and changes only when a token is
committed. So the state survives a preemption: the sequence's tokens are not processed again.
"""

import logging
import queue
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from weft.compute.protocols.masks import Words, clear_bits, resized_mask, set_bits
from weft.core.panics import panics_as

log = logging.getLogger("weft.engine")

# Memory limit of all cached grammars. A grammar of a small schema takes 120 KiB beside its text, measured over 500
# grammars.
MAX_CACHE_BYTES = 64 << 20
_BASE_BYTES = 128 << 10
_BYTES_PER_CHARACTER = 64
# Copies share a table of lexer states, which has a size limit; so a grammar is rebuilt after this many uses.
_MAX_USES = 256


class GrammarFailed(Exception):
    """The grammar cannot be built or followed; the caller may see the message."""

    @property
    def in_answer(self) -> str:
        """Error message for an answer that followed the grammar when the failure occurred."""
        return f"the grammar cannot be followed any further: {self}"


@dataclass(frozen=True, slots=True)
class GrammarVocabulary:
    """The tokenizer in the grammar library's form, and the width of the model's logits.

    If the model has no end-of-sequence token, `hidden_ids` stand for one: the library needs such a token, and the model
    must not choose it.
    """

    tokenizer: LLTokenizer
    width: int
    eos_token_ids: tuple[int, ...]
    hidden_ids: tuple[int, ...] = ()

    def piece(self, token_id: int) -> bytes:
        """Returns the bytes of a token's text; for a special token, its name."""
        return self.tokenizer.decode_bytes([token_id])

    def special_ids(self) -> dict[str, int]:
        """Returns the special tokens that do not end a sequence, by name. Reads the whole vocabulary."""
        tokenizer = self.tokenizer
        ends = {*self.eos_token_ids, *self.hidden_ids}
        special = [
            token_id
            for token_id in range(min(tokenizer.vocab_size, self.width))
            if tokenizer.is_special_token(token_id) and token_id not in ends
        ]
        names = {tokenizer.decode_str([token_id]): token_id for token_id in special}
        # The library treats ids that the tokenizer lacks as special tokens with this name.
        return {name: i for name, i in names.items() if name and name != f"<[{i}]>"}

    @classmethod
    def read(
        cls, tokenizer_json: str, width: int, eos_token_ids: Sequence[int]
    ) -> "GrammarVocabulary":
        """Builds the vocabulary from the text of tokenizer.json."""
        if eos_token_ids:
            try:
                tokenizer = LLTokenizer(
                    tokenizer_json, n_vocab=width, eos_token=list(eos_token_ids)
                )
                return cls(tokenizer, width, tuple(eos_token_ids))
            except ValueError:
                # More tokens than logits, or an end-of-sequence id that is not a token.
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
    """Returns a special token, which no text needs; the last token if the tokenizer has no special tokens."""
    ids = range(tokenizer.vocab_size - 1, -1, -1)
    return next((token_id for token_id in ids if tokenizer.is_special_token(token_id)), ids[0])


def build(vocabulary: GrammarVocabulary, text: str) -> LLMatcher:
    """Returns a matcher at its start. Raises `GrammarFailed`, with the fault of the text."""
    # Limits: of one step, about 15 ms; of a grammar's lexer states, about 100 MB.
    limits = LLParserLimits(verbose_errors=False, max_lexer_states=50_000)
    with panics_as(GrammarFailed):
        matcher = LLMatcher(vocabulary.tokenizer, text, log_level=0, limits=limits)
    if matcher.is_error():
        raise GrammarFailed(one_line(matcher.get_error()))
    return matcher


def one_line(message: str) -> str:
    """Returns the first line of the library's message, and the line that names the error in a regular expression."""
    lines = message.strip().splitlines() or ["it cannot be built"]
    if lines[0].startswith("NoExtension"):
        return "it allows no text at all"
    return "; ".join([lines[0], *(line for line in lines[1:] if line.startswith("error:"))])[:300]


class GrammarState:
    """State of one sequence in its grammar.

    `end_ids` are tokens, besides the model's own end tokens, that may end the answer where the grammar allows the end.
    """

    __slots__ = ("_end_ids", "_error", "_has_ended", "_job", "_mask", "_matcher", "_vocabulary")

    def __init__(
        self, matcher: LLMatcher, vocabulary: GrammarVocabulary, end_ids: Sequence[int] = ()
    ) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._end_ids = list(end_ids)
        self._mask: Words | None = None  # allowed tokens in the current state; None if not computed
        self._error: str | None = None
        self._has_ended = False
        self._job: Future[None] | None = None

    @property
    def is_over(self) -> bool:
        """True if the answer has ended: by an end token or, for a model without end tokens, because no token is
        allowed.
        """
        if self._has_ended or not self._vocabulary.hidden_ids:
            return self._has_ended
        self._compute()
        return self._mask is None and self._error is None

    def mask(self) -> Words:
        """Returns the tokens that may come next, as a bit mask in the form of `Choice.mask`."""
        if self._job is not None:
            self._job.result()
            self._job = None
        if self._mask is None:
            self._compute()
        if self._error is not None or self._mask is None:
            raise GrammarFailed(self._error or "it allows nothing")
        return self._mask

    def advance(self, token_id: int) -> None:
        """Advances the state by the sequence's next token."""
        self._mask = None
        with panics_as(GrammarFailed):
            is_taken = self._matcher.consume_token(token_id)
        if not is_taken:
            raise GrammarFailed(one_line(self._matcher.get_error()))
        self._has_ended = token_id in self._vocabulary.eos_token_ids

    def fork(self) -> "GrammarState":
        """Returns an independent copy of the state."""
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
        """Computes the masks of grammar states on another thread, while the model computes the logits."""
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
    """A built grammar, from which any number of sequences can start.

    `matcher` is None if the constraint allows any text, and only the vocabulary was needed.
    """

    matcher: LLMatcher | None
    vocabulary: GrammarVocabulary
    num_uses: int = 0

    def start(self, end_ids: Sequence[int] = ()) -> GrammarState | None:
        """Returns the state of a sequence without output.

        Raises `GrammarFailed` if the library cannot create the state.
        """
        if self.matcher is None:
            return None
        with panics_as(GrammarFailed):
            return GrammarState(self.matcher.deep_copy(), self.vocabulary, end_ids)


class GrammarCompiler:
    """Builds grammars on its own thread. The engine loop's thread calls all other methods.

    The vocabulary is read with the first grammar, because most engines never need it: 150,000 tokens take 100 MB and a
    second, in which the library holds Python's GIL. The end-of-sequence ids come with the first request; they are the
    model's, so they are equal for all requests. `wake` is called on the building thread when a grammar is ready.
    """

    def __init__(
        self,
        read_vocabulary: Callable[[Sequence[int]], GrammarVocabulary],
        wake: Callable[[], None],
    ) -> None:
        self.num_pending = 0  # grammars that were ordered but not taken yet
        self._wake = wake
        self._ready: queue.SimpleQueue[tuple[str, str | None, Grammar | str]] = queue.SimpleQueue()
        self._cache: OrderedDict[str, Grammar] = OrderedDict()
        self._num_bytes = 0
        self._builder = ThreadPoolExecutor(1, "weft-grammar")
        self.mask_pool = ThreadPoolExecutor(1, "weft-mask")
        for pool in (self._builder, self.mask_pool):
            pool.submit(int)  # starts the thread now: later there may be no memory for it
        self._read_vocabulary = read_vocabulary
        self._vocabulary: Future[GrammarVocabulary] | None = None

    def order(self, engine_id: str, text: str | None, eos_token_ids: Sequence[int]) -> None:
        """Starts to build a grammar for a request (`text` None: only reads the vocabulary).

        `take_ready` returns the result.
        """
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
        """Returns the finished orders: each engine id with its grammar, or with the error message."""
        ready = []
        while not self._ready.empty():
            engine_id, text, made = self._ready.get()
            if text is not None and isinstance(made, Grammar) and made is not self._cache.get(text):
                self._put(text, made)
            ready.append((engine_id, made))
        self.num_pending -= len(ready)
        return ready

    def close(self) -> None:
        """Ends the threads; grammars that are still being built are never returned."""
        for pool in (self._builder, self.mask_pool):
            # Waits for the running build, which would otherwise wake a closed mailbox.
            pool.shutdown(cancel_futures=True)

    @property
    def num_bytes(self) -> int:
        """Estimated size of all cached grammars in bytes."""
        return self._num_bytes

    def _put(self, text: str, grammar: Grammar) -> None:
        """Adds a grammar to the cache, and drops the least recently used grammars."""
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
        except (
            ValueError
        ) as error:  # the vocabulary is at fault: a bad grammar was refused by the front
            made = f"no grammar works with this tokenizer ({one_line(str(error))})"
        except (
            Exception
        ):  # the outermost function of a thread's job: a request waits for the result
            log.exception("a grammar could not be built: engine_id=%s", engine_id)
            made = "internal error while building the grammar"
        self._ready.put((engine_id, text, made))
        self._wake()


def _cost(text: str) -> int:
    return _BASE_BYTES + _BYTES_PER_CHARACTER * len(text)
