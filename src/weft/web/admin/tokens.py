"""`/tokenize` and `/detokenize`: what a request's text is in tokens, and the other way round."""

import asyncio
from typing import Any

import msgspec

from weft.core.errors import BadRequest, Unsupported
from weft.web.http.endpoint import Answer, Call, Endpoint
from weft.web.openai.model_names import resolve_model
from weft.web.served import Served


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """Either `prompt` or `messages`. Unset `add_special_tokens` is true for the first only."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None


class TokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`tokens` are ids; `token_strs` what each adds to the text, if that was asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids, special ones included."""

    model: str | None = None
    tokens: list[int]


class DetokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Their text."""

    prompt: str


class TokenizerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a client needs to count and to template as the server does."""

    tokenizer_class: str = "PreTrainedTokenizerFast"
    vocab_size: int
    max_model_len: int
    special_tokens: dict[str, str]
    truncation_side: str
    chat_template: str | None


async def _tokenize(call: Call) -> Answer:
    body: TokenizeBody = call.body
    resolve_model(call.served, body.model)
    # Off the event loop: long texts take their time, and a template runs in a process of its own.
    return await asyncio.to_thread(_to_tokens, call.served, body)


def _to_tokens(served: Served, body: TokenizeBody) -> TokenizeAnswer:
    text, adds_special = _text(served, body)
    if body.add_special_tokens is not None:
        adds_special = body.add_special_tokens
    ids = served.tokenizer.encode(text, add_special_tokens=adds_special)
    strings = None
    if body.return_token_strs:
        strings = [
            served.tokenizer.token_to_text(token_id, ids[max(position - 4, 0) : position])
            for position, token_id in enumerate(ids)
        ]
    return TokenizeAnswer(
        count=len(ids),
        max_model_len=served.client.model_config.max_model_len,
        tokens=ids,
        token_strs=strings,
    )


def _text(served: Served, body: TokenizeBody) -> tuple[str, bool]:
    """The text to encode, and whether special tokens usually go around it."""
    if (body.prompt is None) == (body.messages is None):
        raise BadRequest("prompt", "give either prompt or messages")
    if body.chat_template is not None:
        raise BadRequest("chat_template", "chat_template cannot be given with a request")
    if body.mm_processor_kwargs is not None:
        raise BadRequest("mm_processor_kwargs", "mm_processor_kwargs: the model reads text only")
    if body.prompt is not None:
        if not body.add_generation_prompt or body.continue_final_message:
            raise BadRequest(
                "add_generation_prompt",
                "add_generation_prompt and continue_final_message are for messages",
            )
        for name in ("tools", "documents", "chat_template_kwargs"):
            if getattr(body, name) is not None:
                raise BadRequest(name, f"{name} is for messages")
        return body.prompt, True
    if served.chat_template is None:
        raise Unsupported(
            "the model has no chat template; give prompt, or start with --chat-template"
        )
    text = served.chat_template.render(
        body.messages or [],
        tools=body.tools,
        documents=body.documents,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        **(body.chat_template_kwargs or {}),
    )
    return text, False


async def _detokenize(call: Call) -> Answer:
    body: DetokenizeBody = call.body
    resolve_model(call.served, body.model)
    vocab_size = call.served.client.model_config.vocab_size
    for position, token_id in enumerate(body.tokens):
        if not 0 <= token_id < vocab_size:
            raise BadRequest(
                f"tokens[{position}]",
                f"tokens[{position}] must be between 0 and {vocab_size - 1}, got {token_id}",
            )
    tokenizer = call.served.tokenizer
    text = await asyncio.to_thread(tokenizer.decode, body.tokens, skip_special_tokens=False)
    return DetokenizeAnswer(prompt=text)


async def _info(call: Call) -> Answer:
    served = call.served
    return TokenizerInfo(
        vocab_size=served.tokenizer.vocab_size,
        max_model_len=served.client.model_config.max_model_len,
        special_tokens=dict(served.tokenizer.special_tokens),
        truncation_side=served.tokenizer.truncation_side,
        chat_template=None if served.chat_template is None else served.chat_template.source,
    )


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/tokenize",
        handler=_tokenize,
        summary="Text, or a conversation, to token ids.",
        body=TokenizeBody,
        answer=TokenizeAnswer,
    ),
    Endpoint(
        method="POST",
        path="/detokenize",
        handler=_detokenize,
        summary="Token ids to text.",
        body=DetokenizeBody,
        answer=DetokenizeAnswer,
    ),
    Endpoint(
        method="GET",
        path="/tokenizer_info",
        handler=_info,
        summary="The tokenizer's facts and the chat template.",
        answer=TokenizerInfo,
    ),
)
