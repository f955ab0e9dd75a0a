"""`Session`: a request whose input arrives in pieces while it is answered.

The engine sees each piece as a request of its own, whose prompt is all tokens so far. Between two pieces a session
holds no blocks and takes part in no step; the KV that it computed stays in the prefix cache.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import aclosing

import msgspec

from weft.core.errors import BadRequest
from weft.core.values.types import (
    CompletionOutput,
    FinishReason,
    OutputKind,
    RequestOutput,
    SamplingParams,
    StreamingInput,
)
from weft.engine.front.open_requests import OpenRequest

# Maximum number of pieces that wait while an earlier piece is answered; reading stops until there is room.
MAX_WAITING = 16

# Answers a piece; the list has the tokens that the piece continues.
Answer = Callable[[StreamingInput, list[int]], AsyncGenerator[RequestOutput, None]]


class Session:
    """Reads the input while it answers. Owned by one call of `generate`; `abort` and `fail` end it."""

    def __init__(self, request_id: str, inputs: AsyncIterable[StreamingInput]) -> None:
        self.request_id = request_id
        self._current: OpenRequest | None = None  # the piece that is being answered
        self._inputs = inputs
        self._waiting: deque[StreamingInput] = deque()
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._is_read = False
        self._is_aborted = False
        self._error: BaseException | None = None

    @property
    def is_parked(self) -> bool:
        """True if the session waits for input: the engine does not know of it."""
        return self._current is None

    def begin(self, opened: OpenRequest) -> None:
        """Notes that a piece was admitted. Ends the piece if the session was ended while the piece was prepared."""
        self._current = opened
        if self._error is not None:
            opened.fail(self._error)
        elif self._is_aborted:
            opened.abort()

    def abort(self) -> None:
        """Ends the session with "abort"; the piece that is being answered needs an abort of its own."""
        self._is_aborted = True
        self._changed.set()

    def fail(self, error: BaseException) -> None:
        """Makes the caller raise `error`: at once, or after an answer that is finished but not read yet."""
        self._error = error
        self._changed.set()
        if self._current is not None and not self._current.stream.is_finished:
            self._current.fail(error)

    async def outputs(
        self, params: SamplingParams, answer: Answer
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields the outputs of every piece. Only the last output of all is marked as finished."""
        reader = asyncio.create_task(self._read())
        try:
            async for output in self._answers(params, answer):
                yield output
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            if isinstance(self._inputs, AsyncGenerator):
                await self._inputs.aclose()

    async def _read(self) -> None:
        try:
            async for piece in self._inputs:
                while len(self._waiting) >= MAX_WAITING:
                    self._has_room.clear()
                    await self._has_room.wait()
                self._waiting.append(piece)
                self._changed.set()
        except Exception as error:  # noqa: BLE001 - raised by the caller's input; the caller gets it
            self.fail(error)
        self._is_read = True
        self._changed.set()

    async def _answers(
        self, params: SamplingParams, answer: Answer
    ) -> AsyncGenerator[RequestOutput, None]:
        before: list[int] = []
        parked: RequestOutput | None = None
        while (piece := await self._next()) is not None:
            checked = _checked(piece, params)
            context = _Context()
            async with aclosing(answer(checked, before)) as outputs:
                async for output in outputs:
                    context.take(output, checked.sampling_params)
                    is_end = output.is_finished and self._is_end(output)
                    parked = msgspec.structs.replace(output, is_finished=is_end)
                    yield parked
                    if is_end:
                        return
            self._current = None
            before = context.token_ids
        if self._is_aborted:
            yield _ending(parked or self._nothing(), FinishReason.ABORT)
        elif parked is not None:
            yield _ending(parked, None)

    def _nothing(self) -> RequestOutput:
        """Returns an empty output for a session that was aborted before its first answer."""
        answer = CompletionOutput(index=0)
        return RequestOutput(
            request_id=self.request_id,
            prompt=None,
            prompt_token_ids=[],
            outputs=[answer],
            is_finished=False,
        )

    async def _next(self) -> StreamingInput | None:
        """Waits for the next piece; None if there are no more."""
        while True:
            self._changed.clear()
            if self._is_aborted:
                return None
            if self._error is not None:
                raise self._error
            if self._is_read and not self._waiting:
                return None
            if self._waiting:
                self._has_room.set()
                return self._waiting.popleft()
            await self._changed.wait()

    def _is_end(self, output: RequestOutput) -> bool:
        is_aborted = output.outputs[0].finish_reason is FinishReason.ABORT
        return is_aborted or (self._is_read and not self._waiting and self._error is None)


class _Context:
    """Tokens that one piece and its answer add to the context."""

    def __init__(self) -> None:
        self._prompt: list[int] = []
        self._answer: list[int] = []

    def take(self, output: RequestOutput, params: SamplingParams | None) -> None:
        """Adds an output of the answer."""
        self._prompt = output.prompt_token_ids
        new = output.outputs[0].token_ids
        is_delta = params is not None and params.output_kind is OutputKind.DELTA
        self._answer = [*self._answer, *new] if is_delta else list(new)

    @property
    def token_ids(self) -> list[int]:
        """Prompt and answer without the last token: its KV was not computed, and the next input takes its place."""
        return [*self._prompt, *self._answer[:-1]]


def _checked(piece: object, params: SamplingParams) -> StreamingInput:
    """Returns the piece with its params: its own, else those of the call."""
    if not isinstance(piece, StreamingInput):
        raise BadRequest(
            "prompt", f"streaming input must be StreamingInput, got a {type(piece).__name__}"
        )
    chosen = params if piece.sampling_params is None else piece.sampling_params
    for name, is_refused in (
        ("n", chosen.n != 1),
        ("output_kind", chosen.output_kind == OutputKind.FINAL_ONLY),
        ("stop", bool(chosen.stop)),
        ("truncate_prompt_tokens", chosen.truncate_prompt_tokens is not None),
    ):
        if is_refused:
            value = getattr(chosen, name)
            raise BadRequest(name, f"{name}={value!r:.40} cannot be used with streaming input")
    return StreamingInput(piece.prompt, chosen)


def _ending(parked: RequestOutput, reason: FinishReason | None) -> RequestOutput:
    """Returns the finishing output of a session whose other outputs have all been emitted."""
    last = parked.outputs[0]
    nothing = CompletionOutput(
        index=0,
        finish_reason=reason or last.finish_reason,
        stop_reason=None if reason else last.stop_reason,
    )
    return msgspec.structs.replace(
        parked, outputs=[nothing], is_finished=True, prompt_logprobs=None
    )
