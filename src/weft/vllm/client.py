"""`VllmClient`: an `EngineClient` over vLLM's `AsyncLLM`, whose engines run in processes of their own.

Prompts are prepared, and texts are made, as with Weft's engine; vLLM's engine gets and returns token ids.
"""

import asyncio
import logging
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as replace_fields

from weft.core.aio.merged import merged
from weft.core.aio.tasks import is_set_within
from weft.core.client import AnyParams, EngineClient, PromptSource
from weft.core.config.engine import EngineConfig
from weft.core.engine_info import EngineInfo
from weft.core.errors import (
    EngineDead,
    Unavailable,
    Unsupported,
    WeftError,
)
from weft.core.values.controls import STALL_S
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.kv_cache import KvEventBatch
from weft.core.values.kv_transfer import KEY, KvRole
from weft.core.values.media import FIELD
from weft.core.values.speech import NO_GENERATION, ClipOutput, Speech
from weft.core.values.types import (
    LoRARequest,
    PoolingRequestOutput,
    Request,
    RequestOptions,
    RequestOutput,
    SamplingParams,
)
from weft.text.outputs.request_stream import RequestStream
from weft.text.prepare import InputProcessor
from weft.text.tokenizer import Tokenizer
from weft.vllm.controls import VllmControls
from weft.vllm.convert.errors import translated
from weft.vllm.convert.outputs import aborted_error, to_pooling_output, to_sequence_output
from weft.vllm.convert.params import (
    check_params,
    reasoning_ended,
    to_constraint,
    to_pooling,
    to_sampling,
)
from weft.vllm.engine import process, to_lora, to_pooling_params, to_prompt, to_sampling_params
from weft.vllm.guard import guard_engines
from weft.vllm.kv_events import KvEventReader
from weft.vllm.load import LoadMeter
from weft.vllm.media import MediaReader, TensorReader
from weft.vllm.speech import Clip, SpeechReader, in_order, output_of
from weft.vllm.speech_model import SpeechModel

log = logging.getLogger("weft.engine")

_IDLE_S = 1.0  # time without a report from the engine, after which a health check sends a ping
_SHUTDOWN_S = 5.0  # time for vLLM's processes to exit by themselves


class VllmClient(EngineClient):
    """An `EngineClient` over vLLM. It is created in a running event loop, from an `AsyncLLM` whose `stat_loggers`
    report to `meters`.
    """

    def __init__(
        self,
        llm: Any,
        config: EngineConfig,
        tokenizer: Tokenizer,
        *,
        meters: dict[int, LoadMeter],
        events: KvEventReader | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._llm = llm
        self.vllm_config = config  # the name that callers written for vLLM use
        info = EngineInfo.of(config)
        # The pool's limit is left to vLLM: layers with a window hold fewer tokens.
        transfer = llm.vllm_config.kv_transfer_config
        limits = replace(
            info.limits,
            max_pool_tokens=sys.maxsize,
            kv_role=None if transfer is None else KvRole(transfer.kv_role),
            has_foreign_transfers=True,
        )
        self.info = replace(info, limits=limits, has_kv_events=events is not None)
        self.model_config = config.model_config
        self.renderer = tokenizer
        self.controls = self._controls = VllmControls(
            llm, config, self._check_alive, self._use_ranks
        )
        outputs = llm.vllm_config.structured_outputs_config
        self._has_reasoning_parser = bool(outputs.reasoning_parser)
        self._clock = clock
        self._inputs = InputProcessor(config, tokenizer, limits=limits, clock=clock)
        self._meters = meters
        self._events = events
        has_media = config.model_config.media is not None
        self._media = MediaReader.of(llm.vllm_config.model_config) if has_media else None
        self._tensors = TensorReader(llm)
        self._speech = None
        if config.model_config.speech is not None:
            self._speech = SpeechReader(SpeechModel(llm), config, tokenizer, limits, clock)
        self._guard = guard_engines()
        self._open: dict[str, Request] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._ping: asyncio.Task[Any] | None = None
        self._pinged_at = 0.0
        self._closing: asyncio.Task[None] | None = None
        # Without this task, the death of an engine before its first request goes unnoticed.
        llm._run_output_handler()
        self._reading = None if events is None else asyncio.create_task(events.run())
        self._watching = asyncio.create_task(self._watch())

    # -- requests -----------------------------------------------------------------------------

    def preparing(self, num_answers: int) -> AbstractContextManager[None]:
        del num_answers
        self._check_alive()
        return nullcontext()

    async def prepare(
        self, prompt: PromptSource, params: AnyParams, options: RequestOptions
    ) -> Request:
        self._check_alive()
        self._controls.check_lora(options.lora_request)
        if isinstance(params, SamplingParams):
            check_params(params)
            if (speech := self.model_config.speech) is not None and speech.is_only:
                raise Unsupported(NO_GENERATION)
        elif options.data_parallel_rank is not None:
            raise Unsupported("data_parallel_rank is not supported for pooling by this engine")
        try:
            return await self._inputs.prepare(prompt, params, options)
        except WeftError:
            await self._release_remote(params, options)
            raise

    async def _release_remote(self, params: AnyParams, options: RequestOptions) -> None:
        """Releases the prompt that another engine has computed for a request, if the request does not reach vLLM."""
        extra_args = params.extra_args if isinstance(params, SamplingParams) else None
        given = extra_args.get(KEY) if isinstance(extra_args, dict) else None
        if self.info.limits.kv_role is not None and isinstance(given, dict) and given:
            await self.notify_kv_transfer_request_rejected(
                options.request_id, given, options.data_parallel_rank
            )

    async def run(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        with self._following(request):
            prompt = await self._prompt(request)
            async with aclosing(self._outputs(request, prompt)) as outputs:
                async for output in outputs:
                    yield output

    async def _outputs(self, request: Request, prompt: Any) -> AsyncGenerator[RequestOutput, None]:
        ended = reasoning_ended(request, has_parser=self._has_reasoning_parser)
        stream = RequestStream(request, self.renderer)
        changes = merged(
            [self._answer(request, prompt, i, stream, ended) for i in range(request.params.n)]
        )
        async with aclosing(changes):
            async for _ in changes:
                if stream.error is not None:
                    raise aborted_error(request, stream)
                await stream.read_scores_soon()
                output = stream.pop()
                if output is not None:
                    yield output

    async def run_speech(
        self, speech: Speech, params: SamplingParams, options: RequestOptions
    ) -> AsyncGenerator[ClipOutput, None]:
        if self._speech is None:
            raise Unsupported("speech to text is not supported by this model")
        self._check_alive()
        self._controls.check_lora(options.lora_request)
        check_params(params)
        recording, clips = await self._speech.read(speech, params, options)
        async with aclosing(in_order([self._run_clip(clip) for clip in clips])) as outputs:
            async for number, output in outputs:
                yield output_of(recording, clips, number, output)

    async def _run_clip(self, clip: Clip) -> AsyncGenerator[RequestOutput, None]:
        with self._following(clip.request):
            async with aclosing(self._outputs(clip.request, clip.prompt)) as outputs:
                async for output in outputs:
                    yield clip.cleaned(output)

    async def _prompt(self, request: Request) -> Any:
        """Returns the prompt in vLLM's form, which all answers of the request share."""
        if request.media is None or self._media is None:
            return to_prompt(request)
        if request.media.tensors:
            return await self._tensors.read(request)
        decoded = await self._media.read(request.media)
        with translated(FIELD):
            return await process(self._llm, request, decoded)

    async def _answer(
        self, request: Request, prompt: Any, index: int, stream: RequestStream, ended: bool | None
    ) -> AsyncGenerator[None, None]:
        """Runs one answer of a request, and yields whenever the stream has new output of it."""
        constraint = to_constraint(request.params.structured_outputs)
        with translated(next(iter(constraint), None) if constraint else None):
            outputs = self._llm.generate(
                prompt,
                to_sampling_params(to_sampling(request, index)),
                # Id used to abort the request; vLLM adds a unique suffix itself.
                request.request_id,
                lora_request=to_lora(request.lora_request),
                trace_headers=request.trace_headers,
                priority=request.priority,
                data_parallel_rank=request.data_parallel_rank,
                reasoning_ended=ended,
            )
            async with aclosing(outputs):
                async for output in outputs:
                    is_matched = stream.push(to_sequence_output(request, index, output))
                    yield
                    # Stop strings are found here, and the engine does not know of them.
                    if is_matched:
                        return

    async def run_pooling(self, request: Request) -> AsyncGenerator[PoolingRequestOutput, None]:
        with self._following(request), translated():
            outputs = self._llm.encode(
                to_prompt(request),
                to_pooling_params(to_pooling(request)),
                request.request_id,
                lora_request=to_lora(request.lora_request),
                trace_headers=request.trace_headers,
                priority=request.priority,
            )
            async with aclosing(outputs):
                async for output in outputs:
                    yield to_pooling_output(request, output)

    @contextmanager
    def _following(self, request: Request) -> Iterator[None]:
        """Registers a request for as long as the `with` block runs."""
        self._check_alive()
        self._open[request.engine_id] = request
        self._idle.clear()
        try:
            yield
        finally:
            del self._open[request.engine_id]
            if not self._open:
                self._idle.set()

    async def abort(self, request_id: str | Iterable[str]) -> None:
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        if ids and not self._llm.errored:
            with translated():
                await self._llm.abort(ids)

    # -- state --------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._closing is None and not self._llm.errored

    @property
    def is_stopped(self) -> bool:
        return bool(self._llm.errored) or (self._closing is not None and self._closing.done())

    @property
    def errored(self) -> bool:
        """True if the engine is dead. An engine that was shut down is not in error."""
        return self._closing is None and bool(self._llm.errored)

    @property
    def dead_error(self) -> BaseException:
        return EngineDead()

    @property
    def num_active_requests(self) -> int:
        return len(self._open)

    @property
    def lora_requests(self) -> Mapping[str, LoRARequest]:
        return self._controls.loras

    async def check_health(self) -> None:
        """Raises an error if vLLM's engine is dead or hangs. vLLM reports only deaths, so the engine is also pinged."""
        if self._closing is not None:
            return
        self._check_alive()
        now, last = self._clock(), max(meter.last_report_at for meter in self._meters.values())
        is_pending = self._ping is not None and not self._ping.done()
        if is_pending and now - max(self._pinged_at, last) > STALL_S:
            raise Unavailable(f"the engine has not answered for {now - self._pinged_at:.0f} s")
        if not is_pending and now - last > _IDLE_S:
            self._pinged_at = now
            self._ping = asyncio.create_task(self._llm.is_paused())
            self._ping.add_done_callback(lambda ping: ping.cancelled() or ping.exception())

    async def get_supported_tasks(self) -> tuple[str, ...]:
        speech = self.model_config.speech
        if speech is None:
            return self.info.tasks
        return ("transcription",) if speech.is_only else (*self.info.tasks, "transcription")

    async def is_tracing_enabled(self) -> bool:
        return bool(await self._llm.is_tracing_enabled())

    async def do_log_stats(self) -> None:
        await self._llm.do_log_stats()

    async def get_loads(self) -> list[EngineLoad]:
        self._check_alive()
        config = self.vllm_config
        is_single = len(self._meters) == 1
        return [
            meter.read(
                config,
                is_idle=not self._open,
                num_loras=len(self.lora_requests),
                # vLLM reports only the sum over all ranks.
                num_waiting_tokens=self._llm.get_num_queued_tokens() if is_single else 0,
            )
            for meter in self._meters.values()
        ]

    def subscribe_kv_events(
        self, start_sequence_number: int | None = None
    ) -> AsyncGenerator[KvEventBatch, None]:
        self._check_alive()
        if self._events is None:
            raise Unsupported("subscribe_kv_events is not supported: there is no prefix cache")
        return self._events.feed.subscribe(start_sequence_number)

    def _use_ranks(self, size: int) -> None:
        self.vllm_config = replace_fields(self.vllm_config, data_parallel_size=size)
        self.info = replace(self.info, data_parallel_size=size)
        self._inputs = InputProcessor(
            self.vllm_config, self.renderer, limits=self.info.limits, clock=self._clock
        )
        for rank in [rank for rank in self._meters if rank >= size]:
            del self._meters[rank]
        for rank in range(size):
            self._meters.setdefault(rank, LoadMeter(rank, self._clock))
        self._guard.close()
        self._guard = guard_engines()

    # -- the end ------------------------------------------------------------------------------

    def shutdown(self, timeout: float | None = None) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(timeout or 0.0))

    async def wait_closed(self) -> None:
        if self._closing is None:
            await asyncio.wait({self._watching})
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def _close(self, timeout_s: float) -> None:
        is_alive = not self._llm.errored
        if self._open and is_alive and not await is_set_within(self._idle, timeout_s):
            try:
                await self.abort([request.request_id for request in self._open.values()])
            except WeftError as error:  # the requests end with the engine
                log.warning("requests could not be aborted before the engine ends: %s", error)
        for task in (self._reading, self._ping):
            if task is not None:
                task.cancel()
        if self._media is not None:
            await self._media.aclose()
        # On a thread, since it waits for vLLM's processes.
        await asyncio.to_thread(self._llm.shutdown, _SHUTDOWN_S)
        self._guard.close()
        await asyncio.wait({self._watching})
        if self._events is not None:
            self._events.feed.close(EngineDead("the engine was shut down"))
            self._events.close()

    async def _watch(self) -> None:
        """Waits until vLLM's task that reads the engine's outputs has ended: the engine is dead or shut down."""
        await asyncio.wait({self._llm.output_handler})
        if self._closing is None and self._events is not None:
            self._events.feed.close(EngineDead())

    def _check_alive(self) -> None:
        if self._closing is not None:
            raise Unavailable("the server is shutting down")
        if self._llm.errored:
            raise self.dead_error
