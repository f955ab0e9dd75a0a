"""`FrontClient`: the half of an engine client that lives with the callers.

It checks and numbers requests, sends commands, and turns the engine's events into each request's
outputs. Where the engine runs, and how commands and events travel, is the subclass's affair. All of
it runs on one event loop.
"""

import asyncio
import itertools
import logging
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, assert_never

import msgspec

from weft.core.client import EngineClient
from weft.core.config import EngineConfig
from weft.core.errors import (
    BadRequest,
    EngineDead,
    GenerationError,
    Unavailable,
    Unsupported,
    WeftError,
)
from weft.core.metrics import Metrics
from weft.core.observed import ObservedRequest
from weft.core.stats import StepStats
from weft.core.types import (
    EngineLoad,
    KvEventBatch,
    LoRARequest,
    PauseMode,
    PoolingParams,
    PoolingRequestOutput,
    PromptType,
    Request,
    RequestOutput,
    SamplingParams,
    StructuredOutputsParams,
)
from weft.engine.grammar_check import GrammarChecker
from weft.engine.kv_feed import KvEventFeed
from weft.engine.messages import (
    Abort,
    Add,
    Command,
    Event,
    Failed,
    Pause,
    Ping,
    Ready,
    Reply,
    ResetPrefixCache,
    Resume,
    SequenceOutput,
    StepOutput,
    Stop,
)
from weft.engine.open_requests import OpenRequest, OpenRequests
from weft.engine.outputs import RequestStream
from weft.engine.pooling_stream import PoolingStream
from weft.engine.stat_log import StatLog
from weft.text.inputs import Processor
from weft.text.pooling_inputs import PoolingProcessor
from weft.text.tokenizer import Tokenizer

log = logging.getLogger("weft.engine")

STALL_S = 30.0  # an engine that answers nothing for so long is unhealthy; no step takes as long
_LOAD_TIMEOUT_S = 0.5
_LONG_TEXT = 10_000  # characters


class FrontClient(EngineClient):
    """See the module. Subclasses give `_send`, `shutdown` and `wait_closed`, and call `_on_event`.

    Without `metrics` nothing is observed.
    """

    def __init__(
        self, config: EngineConfig, tokenizer: Tokenizer, metrics: Metrics | None = None
    ) -> None:
        self.vllm_config = config
        self.model_config = config.model_config
        self.renderer = tokenizer
        self.input_processor = Processor(config, tokenizer)
        self._grammars = GrammarChecker(
            tokenizer, config.model_config.vocab_size, config.model_config.eos_token_ids
        )
        self._open = OpenRequests(config.scheduler_config)
        self._pooling = PoolingProcessor(config, tokenizer)
        self._calls: dict[int, asyncio.Future[Reply]] = {}
        self._call_ids = itertools.count()
        self._feed = KvEventFeed()
        self._metrics = None if metrics is None else metrics.add_engine(config)
        self._load = EngineLoad()
        self._stats = StepStats()
        self._stat_log = StatLog()
        self._is_paused = False
        self._is_closing = False
        self._dead_error: WeftError | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._heard_at = time.monotonic()
        self._ping: asyncio.Future[Reply] | None = None
        self._pinged_at: float | None = None  # None once anything was heard since

    @abstractmethod
    def _send(self, command: Command) -> None:
        """Hand a command to the engine; never blocks."""

    @abstractmethod
    async def wait_closed(self) -> None:
        """Return when the engine is gone, after `shutdown` or its death."""

    # -- requests -----------------------------------------------------------------------------

    async def generate(  # noqa: PLR0913 - the protocol's own signature
        self,
        prompt: PromptType,
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
        observed = None if self._metrics is None else ObservedRequest(self._metrics)
        self._check_alive()
        if self.vllm_config.pooler_config is not None:
            tasks = ", ".join(self.vllm_config.pooler_config.tasks)
            raise Unsupported(f"generate is not supported by this model; it supports {tasks}")
        _refuse(
            lora_request=lora_request,
            reasoning_ended=reasoning_ended,
            reasoning_parser_kwargs=reasoning_parser_kwargs,
        )
        self._check_rank(data_parallel_rank)
        if trace_headers:
            log.debug("tracing is off: trace headers are dropped, request_id=%s", request_id)
        process = partial(
            self.input_processor.process,
            prompt,
            sampling_params,
            request_id,
            prompt_text=prompt_text,
            tokenization_kwargs=tokenization_kwargs,
            priority=priority,
        )
        # The tokenizer takes about 1 µs a character, without the GIL: long texts must not hold the loop.
        is_long = len(_text_of(prompt)) > _LONG_TEXT
        request = await asyncio.to_thread(process) if is_long else process()
        self._check_alive()
        stream = RequestStream(request, self.renderer)
        opened = self._open.admit(request, stream)
        try:
            if request.params.structured_outputs is not None:
                request = await self._with_grammar(request, request.params.structured_outputs)
            if observed is not None:
                observed.accept(len(request.prompt_token_ids), request.params)
                opened.observed = observed
            if not opened.stream.is_finished and opened.error is None:  # else it ended meanwhile
                self._send(Add(request))
            while True:
                await opened.has_news.wait()
                opened.has_news.clear()
                if opened.error is not None:
                    raise opened.error
                output = stream.pop()
                if output is not None:
                    yield output
                    if output.is_finished:
                        return
        finally:
            self._close(opened)

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
        observed = None if self._metrics is None else ObservedRequest(self._metrics)
        self._check_alive()
        _refuse(lora_request=lora_request, reasoning_ended=reasoning_ended)
        if trace_headers:
            log.debug("tracing is off: trace headers are dropped, request_id=%s", request_id)
        process = partial(
            self._pooling.process,
            prompt,
            pooling_params,
            request_id,
            tokenization_kwargs=tokenization_kwargs,
            priority=priority,
        )
        is_long = len(_text_of(prompt)) > _LONG_TEXT
        request = await asyncio.to_thread(process) if is_long else process()
        self._check_alive()
        stream = PoolingStream(request)
        opened = self._open.admit(request, stream)
        try:
            if observed is not None:
                observed.accept(len(request.prompt_token_ids), request.params)
                opened.observed = observed
            self._send(Add(request))
            while (output := stream.pop()) is None:
                await opened.has_news.wait()
                opened.has_news.clear()
                if opened.error is not None:
                    raise opened.error
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
        if not opened.stream.is_finished and self._dead_error is None:
            self._send(Abort([opened.request.engine_id], is_silent=True))

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """See `EngineClient.abort`."""
        named = self._open.named([request_id] if isinstance(request_id, str) else request_id)
        for opened in named:
            opened.stream.abort()
            opened.has_news.set()
        if named and self._dead_error is None:
            engine_ids = [opened.request.engine_id for opened in named]
            self._send(Abort(engine_ids, is_silent=True))

    # -- state --------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """See `EngineClient`."""
        return self._dead_error is None and not self._is_closing

    @property
    def is_stopped(self) -> bool:
        """See `EngineClient`."""
        return self.errored

    @property
    def errored(self) -> bool:
        """See `EngineClient`. An engine that was told to stop is not in error."""
        return self._dead_error is not None and not self._is_closing

    @property
    def dead_error(self) -> BaseException:
        """See `EngineClient`. A new one each time: a raised exception keeps its traceback."""
        return EngineDead(str(self._dead_error)) if self._dead_error else EngineDead()

    @property
    def num_active_requests(self) -> int:
        """See `EngineClient`."""
        return len(self._open)

    async def check_health(self) -> None:
        """Raise if the engine is dead, or has neither stepped nor answered a ping for long.

        Asks with a ping through the engine's own mailbox; no request is ever queued for it.
        """
        if self._dead_error is not None:
            raise self.dead_error
        now = time.monotonic()
        if self._pinged_at is not None and now - self._pinged_at > STALL_S:
            raise Unavailable(f"the engine has not answered for {now - self._pinged_at:.0f} s")
        if now - self._heard_at > 1.0 and not self._is_closing:
            self._ping_soon()

    async def get_loads(self) -> list[EngineLoad]:
        """See `EngineClient`. A busy engine answers with the load after its last step."""
        self._check_alive()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._ping_soon()), _LOAD_TIMEOUT_S)
        return [self._load]

    def subscribe_kv_events(
        self, start_sequence_number: int | None = None
    ) -> AsyncGenerator[KvEventBatch, None]:
        """See `EngineClient`."""
        self._check_alive()
        return self._feed.subscribe(start_sequence_number)

    async def do_log_stats(self) -> None:
        """See `EngineClient`. An engine that had nothing to do since the last call is not mentioned."""
        line = self._stat_log.line(self._load, self._stats)
        if line is not None:
            log.info("%s", line)

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """See `EngineClient`."""
        pooler = self.vllm_config.pooler_config
        return ("generate",) if pooler is None else pooler.tasks

    # -- control ------------------------------------------------------------------------------

    async def pause_generation(
        self,
        *,
        mode: PauseMode | str = PauseMode.ABORT,
        wait_for_inflight_requests: bool = False,
        clear_cache: bool = True,
    ) -> None:
        """See `EngineClient`. `wait_for_inflight_requests` is the older spelling of mode "wait"."""
        if mode not in list(PauseMode):
            allowed = ", ".join(PauseMode)
            raise BadRequest("mode", f"mode must be one of {allowed}, got {mode!r}", mode)
        chosen = PauseMode.WAIT if wait_for_inflight_requests else PauseMode(mode)
        self._is_paused = True
        await self._call(Pause(next(self._call_ids), chosen.value, clear_cache))

    async def resume_generation(self) -> None:
        """See `EngineClient`."""
        await self._call(Resume(next(self._call_ids)))
        self._is_paused = False

    async def is_paused(self) -> bool:
        """See `EngineClient`."""
        return self._is_paused

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """See `EngineClient`. Without a connector, resetting it has nothing to do and succeeds."""
        del reset_connector
        reply = await self._call(ResetPrefixCache(next(self._call_ids), reset_running_requests))
        return reply.is_done

    async def _call(self, command: Pause | Resume | ResetPrefixCache | Ping) -> Reply:
        self._check_alive()
        return await self._call_soon(command)

    def _call_soon(
        self, command: Pause | Resume | ResetPrefixCache | Ping
    ) -> asyncio.Future[Reply]:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._calls[command.call_id] = future
        self._send(command)
        return future

    def _ping_soon(self) -> asyncio.Future[Reply]:
        """The one ping that is under way: an engine in a long step must not find a pile of them."""
        if self._ping is None or self._ping.done():
            self._pinged_at = time.monotonic()
            self._ping = self._call_soon(Ping(next(self._call_ids)))
        return self._ping

    # -- what the engine says -----------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        self._heard_at = time.monotonic()
        self._pinged_at = None
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

    def _set_load(self, load: EngineLoad) -> None:
        self._load = load
        if self._metrics is not None:
            self._metrics.load = load

    def _on_output(self, output: SequenceOutput) -> None:
        opened = self._open.get(output.engine_id)
        if opened is None:
            return  # ended here before the engine knew
        self._open.count_prefilled(opened)
        is_matched = opened.stream.push(output)
        if is_matched:  # a stop string, of which the engine knows nothing
            self._send(Abort([output.engine_id], output.index, is_silent=True))
        if opened.stream.error is not None:
            opened.fail(GenerationError(opened.stream.error))
        observed = opened.observed
        # First tokens and ends only: an observation of every token would be a tenth of all work here.
        if observed is not None and (
            output.finish_reason is not None or is_matched or observed.has_silent
        ):
            observed.take(output.index, *opened.stream.progress(output.index))
        opened.has_news.set()

    def _on_reply(self, reply: Reply) -> None:
        if reply.load is not None:
            self._set_load(reply.load)
        future = self._calls.pop(reply.call_id, None)
        if future is None or future.done():
            return  # the caller gave up
        future.set_result(reply)

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
        for future in self._calls.values():
            if not future.done():
                future.set_exception(self.dead_error)
                future.exception()  # a ping's answer may have nobody waiting for it
        self._calls.clear()
        self._feed.close(error)
        if not self._ready.done():
            self._ready.set_exception(error)

    # -- checks -------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self._dead_error is not None:
            raise self.dead_error
        if self._is_closing:
            raise Unavailable("the server is shutting down")

    def _check_rank(self, rank: int | None) -> None:
        num_ranks = self.vllm_config.data_parallel_size
        if rank is not None and not 0 <= rank < num_ranks:
            raise BadRequest(
                "data_parallel_rank",
                f"data_parallel_rank {rank} is out of range [0, {num_ranks})",
                rank,
            )

    def _begin_shutdown(self, timeout: float | None) -> bool:
        """Tell the engine to stop; False if it was told before or is dead."""
        if self._is_closing or self._dead_error is not None:
            return False
        self._is_closing = True
        self._send(Stop(timeout or 0.0))
        return True


def _text_of(prompt: object) -> str:
    if isinstance(prompt, dict):
        texts = (prompt.get("prompt"), prompt.get("prompt_pair"))
        return "".join(text for text in texts if isinstance(text, str))
    return prompt if isinstance(prompt, str) else ""


def _refuse(**given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise Unsupported(f"{name} is not supported yet")
