"""`/invocations`: SageMaker's one path, which leads to the API that the body's fields belong to."""

import dataclasses
from collections.abc import Iterable

import msgspec

from weft.core.errors import BadRequest, Unsupported
from weft.web.http.body import decode_body
from weft.web.http.endpoint import Answer, Call, Endpoint

# The first row whose fields are all there decides.
_TARGETS = (
    (("messages",), "/v1/chat/completions"),
    (("prompt",), "/v1/completions"),
    (("query", "documents"), "/rerank"),
    (("text_1", "text_2"), "/score"),
    (("queries", "documents"), "/score"),
    (("input", "task"), "/pooling"),
    (("input",), "/v1/embeddings"),
    (("token_ids",), "/inference/v1/generate"),
)


def invocations_endpoint(endpoints: Iterable[Endpoint]) -> Endpoint:
    """The endpoint that hands on to `endpoints`."""
    by_path = {endpoint.path: endpoint for endpoint in endpoints if endpoint.method == "POST"}

    async def invoke(call: Call) -> Answer:
        path = next((path for names, path in _TARGETS if set(names) <= call.body.keys()), None)
        if path is None:
            wanted = "; ".join(" and ".join(names) for names, _ in _TARGETS)
            raise BadRequest(None, f"the body must have one of: {wanted}")
        endpoint = by_path.get(path)
        if endpoint is None:
            raise Unsupported(f"{path} is not supported by this server")
        body = decode_body(call.raw_body, endpoint.body, is_strict=endpoint.is_strict)
        return await endpoint.handler(dataclasses.replace(call, body=body))

    return Endpoint(
        method="POST",
        path="/invocations",
        handler=invoke,
        summary="Chat, completions, embeddings, scores or tokens, by the fields of the body.",
        body=dict[str, msgspec.Raw],
    )
