"""Reasoning: text that a model writes before its answer, up to a marker such as "</think>".

The request says whether reasoning is open when the answer begins (`weft.text.reasoning`); a `ReasoningTracker` follows
each sequence to the end of its reasoning. The tracker searches the text for the marker, so it also finds a marker of
several tokens, or of other tokens than the tokenizer would use.
"""

from collections.abc import Callable

from weft.core.values.prompts import OpenReasoning
from weft.core.values.types import Request


class ReasoningTracker:
    """Follows one sequence, token by token, until its reasoning has ended. `piece` returns the bytes of a token.

    `budget` is the number of tokens after which the end of the reasoning is forced.
    """

    __slots__ = (
        "_budget",
        "_end",
        "_end_ids",
        "_last_ids",
        "_num_tokens",
        "_piece",
        "_tail",
        "is_over",
    )

    def __init__(
        self, reasoning: OpenReasoning, piece: Callable[[int], bytes], budget: int | None = None
    ) -> None:
        self._end = reasoning.end.encode()
        self._end_ids = reasoning.end_token_ids
        self._piece = piece
        self._budget = budget
        self._tail = b""  # last bytes of the text, which may begin the marker
        self._last_ids: list[int] = []
        self._num_tokens = 0
        self.is_over = False

    @classmethod
    def of(cls, request: Request, piece: Callable[[int], bytes]) -> "ReasoningTracker | None":
        """Makes the tracker of a request's answer; None without open reasoning."""
        if request.reasoning is None:
            return None
        return cls(request.reasoning, piece, request.params.thinking_token_budget)

    @property
    def forced_token_id(self) -> int | None:
        """Next token of the end marker once the budget is used up, continuing a marker that the model has begun;
        else None.
        """
        if self.is_over or self._budget is None or self._num_tokens < self._budget:
            return None
        longest = min(len(self._last_ids), len(self._end_ids) - 1)
        num_there = next(
            count
            for count in range(longest, -1, -1)
            if self._last_ids[len(self._last_ids) - count :] == self._end_ids[:count]
        )
        return self._end_ids[num_there]

    def push(self, token_id: int) -> None:
        """Adds the sequence's next token."""
        self._num_tokens += 1
        self._last_ids = [*self._last_ids, token_id][-len(self._end_ids) :]
        text = self._tail + self._piece(token_id)
        self.is_over = self._end in text
        num_bytes = len(self._end) - 1
        self._tail = text[-num_bytes:] if num_bytes else b""
