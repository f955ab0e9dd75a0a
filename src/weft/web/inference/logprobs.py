"""Log-probabilities in the three forms of OpenAI's APIs: chat, completions, prompts."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar, cast

import msgspec

from weft.core.aio.scores import MANY_SCORES
from weft.core.values.types import Logprob, PositionLogprobs
from weft.schema.tokens import ChosenIdLogprob, IdLogprob, IdLogprobs
from weft.schema.usage import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)
from weft.text.tokenizer import Tokenizer

_T = TypeVar("_T")
_FEW_ROWS = 16  # an answer with more rows is built as JSON text instead of objects
FLOOR = -9999.0  # stands for minus infinity, which JSON lacks
_LAST = sys.maxsize  # sorts a token of unknown rank last


@dataclass(frozen=True, slots=True)
class LogprobWriter:
    """Writes one request's logprobs.

    Each position has the logprobs of the sampled token and of `num_top` alternatives, -1 for all. If the caller sets
    `chosen_ids`, each position has these tokens instead of the best ones.
    """

    tokenizer: Tokenizer
    num_top: int
    is_naming_by_id: bool
    chosen_ids: Sequence[int] | None = None

    def chat(self, rows: Sequence[PositionLogprobs]) -> ChatLogprobs:
        """Logprobs in the form of chat: one object per token."""
        return ChatLogprobs(content=in_pieces(rows, self._token))

    def ids(self, rows: Sequence[PositionLogprobs]) -> IdLogprobs:
        """The form of tokens in and out: ids and ranks, no texts."""
        return IdLogprobs(content=in_pieces(rows, self._ids))

    def tokens(self, rows: Sequence[PositionLogprobs]) -> list[TokenLogprob]:
        """Returns an object for each token."""
        return [self._token(row) for row in rows]

    def completion(
        self,
        token_ids: Sequence[int],
        rows: Sequence[PositionLogprobs | None],
        first_offset: int,
    ) -> tuple[CompletionLogprobs, int]:
        """Logprobs in the form of completions: one list per field; also returns the next offset.

        Offsets count the characters of the tokens' own texts.
        """
        # Without top_logprobs the lists are left out, as OpenAI does.
        has_tops = self.num_top != 0 or self.chosen_ids is not None
        written = CompletionLogprobs(
            text_offset=[],
            token_logprobs=[],
            tokens=[],
            top_logprobs=in_pieces(rows, self._tops_by_name) if has_tops else None,
        )
        offset = first_offset
        for token_id, row in zip(token_ids, rows, strict=True):
            entry = None if row is None else row.get(token_id)
            text = self._text(token_id, entry)
            written.text_offset.append(offset)
            written.tokens.append(self._name(token_id, text))
            written.token_logprobs.append(None if entry is None else _floored(entry))
            offset += len(text)
        return written, offset

    def _token(self, row: PositionLogprobs) -> TokenLogprob:
        token_id, entry = next(iter(row.items()))  # the sampled token comes first
        return TokenLogprob(
            token=self._name(token_id, self._text(token_id, entry)),
            logprob=_floored(entry),
            bytes=self._bytes(token_id),
            top_logprobs=[
                TopLogprob(
                    token=self._name(other_id, self._text(other_id, other)),
                    logprob=_floored(other),
                    bytes=self._bytes(other_id),
                )
                for other_id, other in self._tops(row)
            ],
        )

    def _ids(self, row: PositionLogprobs) -> ChosenIdLogprob:
        """Logprobs of chosen ids: the sampled token comes first, and counts as one of `num_top`."""
        is_whole = self.chosen_ids is not None or self.num_top == -1
        shown = len(row) if is_whole else max(self.num_top, 1)
        tops = [
            IdLogprob(token_id=token_id, logprob=_floored(entry), rank=entry.rank)
            for token_id, entry in islice(row.items(), shown)
        ]
        sampled = tops[0]
        return ChosenIdLogprob(
            token_id=sampled.token_id,
            logprob=sampled.logprob,
            rank=sampled.rank,
            top_logprobs=tops,
        )

    def _tops(self, row: PositionLogprobs) -> list[tuple[int, Logprob]]:
        if self.chosen_ids is not None:
            return [(token_id, row[token_id]) for token_id in self.chosen_ids if token_id in row]
        ordered = sorted(row.items(), key=lambda item: item[1].rank or _LAST)
        return ordered if self.num_top == -1 else ordered[: self.num_top]

    def _tops_by_name(self, row: PositionLogprobs) -> dict[str, float]:
        """Logprobs by token text, always including the sampled token. Of tokens with equal texts, the likeliest is
        shown.
        """
        named: dict[str, float] = {}
        for token_id, entry in row.items():
            name = self._name(token_id, self._text(token_id, entry))
            named[name] = max(_floored(entry), named.get(name, FLOOR))
        return named

    def _name(self, token_id: int, text: str) -> str:
        return f"token_id:{token_id}" if self.is_naming_by_id else text

    def _text(self, token_id: int, entry: Logprob | None) -> str:
        if entry is not None and entry.decoded_token is not None:
            return entry.decoded_token
        return self.tokenizer.token_to_text(token_id)

    def _bytes(self, token_id: int) -> list[int]:
        return list(self.tokenizer.token_to_bytes(token_id))


def to_prompt_logprobs(
    rows: Sequence[PositionLogprobs | None] | None,
) -> PromptLogprobs | None:
    """Returns logprobs of every prompt token but the first, which has no predecessor."""
    if rows is None:
        return None
    return in_pieces(rows, _prompt_row)


def in_pieces(
    rows: Sequence[PositionLogprobs | None], write: Callable[[PositionLogprobs], _T]
) -> list[_T]:
    """Writes rows for an answer, null for None.

    Many rows become JSON text, a few at a time, because encoding and freeing hold the interpreter's lock.
    """

    def written(part: Sequence[PositionLogprobs | None]) -> list[Any]:
        return [None if row is None else write(row) for row in part]

    if len(rows) <= _FEW_ROWS:
        return written(rows)
    size = max(1, MANY_SCORES // max(1, len(rows[-1] or ())))
    parts = (rows[start : start + size] for start in range(0, len(rows), size))
    return of_pieces([msgspec.json.encode(written(part))[1:-1] for part in parts])


def of_pieces(pieces: list[bytes]) -> list[Any]:
    """A list in an answer, made of the JSON of its items."""
    return cast("list[Any]", msgspec.Raw(b"[" + b",".join(pieces) + b"]")) if pieces else []


def _prompt_row(row: PositionLogprobs) -> dict[int, PromptLogprob]:
    return {
        token_id: PromptLogprob(
            logprob=_floored(entry), rank=entry.rank, decoded_token=entry.decoded_token
        )
        for token_id, entry in row.items()
    }


def _floored(entry: Logprob) -> float:
    return max(entry.logprob, FLOOR)
