"""Reasoning: what a model writes before its answer, up to a marker such as "</think>".

Whether one is open where the answer begins is known with the request (`weft.text.reasoning`); a
`ReasoningTracker` follows each sequence to its end. Where the marker is several tokens, or the model
writes it with others than the tokenizer would, it is found in the text all the same.
"""

from collections.abc import Callable

from weft.core.types import OpenReasoning


class ReasoningTracker:
    """Follows one sequence, token by token, until its reasoning is over. `piece` gives a token's bytes.

    `budget` is how many tokens the reasoning may take before its end is forced.
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
        self._tail = b""  # as much of the text as the marker may have begun in
        self._last_ids: list[int] = []
        self._num_tokens = 0
        self.is_over = False

    @property
    def forced_token_id(self) -> int | None:
        """The next token of the marker, once the budget is spent; it goes on where the model began one."""
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
        """Take in the token that came next."""
        self._num_tokens += 1
        self._last_ids = [*self._last_ids, token_id][-len(self._end_ids) :]
        text = self._tail + self._piece(token_id)
        self.is_over = self._end in text
        num_bytes = len(self._end) - 1
        self._tail = text[-num_bytes:] if num_bytes else b""
