"""The front half of one pooling request: the engine's outputs, made into its one output."""

from weft.core.types import FinishReason, PoolingRequestOutput, Request, SequenceOutput
from weft.text.outputs import Due


class PoolingStream:
    """Waits for the one result of a request."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._output: PoolingRequestOutput | None = None
        self.error: str | None = None

    @property
    def due(self) -> Due:
        """Once it is there."""
        return Due.NOW if self.is_finished else Due.NOT_YET

    @property
    def is_finished(self) -> bool:
        """Whether the request has ended."""
        return self._output is not None or self.error is not None

    def progress(self, index: int) -> tuple[int, FinishReason | None]:
        """No tokens ever, and why it has ended."""
        del index
        if self.error is not None:
            return 0, FinishReason.ERROR
        if self._output is None:
            return 0, None
        return 0, FinishReason.STOP if self._output.data else FinishReason.ABORT

    def push(self, output: SequenceOutput) -> bool:
        """Take an output of the engine; never a reason to stop it."""
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

    def abort(self) -> None:
        """End with no numbers."""
        if not self.is_finished:
            self._finish([], (0,), 0)

    def pop(self) -> PoolingRequestOutput | None:
        """The output, once it is there."""
        return self._output

    def _finish(self, data: list[float], shape: tuple[int, ...], num_cached_tokens: int) -> None:
        self._output = PoolingRequestOutput(
            request_id=self._request.request_id,
            prompt_token_ids=self._request.prompt_token_ids,
            data=data,
            shape=shape,
            num_cached_tokens=num_cached_tokens,
        )
