"""The served model's tokenizer, read from the bytes of its files: text to token ids and back."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

import tokenizers

from weft.core.errors import BadRequest, ConfigError
from weft.core.panics import panics_as, raise_panic
from weft.model.tokenizers.token_facts import (
    NAMED_TOKENS,
    TOKENIZER_CONFIG,
    complete,
    read_settings,
    token_text,
)
from weft.model.tokenizers.tokenizer import UnreadFiles, read_tokenizer_files
from weft.model.tokenizers.tokenizer_trial import try_out
from weft.text.detokenizer import (
    Detokenizer,
    PieceDetokenizer,
    WindowDetokenizer,
    decode_bytes,
)
from weft.text.frame import Encoded, Frame
from weft.text.pieces import PieceRule, byte_by_char, read_rule

TOKENIZER_FILE = "tokenizer.json"
# Encoding takes about 1 µs and 200 bytes per character; a text that fits a context is far shorter.
MAX_TEXT_CHARS = 16 * 1024 * 1024
# Texts up to this length are encoded at once, on the caller's thread.
_SHORT_TEXT_CHARS = 4096
# Longer texts wait for one of these threads, and very long texts for a single thread: that bounds memory.
_NUM_THREADS = 2
_LONG_TEXT_CHARS = 2**18
# Number of last prompt tokens that are kept: a character has at most four bytes, so an incomplete character lies
# within them.
_CONTEXT_TOKENS = 8
# Number of earlier tokens that may be needed to complete a character.
_REPAIR_TOKENS = 4
_T = TypeVar("_T")


class Tokenizer:
    """Encodes and decodes; safe to share between threads.

    `skip_special_tokens` leaves out the tokens that tokenizer.json marks as special. Ids that the
    tokenizer does not have (the logits are often wider) decode to nothing.

    `vocab_size` is one more than the largest id, and `max_token_chars` the length of the longest name, added
    tokens included. `special_ids` are the ids of special tokens, and `special_tokens` are the tokens that
    tokenizer_config.json names (`bos_token`, `eos_token`, ...). `named_truncation_side` is the truncation side in
    tokenizer_config.json, if any; `truncation_side` is the side of a prompt that is truncated, "left" or "right".
    `piece_rule` converts tokens to bytes; None if a token's bytes depend on its neighbours.
    """

    def __init__(
        self, library: tokenizers.Tokenizer, rule: PieceRule | None, config: Mapping[str, Any]
    ) -> None:
        library.no_padding()
        library.no_truncation()
        self._library = library
        self.piece_rule = rule
        self._alphabet = byte_by_char()
        self._piece_by_id: dict[int, bytes] = {}
        added = library.get_added_tokens_decoder()
        self._added_text_by_id = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.vocab_size, self.max_token_chars = _measure(library)
        self.special_tokens: Mapping[str, str] = _special_tokens(config)
        self.named_truncation_side = _truncation_side(config)
        # If the tokenizer does not say, the end of the prompt is kept: the answer continues it.
        self.truncation_side = self.named_truncation_side or "left"
        self._frame_by_num_texts: dict[int, Frame] = {}
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "weft-tokenizer")
        self._thread_of_long = ThreadPoolExecutor(1, "weft-tokenizer-long")

    @classmethod
    def from_files(
        cls, files: Mapping[str, bytes], library: tokenizers.Tokenizer | None = None
    ) -> Self:
        """Read tokenizer.json and, where there is one, tokenizer_config.json.

        `library` is a library tokenizer already built from the same tokenizer.json; the new object takes ownership of
        it.
        """
        if TOKENIZER_FILE not in files:
            raise ConfigError(
                f"{TOKENIZER_FILE} is missing; only tokenizers saved in that format can be used"
            )
        config = read_settings(files)
        try:
            if library is None:
                with panics_as(ValueError):
                    library = tokenizers.Tokenizer.from_buffer(files[TOKENIZER_FILE])
                complete(library, config)
            # The library's JSON of the decoder alone; the whole file may have many megabytes.
            rule = read_rule(library.decoder and json.loads(library.decoder.__getstate__()))
        except Exception as error:  # the library has no narrower class for a bad file
            raise ConfigError(
                f"{TOKENIZER_FILE} is not a usable tokenizer: {_line(error)}"
            ) from error
        return cls(library, rule, config.values)

    # -- facts --------------------------------------------------------------------------------

    @property
    def bos_token_id(self) -> int | None:
        """The id of `bos_token`, if it is named and known."""
        return self._named_id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """The id of `eos_token`, if it is named and known."""
        return self._named_id("eos_token")

    @property
    def pad_token_id(self) -> int | None:
        """The id of `pad_token`, if it is named and known."""
        return self._named_id("pad_token")

    def token_to_id(self, token: str) -> int | None:
        """The id of a token by its name."""
        token_id: int | None = self._library.token_to_id(token)
        return token_id

    def id_to_token(self, token_id: int) -> str | None:
        """The name of a token, as tokenizer.json writes it; None for an id that it does not have."""
        token: str | None = self._library.id_to_token(token_id)
        return token

    def to_json(self) -> str:
        """The JSON of an equal tokenizer.json; megabytes, built at each call."""
        text: str = self._library.to_str()
        return text

    # -- text to ids --------------------------------------------------------------------------

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, with the model's special tokens around it unless switched off."""
        _check_text(text)
        try:
            # Encoded as a batch of one: `encode` holds the interpreter's lock all the time. "Fast" leaves out
            # offsets, and takes half the time and memory.
            [encoding] = self._library.encode_batch_fast(
                [text], add_special_tokens=add_special_tokens
            )
        except BaseException as error:
            raise_panic(error, _refusal)
            raise
        ids: list[int] = encoding.ids
        return ids

    def encode_with_offsets(
        self, text: str, *, add_special_tokens: bool = True
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """`encode`, with the characters of the text that each token stands for: from the first number up to the second.

        A special token that is not in the text has (0, 0).
        """
        _check_text(text)
        with panics_as(_refusal):
            [encoding] = self._library.encode_batch([text], add_special_tokens=add_special_tokens)
        return encoding.ids, encoding.offsets

    async def soon(self, num_chars: int, work: Callable[[], _T]) -> _T:
        """Returns the result of `work`, which encodes this many characters; the event loop stays responsive."""
        if num_chars <= _SHORT_TEXT_CHARS:
            return work()
        threads = self._threads if num_chars <= _LONG_TEXT_CHARS else self._thread_of_long
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    def encode_framed(
        self, texts: Sequence[str], *, add_special_tokens: bool, max_tokens: int | None, side: str
    ) -> Encoded:
        """Encodes a text or a pair of texts, truncated to `max_tokens` at `side`, inside their special tokens."""
        ids = [self.encode(text, add_special_tokens=False) for text in texts]
        if not add_special_tokens:
            pieces = (Frame.single(), Frame.pair())
            return pieces[len(texts) - 1].fill(ids, max_tokens, side)
        return self._frame(len(texts)).fill(ids, max_tokens, side)

    def with_special_tokens(self, token_ids: list[int]) -> list[int]:
        """The ids of a text that was encoded in parts, with the model's special tokens around them."""
        return self._frame(1).fill([token_ids], None, "left").ids

    def _frame(self, num_texts: int) -> Frame:
        if num_texts not in self._frame_by_num_texts:
            frame = Frame.of(self._library, is_pair=num_texts == 2)
            self._frame_by_num_texts[num_texts] = frame
        return self._frame_by_num_texts[num_texts]

    # -- ids to text --------------------------------------------------------------------------

    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """Text of `token_ids`, as a text of its own."""
        if self.piece_rule is None and spaces_between_special_tokens:
            with panics_as(_refusal):
                # Decoded as a batch, because `decode` holds the interpreter's lock.
                [text] = self._library.decode_batch(
                    [list(token_ids)], skip_special_tokens=skip_special_tokens
                )
            return str(text)
        detokenizer = self.detokenizer(
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
        )
        texts = [detokenizer.push(token_id) for token_id in token_ids]
        return "".join((*texts, detokenizer.flush()))

    def detokenizer(
        self,
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        prompt_token_ids: Sequence[int] = (),
    ) -> Detokenizer:
        """A detokeniser for text that continues `prompt_token_ids`, which themselves are not repeated.

        The prompt matters for two reasons: a tokenizer that strips the space at the start of a text must not strip the
        space at the start of a continuation, and a prompt may end inside a character.
        """
        detokenizer: Detokenizer
        context = prompt_token_ids[-_CONTEXT_TOKENS:]
        if self.piece_rule is not None:
            is_start = len(context) == len(prompt_token_ids)
            detokenizer = PieceDetokenizer(self, self.piece_rule, skip_special_tokens, is_start)
        else:
            detokenizer = WindowDetokenizer(
                self, skip_special_tokens, spaces_between_special_tokens
            )
        for token_id in context:
            detokenizer.push(token_id)
        return detokenizer

    def token_to_text(self, token_id: int, previous: Sequence[int] = ()) -> str:
        """The text that one token adds, special or not.

        A token that leaves a character open adds "", and the one that completes it, looking back at
        up to four `previous` tokens, the whole character.
        """
        if self.piece_rule is None:
            return self.decode_window([token_id])
        has_fallback = self.piece_rule.has_byte_fallback
        own = self.piece(token_id)
        text, still_open = decode_bytes(own, has_fallback)
        if "\ufffd" not in text and not still_open:
            return text
        before = b"".join(map(self.piece, previous[-_REPAIR_TOKENS:]))
        _, open_bytes = decode_bytes(before, has_fallback)
        return decode_bytes(open_bytes + own, has_fallback)[0]

    def token_to_bytes(self, token_id: int) -> bytes:
        """The bytes that one token adds; if the decoder has no bytes, those of its text."""
        if self.piece_rule is None:
            return self.decode_window([token_id]).encode()
        return self.piece(token_id)

    # -- for detokenisers ------------------------------------------------------------------------

    def piece(self, token_id: int) -> bytes:
        """Bytes of one token under `piece_rule`; empty for an id that the tokenizer does not have."""
        piece = self._piece_by_id.get(token_id)
        if piece is None:
            token = self._library.id_to_token(token_id)
            piece = b""
            if token is not None and self.piece_rule is not None:
                piece = self.piece_rule.piece(token, self._alphabet)
            # Only ids of the vocabulary are stored, which bounds the table.
            if token is not None:
                self._piece_by_id[token_id] = piece
        return piece

    def is_special(self, token_id: int) -> bool:
        """True if `skip_special_tokens` omits the token."""
        return token_id in self.special_ids

    def added_text(self, token_id: int) -> str | None:
        """The text of an added token; None for any other."""
        return self._added_text_by_id.get(token_id)

    def has_token(self, token_id: int) -> bool:
        """True if the tokenizer has the id; the model's vocabulary may be larger."""
        return self._library.id_to_token(token_id) is not None

    def decode_window(self, token_ids: Sequence[int]) -> str:
        """The library's own decoding of a few tokens, special ones included."""
        with panics_as(_refusal):
            text: str = self._library.decode(list(token_ids), skip_special_tokens=False)
        return text

    # -- construction -------------------------------------------------------------------------

    def _named_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.token_to_id(token)


def open_tokenizer(files: Mapping[str, bytes], where: str) -> Tokenizer:
    """Opens a remote server's tokenizer from its files, after a trial in another process; raises `ConfigError` if
    unusable.
    """
    if TOKENIZER_FILE in files:
        try_out(files[TOKENIZER_FILE], f"{where}/{TOKENIZER_FILE}")
    return Tokenizer.from_files(files)


def tokenizer_in(directory: Path) -> Tokenizer | None:
    """Returns the tokenizer of a directory, in any format of a checkpoint; None if it has none."""
    if TOKENIZER_FILE not in UnreadFiles(directory):
        return None
    return Tokenizer.from_files(read_tokenizer_files(directory))


def read_special_tokens(files: Mapping[str, bytes]) -> Mapping[str, str]:
    """`Tokenizer.special_tokens`, without the tokenizer."""
    return _special_tokens(read_settings(files).values)


def _measure(library: tokenizers.Tokenizer) -> tuple[int, int]:
    """Returns the largest id plus one, and the length of the longest token name."""
    num_tokens = library.get_vocab_size(with_added_tokens=True)
    # Looked up id by id: fetching the whole vocabulary takes 0.2 s and 20 MB for a large one.
    names = [name for i in range(num_tokens) if (name := library.id_to_token(i)) is not None]
    if len(names) == num_tokens:
        return num_tokens, max(map(len, names), default=1)
    vocab: dict[str, int] = library.get_vocab(with_added_tokens=True)
    return max(vocab.values(), default=-1) + 1, max(map(len, vocab), default=1)


def _refusal(reason: str) -> BadRequest:
    return BadRequest("prompt", f"the tokenizer gave up on this text: {reason}")


def _check_text(text: str) -> None:
    if len(text) > MAX_TEXT_CHARS:
        raise BadRequest(
            "prompt", f"the text has {len(text)} characters; at most {MAX_TEXT_CHARS} are taken"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(
            "prompt",
            f"the text is not valid Unicode: a lone surrogate U+{ord(text[error.start]):04X} "
            f"at character {error.start}",
        ) from error


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Named tokens are given as text, or as an object with the text in `content`."""
    found: dict[str, str] = {}
    for name in NAMED_TOKENS:
        value = token_text(config.get(name))
        if isinstance(value, str):
            found[name] = value
        elif value is not None:
            raise ConfigError(
                f"{TOKENIZER_CONFIG}: {name} must be a string, got {type(value).__name__}"
            )
    return found


def _truncation_side(config: Mapping[str, Any]) -> str | None:
    side = config.get("truncation_side")
    if side not in (None, "left", "right"):
        raise ConfigError(
            f'{TOKENIZER_CONFIG}: truncation_side must be "left" or "right", got {side!r}'
        )
    return None if side is None else str(side)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
