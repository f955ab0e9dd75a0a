"""The calls of `VllmEngine` other than Generate: thin handlers around an `EngineClient`. Also the handlers of all
services.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from grpc import GenericRpcHandler, method_handlers_generic_handler

from weft import __version__
from weft.core.checks.object_ids import STORE_METADATA
from weft.core.client import EngineClient
from weft.core.errors import BadRequest, Overloaded, WeftError
from weft.core.observe.tracing import Tracer
from weft.pb import common_pb2
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc import boundary
from weft.rpc.auth import Keys
from weft.rpc.boundary import Context
from weft.rpc.calls.control_service import ControlService
from weft.rpc.calls.embed import EmbedCall
from weft.rpc.calls.generate import GenerateCall
from weft.rpc.calls.inference_service import InferenceService
from weft.rpc.calls.kv_events import KvEventsCall
from weft.rpc.calls.tokenizer_archive import TokenizerArchive, to_chunks
from weft.rpc.convert.info import to_loads_response, to_model_info, to_server_info
from weft.rpc.convert.request import to_flush_timeout, to_num_steps
from weft.rpc.fingerprint import Fingerprints
from weft.rpc.methods import (
    CONTROL_SERVICE,
    DRAINING,
    INFERENCE_SERVICE,
    METHODS_BY_SERVICE,
    SERVICE,
    VERSION_METADATA,
)
from weft.rpc.options import RpcOptions
from weft.text.parsers.table import REASONING_PARSERS
from weft.wire.health import Health

log = logging.getLogger(__name__)

MAX_ABORT_IDS = 10_000
_FLUSH_RETRY_S = 0.05


class Service:
    """The calls of `VllmEngine`. Owned by one event loop."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer_files: Mapping[str, bytes],
        health: Health,
        keys: Keys,
        options: RpcOptions,
        tracer: Tracer | None,
    ) -> None:
        reasoning_parser = options.reasoning_parser
        reasoning_end = (
            None if reasoning_parser is None else REASONING_PARSERS[reasoning_parser].reasoning_end
        )
        self._client = client
        self._archive = TokenizerArchive(tokenizer_files)
        self._health = health
        self._keys = keys
        self._kv_events = KvEventsCall(
            client, heartbeat_s=options.heartbeat_s, write_timeout_s=options.write_timeout_s
        )
        self._started = time.monotonic()
        # Name of the store of the HTTP server's objects, by which a picker finds the server; empty for none.
        self.store_name = ""
        self._reasoning_parser = reasoning_parser
        self.fingerprints = Fingerprints(client, tokenizer_files, reasoning_parser)
        self._max_total_message_bytes = options.max_total_message_bytes
        self.generate = GenerateCall(
            client,
            keys,
            write_timeout_s=options.write_timeout_s,
            fingerprints=self.fingerprints,
            tracer=tracer,
            reasoning_end=reasoning_end,
        )
        self.embed = EmbedCall(client, self.generate, tracer)
        self._inference = InferenceService(
            client,
            self.generate,
            write_timeout_s=options.write_timeout_s,
            reasoning_end=reasoning_end,
            tracer=tracer,
        )
        self._control = ControlService(
            client, keys, options, has_tokenizer=bool(tokenizer_files), abort=self._abort
        )

    def handlers(self) -> tuple["GenericRpcHandler[Any, Any]", ...]:
        """The handlers of all services; a test checks that no call is missing."""
        # One limit for the large requests of all services.
        decoder = boundary.MessageBudget(self._max_total_message_bytes).decoder

        def handler_of(
            service: str,
            unary: Mapping[str, boundary.UnaryHandler],
            streams: Mapping[str, boundary.StreamHandler],
        ) -> "GenericRpcHandler[Any, Any]":
            max_model_len = self._client.model_config.max_model_len

            def decode(name: str) -> boundary.Decode:
                method = METHODS_BY_SERVICE[service][name]
                return decoder(partial(method.decode_request, max_model_len=max_model_len))

            handlers = {
                name: boundary.unary(name, call, decode(name)) for name, call in unary.items()
            } | {name: boundary.stream(name, call, decode(name)) for name, call in streams.items()}
            return method_handlers_generic_handler(service, handlers)

        inference, control = self._inference, self._control
        return (
            handler_of(SERVICE, self._unary_calls(), self._stream_calls()),
            handler_of(INFERENCE_SERVICE, inference.unary_calls(), inference.stream_calls()),
            handler_of(CONTROL_SERVICE, control.unary_calls(), {}),
        )

    def _unary_calls(self) -> Mapping[str, boundary.UnaryHandler]:
        return {
            "Embed": self.embed,
            "HealthCheck": self._health_check,
            "FlushCache": self._flush_cache,
            "StartProfile": self._start_profile,
            "StopProfile": self._stop_profile,
            "Abort": self._abort,
            "GetModelInfo": self._get_model_info,
            "GetServerInfo": self._get_server_info,
            "GetLoads": self._get_loads,
        }

    def _stream_calls(self) -> Mapping[str, boundary.StreamHandler]:
        return {
            "Generate": self.generate,
            "GetTokenizer": self._get_tokenizer,
            "SubscribeKvEvents": self._kv_events,
        }

    # -- requests -----------------------------------------------------------------------------

    async def _abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        if len(request.request_ids) > MAX_ABORT_IDS:
            raise Overloaded(
                f"request_ids takes at most {MAX_ABORT_IDS} ids a call, "
                f"got {len(request.request_ids)}"
            )
        metadata = context.invocation_metadata() or ()
        ids = list(request.request_ids)
        if not self._keys.may_control(metadata):
            # Ids of other callers' requests are ignored like unknown ids, so that callers cannot probe for ids.
            ids = self.generate.in_flight.owned(ids, self._keys.owner(metadata))
        if ids:
            await self._client.abort(ids)
        return pb.AbortResponse()

    # -- state --------------------------------------------------------------------------------

    async def _health_check(
        self, _request: pb.HealthCheckRequest, _context: Context
    ) -> pb.HealthCheckResponse:
        if not await is_alive(self._client):
            return pb.HealthCheckResponse(healthy=False, message="Engine is not alive")
        if self.generate.is_closed:
            return pb.HealthCheckResponse(healthy=False, message=DRAINING)
        if not self._health.is_serving():
            return pb.HealthCheckResponse(healthy=False, message="Server is not serving")
        return pb.HealthCheckResponse(healthy=True, message="Health")

    async def _get_model_info(
        self, _request: pb.GetModelInfoRequest, _context: Context
    ) -> pb.GetModelInfoResponse:
        return to_model_info(self._client.model_config)

    async def _get_server_info(
        self, request: pb.GetServerInfoRequest, context: Context
    ) -> pb.GetServerInfoResponse:
        await context.send_initial_metadata(((VERSION_METADATA, __version__),))
        answer = to_server_info(
            self._client.info,
            num_active_requests=self._client.num_active_requests,
            is_paused=await self._client.is_paused(),
            last_receive_time=self.generate.last_receive_time,
            uptime_s=time.monotonic() - self._started,
            reasoning_parser=self._reasoning_parser,
        )
        if (media := self._client.model_config.media) is not None:
            answer.weft_max_media.update(
                {str(name): most for name, most in media.max_items.items()}
            )
        if request.weft_with_fingerprint:
            answer.weft_fingerprint = await self.fingerprints.refresh()
            loras = self._keys.adapters_of(self._client, context.invocation_metadata() or ())
            prints = self.fingerprints
            answer.weft_adapters.update({one.lora_name: prints.digest_of(one) for one in loras})
        return answer

    async def _get_loads(
        self, request: pb.GetLoadsRequest, context: Context
    ) -> pb.GetLoadsResponse:
        if self.store_name:
            await context.send_initial_metadata(((STORE_METADATA, self.store_name),))
        return to_loads_response(request, await self._client.get_loads(), __version__)

    async def _get_tokenizer(
        self, _request: common_pb2.GetTokenizerRequest, context: Context
    ) -> None:
        for chunk in to_chunks(await self._archive.packed()):
            await context.write(chunk)

    # -- control ------------------------------------------------------------------------------

    async def _flush_cache(
        self, request: common_pb2.FlushCacheRequest, _context: Context
    ) -> common_pb2.FlushCacheResponse:
        deadline = time.monotonic() + to_flush_timeout(request)
        while not await self._client.reset_prefix_cache():
            if time.monotonic() >= deadline:
                return common_pb2.FlushCacheResponse(
                    success=False,
                    message="requests in flight hold cached blocks; nothing was dropped",
                )
            # The engine sends no event when the last block is released, and a repeated call is cheap.
            await asyncio.sleep(_FLUSH_RETRY_S)
        return common_pb2.FlushCacheResponse(success=True, message="the prefix cache is empty")

    async def _start_profile(
        self, request: common_pb2.StartProfileRequest, _context: Context
    ) -> common_pb2.ProfileResponse:
        num_steps = to_num_steps(request)
        try:
            await self._client.start_profile(max_iterations=num_steps)
        except BadRequest as error:
            raise error.renamed({"max_iterations": "num_steps"}) from None
        return common_pb2.ProfileResponse(success=True, message="profiling")

    async def _stop_profile(
        self, _request: common_pb2.StopProfileRequest, _context: Context
    ) -> common_pb2.ProfileResponse:
        await self._client.stop_profile()
        return common_pb2.ProfileResponse(success=True, message="profile written")


async def is_alive(client: EngineClient) -> bool:
    """True if the engine answers within a second."""
    if client.errored:
        return False
    try:
        async with asyncio.timeout(1.0):
            await client.check_health()
    except (WeftError, TimeoutError):
        return False
    except Exception:  # any failure means that the engine has not answered
        log.exception("the check of the engine's health failed")
        return False
    return True
