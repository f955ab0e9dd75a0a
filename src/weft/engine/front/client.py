"""`FrontClient`: the half of an engine client that lives with the callers.

It checks and numbers requests, sends commands, and turns the engine's events into each request's
outputs. Where the engine runs, and how commands and events travel, is the subclass's affair. All of
it runs on one event loop.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any, assert_never

import msgspec

from weft.core.config import EngineConfig
from weft.core.errors import (
    BadRequest,
    EngineDead,
    GenerationError,
    Unsupported,
    WeftError,
)
from weft.core.metrics import Metrics
from weft.core.observed import ObservedRequest
from weft.core.types import (
    EngineLoad,
    LoRARequest,
    PoolingParams,
    PoolingRequestOutput,
    PromptType,
    Request,
    RequestOutput,
    SamplingParams,
    StreamingInput,
    StructuredOutputsParams,
)
from weft.engine.constraints.check import GrammarChecker
from weft.engine.constraints.thought import read_thought
from weft.engine.front.control import EngineControl
from weft.engine.front.lora_table import Held
from weft.engine.front.open_requests import Due, OpenRequest, OpenRequests
from weft.engine.front.outputs import RequestStream
from weft.engine.front.pace import Pace
from weft.engine.front.pooling_stream import PoolingStream
from weft.engine.front.session import Session
from weft.engine.messages import (
    Abort,
    Add,
    Event,
    Failed,
    Ready,
    Reply,
    SequenceOutput,
    StepOutput,
)
from weft.text.inputs import Processor
from weft.text.pooling_inputs import PoolingProcessor
from weft.text.tokenizer import Tokenizer

log = logging.getLogger("weft.engine")


class FrontClient(EngineControl):
    """See the module. Subclasses give `_send`, `shutdown` and `wait_closed`, and call `_on_event`.

    Without `metrics` nothing is observed.
    """

    def __init__(
        self, config: EngineConfig, tokenizer: Tokenizer, metrics: Metrics | None = None
    ) -> None:
        super().__init__(config, metrics)
        self.renderer: Tokenizer = tokenizer
        self.input_processor = Processor(config, tokenizer)
        self._grammars = GrammarChecker(
            tokenizer, config.model_config.vocab_size, config.model_config.eos_token_ids
        )
        self._open = OpenRequests(config.scheduler_config)
        self._pace = Pace(config.stream_interval_ms / 1e3, asyncio.get_running_loop())
        self._sessions: set[Session] = set()
        self._pooling = PoolingProcessor(config, tokenizer)

    # -- requests -----------------------------------------------------------------------------

    async def generate(  # noqa: PLR0913 - the protocol's own signature
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
        """See `EngineClient.generate`."""
        observed = self._observed()
        self._check_alive()
        if self.vllm_config.pooler_config is not None:
            tasks = ", ".join(self.vllm_config.pooler_config.tasks)
            raise Unsupported(f"generate is not supported by this model; it supports {tasks}")
        if lora_request is not None:
            self._loras.check(lora_request)
        self._check_rank(data_parallel_rank)
        if trace_headers:
            log.debug("tracing is off: trace headers are dropped, request_id=%s", request_id)
        options = {
            "prompt_text": prompt_text,
            "tokenization_kwargs": tokenization_kwargs,
            "priority": priority,
        }
        if isinstance(prompt, AsyncIterable):
            _refuse(
                reasoning_ended=reasoning_ended, reasoning_parser_kwargs=reasoning_parser_kwargs
            )
            session = Session(request_id, prompt)
            answer = partial(self._answer_piece, session, options, lora_request)
            with self._registered(session):
                async with aclosing(session.outputs(sampling_params, answer)) as outputs:
                    async for output in outputs:
                        yield output
            return
        request = await self.input_processor.process_soon(
            prompt, sampling_params, request_id, **options
        )
        self._check_alive()
        thought = read_thought(
            request.params,
            reasoning_ended,
            reasoning_parser_kwargs,
            request.prompt_token_ids,
            self.renderer,
        )
        if thought is not None:
            request = msgspec.structs.replace(request, thought=thought)
        following = self._follow(request, observed, lora_request=lora_request)
        async with aclosing(following) as outputs:
            async for output in outputs:
                yield output

    def _observed(self) -> ObservedRequest | None:
        """Before anything else is done for a request: its time begins here."""
        return None if self._metrics is None else ObservedRequest(self._metrics)

    @contextmanager
    def _registered(self, session: Session) -> Iterator[None]:
        """While this lasts the session can be aborted, and fails when the engine dies."""
        self._sessions.add(session)
        try:
            yield
        finally:
            self._sessions.discard(session)

    async def _answer_piece(
        self,
        session: Session,
        options: Mapping[str, Any],
        lora_request: LoRARequest | None,
        piece: StreamingInput,
        before: list[int],
    ) -> AsyncGenerator[RequestOutput, None]:
        observed = self._observed()
        self._check_alive()
        request = await self.input_processor.process_piece(
            piece, before, session.request_id, **options
        )
        self._check_alive()
        following = self._follow(request, observed, session, lora_request=lora_request)
        async with aclosing(following) as outputs:
            async for output in outputs:
                yield output

    async def _follow(
        self,
        request: Request,
        observed: ObservedRequest | None,
        session: Session | None = None,
        *,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Hand a checked request to the engine and follow it to its end."""
        stream = RequestStream(request, self.renderer)
        opened = self._open.admit(request, stream)
        if session is not None:
            session.current = opened
        held: Held | None = None
        try:
            if lora_request is not None:
                held = await self._loras.hold(lora_request, unless=opened.has_news)
                request = msgspec.structs.replace(
                    request, lora_name=lora_request.lora_name, lora_id=held and held.lora_id
                )
            if request.params.structured_outputs is not None:
                request = await self._with_grammar(request, request.params.structured_outputs)
            if observed is not None:
                observed.accept(len(request.prompt_token_ids), request.params)
                opened.observed = observed
            if not opened.stream.is_finished and opened.error is None:  # else it ended meanwhile
                self._send(Add(request))
            while True:
                await opened.wait()
                output = stream.pop()
                if output is not None:
                    yield output
                    if output.is_finished:
                        return
        finally:
            self._close(opened)
            if held is not None:  # and not before: with the next command the engine may drop it
                self._loras.release(held)

    async def encode(  # noqa: PLR0913 - the protocol's own signature
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
        """See `EngineClient.encode`."""
        observed = self._observed()
        self._check_alive()
        _refuse(lora_request=lora_request, reasoning_ended=reasoning_ended)
        if trace_headers:
            log.debug("tracing is off: trace headers are dropped, request_id=%s", request_id)
        request = await self._pooling.process_soon(
            prompt,
            pooling_params,
            request_id,
            tokenization_kwargs=tokenization_kwargs,
            priority=priority,
        )
        self._check_alive()
        stream = PoolingStream(request)
        opened = self._open.admit(request, stream)
        try:
            if observed is not None:
                observed.accept(len(request.prompt_token_ids), request.params)
                opened.observed = observed
            self._send(Add(request))
            while (output := stream.pop()) is None:
                await opened.wait()
            yield output
        finally:
            self._close(opened)

    async def _with_grammar(self, request: Request, asked: StructuredOutputsParams) -> Request:
        """The request as the engine takes it: with the grammar, and no longer with the wish."""
        grammar = await self._grammars.check(asked)
        params = msgspec.structs.replace(request.params, structured_outputs=None)
        return msgspec.structs.replace(request, params=params, grammar=grammar)

    def _close(self, opened: OpenRequest) -> None:
        """Forget a request; if the engine still works on it, stop that."""
        opened.observe_end()
        self._open.remove(opened)
        self._pace.forget(opened)
        if not opened.stream.is_finished and self._dead_error is None:
            self._send(Abort([opened.request.engine_id], is_silent=True))

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """See `EngineClient.abort`."""
        request_ids = {request_id} if isinstance(request_id, str) else set(request_id)
        for session in self._sessions:
            if session.request_id in request_ids:
                session.abort()
        named = self._open.named(request_ids)
        for opened in named:
            opened.stream.abort()
            opened.has_news.set()
        if named and self._dead_error is None:
            engine_ids = [opened.request.engine_id for opened in named]
            self._send(Abort(engine_ids, is_silent=True))

    @property
    def num_active_requests(self) -> int:
        """See `EngineClient`."""
        return len(self._open) + sum(session.is_parked for session in self._sessions)

    # -- what the engine says -----------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        self._hear()
        match event:
            case StepOutput():
                self._on_step(event)
            case Reply():
                self._on_reply(event)
            case Ready():
                self._set_load(event.load)
                if not self._ready.done():
                    self._ready.set_result(None)
            case Failed():
                self._die(EngineDead(f"the engine has stopped: {event.message}"))
            case _:
                assert_never(event)

    def _on_step(self, step: StepOutput) -> None:
        self._load = step.load
        self._stats = step.stats
        if self._metrics is not None:
            self._metrics.take_step(step.stats, step.load)
        for output in step.outputs:
            self._on_output(output)
        if step.kv_events is not None:
            self._feed.publish(step.kv_events)

    def _on_output(self, output: SequenceOutput) -> None:
        opened = self._open.get(output.engine_id)
        if opened is None:
            return  # ended here before the engine knew
        if opened.waits_for_prefill:
            self._open.count_prefilled(opened)
        stream = opened.stream
        is_matched = stream.push(output)
        if is_matched:  # a stop string, of which the engine knows nothing
            self._send(Abort([output.engine_id], output.index, is_silent=True))
        if stream.error is not None:
            opened.fail(GenerationError(stream.error))
        observed = opened.observed
        # First tokens and ends only: an observation of every token would be a tenth of all work here.
        if observed is not None and (
            output.finish_reason is not None or is_matched or observed.has_silent
        ):
            observed.take(output.index, *stream.progress(output.index))
        due = stream.due
        if due is Due.NOW:
            self._pace.tell_now(opened)
        elif due is Due.SOON:
            self._pace.tell_soon(opened)

    def _die(self, error: WeftError) -> None:
        """The engine is gone: everyone who waits for it learns so, once."""
        if self._dead_error is not None:
            return
        self._dead_error = error
        self._set_load(EngineLoad())  # nothing runs where nothing is
        self._grammars.close()
        for opened in self._open:
            if not opened.stream.is_finished:
                opened.fail(self.dead_error)
        for session in self._sessions:
            session.fail(self.dead_error)
        self._fail_calls()
        self._loras.fail(self.dead_error)
        self._feed.close(error)
        if not self._ready.done():
            self._ready.set_exception(error)

    # -- checks -------------------------------------------------------------------------------

    def _check_rank(self, rank: int | None) -> None:
        num_ranks = self.vllm_config.data_parallel_size
        if rank is not None and not 0 <= rank < num_ranks:
            raise BadRequest(
                "data_parallel_rank",
                f"data_parallel_rank {rank} is out of range [0, {num_ranks})",
                rank,
            )


def _refuse(**given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise Unsupported(f"{name} is not supported yet")
