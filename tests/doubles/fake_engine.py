"""An `EngineClient` whose next token is a pure function of the prefix, and which tests can steer."""

import asyncio
import zlib
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.doubles.fake_inputs import EOS_ID, FIRST_ID, VOCAB_SIZE, FakeInputProcessor, FakeRenderer
from weft.core.client import EngineClient
from weft.core.config.engine import EngineConfig, ModelConfig, SchedulerConfig
from weft.core.engine_info import EngineInfo
from weft.core.errors import (
    BadRequest,
    EngineDead,
    FailedPrecondition,
    Overloaded,
    Unavailable,
    WeftError,
)
from weft.core.values.controls import PauseMode, check_sleep_level, read_pause_mode, read_sleep_tags
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.kv_cache import CacheConfig, KvEventBatch
from weft.core.values.prompts import PromptType
from weft.core.values.types import (
    CompletionOutput,
    FinishReason,
    Logprob,
    OutputKind,
    PoolingParams,
    PositionLogprobs,
    Request,
    RequestOptions,
    RequestOutput,
    SamplingParams,
)


def make_config(**changes: Any) -> EngineConfig:
    """A small engine; `changes` are fields of its `ModelConfig`."""
    model = ModelConfig(
        model="fake",
        served_model_names=("fake-model",),
        model_type="llama",
        architectures=("LlamaForCausalLM",),
        dtype="float32",
        vocab_size=VOCAB_SIZE,
        max_model_len=256,
        eos_token_ids=(EOS_ID,),
        bos_token_id=1,
        pad_token_id=None,
        default_sampling_params={"temperature": 0.6},
        max_logprobs=-1,
    )
    return EngineConfig(
        model_config=msgspec.structs.replace(model, **changes),
        cache_config=CacheConfig(
            block_size=16,
            num_blocks=64,
            block_bytes=1024,
            kv_cache_dtype="float32",
            enable_prefix_caching=True,
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=8,
            max_num_batched_tokens=64,
            policy="fcfs",
            max_num_queued_reqs=64,
            max_num_queued_tokens=4096,
        ),
    )


def next_token(prefix: list[int], index: int = 0) -> int:
    """What follows `prefix` in answer `index`; never a special token."""
    digest = zlib.crc32(repr((prefix, index)).encode())
    return FIRST_ID + digest % (VOCAB_SIZE - FIRST_ID)


def reference_tokens(prompt: list[int], num_tokens: int, index: int = 0) -> list[int]:
    """The answer to `prompt`."""
    tokens: list[int] = []
    for _ in range(num_tokens):
        tokens.append(next_token([*prompt, *tokens], index))
    return tokens


def position_logprobs(prefix: list[int], sampled: int, num_top: int) -> PositionLogprobs:
    """The sampled token first, then the best; the sampled one is deliberately outside the best."""
    first = next_token(prefix, index=1000)
    others = (
        FIRST_ID + (first + 7 * rank) % (VOCAB_SIZE - FIRST_ID) for rank in range(num_top + 1)
    )
    unique = [token for token in others if token != sampled][:num_top]
    entries = {sampled: Logprob(logprob=-50.0, rank=400)}
    for rank, token in enumerate(unique, start=1):
        entries[token] = Logprob(logprob=-float(rank), rank=rank)
    return entries


@dataclass
class Answer:
    """One of the n sequences of a request, as far as it has come."""

    index: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_sent: int = 0

    def output(self, kind: OutputKind, params: SamplingParams) -> CompletionOutput:
        """What the caller gets now."""
        start = self.num_sent if kind is OutputKind.DELTA else 0
        self.num_sent = len(self.tokens)
        return CompletionOutput(
            index=self.index,
            token_ids=self.tokens[start:],
            logprobs=self.logprobs[start:] if params.logprobs is not None else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )


class FakeEngine(EngineClient):
    """Answers at once, unless told to wait for `allow`; fails when told to."""

    is_degraded = False  # a test may say otherwise

    def __init__(self, config: EngineConfig | None = None) -> None:
        config = config or make_config()
        self.info = EngineInfo.of(config)
        self.model_config = config.model_config
        self.renderer = FakeRenderer()
        self.input_processor = FakeInputProcessor(config, self.renderer)
        self.dropped: list[str] = []  # closed by the caller before they had finished
        self.calls: list[dict[str, Any]] = []  # what each generate was given
        self.failure: Exception | None = None  # raised by the next steps of every request
        self.refusal: WeftError | None = None  # raised by every new request
        self.tokens_per_output = 1
        self.cached_tokens = 0
        self.load = EngineLoad(max_total_tokens=1024, max_running=8)
        self.kv_batches: list[KvEventBatch] = []
        self.num_resets_refused = 0
        self.has_profiler = False
        self.profiles: list[tuple[str | int | None, ...]] = []  # what each start was given
        self.is_traced = False
        self.is_stalled = False  # alive, but health checks find no progress
        self._steps_allowed: int | None = None
        self._changed = asyncio.Condition()
        self._open: dict[str, bool] = {}  # request id: whether it was aborted
        self._is_paused = False
        self._absent: set[str] = set()  # memory that sleep has taken
        self._may_finish: set[str] = set()  # requests that a pause lets run
        self._is_dead = False
        self._closed = asyncio.Event()

    # -- steering -----------------------------------------------------------------------------

    def hold(self) -> None:
        """Make every request wait for `allow` before each output."""
        self._steps_allowed = 0

    async def allow(self, num_outputs: int) -> None:
        """Let that many more outputs happen, over all requests."""
        self._steps_allowed = (self._steps_allowed or 0) + num_outputs
        await self._notify()

    async def run_freely(self) -> None:
        """Undo `hold`."""
        self._steps_allowed = None
        await self._notify()

    async def die(self) -> None:
        """End every request with EngineDead, and refuse new ones."""
        self._is_dead = True
        await self._notify()

    async def publish(self, batch: KvEventBatch) -> None:
        """Send a batch to every subscriber, and keep it for later ones."""
        self.kv_batches.append(batch)
        await self._notify()

    async def wait_for_open(self, count: int) -> None:
        """Wait until exactly `count` requests are open."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._open) == count)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # -- requests -----------------------------------------------------------------------------

    async def prepare(
        self,
        prompt: PromptType | Callable[[], PromptType],
        params: SamplingParams | PoolingParams,
        options: RequestOptions,
    ) -> Request:
        """Check, and note the call."""
        if self._is_dead:
            raise EngineDead
        request = self.input_processor.process(prompt, params, options)
        given = prompt() if callable(prompt) else prompt
        self.calls.append({"prompt": given, "params": params, **msgspec.structs.asdict(options)})
        return request

    async def run(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        """Yield outputs."""
        if self._is_dead:
            raise EngineDead
        if self.refusal is not None:
            raise self.refusal
        with self._opened(request.request_id):
            await self._notify()
            try:
                async for output in self._outputs(request):
                    if output.is_finished:
                        del self._open[request.request_id]
                    yield output
            finally:
                asyncio.ensure_future(self._notify())  # noqa: RUF006 - wakes tests, nothing else

    @contextmanager
    def _opened(self, request_id: str) -> Iterator[None]:
        if request_id in self._open:
            raise BadRequest("request_id", "duplicate")
        self._open[request_id] = False
        try:
            yield
        finally:
            if self._open.pop(request_id, None) is not None:
                self.dropped.append(request_id)

    async def _outputs(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        params = request.params
        answers = [Answer(index) for index in range(params.n)]
        is_first = True
        while True:
            await self._may_step(request.request_id)
            for answer in answers:
                for _ in range(self.tokens_per_output):
                    self._advance(request, answer)
            is_finished = all(answer.finish_reason for answer in answers)
            if is_finished or params.output_kind is not OutputKind.FINAL_ONLY:
                yield self._to_output(request, answers, is_first=is_first, is_finished=is_finished)
                is_first = False
            if is_finished:
                return

    async def _may_step(self, request_id: str) -> None:
        def is_ready() -> bool:
            is_allowed = self._steps_allowed is None or self._steps_allowed > 0
            may_run = is_allowed and (not self._is_paused or request_id in self._may_finish)
            return self._is_dead or self._open[request_id] or may_run

        async with self._changed:
            await self._changed.wait_for(is_ready)
        await asyncio.sleep(0)  # as a real one: others get their turn
        if self._is_dead:
            raise EngineDead
        if self.failure is not None:
            raise self.failure
        if self._steps_allowed is not None:
            self._steps_allowed -= 1

    def _advance(self, request: Request, answer: Answer) -> None:
        params = request.params
        if answer.finish_reason is not None:
            return
        if self._open[request.request_id]:
            answer.finish_reason = FinishReason.ABORT
            return
        prefix = [*request.prompt_token_ids, *answer.tokens]
        token = next_token(prefix, answer.index)
        answer.tokens.append(token)
        if params.logprobs is not None:
            answer.logprobs.append(position_logprobs(prefix, token, params.logprobs))
        self._check_stops(params, answer, token)

    def _check_stops(self, params: SamplingParams, answer: Answer, token: int) -> None:
        if len(answer.tokens) < params.min_tokens:
            return
        text = self.renderer.decode(answer.tokens)
        matched = next((stop for stop in params.stop_strings if stop in text), None)
        if token == EOS_ID and not params.ignore_eos:
            answer.finish_reason = FinishReason.STOP
        elif token in (params.stop_token_ids or ()):
            answer.finish_reason, answer.stop_reason = FinishReason.STOP, token
        elif matched is not None:
            answer.finish_reason, answer.stop_reason = FinishReason.STOP, matched
        elif len(answer.tokens) == params.max_tokens:
            answer.finish_reason = FinishReason.LENGTH

    def _to_output(
        self, request: Request, answers: list[Answer], *, is_first: bool, is_finished: bool
    ) -> RequestOutput:
        params = request.params
        kind = params.output_kind
        news = [
            answer
            for answer in answers
            if kind is not OutputKind.DELTA
            or answer.num_sent < len(answer.tokens)
            or is_finished
            or answer.finish_reason is FinishReason.ABORT
        ]
        wants_prompt = params.prompt_logprobs is not None and is_first
        return RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            outputs=[answer.output(kind, params) for answer in news],
            is_finished=is_finished,
            prompt_logprobs=self._prompt_logprobs(request) if wants_prompt else None,
            num_cached_tokens=self.cached_tokens,
        )

    def _prompt_logprobs(self, request: Request) -> list[PositionLogprobs | None]:
        ids = request.prompt_token_ids
        num_top = request.params.prompt_logprobs or 0
        rest = [position_logprobs(ids[:i], ids[i], num_top) for i in range(1, len(ids))]
        return [None, *rest]

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End open requests with "abort"."""
        ids = (request_id,) if isinstance(request_id, str) else request_id
        for one in ids:
            if one in self._open:
                self._open[one] = True
        await self._notify()

    # -- state --------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Until told to die."""
        return not self._is_dead

    @property
    def is_stopped(self) -> bool:
        """Once told to die."""
        return self._is_dead

    @property
    def errored(self) -> bool:
        """Once told to die."""
        return self._is_dead

    @property
    def dead_error(self) -> BaseException:
        """What a dead engine raises."""
        return EngineDead()

    @property
    def num_active_requests(self) -> int:
        """Open requests."""
        return len(self._open)

    async def check_health(self) -> None:
        """Raise if dead or stalled."""
        if self._is_dead:
            raise EngineDead
        if self.is_stalled:
            raise Unavailable("no step for 30 s")

    async def is_tracing_enabled(self) -> bool:
        """Whether trace headers are wanted."""
        return self.is_traced

    async def get_loads(self) -> list[EngineLoad]:
        """One rank."""
        return [self.load]

    async def subscribe_kv_events(
        self, start_sequence_number: int | None = None
    ) -> AsyncGenerator[KvEventBatch, None]:
        """What was published from there on, and then what will be."""
        next_index = len(self.kv_batches) if start_sequence_number is None else 0
        while True:
            async with self._changed:
                while not self._is_dead and len(self.kv_batches) <= next_index:
                    await self._changed.wait()
            if self._is_dead:
                raise EngineDead
            batch = self.kv_batches[next_index]
            next_index += 1
            if batch.sequence_number >= (start_sequence_number or 0):
                yield batch

    # -- control ------------------------------------------------------------------------------

    async def pause_generation(
        self,
        *,
        mode: PauseMode | str = PauseMode.ABORT,
        wait_for_inflight_requests: bool = False,
        clear_cache: bool = True,
    ) -> None:
        """Stop all steps; mode "abort" ends what is open, "wait" lets it end, "keep" freezes it."""
        chosen = read_pause_mode(mode, is_wait=wait_for_inflight_requests)
        self._is_paused = True
        self._may_finish = set(self._open) if chosen is PauseMode.WAIT else set()
        if chosen is PauseMode.ABORT:
            await self.abort(list(self._open))
        async with self._changed:
            await self._changed.wait_for(lambda: not self._is_busy())

    def _is_busy(self) -> bool:
        return self._is_paused and any(name in self._open for name in self._may_finish)

    async def resume_generation(self) -> None:
        """Go on."""
        if self._absent:
            raise FailedPrecondition("asleep")
        self._is_paused = False
        await self._notify()

    async def sleep(self, level: int = 1, mode: PauseMode | str = PauseMode.ABORT) -> None:
        """Stop, and need what the level takes before going on."""
        check_sleep_level(level)
        await self.pause_generation(mode=mode)
        self._absent = {"weights", "kv_cache"} if level else self._absent

    async def wake_up(self, tags: Iterable[str] | None = None) -> bool:
        """Go on once nothing is absent."""
        named = read_sleep_tags(tags)
        had_all, self._absent = not self._absent, self._absent - set(named)
        if not self._absent and (not had_all or "scheduling" in named):
            await self.resume_generation()
        return not self._is_paused

    async def is_paused(self) -> bool:
        """Whether steps are stopped."""
        return self._is_paused

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Refused `num_resets_refused` times."""
        if self.num_resets_refused:
            self.num_resets_refused -= 1
            return False
        return True

    async def start_profile(
        self,
        profile_prefix: str | None = None,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
    ) -> None:
        """Only if there is a profiler."""
        if not self.has_profiler:
            await super().start_profile()
        self.profiles.append((profile_prefix, delay_iterations, max_iterations))

    async def stop_profile(self) -> None:
        """Only if there is a profiler."""
        if not self.has_profiler:
            await super().stop_profile()

    async def reset_mm_cache(self) -> None:
        """There is none."""

    async def reset_encoder_cache(self) -> None:
        """There is none."""

    async def collective_rpc(self, method: str, *_args: Any, **_kwargs: Any) -> list[Any]:
        """One method is known."""
        if method != "check_health":
            raise BadRequest("method", "method must be check_health")
        return [None]

    def shutdown(self, timeout: float | None = None) -> None:
        """Abort what is open, and be gone."""
        self._open = dict.fromkeys(self._open, True)
        self._is_dead = True
        self._closed.set()

    async def wait_closed(self) -> None:
        """Return once shut down."""
        await self._closed.wait()


def overloaded() -> Overloaded:
    """What an engine with a full queue raises."""
    return Overloaded("64 requests are queued, the limit is 64; try again later")
