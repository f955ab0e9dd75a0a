"""`FrontClient`: the half of an engine client that lives with the callers.

It prepares requests, sends commands, and turns the engine's events into each request's outputs. Subclasses decide
where the engine runs and how commands and events travel. All methods of a `FrontClient` are called on one event loop.
"""

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, aclosing, suppress
from functools import partial
from typing import assert_never

from weft.core.checks.validate import MAX_N
from weft.core.client import EngineClient, Sink
from weft.core.config.engine import EngineConfig
from weft.core.engine_info import EngineInfo
from weft.core.errors import (
    ConfigError,
    EngineDead,
    Unavailable,
    Unsupported,
    WeftError,
)
from weft.core.observe.kv_feed import MAX_BUFFERED_BATCHES, KvEventFeed
from weft.core.observe.metrics import Metrics
from weft.core.observe.stats import StepStats
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.kv_cache import KvEventBatch
from weft.core.values.kv_transfer import RemotePrompt
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
from weft.engine.front.calls import EngineCalls
from weft.engine.front.controls import EngineControls
from weft.engine.front.counted_stream import CountedStream, Ended
from weft.engine.front.kv_publisher import KvPublisher
from weft.engine.front.lora_table import LoraTable
from weft.engine.front.open_requests import OutputT_co, Stream
from weft.engine.front.pooling_stream import PoolingStream
from weft.engine.front.request_runner import RequestRunner
from weft.engine.front.session import Session
from weft.engine.front.stat_log import StatLog
from weft.engine.ipc.messages import (
    AddLora,
    Command,
    Event,
    Failed,
    FinishWeightUpdate,
    Loading,
    Ready,
    Reply,
    StepOutput,
    Stop,
    UseShare,
)
from weft.engine.ipc.weight_files import PackedWeights
from weft.engine.speech.transcriber import Transcriber
from weft.engine.start.cpu_shares import cpus_of
from weft.engine.start.pictures import open_preparer
from weft.text.outputs.request_stream import RequestStream
from weft.text.prepare import InputProcessor
from weft.text.tokenizer import Tokenizer

log = logging.getLogger("weft.engine")

_LOAD_TIMEOUT_S = 0.5


class FrontClient(EngineClient):
    """Client of one engine. Subclasses implement `_send` and `shutdown`, call `_on_event`, and set `_closed`.

    Without `metrics` nothing is observed.
    """

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer,
        metrics: Metrics | None = None,
        loras: LoraTable | None = None,
    ) -> None:
        self.vllm_config = config  # the name that callers written for vLLM use
        self.info = EngineInfo.of(config)
        self.model_config = config.model_config
        rank = config.data_parallel_rank or 0
        self._calls = calls = EngineCalls(self._send, rank, self._check_alive)
        self._loras = loras or LoraTable(
            config, lambda lora_id, path: calls.send(AddLora, lora_id, path), self._send
        )
        self._metrics = None if metrics is None else metrics.add_engine(config, self._loras.usage)
        self._pictures = open_preparer(config, tokenizer)
        self.controls = EngineControls(config, calls, self._loras, self._metrics, self._pictures)
        events = config.kv_events_config
        self._feed = KvEventFeed(max(MAX_BUFFERED_BATCHES, events.buffer_steps if events else 0))
        self._publisher = self._open_publisher()
        self._load, self._stats = EngineLoad(), StepStats()
        self._stat_log = StatLog()
        self._on_loading: Callable[[int, int], None] = lambda num_bytes, all_bytes: None
        self._is_closing = False
        self._closed = asyncio.Event()
        self._dead_error: WeftError | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.renderer: Tokenizer = tokenizer
        clock = time.monotonic if self._metrics is None else self._metrics.clock
        self._inputs = InputProcessor(config, tokenizer, clock=clock, items=self._pictures)
        self._requests = RequestRunner(config, tokenizer, calls, self._loras, self._metrics)
        self._transcriber = None
        if config.sounds_config is not None:
            self._transcriber = Transcriber(config, tokenizer, self.run, clock)

    async def wait_closed(self) -> None:
        """Returns when the engine has ended, after `shutdown` or its death."""
        await self._closed.wait()
        if self._pictures is not None:
            await self._pictures.aclose()

    def _open_publisher(self) -> KvPublisher | None:
        """Returns the publisher of cache events; None for an engine of a group, which publishes."""
        config = self.vllm_config
        if config.kv_events_config is None or config.has_group:
            return None
        return KvPublisher(config.kv_events_config, self._feed)

    # -- requests -----------------------------------------------------------------------------

    def preparing(self, num_answers: int) -> AbstractContextManager[None]:
        self._check_alive()
        # `prepare` rejects a number of answers out of range.
        return self._requests.open.preparing(num_answers if 1 <= num_answers <= MAX_N else 1)

    async def prepare(
        self,
        prompt: PromptType | Callable[[], PromptType],
        params: SamplingParams | PoolingParams,
        options: RequestOptions,
    ) -> Request:
        self.check_callable(options)
        request = await self._inputs.prepare(prompt, params, options)
        self._check_alive()
        return request

    def run(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        return self.run_into(request, None)

    def run_into(self, request: Request, sink: Sink | None) -> AsyncGenerator[RequestOutput, None]:
        return self._requests.run(request, RequestStream(request, self.renderer, sink=sink))

    def run_pooling(self, request: Request) -> AsyncGenerator[PoolingRequestOutput, None]:
        return self._requests.run(request, PoolingStream(request))

    def run_counted(self, request: Request) -> AsyncGenerator[Ended, None]:
        """Runs a request whose outputs another process reads; yields only its end, after `confirm`."""
        return self._requests.run(request, CountedStream(request))

    def run_part(
        self,
        request: Request,
        stream: Stream[OutputT_co],
        num_uncached_tokens: int | None,
        on_advance: Callable[[], None],
    ) -> AsyncGenerator[OutputT_co, None]:
        """Runs a request that the caller continues at another engine if this one is lost; the caller then gets
        `EngineLost`. `num_uncached_tokens` is the number of prompt tokens to compute, if known.
        """
        return self._requests.run(request, stream, num_uncached_tokens, on_advance=on_advance)

    def hand_over(self) -> list[Request]:
        """Gives up all requests of `run_part`, whose callers continue them at other engines; returns them."""
        return [opened.request for opened in self._requests.hand_over()]

    def end_answer(self, engine_id: str, index: int) -> None:
        """Ends an answer whose reader, in another process, found a stop string. No-op if it has ended."""
        self._requests.end_answer(engine_id, index)

    def confirm(self, engine_id: str) -> None:
        """Notes that the reader, in another process, has all outputs of a request. No-op if the request has ended."""
        self._requests.confirm(engine_id)

    def run_speech(
        self, speech: Speech, params: SamplingParams, options: RequestOptions
    ) -> AsyncGenerator[ClipOutput, None]:
        if self._transcriber is None:
            raise Unsupported("speech to text is not supported by this model")
        self.check_callable(options)
        return self._transcriber.run(speech, params, options)

    async def run_pieces(
        self,
        pieces: AsyncIterable[StreamingInput],
        params: SamplingParams,
        options: RequestOptions,
    ) -> AsyncGenerator[RequestOutput, None]:
        self.check_callable(options)
        for name in ("reasoning_ended", "reasoning_parser_kwargs"):
            if getattr(options, name) is not None:
                raise Unsupported(f"{name} is not supported yet")
        answer = partial(self._answer_piece, options)
        running = self._requests.run_session(options, pieces, params, answer)
        async with aclosing(running) as outputs:
            async for output in outputs:
                yield output

    async def _answer_piece(
        self, options: RequestOptions, session: Session, piece: StreamingInput, before: list[int]
    ) -> AsyncGenerator[RequestOutput, None]:
        self._check_alive()
        request = await self._inputs.prepare_piece(piece, before, options)
        self._check_alive()
        stream = RequestStream(request, self.renderer)
        async with aclosing(self._requests.run(request, stream, session=session)) as outputs:
            async for output in outputs:
                yield output

    def check_callable(self, options: RequestOptions) -> None:
        """Rejects a request that can be rejected without reading its prompt and params."""
        self._check_alive()
        if options.lora_request is not None:
            self._loras.check(options.lora_request)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        self._requests.abort([request_id] if isinstance(request_id, str) else request_id)

    @property
    def num_open_answers(self) -> int:
        """Number of unfinished answers, waiting ones included, plus one for each session."""
        return self._requests.num_open_answers

    @property
    def num_uncached_tokens(self) -> int:
        """Number of prompt tokens to compute, of the requests that wait for prefill."""
        return self._requests.open.num_uncached_tokens

    @property
    def num_active_requests(self) -> int:
        return self._requests.num_active

    def release_remote(self, source: RemotePrompt) -> None:
        self._requests.release_remote(source)

    # -- state --------------------------------------------------------------------------------

    @abstractmethod
    def _send(self, command: Command) -> None:
        """Hands a command to the engine; never blocks."""

    async def use_share(self, config: EngineConfig) -> None:
        """Uses the CPUs that `config` gives to this rank."""
        assert config.compute_config is not None
        await self._calls.call(UseShare, cpus_of(config), config.compute_config.num_threads)
        self.vllm_config = config

    async def finish_packed_update(self, packed: PackedWeights, *, is_elsewhere: bool) -> None:
        """`finish_weight_update` for one of several engines; see `FinishWeightUpdate`."""
        await self._calls.call(FinishWeightUpdate, packed, is_elsewhere)

    @property
    def lora_requests(self) -> Mapping[str, LoRARequest]:
        return {} if self.vllm_config.lora_config is None else self._loras.requests

    async def is_tracing_enabled(self) -> bool:
        return self._metrics is not None and self._metrics.traces is not None

    @property
    def is_running(self) -> bool:
        return self._dead_error is None and not self._is_closing

    @property
    def is_stopped(self) -> bool:
        return self._dead_error is not None

    @property
    def errored(self) -> bool:
        """True if the engine is dead, see `EngineClient`; False after a shutdown."""
        return self._dead_error is not None and not self._is_closing

    @property
    def dead_error(self) -> BaseException:
        """See `EngineClient`. A new exception each time, because a raised exception keeps its traceback."""
        return EngineDead(str(self._dead_error)) if self._dead_error else EngineDead()

    async def check_health(self) -> None:
        """Raises if the engine is dead, or has neither finished a step nor answered a ping for `STALL_S`.

        The ping goes through the engine's own mailbox; no request is ever queued for it.
        """
        if self._dead_error is not None:
            raise self.dead_error
        if not self._is_closing:
            self._calls.check_answering()

    async def get_loads(self) -> list[EngineLoad]:
        """See `EngineClient`. A busy engine answers with the load after its last step."""
        self._check_alive()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._calls.ping()), _LOAD_TIMEOUT_S)
        return [self._load]

    def subscribe_kv_events(
        self, start_sequence_number: int | None = None
    ) -> AsyncGenerator[KvEventBatch, None]:
        self._check_alive()
        return self._feed.subscribe(start_sequence_number)

    async def do_log_stats(self) -> None:
        """See `EngineClient`. Logs nothing for an engine that was idle since the last call."""
        if line := self._stat_log.line(self._load, self._stats):
            rank = self.vllm_config.data_parallel_rank
            log.info("%s%s", "" if rank is None else f"engine {rank}: ", line)

    # -- events of the engine ----------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        self._calls.last_event_at = time.monotonic()
        try:
            match event:
                case StepOutput():
                    self._on_step(event)
                case Reply():
                    if event.load is not None:
                        self._set_load(event.load)
                    self._calls.resolve(event)
                case Loading():
                    self._on_loading(event.num_bytes, event.all_bytes)
                case Ready():
                    self._set_load(event.load)
                    if not self._ready.done():
                        self._ready.set_result(None)
                case Failed(is_config=True):
                    self._die(ConfigError(event.message))
                case Failed():
                    self._die(EngineDead(f"the engine has stopped: {event.message}"))
                case _:
                    assert_never(event)
        except Exception:
            # The event is lost, so later events cannot be trusted; and the event loop would hide the exception.
            log.exception("an event of the engine could not be handled; the engine is stopped")
            self._die(
                EngineDead("an event of the engine could not be handled; the log has details")
            )
            self._send(Stop(0.0))

    def _on_step(self, step: StepOutput) -> None:
        self._load, self._stats = step.load, step.stats
        if self._metrics is not None:
            self._metrics.take_step(step.stats, step.load)
        self._requests.take(step.outputs)
        if step.kv_events is not None:
            self._feed.publish(step.kv_events)
            if self._publisher is not None:
                self._publisher.publish(step.kv_events)

    def _die(self, error: WeftError) -> None:
        """Marks the engine as dead: every waiting caller gets the error. Only the first call counts."""
        if self._dead_error is not None:
            return
        self._dead_error = error
        self._set_load(EngineLoad())  # a dead engine has no load
        self._calls.fail(str(error))
        self._requests.fail(str(error))
        self._loras.fail(self.dead_error)
        self._feed.close(error)
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None
        if not self._ready.done():
            self._ready.set_exception(error)

    def _set_load(self, load: EngineLoad) -> None:
        self._load = load
        if self._metrics is not None:
            self._metrics.load = load

    def _check_alive(self) -> None:
        if self._dead_error is not None:
            raise self.dead_error
        if self._is_closing:
            raise Unavailable("the server is shutting down")

    def _begin_shutdown(self, timeout: float | None) -> bool:
        """Begins to send `Stop`; returns False if the shutdown has begun before or the engine is dead."""
        if self._is_closing or self._dead_error is not None:
            return False
        self._is_closing = True
        self._requests.stop(timeout or 0.0)
        return True
