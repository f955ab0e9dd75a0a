"""The `/render` endpoints of chats and completions: they return the token ids of the prompts, without generating.

The result is a request body for `/inference/v1/generate`. Routers call these endpoints to find the prefixes that a
request shares with earlier requests.
"""

import msgspec
from starlette.responses import Response

from weft.core.errors import BadRequest
from weft.core.values.types import Request, SamplingParams
from weft.schema.chat import ChatBody
from weft.schema.completion import CompletionBody
from weft.schema.tokens import TokensBody, TokensParams
from weft.web.chat.run import prepare_turn
from weft.web.http.endpoint import Answer
from weft.web.inference.call import ModelCall, model_endpoint
from weft.web.inference.fields import beyond_openai
from weft.web.openai import chat, completions
from weft.web.openai.chat import to_shape, to_turn
from weft.web.openai.completions import check_body, completion_params, prepare_all


@model_endpoint(
    "POST /v1/chat/completions/render",
    body=ChatBody,
    example=chat.EXAMPLE,
    deviations=beyond_openai,
    answer=TokensBody,
)
async def render_chat(call: ModelCall) -> Answer:
    """A conversation's prompt in tokens, as a body of /inference/v1/generate

    What forces a tool call is no part of a prompt, and is left out.
    """
    body: ChatBody = call.body
    turn = to_turn(call, body)
    to_shape(call, body, turn)  # raises the errors that a chat request would get
    prepared = await prepare_turn(call.served, turn)
    if prepared.request.media is not None or prepared.request.items:
        raise BadRequest(
            "messages", "messages with media cannot be rendered: their tokens are not known yet"
        )
    return _rendered(call, "chatcmpl", prepared.request, turn.params, body)


@model_endpoint(
    "POST /v1/completions/render",
    body=CompletionBody,
    example=completions.EXAMPLE,
    deviations=beyond_openai,
    answer=list[TokensBody],
)
async def render_completion(call: ModelCall) -> Answer:
    """Tokenize one or several prompts; each result is a body of /inference/v1/generate"""
    body: CompletionBody = call.body
    check_body(body)
    if body.prompt_embeds:
        raise BadRequest("prompt_embeds", "prompt_embeds has no token ids that could be rendered")
    params = completion_params(call.served, body)
    requests = await prepare_all(call, body, params)
    rendered = [_rendered(call, "cmpl", request, params, body) for request in requests]
    return Response(msgspec.json.encode(rendered), media_type="application/json")


def _rendered(
    call: ModelCall,
    prefix: str,
    request: Request,
    params: SamplingParams,
    body: ChatBody | CompletionBody,
) -> TokensBody:
    # As in the request, except the resolved max_tokens: the prepared parameters no longer have the constraints.
    given = msgspec.structs.asdict(params) | {"max_tokens": request.params.max_tokens}
    return TokensBody(
        token_ids=request.prompt_token_ids,
        sampling_params=TokensParams(**given),
        model=call.model,
        request_id=f"{prefix}-{call.label}",
        stream=body.stream,
        cache_salt=request.cache_salt,
        priority=body.priority,
    )
