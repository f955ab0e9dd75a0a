"""The calls of `vllm.Inference`: a prompt in, one answer or a stream of pieces out. The engine's request ends when the
call ends, for any reason.
"""

import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

from weft.core.aio.scores import let_go_of, write_scores
from weft.core.client import EngineClient
from weft.core.errors import BadRequest, GenerationError, NotFound
from weft.core.observe.tracing import Tracer
from weft.core.values.logprobs import num_scores_of
from weft.core.values.types import LoRARequest, Request, RequestOptions, RequestOutput
from weft.pb import vllm_inference_pb2 as pb
from weft.rpc.auth import CallMetadata
from weft.rpc.boundary import CallWriter, Context, StreamHandler, UnaryHandler
from weft.rpc.calls.generate import GenerateCall, until_deadline
from weft.rpc.convert.inference_output import InferenceReply
from weft.rpc.convert.inference_request import FIELDS, Inference, to_inference
from weft.rpc.metadata import data_parallel_rank_of, trace_headers_of
from weft.rpc.methods import INFERENCE_SERVICE
from weft.rpc.prefiller import prefill_of
from weft.rpc.spans import server_span

_FROM_THE_LEFT = MappingProxyType({"truncation_side": "left"})


class InferenceService:
    """Serves `vllm.Inference`. Its requests are counted together with those of `generate`. Owned by one event loop."""

    def __init__(
        self,
        client: EngineClient,
        generate: GenerateCall,
        *,
        write_timeout_s: float,
        reasoning_end: str | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._client = client
        self._generate = generate
        self._write_timeout_s = write_timeout_s
        self._reasoning_end = reasoning_end
        self._tracer = tracer

    def unary_calls(self) -> Mapping[str, UnaryHandler]:
        """Calls with one response, by name."""
        return {"Generate": self._answer}

    def stream_calls(self) -> Mapping[str, StreamHandler]:
        """Calls that send a stream, by name."""
        return {"GenerateStream": self._stream}

    async def _answer(self, message: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        inference = self._read(message, is_streaming=False)
        reply = InferenceReply(inference.params, inference.shape)
        async with self._running("Generate", inference, context) as outputs:
            async for output in outputs:
                if output.is_finished:
                    response = await write_scores(
                        num_scores_of(output), partial(reply.whole, output)
                    )
                    await let_go_of(output)
                    return response
        raise GenerationError("the engine ended the request before the answer was finished")

    async def _stream(self, message: pb.GenerateRequest, context: Context) -> None:
        inference = self._read(message, is_streaming=True)
        reply = InferenceReply(inference.params, inference.shape)
        async with (
            self._running("GenerateStream", inference, context) as outputs,
            CallWriter(context, outputs, self._write_timeout_s) as writer,
        ):
            async for output in outputs:
                write = partial(reply.pieces, output)
                num_scores = num_scores_of(output) if reply.has_scores else 0
                for piece in await write_scores(num_scores, write):
                    await writer.write(piece)
        reply.end()

    def _read(self, message: pb.GenerateRequest, *, is_streaming: bool) -> Inference:
        self._generate.receive()
        client = self._client
        return to_inference(
            message, client.info.limits, client.model_config, is_streaming=is_streaming
        )

    @asynccontextmanager
    async def _running(
        self, method: str, inference: Inference, context: Context
    ) -> AsyncIterator[AsyncGenerator[RequestOutput, None]]:
        """Runs a request in the engine, until the block ends or the call's deadline passes."""
        request_id = inference.request_id or f"weft-{uuid.uuid4().hex}"
        metadata = context.invocation_metadata() or ()
        headers = trace_headers_of(metadata)
        with (
            server_span(self._tracer, method, request_id, headers, INFERENCE_SERVICE) as headers,
            self._generate.hold(request_id, metadata),
        ):
            client = self._generate.client_of(metadata)
            async with until_deadline(context):
                request = await self._prepare(client, request_id, inference, metadata, headers)
                # Sent now, so that the caller can cancel before the first output; after the checks, because a refusal
                # without metadata before it may be retried on another server.
                await context.send_initial_metadata(())
                async with aclosing(client.run(request)) as outputs:
                    yield outputs

    async def _prepare(
        self,
        client: EngineClient,
        request_id: str,
        inference: Inference,
        metadata: CallMetadata,
        headers: dict[str, str],
    ) -> Request:
        client.info.check_priority(inference.priority)
        is_traced = bool(headers) and await client.is_tracing_enabled()
        options = RequestOptions(
            request_id=request_id,
            lora_request=_adapter(client, inference.lora_name),
            trace_headers=headers if is_traced else None,
            priority=inference.priority,
            data_parallel_rank=data_parallel_rank_of(metadata),
            # Always the start is lost, whatever the model's tokenizer says.
            tokenization_kwargs=_FROM_THE_LEFT if inference.params.truncate_prompt_tokens else None,
            **self._reasoning(inference),
        )
        prefiller = self._generate.prefiller
        try:
            with client.preparing(inference.params.n):
                request = await client.prepare(inference.prompt, inference.params, options)
                if prefiller is not None and (chosen := prefill_of(metadata)) is not None:
                    return await prefiller.compute(request, chosen)
                return request
        except BadRequest as error:
            raise error.renamed(FIELDS) from None

    def _reasoning(self, inference: Inference) -> dict[str, Any]:
        """Returns the reasoning arguments; without a constraint or a budget they have no effect."""
        params = inference.params
        if params.structured_outputs is None and params.thinking_token_budget is None:
            return {}
        end = self._reasoning_end
        kwargs = {} if end is None else {"reasoning_parser_kwargs": {"end": end}}
        return {"reasoning_ended": inference.reasoning_ended, **kwargs}


def _adapter(client: EngineClient, name: str | None) -> LoRARequest | None:
    if name is None:
        return None
    found = client.lora_requests.get(name)
    if found is None:
        raise NotFound(f"The lora adapter {name[:64]!a} cannot be found.", "lora_name")
    return found
