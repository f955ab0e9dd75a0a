"""`PoolingStream`: turns the engine's outputs of one pooling request into its only output."""

from weft.core.values.kv_transfer import GivenAnswer
from weft.core.values.types import FinishReason, PoolingRequestOutput, Request, SequenceOutput
from weft.text.outputs.request_stream import Due


class PoolingStream:
    """Waits for the result of a pooling request."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._output: PoolingRequestOutput | None = None
        self.error: str | None = None

    @property
    def due(self) -> Due:
        """Due once the request has ended."""
        return Due.NOW if self.is_finished else Due.NOT_YET

    @property
    def is_finished(self) -> bool:
        """True if the request has ended."""
        return self._output is not None or self.error is not None

    def progress(self, index: int) -> tuple[int, FinishReason | None]:
        """Returns 0 tokens, and the finish reason."""
        del index
        if self.error is not None:
            return 0, FinishReason.ERROR
        if self._output is None:
            return 0, None
        return 0, FinishReason.STOP if self._output.data else FinishReason.ABORT

    def push(self, output: SequenceOutput) -> bool:
        """Takes an output of the engine; returns False, because a pooling request has no stop strings."""
        if self.is_finished:
            return False
        if output.finish_reason is FinishReason.ERROR:
            self.error = output.error or "the engine failed to answer this request"
        elif output.pooled is not None:
            data: list[float] = list(memoryview(output.pooled).cast("f"))
            self._finish(data, output.pooled_shape, output.num_cached_tokens)
        elif output.finish_reason is not None:
            self.abort()
        return False

    def hand_over(self) -> list[GivenAnswer | None]:
        """Returns an answer without tokens: another engine begins the request anew."""
        return [GivenAnswer()]

    def abort(self) -> None:
        """Ends the request with no numbers."""
        if not self.is_finished:
            self._finish([], (0,), 0)

    def pop(self) -> PoolingRequestOutput | None:
        """Returns the output, or None while the request runs."""
        return self._output

    def _finish(self, data: list[float], shape: tuple[int, ...], num_cached_tokens: int) -> None:
        self._output = PoolingRequestOutput(
            request_id=self._request.request_id,
            prompt_token_ids=self._request.prompt_token_ids,
            data=data,
            shape=shape,
            num_cached_tokens=num_cached_tokens,
        )
