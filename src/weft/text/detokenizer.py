"""Token ids to text, a few at a time: the pieces concatenate to what decoding all at once gives.

Bytes of a character that is not complete yet are held back, and become U+FFFD if it never is.
"""

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from weft.text.pieces import PieceRule

# A character has at most four bytes, so what the last tokens of a prompt may leave open lies in these.
_CONTEXT_TOKENS = 8
# A window of tokens whose text still ends in U+FFFD after this many is taken to really hold one.
_MAX_OPEN_TOKENS = 8
_UNKNOWN = "\ufffd"


class Vocabulary(Protocol):
    """What a detokeniser needs of a tokenizer."""

    @property
    def piece_rule(self) -> PieceRule | None:
        """How tokens become bytes; None when they depend on their neighbours."""
        ...

    def piece(self, token_id: int) -> bytes:
        """Bytes of one token under `piece_rule`; empty for an id that the tokenizer does not have."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether `skip_special_tokens` leaves the token out."""
        ...

    def added_text(self, token_id: int) -> str | None:
        """The text of an added token; None for any other."""
        ...

    def has_token(self, token_id: int) -> bool:
        """Whether the tokenizer has the id; the model's logits may be wider."""
        ...

    def decode_window(self, token_ids: Sequence[int]) -> str:
        """The library's own decoding of a few tokens, special ones included."""
        ...


class Detokenizer(Protocol):
    """The text of one growing list of tokens."""

    def push(self, token_id: int) -> str:
        """The text that this token completes; "" when a character is still open or nothing shows."""
        ...

    def read(self, token_ids: Sequence[int]) -> str:
        """What pushing them one after the other gives."""
        ...

    def flush(self) -> str:
        """What an unfinished character becomes, now that no more tokens come."""
        ...


def make_detokenizer(
    vocabulary: Vocabulary,
    *,
    skip_special_tokens: bool = True,
    spaces_between_special_tokens: bool = True,
    prompt_token_ids: Sequence[int] = (),
) -> Detokenizer:
    """A detokeniser for text that continues `prompt_token_ids`, which themselves are not repeated.

    The prompt matters twice: a tokenizer that strips the space at the start of a text must not strip
    it from a continuation, and a prompt may end inside a character.
    """
    detokenizer: Detokenizer
    context = prompt_token_ids[-_CONTEXT_TOKENS:]
    if vocabulary.piece_rule is not None:
        is_start = len(context) == len(prompt_token_ids)
        detokenizer = PieceDetokenizer(
            vocabulary, vocabulary.piece_rule, skip_special_tokens, is_start
        )
    else:
        detokenizer = WindowDetokenizer(
            vocabulary, skip_special_tokens, spaces_between_special_tokens
        )
    for token_id in context:
        detokenizer.push(token_id)
    return detokenizer


class PieceDetokenizer:
    """For tokenizers whose tokens are bytes whatever stands beside them: exact, and a few bytes of state."""

    __slots__ = ("_is_first", "_num_to_strip", "_open", "_rule", "_skips_special", "_vocabulary")

    def __init__(
        self, vocabulary: Vocabulary, rule: PieceRule, skips_special: bool, is_start: bool
    ) -> None:
        self._vocabulary = vocabulary
        self._rule = rule
        self._skips_special = skips_special
        self._open = b""
        self._is_first = is_start
        self._num_to_strip = rule.num_stripped if is_start else 0

    def push(self, token_id: int) -> str:
        vocabulary = self._vocabulary
        if self._skips_special and vocabulary.is_special(token_id):
            return ""
        piece = vocabulary.piece(token_id)
        if self._is_first and vocabulary.has_token(token_id):
            self._is_first = False
            piece = self._first_piece(piece)
        text, self._open = decode_bytes(self._open + piece, self._rule.has_byte_fallback)
        return self._strip(text) if self._num_to_strip and text else text

    def read(self, token_ids: Sequence[int]) -> str:
        """See `Detokenizer.read`. The bytes of many tokens are decoded as one."""
        if len(token_ids) == 1:
            return self.push(token_ids[0])
        if self._is_first or self._num_to_strip:
            return "".join(map(self.push, token_ids))
        vocabulary = self._vocabulary
        if self._skips_special:
            token_ids = [i for i in token_ids if not vocabulary.is_special(i)]
        data = self._open + b"".join(map(vocabulary.piece, token_ids))
        text, self._open = decode_bytes(data, self._rule.has_byte_fallback)
        return text

    def flush(self) -> str:
        text, _ = decode_bytes(self._open, self._rule.has_byte_fallback, is_final=True)
        self._open = b""
        return text

    def _first_piece(self, piece: bytes) -> bytes:
        # Every occurrence goes, not only the leading one: that is what the Metaspace decoder does.
        return piece.replace(b" ", b"") if self._rule.dropped_at_start else piece

    def _strip(self, text: str) -> str:
        while self._num_to_strip and text:
            if not text.startswith(self._rule.stripped):
                self._num_to_strip = 0
                break
            text = text[len(self._rule.stripped) :]
            self._num_to_strip -= 1
        return text


class WindowDetokenizer:
    """For any other decoder: decodes the last few tokens with and without the new one, and compares."""

    __slots__ = (
        "_has_spaces",
        "_num_shown",
        "_shown_text",
        "_skips_special",
        "_vocabulary",
        "_was_added",
        "_window",
    )

    def __init__(self, vocabulary: Vocabulary, skips_special: bool, has_spaces: bool) -> None:
        self._vocabulary = vocabulary
        self._skips_special = skips_special
        self._has_spaces = has_spaces
        self._was_added = False
        self._window: list[int] = []
        self._num_shown = 0
        self._shown_text = ""

    def push(self, token_id: int) -> str:
        vocabulary = self._vocabulary
        is_hidden = self._skips_special and vocabulary.is_special(token_id)
        if is_hidden or not vocabulary.has_token(token_id):
            return ""
        self._window.append(token_id)
        added = None if self._has_spaces else vocabulary.added_text(token_id)
        was_added, self._was_added = self._was_added, added is not None
        if was_added and added is not None:
            return self._show(added)
        text = vocabulary.decode_window(self._window)
        is_open = text.endswith(_UNKNOWN) or len(text) <= len(self._shown_text)
        if is_open and len(self._window) - self._num_shown < _MAX_OPEN_TOKENS:
            return ""
        return self._show(self._new_part(text))

    def read(self, token_ids: Sequence[int]) -> str:
        return "".join(map(self.push, token_ids))

    def flush(self) -> str:
        if self._num_shown == len(self._window):
            return ""
        return self._show(self._new_part(self._vocabulary.decode_window(self._window)))

    def _new_part(self, text: str) -> str:
        # A decoder may change text it already gave (a space before punctuation); what was shown
        # stays shown, and only the new tokens' own text follows.
        if text.startswith(self._shown_text):
            return text[len(self._shown_text) :]
        return self._vocabulary.decode_window(self._window[self._num_shown :])

    def _show(self, text: str) -> str:
        """Count the whole window as shown, and keep only its last tokens as context for the next."""
        self._window = self._window[self._num_shown :]
        self._num_shown = len(self._window)
        self._shown_text = self._vocabulary.decode_window(self._window)
        return text


def decode_bytes(
    data: bytes, has_byte_fallback: bool, *, is_final: bool = False
) -> tuple[str, bytes]:
    """The text of the complete characters in `data`, and the bytes of one that is still open.

    Invalid bytes become U+FFFD: one for each byte where the tokenizer falls back to bytes, else one
    for each longest part of a character; so do the libraries these tokenizers come from.
    """
    if data.isascii():
        return data.decode("ascii"), b""
    if not has_byte_fallback:
        text, num_read = codecs.utf_8_decode(data, "replace", is_final)
        return text, data[num_read:]
    texts: list[str] = []
    while True:
        try:
            text, num_read = codecs.utf_8_decode(data, "strict", is_final)
            return "".join((*texts, text)), data[num_read:]
        except UnicodeDecodeError as error:
            texts += data[: error.start].decode(), _UNKNOWN * (error.end - error.start)
            data = data[error.end :]


def decode_all(detokenizer: Detokenizer, token_ids: Iterable[int]) -> str:
    """The text of all of `token_ids`."""
    texts = [detokenizer.push(token_id) for token_id in token_ids]
    return "".join((*texts, detokenizer.flush()))
