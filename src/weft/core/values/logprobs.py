"""`FlatLogprobs`: stores the logprobs of many positions in a few arrays instead of one object each.

A long answer with twenty logprobs per token would be a hundred thousand small objects, which the garbage collector
visits repeatedly.
"""

from array import array
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

from weft.core.values.types import Logprob, LogprobRow, PositionLogprobs, RequestOutput


class LogprobsMode(StrEnum):
    """The stage of sampling at which an engine takes logprobs, and whether it reports logits instead.

    "raw" is the stage before all processing except grammars; "processed" is the stage after all processing, including
    temperature and truncation. Prompt tokens are not sampled, so their logprobs are always raw.
    """

    RAW_LOGPROBS = "raw_logprobs"
    RAW_LOGITS = "raw_logits"
    PROCESSED_LOGPROBS = "processed_logprobs"
    PROCESSED_LOGITS = "processed_logits"


_UNKNOWN_RANK = 0  # stands for an unknown rank: ranks begin at 1


class FlatLogprobs(Sequence[Any]):
    """A sequence that reads like a list of positions, each a dict of logprobs by token id.

    Position `i` consists of the entries `start_indices[i]:end_indices[i]` of the arrays. A position without entries,
    such as the first position of a prompt, is None.
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
        """Appends a position."""
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

    __hash__ = None  # type: ignore[assignment]  # mutable, so not hashable


def num_scores_of(output: RequestOutput) -> int:
    """Approximate number of logprobs in an output that will be written."""
    of_answers = sum(num_scores(answer.logprobs) for answer in output.outputs)
    return num_scores(output.prompt_logprobs) + of_answers


def num_scores(rows: Sequence[LogprobRow | PositionLogprobs | None] | None) -> int:
    """Number of logprobs in these rows, estimated from the last row."""
    return len(rows) * len(rows[-1] or ()) if rows else 0
