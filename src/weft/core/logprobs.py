"""`FlatLogprobs`: log-probabilities of many positions without an object for each.

A long answer with twenty of them a token is a hundred thousand small objects, which the garbage
collector walks again and again; here they are a handful of arrays.
"""

from array import array
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

from weft.core.types import Logprob, PositionLogprobs


class LogprobsMode(StrEnum):
    """What an engine reports as log-probabilities, of which stage of sampling.

    Raw is before everything but a grammar, processed after everything, temperature and truncation too.
    Prompt tokens are not sampled: of theirs there is only raw.
    """

    RAW_LOGPROBS = "raw_logprobs"
    RAW_LOGITS = "raw_logits"
    PROCESSED_LOGPROBS = "processed_logprobs"
    PROCESSED_LOGITS = "processed_logits"


_UNKNOWN_RANK = 0  # ranks begin at 1


class FlatLogprobs(Sequence[Any]):
    """Reads like a list of positions. Position `i` is entries `start_indices[i]:end_indices[i]`.

    A position without entries, the first of a prompt, is None.
    """

    __slots__ = ("decoded_tokens", "end_indices", "logprobs", "ranks", "start_indices", "token_ids")

    def __init__(self) -> None:
        self.start_indices = array("q")
        self.end_indices = array("q")
        self.token_ids = array("q")
        self.logprobs = array("d")
        self.ranks = array("q")
        self.decoded_tokens: list[str | None] = []

    def append(self, position: PositionLogprobs | None) -> None:
        """Add a position at the end."""
        self.start_indices.append(len(self.token_ids))
        for token_id, entry in (position or {}).items():
            self.token_ids.append(token_id)
            self.logprobs.append(entry.logprob)
            self.ranks.append(entry.rank or _UNKNOWN_RANK)
            self.decoded_tokens.append(entry.decoded_token)
        self.end_indices.append(len(self.token_ids))

    def __len__(self) -> int:
        return len(self.end_indices)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            part = FlatLogprobs()
            for i in range(*index.indices(len(self))):
                part.append(self[i])
            return part
        entries = range(self.start_indices[index], self.end_indices[index])
        position = {
            self.token_ids[i]: Logprob(
                self.logprobs[i], self.ranks[i] or None, self.decoded_tokens[i]
            )
            for i in entries
        }
        return position or None

    def __iter__(self) -> Iterator[PositionLogprobs | None]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FlatLogprobs | list):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # it grows
