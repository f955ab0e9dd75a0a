"""/api/generate: a text and its continuation, with the chat template or without."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET

from weft.core.errors import BadRequest
from weft.core.values.types import OutputKind, SamplingParams
from weft.schema.ollama import OllamaGenerateAnswer, OllamaGenerateBody, Timings
from weft.text.parsers.parts import Content
from weft.web.chat.answers import REASONS
from weft.web.chat.prompt import prepare
from weft.web.chat.run import run_turn
from weft.web.chat.turn import Began, Ended, Turn, TurnDelta, TurnEvent
from weft.web.http.endpoint import Answer
from weft.web.inference.call import ModelCall, naming
from weft.web.ollama.chat import to_images
from weft.web.ollama.options import NAMES, check_load, deviations, to_params, to_template_kwargs
from weft.web.ollama.stream import answer_events, is_streamed, ollama_endpoint
from weft.web.ollama.writer import Piece, now

_REFUSED = {
    "suffix": "text in the middle of a text is not offered",
    "template": "templates in Go are not read; the model's own chat template is used, or none with raw",
    "context": "it was replaced by messages: use /api/chat",
}
_OF_RAW = ("system", "images", "think")


@ollama_endpoint(
    "POST /api/generate",
    body=OllamaGenerateBody,
    deviations=deviations,
    example={"prompt": "The capital of France is", "stream": False},
    answer=OllamaGenerateAnswer,
    event=OllamaGenerateAnswer,
)
async def create_text(call: ModelCall) -> Answer:
    """An answer to one prompt in Ollama's words, streamed or in one piece"""
    body: OllamaGenerateBody = call.body
    _check(body)
    if not body.prompt and not body.images:
        return text_answer(body, Piece(end=Timings(done_reason=check_load(body.keep_alive))))
    params = to_params(call.served, body)
    if body.raw:
        events = _continue(call, body, params)
    else:
        events = run_turn(call.served, _turn(call, body, params))
    return await answer_events(call, events, params, partial(text_answer, body))


def text_answer(body: OllamaGenerateBody, piece: Piece) -> OllamaGenerateAnswer:
    """A piece of an answer in the form of /api/generate."""
    end = piece.end
    return OllamaGenerateAnswer(
        model=body.model,
        created_at=now(),
        response=piece.content,
        thinking=piece.thinking or UNSET,
        logprobs=piece.logprobs,
        done=end is not None,
        **({} if end is None else msgspec.structs.asdict(end)),
    )


def _check(body: OllamaGenerateBody) -> None:
    for name, reason in _REFUSED.items():
        if value := getattr(body, name):
            raise BadRequest(name, f"{name} must be absent: {reason}", value)
    for name in _OF_RAW:
        if body.raw and getattr(body, name):
            raise BadRequest(name, f"{name} does not go with raw, which uses no chat template")


def _turn(call: ModelCall, body: OllamaGenerateBody, params: SamplingParams) -> Turn:
    prompt: dict[str, Any] = {"role": "user", "content": body.prompt or ""}
    if body.images:
        text = {"type": "text", "text": body.prompt or ""}
        prompt["content"] = [*to_images(body.images), text]
    system = [{"role": "system", "content": body.system}] if body.system else []
    return Turn(
        options=call.request_options(),
        messages=[*system, prompt],
        params=params,
        template_kwargs=to_template_kwargs(body.think),
        include_reasoning=body.think is not False,
        is_streamed=is_streamed(body),
        names=NAMES,
    )


async def _continue(
    call: ModelCall, body: OllamaGenerateBody, params: SamplingParams
) -> AsyncGenerator[TurnEvent, None]:
    """The events of a text that continues the prompt as it is."""
    kind = OutputKind.DELTA if is_streamed(body) else OutputKind.FINAL_ONLY
    params = msgspec.structs.replace(params, output_kind=kind)
    client = call.served.client
    with client.preparing(1), naming({**NAMES, "prompt_token_ids": "prompt"}):
        request = await prepare(call.served, body.prompt or "", params, call.request_options())
    num_cached_tokens, is_begun = 0, False
    async with aclosing(client.run(request)) as outputs:
        async for output in outputs:
            if not is_begun:
                is_begun = True
                yield Began(prompt="", prompt_token_ids=output.prompt_token_ids)
            num_cached_tokens = output.num_cached_tokens
            for answer in output.outputs:
                reason = answer.finish_reason
                yield TurnDelta(
                    index=0,
                    parts=[Content(answer.text)] if answer.text else [],
                    token_ids=answer.token_ids,
                    logprobs=answer.logprobs,
                    finish_reason=None if reason is None else REASONS[reason],
                )
    yield Ended(num_cached_tokens=num_cached_tokens)
