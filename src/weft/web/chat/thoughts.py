"""How many of an answer's tokens are thoughts: counted token by token, wherever outputs are cut."""

from collections.abc import Sequence

from weft.text.detokenizer import Detokenizer
from weft.text.parsers.families import ReasoningFamily


class ThoughtCounter:
    """Follows one answer until its thoughts are over; the marks around them count as well.

    `is_open` None: whether there are thoughts shows at the answer's start.
    """

    def __init__(
        self, family: ReasoningFamily, is_open: bool | None, detokenizer: Detokenizer
    ) -> None:
        self._family = family
        self._ends = (*family.ends, *family.implicit_ends)
        self._longest = max(map(len, self._ends))
        self._is_open = is_open
        self._detokenizer = detokenizer
        self._tail = (
            ""  # the start of the answer until it is decided; then what an end may have begun in
        )
        self._num_undecided = 0

    def count(self, token_ids: Sequence[int]) -> int:
        """Of these tokens, and of earlier ones that it was not certain of, those that are thoughts."""
        if self._is_open is False:
            return 0
        return sum(map(self._count_one, token_ids))

    def _count_one(self, token_id: int) -> int:
        if self._is_open is False:
            return 0
        self._tail += self._detokenizer.push(token_id)
        num_tokens = 1
        if self._is_open is None:
            self._num_undecided += 1
            self._tail = self._tail.lstrip()
            self._is_open = self._decided()
            if not self._is_open:
                return 0
            num_tokens, self._num_undecided = self._num_undecided, 0
        if any(end in self._tail for end in self._ends):
            self._is_open = False
        self._tail = self._tail[-self._longest :]
        return num_tokens

    def _decided(self) -> bool | None:
        """Whether the answer begins with thoughts; None while that cannot be told."""
        if self._tail.startswith(self._family.starts):
            return True
        if any(start.startswith(self._tail) for start in self._family.starts):
            return None
        return self._family.may_omit_start
