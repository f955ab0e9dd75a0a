"""The Generate call: checked request in, chunks and completes out, and no engine work left behind."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

from weft.core.client import EngineClient
from weft.core.errors import DeadlineExceeded, Unavailable
from weft.core.types import RequestOutput, SamplingParams
from weft.core.validate import Limits
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.adapters import lora_request_of
from weft.rpc.boundary import Context
from weft.rpc.convert.output import StreamedReply, WholeReply
from weft.rpc.convert.request import Generation, to_generation
from weft.rpc.open_requests import OpenRequests
from weft.rpc.outlet import Outlet

_TRACE_HEADERS = ("traceparent", "tracestate")


class GenerateCall:
    """Serves Generate. One event loop owns it."""

    def __init__(
        self, client: EngineClient, *, write_timeout_s: float, thought_end: str | None = None
    ) -> None:
        self._client = client
        self._thought_end = thought_end
        self._limits = Limits.of(client.vllm_config)
        self._write_timeout_s = write_timeout_s
        self._is_closed = False
        self.open_requests = OpenRequests()

    def close(self) -> None:
        """Refuse new requests from now on."""
        self._is_closed = True

    def check_open(self) -> None:
        """Raise `Unavailable` once closed."""
        if self._is_closed:
            raise Unavailable("the server is shutting down; send the request to another one")

    async def __call__(self, request: pb.GenerateRequest, context: Context) -> None:
        """Serve one request."""
        self.check_open()
        size = self._client.vllm_config.data_parallel_size
        generation = to_generation(request, self._limits, size)
        generation = replace(generation, lora_request=lora_request_of(context, self._client))
        request_id = generation.request_id or f"weft-{uuid.uuid4().hex}"
        with self.open_requests.hold(request_id):
            # At once, so that the caller holds a stream that it can cancel before the first answer;
            # but after the checks, because a refusal with nothing before it may be retried elsewhere.
            await context.send_initial_metadata(())
            async with until_deadline(context):
                await self._serve(request_id, generation, context)

    async def _serve(self, request_id: str, generation: Generation, context: Context) -> None:
        outputs = await self._start(request_id, generation, context)
        # Whatever ends this call, closing the generator ends the request in the engine.
        async with aclosing(outputs):
            if generation.is_streaming:
                await self._reply_as_stream(outputs, generation, context)
            else:
                await self._reply_at_once(outputs, generation, context)

    async def _start(
        self, request_id: str, generation: Generation, context: Context
    ) -> AsyncGenerator[RequestOutput, None]:
        is_traced = await self._client.is_tracing_enabled()
        return self._client.generate(
            generation.prompt,
            generation.params,
            request_id,
            prompt_text=generation.prompt_text,
            lora_request=generation.lora_request,
            trace_headers=trace_headers(context) if is_traced else None,
            data_parallel_rank=generation.data_parallel_rank,
            reasoning_parser_kwargs=self._thought(generation.params),
        )

    def _thought(self, params: SamplingParams) -> Mapping[str, str] | None:
        """What the engine has to know of thoughts: where a constraint begins, and what a budget ends."""
        is_ruled = params.structured_outputs is not None or params.thinking_token_budget is not None
        return {"end": self._thought_end} if self._thought_end is not None and is_ruled else None

    async def _reply_as_stream(
        self, outputs: AsyncGenerator[RequestOutput, None], generation: Generation, context: Context
    ) -> None:
        reply = StreamedReply(generation.params)
        async with Outlet(context, outputs, self._write_timeout_s) as outlet:
            async for output in outputs:
                for message in reply.messages(output):
                    await outlet.write(message)
        reply.end()

    async def _reply_at_once(
        self, outputs: AsyncGenerator[RequestOutput, None], generation: Generation, context: Context
    ) -> None:
        reply = WholeReply(generation.params)
        async for output in outputs:
            reply.add(output)
        for message in reply.messages():
            await context.write(message)


@asynccontextmanager
async def until_deadline(context: Context) -> AsyncIterator[None]:
    """Run the block no longer than the caller waits."""
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


def trace_headers(context: Context) -> Mapping[str, str]:
    """The trace that the call belongs to."""
    metadata = context.invocation_metadata() or ()
    return {name: str(value) for name, value in metadata if name in _TRACE_HEADERS}
