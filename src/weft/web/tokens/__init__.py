"""Tokens in and out (/inference/v1/generate), and a text with what follows it (/generate)."""

from weft.schema.tokens import (
    SimpleAnswer,
    SimpleBody,
    TextAnswer,
    TextChunk,
    TokensAnswer,
    TokensBody,
    TokensChunk,
)
from weft.web.http.endpoint import Endpoint
from weft.web.inference.call import for_model
from weft.web.inference.fields import beyond_openai
from weft.web.tokens.generate import generate
from weft.web.tokens.simple import simple_generate

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST",
        path="/inference/v1/generate",
        handler=for_model(generate),
        summary="Token ids in, token ids out: what the gRPC method Generate does",
        body=TokensBody,
        example={"token_ids": [72, 105], "sampling_params": {"max_tokens": 16}},
        deviations=lambda body: beyond_openai(body.sampling_params),
        answer=TokensAnswer | TextAnswer,
        event=TokensChunk | TextChunk,
    ),
    Endpoint(
        method="POST",
        path="/generate",
        handler=simple_generate,
        summary="A text and what follows it, in one piece or as lines of JSON",
        body=SimpleBody,
        example={"prompt": "The capital of France is", "max_tokens": 16},
        deviations=beyond_openai,
        answer=SimpleAnswer,
    ),
)
