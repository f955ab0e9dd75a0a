"""The Embed call: receives token ids, and sends one embedding. The engine's request ends when the call ends, for any
reason.
"""

import uuid
from contextlib import aclosing

from weft.core.client import EngineClient
from weft.core.errors import GenerationError
from weft.core.observe.tracing import Tracer
from weft.core.values.types import PoolingParams, RequestOptions
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.auth import CallMetadata
from weft.rpc.boundary import Context
from weft.rpc.calls.generate import GenerateCall, until_deadline
from weft.rpc.convert.embed import EmbedInput, to_embed_input, to_embed_response
from weft.rpc.metadata import lora_request_of, trace_headers_of
from weft.rpc.spans import server_span


class EmbedCall:
    """Serves Embed. Its requests are counted together with the in-flight requests of `generate`. Owned by one event
    loop.
    """

    def __init__(
        self, client: EngineClient, generate: GenerateCall, tracer: Tracer | None = None
    ) -> None:
        self._client = client
        self._tracer = tracer
        self._limits = client.info.limits
        self._generate = generate
        # Gateways pad as the tokenizer's file says, and encoders are often saved with padding on. A decoder is left
        # alone: its padding id may be its end-of-sequence id.
        is_encoder = not client.info.chunks_prompts
        self._padding_id = client.model_config.pad_token_id if is_encoder else None

    async def __call__(self, message: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        """Serves one request."""
        self._generate.receive()
        pooler = self._client.info.pooler
        embedding = to_embed_input(message, pooler, self._limits, self._padding_id)
        request_id = embedding.request_id or f"weft-{uuid.uuid4().hex}"
        metadata = context.invocation_metadata() or ()
        headers = trace_headers_of(metadata)
        with server_span(self._tracer, "Embed", request_id, headers) as headers:
            return await self._follow(request_id, embedding, context, metadata, headers)

    async def _follow(
        self,
        request_id: str,
        embedding: EmbedInput,
        context: Context,
        metadata: CallMetadata,
        headers: dict[str, str],
    ) -> pb.EmbedResponse:
        with self._generate.hold(request_id, metadata):
            client = self._generate.client_of(metadata)
            async with until_deadline(context):
                is_traced = bool(headers) and await client.is_tracing_enabled()
                options = RequestOptions(
                    request_id=request_id,
                    lora_request=lora_request_of(metadata, client),
                    trace_headers=headers if is_traced else None,
                )
                with client.preparing(1):
                    request = await client.prepare(
                        embedding.prompt, PoolingParams(task="embed"), options
                    )
                async with aclosing(client.run_pooling(request)) as outputs:
                    async for output in outputs:
                        return to_embed_response(output)
        raise GenerationError("the engine ended the request without an embedding")
