"""Converts token ids to text, a few at a time: the pieces joined equal the text of decoding all tokens at once.

Bytes of an incomplete character are held back, and become U+FFFD if it is never completed.
"""

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from weft.text.pieces import PieceRule

if TYPE_CHECKING:
    from weft.text.tokenizer import Tokenizer

# Maximum number of tokens that wait for a character to complete: if their text still ends in U+FFFD, the text really
# contains it.
_MAX_OPEN_TOKENS = 8
_UNKNOWN = "\ufffd"


class Detokenizer(Protocol):
    """The text of a growing list of tokens."""

    def push(self, token_id: int) -> str:
        """The text that this token completes; "" if a character is still incomplete or the token has no text."""

    def read(self, token_ids: Sequence[int]) -> str:
        """Returns the same text as pushing the tokens one by one."""

    def flush(self) -> str:
        """Returns the text of an incomplete character at the end of the tokens."""


class PieceDetokenizer:
    """For tokenizers whose tokens map to bytes independently of their neighbours: exact, with a few bytes of state."""

    __slots__ = ("_is_first", "_num_to_strip", "_open", "_rule", "_skips_special", "_tokenizer")

    def __init__(
        self, tokenizer: "Tokenizer", rule: PieceRule, skips_special: bool, is_start: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._rule = rule
        self._skips_special = skips_special
        self._open = b""
        self._is_first = is_start
        self._num_to_strip = rule.num_stripped if is_start else 0

    def push(self, token_id: int) -> str:
        tokenizer = self._tokenizer
        if self._skips_special and token_id in tokenizer.special_ids:
            return ""
        piece = tokenizer.piece(token_id)
        if self._is_first and tokenizer.has_token(token_id):
            self._is_first = False
            piece = self._first_piece(piece)
        text, self._open = decode_bytes(self._open + piece, self._rule.has_byte_fallback)
        return self._strip(text) if self._num_to_strip and text else text

    def read(self, token_ids: Sequence[int]) -> str:
        """Returns the same text as pushing the tokens one by one; decodes their bytes in one call."""
        if len(token_ids) == 1:
            return self.push(token_ids[0])
        if self._is_first or self._num_to_strip:
            return "".join(map(self.push, token_ids))
        tokenizer = self._tokenizer
        if self._skips_special:
            token_ids = [i for i in token_ids if i not in tokenizer.special_ids]
        data = self._open + b"".join(map(tokenizer.piece, token_ids))
        text, self._open = decode_bytes(data, self._rule.has_byte_fallback)
        return text

    def flush(self) -> str:
        text, _ = decode_bytes(self._open, self._rule.has_byte_fallback, is_final=True)
        self._open = b""
        return text

    def _first_piece(self, piece: bytes) -> bytes:
        # All occurrences are replaced, not only the leading one, as in the Metaspace decoder.
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

    def __init__(self, tokenizer: "Tokenizer", skips_special: bool, has_spaces: bool) -> None:
        self._tokenizer = tokenizer
        self._skips_special = skips_special
        self._has_spaces = has_spaces
        self._was_added = False
        self._window: list[int] = []
        self._num_shown = 0
        self._shown_text = ""

    def push(self, token_id: int) -> str:
        tokenizer = self._tokenizer
        is_hidden = self._skips_special and tokenizer.is_special(token_id)
        if is_hidden or not tokenizer.has_token(token_id):
            return ""
        self._window.append(token_id)
        added = None if self._has_spaces else tokenizer.added_text(token_id)
        was_added, self._was_added = self._was_added, added is not None
        if was_added and added is not None:
            return self._show(added)
        text = tokenizer.decode_window(self._window)
        is_open = text.endswith(_UNKNOWN) or len(text) <= len(self._shown_text)
        if is_open and len(self._window) - self._num_shown < _MAX_OPEN_TOKENS:
            return ""
        return self._show(self._new_part(text))

    def read(self, token_ids: Sequence[int]) -> str:
        return "".join(map(self.push, token_ids))

    def flush(self) -> str:
        if self._num_shown == len(self._window):
            return ""
        return self._show(self._new_part(self._tokenizer.decode_window(self._window)))

    def _new_part(self, text: str) -> str:
        # A decoder may change earlier text (a space before punctuation). Emitted text cannot change, so only the text
        # of the new tokens is added.
        if text.startswith(self._shown_text):
            return text[len(self._shown_text) :]
        return self._tokenizer.decode_window(self._window[self._num_shown :])

    def _show(self, text: str) -> str:
        """Marks the whole window as emitted, and keeps only its last tokens as context."""
        self._window = self._window[self._num_shown :]
        self._num_shown = len(self._window)
        self._shown_text = self._tokenizer.decode_window(self._window)
        return text


def decode_bytes(
    data: bytes, has_byte_fallback: bool, *, is_final: bool = False
) -> tuple[str, bytes]:
    """The text of the complete characters in `data`, and the bytes of an incomplete one.

    Invalid bytes become U+FFFD: one for each byte if the tokenizer falls back to bytes, otherwise one for each
    longest part of a character, as in the tokenizers' libraries.
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
