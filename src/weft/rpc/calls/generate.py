"""The Generate call: receives a request, and sends chunk and complete messages. The engine's request ends when the call
ends, for any reason.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import msgspec

from weft.core.aio.scores import let_go_of, write_scores
from weft.core.aio.tasks import is_set_within
from weft.core.client import EngineClient
from weft.core.errors import AlreadyExists, DeadlineExceeded, Unavailable
from weft.core.observe.tracing import Tracer
from weft.core.values.kv_transfer import Resumption
from weft.core.values.logprobs import num_scores_of
from weft.core.values.types import (
    OutputKind,
    Request,
    RequestOptions,
    RequestOutput,
    SamplingParams,
)
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.auth import CallMetadata, Keys
from weft.rpc.boundary import CallWriter, Context
from weft.rpc.convert.media import has_files
from weft.rpc.convert.output import StreamedReply, WholeReply
from weft.rpc.convert.request import Generation, to_generation
from weft.rpc.convert.resumption import check_fingerprint, check_resumption
from weft.rpc.fingerprint import Fingerprints
from weft.rpc.metadata import lora_request_of, reasoning_of, trace_headers_of
from weft.rpc.methods import FINGERPRINT_METADATA
from weft.rpc.prefiller import RpcPrefiller, prefill_of
from weft.rpc.spans import server_span


class InFlight:
    """The ids of the requests in flight; refuses duplicates. Owned by one event loop."""

    def __init__(self) -> None:
        self._owner_by_id: dict[str, bytes | None] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids in use now."""
        return tuple(self._owner_by_id)

    def owned(self, request_ids: Iterable[str], owner: bytes | None) -> list[str]:
        """Returns those of `request_ids` that are in flight and were started by `owner`."""
        nobody = object()
        return [one for one in request_ids if self._owner_by_id.get(one, nobody) == owner]

    @contextmanager
    def hold(self, request_id: str, owner: bytes | None = None) -> Iterator[None]:
        """Reserves `request_id` during the block; raises `AlreadyExists` if it is in use."""
        if request_id in self._owner_by_id:
            raise AlreadyExists(f"request_id {request_id!r} is in use by a request in flight")
        self._owner_by_id[request_id] = owner
        self._idle.clear()
        try:
            yield
        finally:
            del self._owner_by_id[request_id]
            if not self._owner_by_id:
                self._idle.set()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Waits until no id is in use; returns False after `timeout_s`."""
        return await is_set_within(self._idle, timeout_s)


class GenerateCall:
    """Serves Generate. Owned by one event loop."""

    def __init__(
        self,
        client: EngineClient,
        keys: Keys,
        *,
        write_timeout_s: float,
        fingerprints: Fingerprints,
        reasoning_end: str | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._tracer = tracer
        self._client = client
        self._keys = keys
        self._fingerprints = fingerprints
        self._reasoning_end = reasoning_end
        self._limits = client.info.limits
        self._write_timeout_s = write_timeout_s
        self.is_closed = False
        # Set if this engine fetches prompts from other engines.
        self.prefiller: RpcPrefiller | None = None
        self.last_receive_time = time.time()
        self.in_flight = InFlight()

    def close(self) -> None:
        """Refuse new requests from now on."""
        self.is_closed = True

    def receive(self) -> None:
        """Records the arrival of a request; raises `Unavailable` once closed."""
        self.last_receive_time = time.time()
        if self.is_closed:
            raise Unavailable("the server is shutting down; send the request to another one")

    async def __call__(self, request: pb.GenerateRequest, context: Context) -> None:
        """Serves one request."""
        self.receive()
        generation = to_generation(request, self._limits, self._client.model_config.media)
        request_id = generation.request_id or f"weft-{uuid.uuid4().hex}"
        metadata = context.invocation_metadata() or ()
        headers = trace_headers_of(metadata)
        with server_span(self._tracer, "Generate", request_id, headers) as headers:
            await self._follow(request_id, generation, context, metadata, headers)

    async def _follow(
        self,
        request_id: str,
        generation: Generation,
        context: Context,
        metadata: CallMetadata,
        headers: dict[str, str],
    ) -> None:
        with self.hold(request_id, metadata):
            client = self.client_of(metadata)
            async with until_deadline(context):
                prepared = await self._prepare(client, request_id, generation, metadata, headers)
                # Sent now, so that the caller can cancel before the first answer; after the checks, because a refusal
                # without metadata before it may be retried on another server.
                fingerprint = self._fingerprints.of(prepared.lora_request, prepared.items)
                await context.send_initial_metadata(
                    ((FINGERPRINT_METADATA, fingerprint),) if fingerprint else ()
                )
                await self._serve(client, prepared, context)

    def client_of(self, metadata: CallMetadata) -> EngineClient:
        """The engine as this caller sees it; counts the request."""
        return self._keys.admit(self._client, metadata)

    def hold(self, request_id: str, metadata: CallMetadata) -> AbstractContextManager[None]:
        """Counts a request of this caller as in flight."""
        return self.in_flight.hold(request_id, self._keys.owner(metadata))

    async def _serve(self, client: EngineClient, request: Request, context: Context) -> None:
        # Closing the generator, however this call ends, ends the request in the engine.
        async with aclosing(client.run(request)) as outputs:
            if request.params.output_kind is OutputKind.DELTA:
                await self._reply_as_stream(outputs, request, context)
            else:
                await self._reply_at_once(outputs, request, context)

    async def _prepare(
        self,
        client: EngineClient,
        request_id: str,
        generation: Generation,
        metadata: CallMetadata,
        headers: dict[str, str],
    ) -> Request:
        is_traced = bool(headers) and await client.is_tracing_enabled()
        options = RequestOptions(
            request_id=request_id,
            prompt_text=generation.prompt_text,
            lora_request=lora_request_of(metadata, client),
            trace_headers=headers if is_traced else None,
            data_parallel_rank=generation.data_parallel_rank,
            **(self._reasoning(generation.params) | reasoning_of(metadata)),
        )
        with client.preparing(generation.params.n):
            request = await client.prepare(generation.prompt, generation.params, options)
            if generation.resumption is not None:
                return self._resumed(request, generation.resumption)
            if self.prefiller is not None and (chosen := prefill_of(metadata)) is not None:
                return await self.prefiller.compute(request, chosen)
            return request

    def _resumed(self, request: Request, resumption: Resumption) -> Request:
        """Returns the rest of a request that another server has begun."""
        check_resumption(resumption, request, self._client.model_config.vocab_size)
        fingerprint = self._fingerprints.of(request.lora_request, request.items)
        check_fingerprint(resumption, fingerprint)
        return msgspec.structs.replace(request, resumption=resumption)

    def _reasoning(self, params: SamplingParams) -> dict[str, Any]:
        """Returns the reasoning arguments that a constraint needs, if the call does not set them."""
        if self._reasoning_end is None or params.structured_outputs is None:
            return {}
        return {"reasoning_parser_kwargs": {"end": self._reasoning_end}}

    async def _reply_as_stream(
        self, outputs: AsyncGenerator[RequestOutput, None], request: Request, context: Context
    ) -> None:
        reply = StreamedReply(request.params, request.resumption, shows_prompt=has_files(request))
        async with CallWriter(context, outputs, self._write_timeout_s) as writer:
            async for output in outputs:
                if reply.has_scores:
                    write = partial(reply.messages, output)
                    messages = await write_scores(num_scores_of(output), write)
                else:
                    messages = reply.messages(output)
                for message in messages:
                    await writer.write(message)
        reply.end()

    async def _reply_at_once(
        self, outputs: AsyncGenerator[RequestOutput, None], request: Request, context: Context
    ) -> None:
        reply = WholeReply(request.params, shows_prompt=has_files(request))
        async for output in outputs:
            await write_scores(num_scores_of(output), partial(reply.add, output))
            await let_go_of(output)
        for message in reply.messages():
            await context.write(message)


@asynccontextmanager
async def until_deadline(context: Context) -> AsyncIterator[None]:
    """Runs the block until the deadline of the call at most."""
    remaining_s: float | None = context.time_remaining()
    if remaining_s is not None and remaining_s <= 0:
        raise DeadlineExceeded("the deadline had passed when the request arrived")
    scope = asyncio.timeout(remaining_s)
    try:
        async with scope:
            yield
    except TimeoutError:
        if not scope.expired():
            raise
        raise DeadlineExceeded("the deadline passed; the request was aborted") from None
