"""The common part of the pooling APIs: reads prompts from a body, and runs them in the engine."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from weft.core.aio.tasks import gather_all
from weft.core.config.engine import PoolerConfig
from weft.core.errors import BadRequest, GenerationError
from weft.core.values.prompts import PromptType
from weft.core.values.types import PoolingParams, PoolingRequestOutput, SamplingParams
from weft.schema.pooling import InputFields, PoolingFields, PoolingUsage
from weft.web.chat.prompt import (
    render,
    tokenization_kwargs,
    trusted_template,
    with_salt,
)
from weft.web.chat.turn import Turn
from weft.web.inference.call import ModelCall, naming
from weft.web.inference.fields import refuse_unsupported
from weft.web.served import Served

# OpenAI's limit. Each input is a request of its own and takes a place in the queue.
MAX_INPUTS = 2048
# Maximum running inputs of one HTTP request: enough to fill steps, and few enough to leave places for others.
_MAX_OPEN = 128


@dataclass(frozen=True, slots=True)
class Prompts:
    """Texts or lists of ids, and how texts are made into tokens."""

    prompts: Sequence[PromptType]
    kwargs: dict[str, Any] = field(default_factory=dict)


def pooler_of(served: Served, *tasks: str) -> PoolerConfig:
    """Returns the model's pooler; `BadRequest` unless it supports one of `tasks` (none: any)."""
    pooler = served.client.info.pooler
    wanted = " or ".join(tasks) or "pooling"
    if pooler is None:
        raise BadRequest("model", f"the model does not support {wanted}: it generates text")
    if tasks and not set(tasks) & set(pooler.tasks):
        raise BadRequest(
            "model", f"the model does not support {wanted}; it supports {', '.join(pooler.tasks)}"
        )
    return pooler


def check_fields(served: Served, body: PoolingFields) -> None:
    """Refuses unsupported fields, before anything is tokenized."""
    refuse_unsupported(body)
    served.client.info.check_priority(body.priority or 0)


async def read_inputs(call: ModelCall, body: InputFields) -> Prompts:
    """The inputs of a body, in either of their two forms."""
    check_fields(call.served, body)
    if body.messages is not None and body.input is not None:
        raise BadRequest("messages", "give input or messages, not both")
    if body.messages is not None:
        text = await render(call.served, _turn(call, body, body.messages))
        return Prompts([text], tokenization(body, add_special_tokens=False))
    if body.chat_template is not None:
        raise BadRequest("chat_template", "chat_template is for messages")
    if body.input is None or body.input == "":
        raise BadRequest("input", "Input or messages must be provided")
    return Prompts(split_input(body.input), tokenization(body, add_special_tokens=True))


def tokenization(body: PoolingFields, *, add_special_tokens: bool) -> dict[str, Any]:
    """`tokenization_kwargs`, with defaults for fields that the body leaves out."""
    given = body.add_special_tokens
    return tokenization_kwargs(
        add_special_tokens=add_special_tokens if given is None else given,
        truncation_side=body.truncation_side,
    )


def split_input(given: str | list[str | int | list[int]]) -> list[PromptType]:
    """The inputs, each a text or ids; `BadRequest` for a mixture."""
    if isinstance(given, str):
        return [given]
    kinds = set(map(type, given))
    if len(kinds) > 1:
        raise BadRequest("input", "input must hold texts, or ids, or lists of ids, and no mixture")
    if kinds == {int}:
        return [cast(list[int], given)]
    if len(given) > MAX_INPUTS:
        raise BadRequest("input", f"at most {MAX_INPUTS} inputs are taken, got {len(given)}")
    return cast(list[PromptType], given)


def _turn(call: ModelCall, body: InputFields, messages: list[dict[str, Any]]) -> Turn:
    return Turn(
        options=call.request_options(),
        messages=messages,
        params=SamplingParams(),
        chat_template=trusted_template(call.served, body.chat_template),
        template_kwargs=body.chat_template_kwargs or {},
        add_generation_prompt=bool(body.add_generation_prompt),
        continue_final_message=bool(body.continue_final_message),
    )


async def run_all(
    call: ModelCall, body: PoolingFields, prompts: Prompts, params: PoolingParams
) -> list[PoolingRequestOutput]:
    """The outputs of all prompts, in order. The first failure ends the other requests."""
    client = call.served.client
    names: dict[str, str] = {}
    if isinstance(body, InputFields):
        own = "input" if body.messages is None else "messages"
        names = {"prompt": own, "prompt_token_ids": own}
    gate = asyncio.Semaphore(_MAX_OPEN)
    turn = asyncio.Lock()

    async def run(position: int, prompt: PromptType) -> PoolingRequestOutput:
        async with gate:
            # One input begins in each turn of the event loop, so that others can run between.
            async with turn:
                await asyncio.sleep(0)
            options = msgspec.structs.replace(
                call.request_options(body.priority),
                request_id=f"{call.request_id}-{position}",
                tokenization_kwargs=prompts.kwargs,
            )
            with client.preparing(1):
                salted = with_salt(prompt, body.cache_salt)
                with naming(names):
                    request = await client.prepare(salted, params, options)
            async with aclosing(client.run_pooling(request)) as outputs:
                async for output in outputs:
                    if not output.data:
                        raise GenerationError("the request was aborted")
                    return output
        raise GenerationError("the engine ended the request without a result")

    return await gather_all(
        run(position, prompt) for position, prompt in enumerate(prompts.prompts)
    )


def usage_of(outputs: Sequence[PoolingRequestOutput]) -> PoolingUsage:
    """The tokens of all prompts."""
    total = sum(len(output.prompt_token_ids) for output in outputs)
    return PoolingUsage(prompt_tokens=total, total_tokens=total)
