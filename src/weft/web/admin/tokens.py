"""`/tokenize` and `/detokenize`: the tokens of a text or conversation, and the text of tokens."""

import asyncio
from functools import partial
from typing import Any

import msgspec

from weft.core.checks.scalars import shown
from weft.core.errors import BadRequest, ContextLengthExceeded, Unsupported
from weft.text.prompts import check_length
from weft.text.templates.render_processes import Rendering
from weft.text.tokenizer import Tokenizer
from weft.web.chat.prompt import find_template, render_processes, template_messages
from weft.web.http.endpoint import Answer, Call, endpoint
from weft.web.inference.call import ModelCall, model_endpoint
from weft.web.served import Served


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """Either `prompt` or `messages`. If unset, `add_special_tokens` is true for `prompt` only."""

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
    """`tokens` are ids; `token_strs` the tokenizer's own names of them, if they were requested."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids, special ones included."""

    model: str | None = None
    tokens: list[int]


class DetokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The text of the tokens."""

    prompt: str


class TokenizerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Data that a client needs to count tokens and to apply the chat template as the server does."""

    tokenizer_class: str = "PreTrainedTokenizerFast"
    vocab_size: int
    max_model_len: int
    special_tokens: dict[str, str]
    truncation_side: str
    chat_template: str | None


@model_endpoint(
    "POST /tokenize", body=TokenizeBody, example={"prompt": "Hello!"}, answer=TokenizeAnswer
)
async def _tokenize(call: ModelCall) -> Answer:
    """Text, or a conversation, to token ids."""
    body: TokenizeBody = call.body
    served = call.served
    text, adds_special = await _text(served, body)
    if body.add_special_tokens is not None:
        adds_special = body.add_special_tokens
    check_length(len(text), served.tokenizer, served.client.info.limits)
    work = partial(_to_tokens, served.tokenizer, text, adds_special, body.return_token_strs)
    ids, strings = await served.tokenizer.soon(len(text), work)
    return TokenizeAnswer(
        count=len(ids),
        max_model_len=served.client.model_config.max_model_len,
        tokens=ids,
        token_strs=strings,
    )


def _to_tokens(
    tokenizer: Tokenizer, text: str, adds_special: bool, has_strings: bool
) -> tuple[list[int], list[str] | None]:
    ids = tokenizer.encode(text, add_special_tokens=adds_special)
    strings = [tokenizer.id_to_token(token_id) or "" for token_id in ids] if has_strings else None
    return ids, strings


async def _text(served: Served, body: TokenizeBody) -> tuple[str, bool]:
    """The text to encode, and whether special tokens are added to it by default."""
    if (body.prompt is None) == (body.messages is None):
        raise BadRequest("prompt", "give either prompt or messages")
    if body.mm_processor_kwargs is not None:
        raise BadRequest("mm_processor_kwargs", "mm_processor_kwargs: the model reads text only")
    if body.prompt is not None:
        if not body.add_generation_prompt or body.continue_final_message:
            raise BadRequest(
                "add_generation_prompt",
                "add_generation_prompt and continue_final_message are for messages",
            )
        for name in ("tools", "documents", "chat_template", "chat_template_kwargs"):
            if getattr(body, name) is not None:
                raise BadRequest(name, f"{name} is for messages")
        return body.prompt, True
    if body.chat_template is None and served.chat_template is None:
        raise Unsupported(
            "the model has no chat template; give prompt, or start with --chat-template"
        )
    processes = render_processes(served, body.chat_template)
    text, _ = await processes.run_soon(lambda: (_rendering(served, body), None))
    return text, False


def _rendering(served: Served, body: TokenizeBody) -> Rendering:
    template = find_template(served, body.chat_template)
    return template.prepare(
        template_messages(body.messages or [], template.source),
        tools=body.tools,
        documents=body.documents,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        template_kwargs=body.chat_template_kwargs,
    )


@model_endpoint(
    "POST /detokenize", body=DetokenizeBody, example={"tokens": [72, 105]}, answer=DetokenizeAnswer
)
async def _detokenize(call: ModelCall) -> Answer:
    """Token ids to text."""
    body: DetokenizeBody = call.body
    model = call.served.client.model_config
    if len(body.tokens) > model.max_model_len:
        raise ContextLengthExceeded(
            "tokens",
            f"this model's maximum context length is {model.max_model_len} tokens, "
            f"and tokens has {len(body.tokens)}",
            len(body.tokens),
        )
    return DetokenizeAnswer(prompt=await asyncio.to_thread(_to_text, call.served, body.tokens))


def _to_text(served: Served, token_ids: list[int]) -> str:
    vocab_size = served.client.model_config.vocab_size
    for position, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            raise BadRequest(
                f"tokens[{position}]",
                f"tokens[{position}] must be between 0 and {vocab_size - 1}, got {shown(token_id)}",
            )
    text = served.tokenizer.decode(token_ids, skip_special_tokens=False)
    most_chars = served.client.info.limits.max_text_chars
    if len(text) > most_chars:
        raise BadRequest(
            "tokens", f"the text has {len(text)} characters; answers have at most {most_chars}"
        )
    return text


@endpoint("GET /tokenizer_info", answer=TokenizerInfo)
async def _info(call: Call) -> Answer:
    """The tokenizer's facts and the chat template."""
    served = call.served
    return TokenizerInfo(
        vocab_size=served.tokenizer.vocab_size,
        max_model_len=served.client.model_config.max_model_len,
        special_tokens=dict(served.tokenizer.special_tokens),
        truncation_side=served.tokenizer.truncation_side,
        chat_template=None if served.chat_template is None else served.chat_template.source,
    )


ENDPOINTS = (_tokenize, _detokenize, _info)
