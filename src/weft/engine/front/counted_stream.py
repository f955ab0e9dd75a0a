"""`CountedStream`: counts the outputs of a request that another process reads."""

from dataclasses import dataclass

from weft.core.values.kv_transfer import Resumption
from weft.core.values.types import FinishReason, Request, SequenceOutput
from weft.text.outputs.request_stream import Due


@dataclass(frozen=True, slots=True)
class Ended:
    """End of all answers of a request. `is_aborted` is True if a call of this process aborted the request; the reader
    in the other process does not know of that call.
    """

    is_aborted: bool
    is_finished: bool = True


class CountedStream:
    """A `Stream` that counts tokens and builds no outputs, because another process reads the request's outputs.

    The request is finished when that process has confirmed that it has all outputs. Until then, the engine's death may
    have lost the last outputs on their way to that process.
    """

    def __init__(self, request: Request) -> None:
        self._num_tokens = [0] * request.params.n
        self._reasons: list[FinishReason | None] = [None] * request.params.n
        if request.resumption is not None:
            self._take_given(request.resumption)
        self._is_aborted = False
        self.is_confirmed = False
        self.error: str | None = None

    def _take_given(self, resumption: Resumption) -> None:
        """Counts the answers that another engine has begun. The reasons of those that have ended were counted there."""
        for index, given in enumerate(resumption.answers):
            if given is None:
                self._reasons[index] = FinishReason.STOP
            else:
                self._num_tokens[index] = len(given.token_ids)

    @property
    def due(self) -> Due:
        """Due once the request is finished."""
        return Due.NOW if self.is_finished else Due.NOT_YET

    @property
    def is_finished(self) -> bool:
        """True if no more output will come."""
        return self._is_aborted or (self.is_confirmed and all(self._reasons))

    def progress(self, index: int) -> tuple[int, FinishReason | None]:
        """Returns the number of tokens of an answer, and its finish reason."""
        return self._num_tokens[index], self._reasons[index]

    def push(self, output: SequenceOutput) -> bool:
        """Counts an output of the engine; returns False, because this stream has no stop strings."""
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
        """Ends an answer. If the answer has ended already, its first finish reason stays."""
        self._reasons[index] = self._reasons[index] or reason

    def abort(self) -> None:
        """Aborts all unfinished answers."""
        if not self.is_finished:
            self._is_aborted = True
            for index in range(len(self._reasons)):
                self.end(index, FinishReason.ABORT)

    def pop(self) -> Ended | None:
        """Returns the end of the request once all answers have ended, else None."""
        return Ended(self._is_aborted) if self.is_finished else None
