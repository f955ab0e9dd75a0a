"""`RpcClient`: an `EngineClient` for an engine behind a gRPC server.

An operation without a call in the protocol raises `Unsupported`; a parameter without a field in the protocol raises
`BadRequest` with its name.
"""

import asyncio
import sys
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import replace
from typing import Self

import msgspec

from weft.core.client import AnyParams, EngineClient, PromptSource, Renderer
from weft.core.config.engine import EngineConfig
from weft.core.engine_info import EngineInfo
from weft.core.errors import BadRequest, EngineDead, GenerationError, Unavailable, Unsupported
from weft.core.observe.metrics import Metrics
from weft.core.observe.observed import RemoteRequest
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.kv_cache import KvEventBatch
from weft.core.values.kv_transfer import KvRole
from weft.core.values.media import TENSORS
from weft.core.values.types import (
    PoolingRequestOutput,
    Request,
    RequestOptions,
    RequestOutput,
    SamplingParams,
    StreamingInput,
)
from weft.pb import common_pb2
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.connection import NO_CREDENTIALS, Connection, Credentials
from weft.rpc.convert.chunks import RemoteAnswers
from weft.rpc.convert.embed import to_embed_request, to_pooling_output
from weft.rpc.convert.incoming import (
    ServerReport,
    to_engine_config,
    to_engine_load,
    to_kv_event_batch,
    to_server_report,
)
from weft.rpc.convert.request import check_carried, not_on_this_wire, to_generate_request
from weft.rpc.failover.continuing import Continuing
from weft.rpc.metadata import check_ended, check_reasoning, params_for, to_metadata, with_reasoning
from weft.rpc.server_files import fetch_tokenizer, fetch_tokenizer_files
from weft.text.outputs.request_stream import RequestStream
from weft.text.prepare import InputProcessor
from weft.text.tokenizer import Tokenizer


class RemoteClient(EngineClient):
    """A client of engines in other servers; stays open until it is closed, even if the servers stop."""

    def __init__(self) -> None:
        self._closed = asyncio.Event()

    @property
    @abstractmethod
    def target(self) -> str:
        """host:port of each server."""

    @property
    def is_running(self) -> bool:
        return not self._closed.is_set()

    @property
    def is_stopped(self) -> bool:
        return self._closed.is_set()

    @property
    def errored(self) -> bool:
        return self._closed.is_set()

    async def is_tracing_enabled(self) -> bool:
        """Always True: trace headers are passed on, and the server decides whether it exports spans."""
        return True

    @property
    def dead_error(self) -> BaseException:
        return EngineDead(f"the connection to {self.target} was closed")

    async def wait_closed(self) -> None:
        """Returns when this client has been closed; the servers continue."""
        await self._closed.wait()


class RpcClient(RemoteClient):
    """Made by `connect`, inside a running event loop."""

    def __init__(
        self,
        connection: Connection,
        config: EngineConfig,
        server: ServerReport,
        tokenizer: Tokenizer | None,
        metrics: Metrics | None = None,
        *,
        resumes: bool = False,
    ) -> None:
        super().__init__()
        self.vllm_config = config  # the name that callers written for vLLM use
        # The server may not report the size of its KV pool; then the pool is not a limit here.
        info = EngineInfo.of(config)
        num_tokens = info.limits.max_pool_tokens or sys.maxsize
        # The server does not report whether it takes part in KV transfers.
        limits = replace(
            info.limits,
            max_pool_tokens=num_tokens,
            kv_role=KvRole.BOTH,
            has_foreign_transfers=True,
        )
        self.info = replace(info, limits=limits)
        self.model_config = config.model_config
        self._connection = connection
        self._server = server
        self._tokenizer = tokenizer
        self._metrics = None if metrics is None else metrics.add_engine(config, is_remote=True)
        self._inputs = InputProcessor(
            config,
            tokenizer,
            limits=self.info.limits,
            clock=time.monotonic if self._metrics is None else self._metrics.clock,
        )
        self._num_active = 0
        self._continuing = Continuing([self], self._check_open) if resumes else None

    @classmethod
    async def connect(
        cls,
        target: str,
        *,
        credentials: Credentials = NO_CREDENTIALS,
        timeout_s: float = 10.0,
        has_tokenizer: bool = True,
        metrics: Metrics | None = None,
        resumes: bool = False,
    ) -> Self:
        """Connects to the server at `target` (host:port) and reads its configuration.

        With `has_tokenizer`, its tokenizer is fetched too, so that outputs have text. With `resumes`, a request whose
        server is lost waits up to 300 s until an equal server answers at the same address, and continues there; without
        it, the request gets `EngineLost`.
        """
        connection = Connection(target, credentials)
        try:
            await connection.wait_ready(timeout_s)
            model = await connection.call("GetModelInfo", pb.GetModelInfoRequest(), timeout_s)
            answer, is_ours = await connection.server_info(timeout_s)
            server = to_server_report(answer, is_ours=is_ours)
            config = to_engine_config(model, answer, server, await _fetch_load(connection))
            tokenizer = await fetch_tokenizer(connection) if has_tokenizer else None
        except BaseException:
            await connection.close()
            raise
        return cls(connection, config, server, tokenizer, metrics, resumes=resumes)

    @property
    def renderer(self) -> Renderer:  # type: ignore[override]  # read-only here
        """The server's tokenizer."""
        return self._required_tokenizer()

    @property
    def target(self) -> str:
        return self._connection.target

    # -- requests -----------------------------------------------------------------------------

    async def prepare(
        self,
        prompt: PromptSource,
        params: AnyParams,
        options: RequestOptions,
    ) -> Request:
        """Prepares a request; text is tokenized here, with the server's tokenizer."""
        if options.priority:
            raise not_on_this_wire("priority")
        bare = options
        if isinstance(params, SamplingParams):
            # The server handles the parameters of reasoning; for pooling they are refused.
            bare = msgspec.structs.replace(
                options, reasoning_ended=None, reasoning_parser_kwargs=None
            )
            check_carried(params)
            check_reasoning(self._server, params, options)
            if params.detokenize:
                self._required_tokenizer()
        request = await self._inputs.prepare(prompt, params, bare)
        if request.cache_salt is not None:
            raise not_on_this_wire("cache_salt")
        if request.media is not None and request.media.tensors:
            raise not_on_this_wire(TENSORS)
        request = with_reasoning(request, options)
        if self._tokenizer is not None and request.pooling is None:
            kwargs = options.reasoning_parser_kwargs
            check_ended(self._server, request, kwargs, self._tokenizer)
        return request

    def run_pieces(
        self,
        pieces: AsyncIterable[StreamingInput],
        params: SamplingParams,
        options: RequestOptions,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Raises `BadRequest`: the protocol sends a request in one message."""
        raise not_on_this_wire("a prompt in pieces")

    def run(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        stream = self.stream_of(request)
        if self._continuing is None:
            return self.run_part(request, stream)
        return self._continuing.run(request, stream)

    def stream_of(self, request: Request) -> RequestStream:
        """Returns the object that collects the outputs of a request from one server after the other."""
        return RequestStream(request, self._tokenizer, ends_at_stops=False)

    async def run_part(
        self, request: Request, stream: RequestStream
    ) -> AsyncGenerator[RequestOutput, None]:
        """Runs a request, or the rest of it. Raises `EngineLost` if another server can continue it."""
        following: AbstractContextManager[None] = nullcontext()
        observed = None if self._metrics is None else RemoteRequest(self._metrics, request)
        if observed is not None:
            following = observed.following()
        with following:
            async with aclosing(self._follow(request, stream)) as outputs:
                async for output in outputs:
                    if observed is not None:
                        observed.take(output)
                    yield output

    async def run_pooling(self, request: Request) -> AsyncGenerator[PoolingRequestOutput, None]:
        """Runs a pooling request; the wire has embeddings only."""
        message = to_embed_request(request)
        self._num_active += 1
        try:
            metadata = to_metadata(self._server, request)
            answer = await self._connection.call(
                "Embed", message, timeout_s=None, metadata=metadata
            )
        finally:
            self._num_active -= 1
        yield to_pooling_output(request, answer)

    async def _follow(
        self, request: Request, stream: RequestStream
    ) -> AsyncGenerator[RequestOutput, None]:
        answers = RemoteAnswers(request, has_strict_tops=self._server.is_ours)
        metadata = to_metadata(self._server, request)
        params = params_for(self._server, request)
        message = to_generate_request(msgspec.structs.replace(request, params=params))
        responses = self._connection.stream("Generate", message, metadata)
        self._num_active += 1
        try:
            async for response in responses:
                for answer in answers.take(response):
                    stream.push(answer)
                await stream.read_scores_soon()
                output = stream.pop()
                if output is not None:
                    yield output
        finally:
            self._num_active -= 1
            await responses.aclose()
        if not answers.is_finished:
            raise GenerationError("the server ended the stream before every answer was finished")

    def _required_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise Unsupported(
                "the server's tokenizer was not fetched: give token ids, and detokenize=False"
            )
        return self._tokenizer

    async def abort(self, request_id: str | Iterable[str]) -> None:
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        if self._continuing is not None:
            ids = self._continuing.abort(ids)
            if not self._continuing.members.healthy:  # the requests wait here
                return
        await self._connection.call("Abort", pb.AbortRequest(request_ids=ids))

    # -- state --------------------------------------------------------------------------------

    @property
    def num_active_requests(self) -> int:
        """Number of open requests of this client."""
        return self._num_active

    async def check_health(self) -> None:
        """Raises `Unavailable` if the server reports that it is unhealthy, or does not answer."""
        answer = await self._connection.call("HealthCheck", pb.HealthCheckRequest(), timeout_s=5.0)
        if not answer.healthy:
            raise Unavailable(answer.message)

    async def get_loads(self) -> list[EngineLoad]:
        answer = await self._connection.call("GetLoads", pb.GetLoadsRequest())
        return [to_engine_load(load) for load in answer.loads]

    @property
    def first_report(self) -> ServerReport:
        """The server's report about itself when this client connected."""
        return self._server

    def drop_streams(self, *, is_draining: bool) -> None:
        """Ends the streams of all requests, because the server is draining or does not answer."""
        self._connection.drop_streams(is_draining=is_draining)

    async def get_server_info(self) -> ServerReport:
        """Returns the server's current report about itself."""
        answer, is_ours = await self._connection.server_info()
        return to_server_report(answer, is_ours=is_ours)

    async def get_tokenizer_files(self) -> dict[str, bytes]:
        """The files of the server's tokenizer, by name."""
        return await fetch_tokenizer_files(self._connection)

    async def subscribe_kv_events(
        self, start_sequence_number: int | None = None
    ) -> AsyncGenerator[KvEventBatch, None]:
        """Subscribes to cache events; the protocol always replays, so None is refused."""
        if start_sequence_number is None:
            raise BadRequest(
                "start_sequence_number",
                "start_sequence_number is needed over gRPC; 0 is everything that is kept",
            )
        request = common_pb2.SubscribeKvEventsRequest(start_sequence_number=start_sequence_number)
        responses = self._connection.stream("SubscribeKvEvents", request)
        try:
            async for batch in responses:
                if not batch.load.load_only:
                    yield to_kv_event_batch(batch)
        finally:
            await responses.aclose()

    # -- control ------------------------------------------------------------------------------

    async def is_paused(self) -> bool:
        return (await self.get_server_info()).is_paused

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        if reset_running_requests:
            raise not_on_this_wire("reset_running_requests")
        if reset_connector:
            raise not_on_this_wire("reset_connector")
        answer = await self._connection.call("FlushCache", common_pb2.FlushCacheRequest())
        return bool(answer.success)

    async def start_profile(
        self,
        profile_prefix: str | None = None,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
    ) -> None:
        if profile_prefix is not None:
            raise not_on_this_wire("profile_prefix")
        if delay_iterations is not None:
            raise not_on_this_wire("delay_iterations")
        request = common_pb2.StartProfileRequest(num_steps=max_iterations)
        await self._connection.call("StartProfile", request)

    async def stop_profile(self) -> None:
        await self._connection.call("StopProfile", common_pb2.StopProfileRequest())

    async def close(self) -> None:
        """Leave the server; open calls end and their requests are aborted. Idempotent."""
        self._closed.set()
        if self._continuing is not None:
            await self._continuing.members.close()
        await self._connection.close()

    def _check_open(self) -> None:
        if self.is_stopped:
            raise self.dead_error


async def _fetch_load(connection: Connection) -> EngineLoad:
    try:
        answer = await connection.call("GetLoads", pb.GetLoadsRequest())
    except Unsupported:
        return EngineLoad()  # older servers lack this call
    return to_engine_load(answer.loads[0]) if answer.loads else EngineLoad()
