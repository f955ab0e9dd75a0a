"""`DataParallelClient`: several engines behind one client.

Each engine is a process with its own CPUs and KV pool, on this machine or another. A request goes to the engine with
the fewest tokens to compute before the request's first token: uncached tokens of waiting prompts, unfinished answers,
and the tokens of the request's own prompt that the engine has not cached. A call goes to every engine. An engine that
dies is restarted; its requests continue at another engine.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from operator import attrgetter

from weft.core.aio.failover import run_on
from weft.core.client import AnyParams, EngineClient, PromptSource, Sink
from weft.core.config.engine import EngineConfig
from weft.core.config.ranks import local_ranks
from weft.core.engine_info import EngineInfo
from weft.core.errors import Overloaded, Unsupported, WeftError
from weft.core.observe.metrics import Metrics
from weft.core.operator_calls import joined
from weft.core.values.controls import Drained
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.kv_cache import KvEventBatch
from weft.core.values.kv_transfer import RemotePrompt
from weft.core.values.speech import ClipOutput, Speech
from weft.core.values.types import (
    LoRARequest,
    PoolingRequestOutput,
    Request,
    RequestOptions,
    RequestOutput,
    SamplingParams,
    StreamingInput,
)
from weft.engine.clients.child import EngineChild
from weft.engine.clients.engine_group import EngineGroup
from weft.engine.clients.engine_rank import Nodes, Rank, launch_all
from weft.engine.clients.process_client import OnLoading, read_tokenizer
from weft.engine.front.counted_stream import CountedStream, Ended
from weft.engine.front.open_requests import OutputT_co, Stream
from weft.engine.front.pooling_stream import PoolingStream
from weft.engine.front.prefix_index import cached_tokens
from weft.engine.speech.transcriber import Transcriber
from weft.engine.start.pictures import open_preparer
from weft.model.open import Checkpoint
from weft.text.outputs.request_stream import RequestStream
from weft.text.prepare import InputProcessor
from weft.text.tokenizer import Tokenizer


class DataParallelClient(EngineClient):
    """Client of several data-parallel engines. Made by `start`, inside a running event loop."""

    def __init__(
        self, config: EngineConfig, tokenizer: Tokenizer, metrics: Metrics | None = None
    ) -> None:
        self.model_config = config.model_config
        self.renderer: Tokenizer = tokenizer
        self._pictures = open_preparer(config, tokenizer)
        self._use(config)
        self._metrics = metrics
        self._group = EngineGroup(config, tokenizer, metrics, self._use)
        self.controls = self._group.controls
        self.controls.pictures = self._pictures
        self._choices = itertools.count(1)

    @classmethod
    async def start(
        cls,
        checkpoint: Checkpoint,
        config: EngineConfig,
        metrics: Metrics | None = None,
        child: EngineChild | None = None,
        on_loading: OnLoading = lambda num_bytes, all_bytes: None,
        nodes: Nodes | None = None,
    ) -> "DataParallelClient":
        """Starts all engines and waits until each has loaded its model. Errors are those of `ProcessClient.start`.

        `child` is the process of this machine's first rank, already launched with that rank's configuration. The client
        owns and closes `nodes`, which only a head node has.
        """
        children = await launch_all(config, local_ranks(config), begun=child)
        try:
            client = cls(config, await read_tokenizer(checkpoint), metrics)
        except BaseException:
            await asyncio.gather(*(one.discard() for one in children))
            raise
        await client._group.start(children, nodes, on_loading)
        return client

    def _use(self, config: EngineConfig) -> None:
        self.vllm_config = config  # the name that programs written for vLLM use
        self.info = EngineInfo.of(config)
        self._inputs = InputProcessor(config, self.renderer, items=self._pictures)
        self._transcriber = None
        if config.sounds_config is not None:
            self._transcriber = Transcriber(config, self.renderer, self.run)

    # -- requests -----------------------------------------------------------------------------

    @contextmanager
    def preparing(self, num_answers: int) -> Iterator[None]:
        """Reserves queue places with the least loaded engine; the engine that runs the request is chosen later, by
        its prompt.
        """
        rank = _with_room(sorted(self._group.able(), key=_backlog), num_answers)
        with rank.engine.preparing(num_answers):
            yield

    async def prepare(
        self, prompt: PromptSource, params: AnyParams, options: RequestOptions
    ) -> Request:
        self._group.able()[0].engine.check_callable(options)
        return await self._inputs.prepare(prompt, params, options)

    def run(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        return self.run_into(request, None)

    def run_into(self, request: Request, sink: Sink | None) -> AsyncGenerator[RequestOutput, None]:
        stream = RequestStream(request, self.renderer, sink=sink)
        return run_on(request, stream, partial(self._run_part, stream))

    def run_pooling(self, request: Request) -> AsyncGenerator[PoolingRequestOutput, None]:
        stream = PoolingStream(request)
        return run_on(request, stream, partial(self._run_part, stream))

    def run_counted(self, request: Request) -> AsyncGenerator[Ended, None]:
        """See `FrontClient.run_counted`. The process that reads the outputs continues the request if its engine is
        lost.
        """
        return self._run_part(CountedStream(request), request)

    def run_speech(
        self, speech: Speech, params: SamplingParams, options: RequestOptions
    ) -> AsyncGenerator[ClipOutput, None]:
        if self._transcriber is None:
            raise Unsupported("speech to text is not supported by this model")
        self._group.able()[0].engine.check_callable(options)
        return self._transcriber.run(speech, params, options)

    def end_answer(self, engine_id: str, index: int) -> None:
        for client in self._group.clients():
            client.end_answer(engine_id, index)

    def confirm(self, engine_id: str) -> None:
        for client in self._group.clients():
            client.confirm(engine_id)

    def release_remote(self, source: RemotePrompt) -> None:
        """Releases KV blocks that another engine lends for a request that reaches no engine of this client.

        Any live engine sends the release; if no engine is live, the lease expires.
        """
        live = next((rank for rank in self._group.ranks if rank.is_live), None)
        if live is not None:
            live.engine.release_remote(source)

    async def run_pieces(
        self,
        pieces: AsyncIterable[StreamingInput],
        params: SamplingParams,
        options: RequestOptions,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Runs all pieces of a prompt on one engine, which has the earlier pieces in its prefix cache."""
        rank = min(self._group.able(options.data_parallel_rank), key=_backlog)
        running = rank.engine.run_pieces(pieces, params, options)
        with rank.holding(object()):
            async with aclosing(running) as outputs:
                async for output in outputs:
                    yield output

    async def _run_part(
        self, stream: Stream[OutputT_co], request: Request
    ) -> AsyncGenerator[OutputT_co, None]:
        """Runs a request, or the rest of it, on one engine. Raises `EngineLost` if another engine can continue it."""
        resuming = self._group.resuming
        if request.resumption is not None and not await resuming.wait_for_engine(request):
            stream.abort()
            if (end := stream.pop()) is not None:
                yield end
            return
        rank, num_tokens = self._choose(request)
        self._group.draining.note(request, rank)
        with rank.holding(request.engine_id), resuming.turn(request) as on_advance:
            running = rank.engine.run_part(request, stream, num_tokens, on_advance)
            async with aclosing(running) as outputs:
                async for output in outputs:
                    yield output

    def _choose(self, request: Request) -> tuple[Rank, int | None]:
        """Returns the rank for a request, and the number of prompt tokens that are not in this rank's cache, if
        known.
        """
        able = self._group.able(request.data_parallel_rank)
        if not self.vllm_config.has_ranks:
            return able[0], None
        cached = cached_tokens(request, self.info.block_size, [rank.prefixes for rank in able])
        num_tokens = len(request.prompt_token_ids)
        uncached = {rank: num_tokens - num for rank, num in zip(able, cached, strict=True)}
        able.sort(key=lambda rank: (rank.backlog + uncached[rank], rank.chosen_at))
        rank = able[0] if request.resumption else _with_room(able, request.params.n)
        rank.chosen_at = next(self._choices)
        return rank, uncached[rank]

    async def abort(self, request_id: str | Iterable[str]) -> None:
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        self._group.resuming.abort(ids)
        await asyncio.gather(*(client.abort(ids) for client in self._group.clients()))

    @property
    def num_active_requests(self) -> int:
        return sum(client.num_active_requests for client in self._group.clients())

    # -- state --------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return not self._group.is_closing

    @property
    def is_stopped(self) -> bool:
        return self._group.closed.is_set()

    @property
    def errored(self) -> bool:
        """True if no engine is running, and none is started again."""
        return self._group.failure is not None

    @property
    def dead_error(self) -> BaseException:
        return self._group.dead_error

    async def is_tracing_enabled(self) -> bool:
        return self._metrics is not None and self._metrics.tracer is not None

    @property
    def lora_requests(self) -> Mapping[str, LoRARequest]:
        return self._group.controls.lora_requests

    @property
    def is_degraded(self) -> bool:
        return any(not rank.is_live or rank.is_stalled for rank in self._group.ranks)

    async def check_health(self) -> None:
        """Raises if no engine answers."""
        if self._group.is_closing and self._group.failure is None:
            return
        self._group.able()
        error: WeftError | None = None
        live = [rank for rank in self._group.ranks if rank.is_live]
        for rank in live:
            try:
                await rank.engine.check_health()
                rank.is_stalled = False
            except WeftError as failure:
                rank.is_stalled, error = True, failure
        if error is not None and all(rank.is_stalled for rank in live):
            raise error

    async def get_loads(self) -> list[EngineLoad]:
        """Returns the loads of the live engines."""
        return joined(await self._group.controls.each(lambda engine: engine.get_loads()))

    def subscribe_kv_events(
        self, start_sequence_number: int | None = None
    ) -> AsyncGenerator[KvEventBatch, None]:
        """Yields the cache events of all engines.

        Each batch has its rank, and all ranks share one sequence of numbers.
        """
        self._group.able()
        return self._group.feed.subscribe(start_sequence_number)

    async def do_log_stats(self) -> None:
        for client in self._group.clients():
            await client.do_log_stats()

    # -- more or fewer, the end ---------------------------------------------------------------

    async def scale_elastic_ep(
        self, new_data_parallel_size: int, drain_timeout: float = 300.0
    ) -> None:
        await self._group.scale(new_data_parallel_size, drain_timeout)

    async def drain(
        self, data_parallel_ranks: Sequence[int], timeout: float = 300.0
    ) -> list[Drained]:
        return await self._group.draining.drain(data_parallel_ranks, timeout)

    async def undrain(self, data_parallel_ranks: Sequence[int]) -> None:
        self._group.draining.undrain(data_parallel_ranks)
        self._group.resuming.announce()

    async def is_scaling_elastic_ep(self) -> bool:
        return self._group.is_scaling

    def shutdown(self, timeout: float | None = None) -> None:
        self._group.shutdown(timeout)

    async def wait_closed(self) -> None:
        await self._group.closed.wait()
        if self._pictures is not None:
            await self._pictures.aclose()


_backlog = attrgetter("backlog")


def _with_room(ranks: Iterable[Rank], num_answers: int) -> Rank:
    """Returns the first rank with queue places for `num_answers` answers; raises `Overloaded` if no rank has places."""
    full: Overloaded | None = None
    for rank in ranks:
        try:
            with rank.engine.preparing(num_answers):
                return rank
        except Overloaded as error:
            full = full or error
    assert full is not None
    raise full


async def start_engines(
    checkpoint: Checkpoint, config: EngineConfig, metrics: Metrics | None = None
) -> EngineClient:
    """Starts the engines inside a program: a single engine on a thread, or in a process if it may be restarted; several
    engines in processes.
    """
    if config.has_group:
        return await DataParallelClient.start(checkpoint, config, metrics)
    # The modules of the engine itself: servers, whose engines are processes, do not import them.
    from weft.engine.clients.local_client import LocalClient  # noqa: PLC0415

    return await LocalClient.start(checkpoint, config, metrics)
