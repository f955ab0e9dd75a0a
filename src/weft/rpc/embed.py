"""The Embed call: token ids in, one embedding out, and no engine work left behind."""

import uuid
from contextlib import aclosing

from weft.core.client import EngineClient
from weft.core.errors import GenerationError
from weft.core.types import PoolingParams
from weft.core.validate import Limits
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.adapters import lora_request_of
from weft.rpc.boundary import Context
from weft.rpc.convert.embed import to_embed_response, to_embedding
from weft.rpc.generate import GenerateCall, trace_headers, until_deadline


class EmbedCall:
    """Serves Embed, among the requests in flight of `generate`. One event loop owns it."""

    def __init__(self, client: EngineClient, generate: GenerateCall) -> None:
        self._client = client
        self._limits = Limits.of(client.vllm_config)
        self._generate = generate
        # Gateways pad as the tokenizer's file says; those of encoders are often saved with padding on.
        # A decoder's padding id may well be the one that ends its texts.
        config = client.vllm_config
        is_encoder = not config.scheduler_config.chunks_prompts
        self._padding_id = config.model_config.pad_token_id if is_encoder else None

    async def __call__(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        """Serve one request."""
        self._generate.check_open()
        lora_request = lora_request_of(context, self._client)
        pooler = self._client.vllm_config.pooler_config
        embedding = to_embedding(request, pooler, self._limits, self._padding_id)
        request_id = embedding.request_id or f"weft-{uuid.uuid4().hex}"
        with self._generate.open_requests.hold(request_id):
            async with until_deadline(context):
                is_traced = await self._client.is_tracing_enabled()
                outputs = self._client.encode(
                    embedding.prompt,
                    PoolingParams(task="embed"),
                    request_id,
                    lora_request,
                    trace_headers=trace_headers(context) if is_traced else None,
                )
                async with aclosing(outputs):
                    async for output in outputs:
                        return to_embed_response(output)
        raise GenerationError("the engine ended the request without an embedding")
