"""`CountedStream`: the outputs of a request that another process reads; here they are only counted."""

from dataclasses import dataclass

from weft.core.types import FinishReason, Request, SequenceOutput
from weft.text.outputs import Due


@dataclass(frozen=True, slots=True)
class Ended:
    """No answer of a request goes on. `is_aborted`: by a call of this process, of which its reader does not know."""

    is_aborted: bool
    is_finished: bool = True


class CountedStream:
    """Stands for the stream of a request until all of its answers have ended."""

    def __init__(self, request: Request) -> None:
        self._num_tokens = [0] * request.params.n
        self._reasons: list[FinishReason | None] = [None] * request.params.n
        self._is_aborted = False
        self.error: str | None = None

    @property
    def due(self) -> Due:
        """Once it is over."""
        return Due.NOW if self.is_finished else Due.NOT_YET

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will come."""
        return self._is_aborted or all(self._reasons)

    def progress(self, index: int) -> tuple[int, FinishReason | None]:
        """How many tokens an answer has, and why it has ended."""
        return self._num_tokens[index], self._reasons[index]

    def push(self, output: SequenceOutput) -> bool:
        """Count an output of the engine; never a reason to stop it."""
        self._num_tokens[output.index] += len(output.token_ids)
        reason = output.finish_reason
        if output.pooled is not None:
            reason = reason or FinishReason.STOP
        if reason is FinishReason.ERROR:
            self.error = output.error or "the engine failed to answer this request"
        if reason is not None:
            self.end(output.index, reason)
        return False

    def end(self, index: int, reason: FinishReason) -> None:
        """An answer has ended; the first reason counts."""
        self._reasons[index] = self._reasons[index] or reason

    def abort(self) -> None:
        """End all that goes on."""
        if not self.is_finished:
            self._is_aborted = True
            for index in range(len(self._reasons)):
                self.end(index, FinishReason.ABORT)

    def pop(self) -> Ended | None:
        """Its end, once all answers have ended."""
        return Ended(self._is_aborted) if self.is_finished else None
