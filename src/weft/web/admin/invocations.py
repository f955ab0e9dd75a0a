"""`/invocations`: SageMaker's only path, which serves the API that the body's fields belong to."""

import dataclasses
from collections.abc import Collection, Iterable

import msgspec

from weft.core.errors import BadRequest, Unsupported
from weft.web.http.endpoint import Answer, Call, Endpoint, endpoint

# The first row whose fields are all in the body decides; None stands for the endpoint of the model's task.
_TARGETS = (
    (("prompt",), "/v1/completions"),
    (("query", "documents"), "/rerank"),
    (("text_1", "text_2"), "/score"),
    (("queries", "documents"), "/score"),
    (("token_ids",), "/inference/v1/generate"),
    (("messages",), None),
    (("input", "task"), "/pooling"),
    (("input",), None),
)
# For pooling models: the endpoint of the first of these tasks that the model supports.
_POOLING = (("embed", "/v1/embeddings"), ("classify", "/classify"))


def invocations_endpoint(endpoints: Iterable[Endpoint]) -> Endpoint:
    """Returns the endpoint that passes each call to one of `endpoints`."""
    by_path = {one.path: one for one in endpoints if one.method == "POST"}

    @endpoint(
        "POST /invocations",
        body=dict[str, msgspec.Raw],
        example={"prompt": "The capital of France is", "max_tokens": 16},
    )
    async def invoke(call: Call) -> Answer:
        """Chat, completions, responses, embeddings, scores or tokens, by the fields of the body."""
        pooler = call.served.client.info.pooler
        path = target_of(call.body.keys(), () if pooler is None else pooler.tasks)
        if path is None:
            wanted = "; ".join(" and ".join(names) for names, _ in _TARGETS)
            raise BadRequest(None, f"the body must have one of: {wanted}")
        target = by_path.get(path)
        if target is None:
            raise Unsupported(f"{path} is not supported by this server")
        assert call.decode is not None, "the server gives it to every call"
        body = await call.decode(target)
        return await target.handler(dataclasses.replace(call, body=body))

    return invoke


def target_of(names: Collection[str], tasks: Collection[str]) -> str | None:
    """Returns the path of the endpoint for a body with the fields `names` and a model with the pooling `tasks`; None if
    no endpoint fits.
    """
    for wanted, path in _TARGETS:
        if not set(wanted) <= set(names):
            continue
        if path is not None:
            return path
        if not tasks:
            return "/v1/chat/completions" if "messages" in names else "/v1/responses"
        return next((path for task, path in _POOLING if task in tasks), "/pooling")
    return None
