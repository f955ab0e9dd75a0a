"""The `/render` endpoints of chats and completions: they return the token ids of the prompts, without generating."""

import msgspec
from starlette.responses import Response

from weft.core.errors import BadRequest
from weft.core.values.types import Request, SamplingParams
from weft.schema.chat import ChatBody
from weft.schema.completion import CompletionBody
from weft.schema.tokens import TokensBody
from weft.web.chat.run import prepare_turn
from weft.web.http.endpoint import Answer
from weft.web.inference.call import ModelCall, model_endpoint
from weft.web.inference.fields import beyond_openai
from weft.web.inference.rendered import offsets_of, refuse_media, to_tokens_body
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
    request = (await prepare_turn(call.served, turn)).request
    refuse_media(request, "messages")
    return await _rendered(
        call, body, request, turn.params, is_framed=turn.add_special_tokens, prefix="chatcmpl"
    )


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
    is_framed = body.add_special_tokens is not False
    rendered = [
        await _rendered(call, body, request, params, is_framed=is_framed, prefix="cmpl")
        for request in requests
    ]
    return Response(msgspec.json.encode(rendered), media_type="application/json")


async def _rendered(
    call: ModelCall,
    body: ChatBody | CompletionBody,
    request: Request,
    params: SamplingParams,
    *,
    is_framed: bool,
    prefix: str,
) -> TokensBody:
    offsets = None
    if body.return_token_offsets:
        offsets = await offsets_of(call.served.tokenizer, request, add_special_tokens=is_framed)
    return to_tokens_body(
        call,
        request,
        params,
        request_id=f"{prefix}-{call.label}",
        is_streamed=body.stream,
        offsets=offsets,
    )
