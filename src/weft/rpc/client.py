"""`RpcClient`: an `EngineClient` for an engine behind a gRPC server.

What the wire has no call for raises `Unsupported`, and what it has no field for `BadRequest`, by name.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from contextlib import aclosing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from weft.core.client import EngineClient, Renderer
from weft.core.config import EngineConfig
from weft.core.errors import (
    BadRequest,
    EngineDead,
    FailedPrecondition,
    GenerationError,
    Unavailable,
    Unsupported,
)
from weft.core.lora import LORA_METADATA, validate_lora_name
from weft.core.metrics import Metrics
from weft.core.observed import RemoteRequest
from weft.core.types import (
    EngineLoad,
    KvEventBatch,
    LoRARequest,
    PauseMode,
    PoolingParams,
    PoolingRequestOutput,
    PromptType,
    RequestOutput,
    SamplingParams,
    StreamingInput,
    TokensPrompt,
)
from weft.core.validate import Limits, validate_params, validate_prompt, validate_request_id
from weft.pb import common_pb2
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.connection import Connection
from weft.rpc.convert.answers import RemoteAnswers
from weft.rpc.convert.embed import to_embed_request, to_pooling_output
from weft.rpc.convert.incoming import (
    ServerInfo,
    to_engine_config,
    to_engine_load,
    to_kv_event_batch,
    to_model_config,
    to_server_info,
)
from weft.rpc.convert.outgoing import not_on_this_wire, read_prompt, to_generate_request
from weft.rpc.tokenizer_archive import MAX_PACKED_BYTES, unpack
from weft.text.inputs import Processor
from weft.text.pooling_inputs import PoolingProcessor
from weft.text.tokenizer import Tokenizer


class RpcClient(EngineClient):
    """Made by `connect`, inside a running event loop."""

    def __init__(
        self,
        connection: Connection,
        config: EngineConfig,
        tokenizer: Tokenizer | None,
        metrics: Metrics | None = None,
    ) -> None:
        self.vllm_config = config
        self.model_config = config.model_config
        self._connection = connection
        self._limits = _to_limits(config)
        self._tokenizer = tokenizer
        self._metrics = None if metrics is None else metrics.add_engine(config)
        self.input_processor = Processor(config, tokenizer, limits=self._limits)
        self._pooling = PoolingProcessor(config, tokenizer, limits=self._limits)
        self._num_active = 0
        self._closed = asyncio.Event()

    @classmethod
    async def connect(
        cls,
        target: str,
        *,
        api_key: str | None = None,
        tls_ca: Path | None = None,
        timeout_s: float = 10.0,
        has_tokenizer: bool = True,
        metrics: Metrics | None = None,
    ) -> "RpcClient":
        """Reach the server at `target` (host:port) and learn what it serves.

        With `has_tokenizer` its tokenizer is fetched too, so that outputs have text. A `tls_ca` is
        the certificate, or authority, to trust; without one the connection is not encrypted.
        """
        connection = Connection(target, api_key=api_key, tls_ca=tls_ca)
        try:
            await connection.wait_ready(timeout_s)
            model = await connection.call("GetModelInfo", pb.GetModelInfoRequest(), timeout_s)
            answer = await connection.call("GetServerInfo", pb.GetServerInfoRequest(), timeout_s)
            server = to_server_info(answer)
            load = await _fetch_load(connection)
            config = to_engine_config(to_model_config(model, server.model_dtype), server, load)
            tokenizer = await _fetch_tokenizer(connection) if has_tokenizer else None
        except BaseException:
            await connection.close()
            raise
        return cls(connection, config, tokenizer, metrics)

    @property
    def renderer(self) -> Renderer:  # type: ignore[override]  # read-only here
        """The server's tokenizer."""
        return self._required_tokenizer()

    @property
    def target(self) -> str:
        """host:port of the server."""
        return self._connection.target

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
        """See `EngineClient.generate`. Text is tokenised here, with the server's tokenizer.

        Of `lora_request` the name is sent: the server is to have that adapter, wherever it has it from.
        """
        observed = None if self._metrics is None else RemoteRequest(self._metrics)
        _refuse(
            tokenization_kwargs=tokenization_kwargs,
            trace_headers=trace_headers,
            priority=priority,
            reasoning_ended=reasoning_ended is not None,
            reasoning_parser_kwargs=reasoning_parser_kwargs,
        )
        if isinstance(prompt, AsyncIterable):
            raise not_on_this_wire("a prompt in pieces")
        validate_request_id(request_id)
        validate_params(sampling_params, self._limits)
        tokens = self._tokenize(read_prompt(prompt), sampling_params)
        self._check_prompt(tokens["prompt_token_ids"], sampling_params)
        label = prompt_text or tokens.get("prompt")
        answers = RemoteAnswers(
            request_id,
            sampling_params,
            label,
            tokens["prompt_token_ids"],
            self._tokenizer,
            self.model_config.eos_token_ids,
        )
        sent: TokensPrompt = {"prompt_token_ids": tokens["prompt_token_ids"], "prompt": label or ""}
        request = to_generate_request(request_id, sent, sampling_params, data_parallel_rank)
        metadata = _lora_metadata(lora_request)
        following = (
            nullcontext()
            if observed is None
            else observed.following(len(tokens["prompt_token_ids"]), sampling_params)
        )
        with following:
            async with aclosing(self._follow(request, answers, metadata)) as outputs:
                async for output in outputs:
                    if observed is not None:
                        observed.take(output)
                    yield output

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
        """See `EngineClient.encode`; the wire has embeddings only, of prompts tokenised here."""
        _refuse(
            lora_request=lora_request,
            trace_headers=trace_headers,
            priority=priority,
            reasoning_ended=reasoning_ended,
        )
        checked = self._pooling.process(
            prompt, pooling_params, request_id, tokenization_kwargs=tokenization_kwargs
        )
        request = to_embed_request(checked)
        self._num_active += 1
        try:
            answer = await self._connection.call("Embed", request, timeout_s=None)
        finally:
            self._num_active -= 1
        yield to_pooling_output(checked, answer)

    async def _follow(
        self,
        request: pb.GenerateRequest,
        answers: RemoteAnswers,
        metadata: list[tuple[str, str]],
    ) -> AsyncGenerator[RequestOutput, None]:
        responses = self._connection.stream("Generate", request, metadata)
        self._num_active += 1
        try:
            async for response in responses:
                output = answers.take(response)
                if output is not None:
                    yield output
        finally:
            self._num_active -= 1
            await responses.aclose()
        if not answers.is_finished:
            raise GenerationError("the server ended the stream before every answer was finished")

    def _tokenize(self, prompt: TokensPrompt | str, params: SamplingParams) -> TokensPrompt:
        if params.detokenize or isinstance(prompt, str):
            tokenizer = self._required_tokenizer()
            if isinstance(prompt, str):
                return {"prompt_token_ids": tokenizer.encode(prompt), "prompt": prompt}
        return prompt

    def _check_prompt(self, token_ids: list[int], params: SamplingParams) -> None:
        limits = self._limits
        if params.truncate_prompt_tokens is not None:  # the server cuts first, and checks the rest
            limits = replace(limits, max_model_len=sys.maxsize, max_pool_tokens=sys.maxsize)
        validate_prompt(token_ids, limits)

    def _required_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise Unsupported(
                "the server's tokenizer was not fetched: give token ids, and detokenize=False"
            )
        return self._tokenizer

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """See `EngineClient.abort`."""
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        await self._connection.call("Abort", pb.AbortRequest(request_ids=ids))

    # -- state --------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Until closed: whether the server lives is what `check_health` asks."""
        return not self._closed.is_set()

    @property
    def is_stopped(self) -> bool:
        """Same as `errored`."""
        return self._closed.is_set()

    @property
    def errored(self) -> bool:
        """Whether this client was closed."""
        return self._closed.is_set()

    @property
    def dead_error(self) -> BaseException:
        """What a closed client raises."""
        return EngineDead(f"the connection to {self._connection.target} was closed")

    @property
    def num_active_requests(self) -> int:
        """Requests of this client that are open."""
        return self._num_active

    async def check_health(self) -> None:
        """Raise `Unavailable` if the server says that it is not healthy, or says nothing."""
        answer = await self._connection.call("HealthCheck", pb.HealthCheckRequest(), timeout_s=5.0)
        if not answer.healthy:
            raise Unavailable(answer.message)

    async def do_log_stats(self) -> None:
        """Not on this wire."""
        _no_call("do_log_stats")

    async def get_loads(self) -> list[EngineLoad]:
        """See `EngineClient.get_loads`."""
        answer = await self._connection.call("GetLoads", pb.GetLoadsRequest())
        return [to_engine_load(load) for load in answer.loads]

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """See `EngineClient.get_supported_tasks`."""
        pooler = self.vllm_config.pooler_config
        return ("generate",) if pooler is None else pooler.tasks

    async def get_server_info(self) -> ServerInfo:
        """What the server says of itself now."""
        return to_server_info(
            await self._connection.call("GetServerInfo", pb.GetServerInfoRequest())
        )

    async def get_tokenizer_files(self) -> dict[str, bytes]:
        """The files of the server's tokenizer, by name."""
        return await _fetch_tokenizer_files(self._connection)

    async def subscribe_kv_events(
        self, start_sequence_number: int | None = None
    ) -> AsyncGenerator[KvEventBatch, None]:
        """See `EngineClient.subscribe_kv_events`; the wire always replays, so None is refused."""
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

    async def pause_generation(
        self,
        *,
        mode: PauseMode | str = PauseMode.ABORT,
        wait_for_inflight_requests: bool = False,
        clear_cache: bool = True,
    ) -> None:
        """Not on this wire."""
        _no_call("pause_generation")

    async def resume_generation(self) -> None:
        """Not on this wire."""
        _no_call("resume_generation")

    async def is_paused(self) -> bool:
        """See `EngineClient.is_paused`."""
        return (await self.get_server_info()).is_paused

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """See `EngineClient.reset_prefix_cache`."""
        _refuse(reset_running_requests=reset_running_requests, reset_connector=reset_connector)
        answer = await self._connection.call("FlushCache", common_pb2.FlushCacheRequest())
        return bool(answer.success)

    async def start_profile(self) -> None:
        """See `EngineClient.start_profile`."""
        await self._connection.call("StartProfile", common_pb2.StartProfileRequest())

    async def stop_profile(self) -> None:
        """See `EngineClient.stop_profile`."""
        await self._connection.call("StopProfile", common_pb2.StopProfileRequest())

    def shutdown(self, timeout: float | None = None) -> None:
        """Not on this wire: use `close`, which leaves the server alone."""
        _no_call("shutdown")

    async def close(self) -> None:
        """Leave the server; open calls end and their requests are aborted. Idempotent."""
        self._closed.set()
        await self._connection.close()

    async def wait_closed(self) -> None:
        """Return when this client has been closed; the server goes on."""
        await self._closed.wait()


def _to_limits(config: EngineConfig) -> Limits:
    """The server's limits; a pool whose size it does not tell is no limit here."""
    limits = Limits.of(config)
    return replace(limits, max_pool_tokens=limits.max_pool_tokens or sys.maxsize)


async def _fetch_load(connection: Connection) -> EngineLoad:
    try:
        answer = await connection.call("GetLoads", pb.GetLoadsRequest())
    except Unsupported:
        return EngineLoad()  # older servers lack the call
    return to_engine_load(answer.loads[0]) if answer.loads else EngineLoad()


async def _fetch_tokenizer(connection: Connection) -> Tokenizer | None:
    try:
        files = await _fetch_tokenizer_files(connection)
    except (Unsupported, FailedPrecondition):
        return None  # a server without tokenizer still serves token ids
    return await asyncio.to_thread(Tokenizer.from_files, files)


async def _fetch_tokenizer_files(connection: Connection) -> dict[str, bytes]:
    packed, sha256 = bytearray(), ""
    chunks = connection.stream("GetTokenizer", common_pb2.GetTokenizerRequest())
    try:
        async for chunk in chunks:
            packed += chunk.data
            sha256 = chunk.sha256
            if len(packed) > MAX_PACKED_BYTES:
                raise GenerationError(
                    f"the tokenizer archive is larger than {MAX_PACKED_BYTES} bytes"
                )
    finally:
        await chunks.aclose()
    return await asyncio.to_thread(unpack, bytes(packed), sha256)


def _lora_metadata(lora_request: LoRARequest | None) -> list[tuple[str, str]]:
    if lora_request is None:
        return []
    validate_lora_name(lora_request.lora_name)
    if lora_request.load_inplace:
        raise not_on_this_wire("load_inplace")
    return [(LORA_METADATA, lora_request.lora_name)]


def _refuse(**given: object) -> None:
    for name, value in given.items():
        if value:
            raise not_on_this_wire(name)


def _no_call(method: str) -> NoReturn:
    raise Unsupported(f"{method} is not supported over gRPC: the protocol has no such call")
