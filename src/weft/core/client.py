"""`EngineClient`: the only interface between servers or Python callers and an engine, local or remote.

Method names and meanings are those of vLLM's protocol of the same name. Each request is checked once, by `prepare`;
`run` and all code behind it trust the checked request. A method that an implementation does not offer raises
`Unsupported`, naming the method.
"""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Any, Protocol, TypeAlias

from weft.core.config.engine import ModelConfig
from weft.core.engine_info import EngineInfo
from weft.core.operator_calls import OperatorCalls, unsupported
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.kv_cache import KvEventBatch
from weft.core.values.prompts import PromptType
from weft.core.values.speech import ClipOutput, Speech
from weft.core.values.types import (
    LoRARequest,
    PoolingParams,
    PoolingRequestOutput,
    Request,
    RequestOptions,
    RequestOutput,
    SamplingParams,
    StreamingInput,
)

PromptSource: TypeAlias = PromptType | Callable[[], PromptType]
AnyParams: TypeAlias = SamplingParams | PoolingParams


class Renderer(Protocol):
    """Conversion of text to token ids and back, for the served model."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Returns the token ids of `text`."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """Returns the text of `token_ids`."""


class Sink(Protocol):
    """Receives the outputs of one request on the event loop, without waking the task that reads the request."""

    @property
    def is_open(self) -> bool:
        """True if the sink accepts the next output."""

    def take(self, output: RequestOutput) -> None:
        """Receives one output; an exception that this method raises is raised in the task that reads the request."""


class EngineClient(OperatorCalls, Protocol):
    """An inference engine, local or remote. Every accepted request ends in exactly one finished output or one error."""

    info: EngineInfo
    model_config: ModelConfig
    renderer: Renderer

    # -- requests -----------------------------------------------------------------------------

    def preparing(self, num_answers: int) -> AbstractContextManager[None]:
        """Reserves queue places for a request of `num_answers` answers, or refuses the request as `run` would.

        Servers use this before expensive work on a prompt: without a reservation they would do this work for requests
        that are refused afterwards.
        """
        del num_answers
        return nullcontext()

    async def prepare(
        self,
        prompt: PromptSource,
        params: AnyParams,
        options: RequestOptions,
    ) -> Request:
        """Checks, tokenizes and resolves a request, with every check that is possible before the engine gets the
        request.

        Parameters are checked before the prompt is read, or before the prompt is made if `prompt` is a function. Raises
        BadRequest, Unsupported or EngineDead.
        """

    def run(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        """Runs a request that `prepare` made from sampling parameters. `generate` documents the outputs."""

    def run_into(self, request: Request, sink: Sink) -> AsyncGenerator[RequestOutput, None]:
        """Runs a request like `run`; an output goes to the sink while the sink is open, and is yielded otherwise.

        The last output is always yielded. The sink avoids waking the reading task, which costs more than all other work
        for a token.
        """
        del sink
        return self.run(request)

    def run_pooling(self, request: Request) -> AsyncGenerator[PoolingRequestOutput, None]:
        """Runs a request that `prepare` made from pooling parameters. `encode` documents the output."""
        unsupported("encode")

    def run_speech(
        self, speech: Speech, params: SamplingParams, options: RequestOptions
    ) -> AsyncGenerator[ClipOutput, None]:
        """Yields the transcript of a recording, clip by clip, for a model whose `ModelConfig.speech` is not None.

        A long recording is split into clips, which are transcribed concurrently or one after the other; `params` apply
        to each of them, with one answer. Closing the generator aborts all clips. Raises the errors of `prepare` and
        `run`.
        """
        unsupported("speech to text")

    def run_pieces(
        self,
        pieces: AsyncIterable[StreamingInput],
        params: SamplingParams,
        options: RequestOptions,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Runs a request whose prompt arrives in pieces. `generate` documents prompts in pieces."""
        unsupported("a prompt in pieces")

    async def generate(
        self,
        prompt: PromptType | AsyncIterable[StreamingInput],
        sampling_params: SamplingParams,
        request_id: str,
        *,
        prompt_text: str | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        reasoning_ended: bool | None = None,
        reasoning_parser_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields outputs until one has `is_finished`. Closing the generator aborts the request.

        Smaller `priority` runs sooner under the priority policy. `prompt_text` only fills `RequestOutput.prompt`.

        For a model that reasons before it answers, a structured-output constraint starts after the reasoning.
        `reasoning_parser_kwargs={"end": "</think>"}` describes the reasoning: `end` is the text of 1 to 64 characters
        that ends it; other keys are refused. `reasoning_ended` says whether the prompt already contains the end of
        the reasoning; None checks whether the prompt's text ends with `end`, ignoring spaces. With True, or without
        either argument, the constraint starts with the first token; False needs `end`. Text that follows `end` within
        the same token is not checked.

        A prompt may arrive in pieces while answers are generated. Each piece is answered in turn; the last output of
        such an answer has a `finish_reason` but is not finished, and `sampling_params` start anew. A piece continues
        the whole text before it, except the last token of the previous answer. After the last piece, the last answer
        is finished, or an empty finished output follows. Requests in pieces have one answer, and cannot use
        "final_only", `stop`, truncation or reasoning.

        Raises BadRequest, Overloaded, Unsupported or EngineDead.
        """
        options = RequestOptions(
            request_id=request_id,
            prompt_text=prompt_text,
            lora_request=lora_request,
            tokenization_kwargs=tokenization_kwargs,
            trace_headers=trace_headers,
            priority=priority,
            data_parallel_rank=data_parallel_rank,
            reasoning_ended=reasoning_ended,
            reasoning_parser_kwargs=reasoning_parser_kwargs,
        )
        if isinstance(prompt, AsyncIterable):
            running = self.run_pieces(prompt, sampling_params, options)
        else:
            with self.preparing(1):
                request = await self.prepare(prompt, sampling_params, options)
            running = self.run(request)
        async with aclosing(running) as outputs:
            async for output in outputs:
                yield output

    async def encode(
        self,
        prompt: PromptType,
        pooling_params: PoolingParams,
        request_id: str,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        reasoning_ended: bool | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        """Yields one output: the result of the pooling task for the prompt.

        Raises BadRequest, Overloaded, EngineDead, or Unsupported for a model that generates text.
        """
        options = RequestOptions(
            request_id=request_id,
            lora_request=lora_request,
            tokenization_kwargs=tokenization_kwargs,
            trace_headers=trace_headers,
            priority=priority,
            reasoning_ended=reasoning_ended,
        )
        with self.preparing(1):
            request = await self.prepare(prompt, pooling_params, options)
        async with aclosing(self.run_pooling(request)) as outputs:
            async for output in outputs:
                yield output

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Aborts requests by the ids that callers gave them; unknown and finished ids have no effect."""

    # -- state --------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """True until the engine is dead or shut down; True also before the first request."""

    @property
    def is_stopped(self) -> bool:
        """True if the engine has ended, because it died or was shut down."""

    @property
    def errored(self) -> bool:
        """True if the engine is dead."""

    @property
    def dead_error(self) -> BaseException:
        """The error that every call on a dead engine raises."""

    @property
    def num_active_requests(self) -> int:
        """Number of accepted requests that have not finished."""

    @property
    def lora_requests(self) -> Mapping[str, LoRARequest]:
        """Adapters that requests may name, by name."""
        return {}

    async def check_health(self) -> None:
        """Raises `dead_error` if the engine is dead or no longer makes progress."""

    @property
    def is_degraded(self) -> bool:
        """True if some of several engines are absent; the remaining engines serve all requests."""
        return False

    async def is_tracing_enabled(self) -> bool:
        """True if this process, or the server that runs the engine, uses trace headers; otherwise callers need not pass
        them.
        """
        return False

    async def do_log_stats(self) -> None:
        """Logs one line with the engine's current load."""
        unsupported("do_log_stats")

    async def get_loads(self) -> list[EngineLoad]:
        """Returns the latest load of every data-parallel rank."""

    def subscribe_kv_events(
        self, start_sequence_number: int | None = None
    ) -> AsyncGenerator[KvEventBatch, None]:
        """Yields changes of the prefix cache without end.

        With `start_sequence_number`, yields batches from this number on; if the buffer no longer has them, the sequence
        numbers of the yielded batches have a gap. With None, yields batches from the next change on. A subscriber that
        falls too far behind gets `Overloaded`, which ends the subscription.
        """
        unsupported("subscribe_kv_events")

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """Returns the tasks of the model: "generate", "embed", ..."""
        return self.info.tasks

    # -- the end ------------------------------------------------------------------------------

    def shutdown(self, timeout: float | None = None) -> None:
        """Stops the engine: refuses new requests, lets running ones finish for `timeout` seconds, aborts the rest.

        With a `timeout` of None or 0, all requests are aborted at once. Idempotent. Returns immediately; `wait_closed`
        waits until the engine has exited.
        """
        unsupported("shutdown")

    async def wait_closed(self) -> None:
        """Returns when the engine has exited, after `shutdown` or its death."""
