"""`weft complete`: prints the continuation of a text while it is generated."""

import asyncio
import sys
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from weft.cli.chat.connect import (
    check_address,
    connected,
    handle_interrupts,
    is_http,
    to_sampling_params,
)
from weft.cli.chat.http_model import given_fields
from weft.cli.chat.openai_server import OpenAIServer
from weft.cli.options import CompleteOptions, ConnectOptions, SampleOptions
from weft.cli.shown import print_json
from weft.core.errors import ConfigError
from weft.core.observe.terminal import say

DEFAULT_MAX_TOKENS = 128  # a model that was not trained to stop would fill its context


@dataclass(slots=True)
class _Completion:
    text: str = ""
    finish_reason: str | None = None
    num_tokens: int = 0
    num_prompt_tokens: int = 0


def complete(
    prompt: str | None, options: CompleteOptions, connect: ConnectOptions, sample: SampleOptions
) -> int:
    """Prints the continuation of the prompt, or of standard input; returns the exit status."""
    handle_interrupts()
    check_address(connect.address)
    if prompt is None and sys.stdin.isatty():
        raise ConfigError(
            'the prompt is missing or empty: give a text to continue, as in weft complete "Once upon a time"'
        )
    text = sys.stdin.read() if prompt is None else prompt
    asyncio.run(_complete(text, connect, sample, is_json=options.json))
    return 0


async def _complete(
    prompt: str, connect: ConnectOptions, sample: SampleOptions, *, is_json: bool
) -> None:
    made = _Completion()
    read = _over_http if is_http(connect.address) else _over_grpc
    is_open = False
    try:
        async with aclosing(read(prompt, connect, sample, made)) as pieces:
            async for piece in pieces:
                made.text += piece
                is_open = True
                if not is_json:
                    say(piece, end="")
    finally:
        if is_open and not is_json:
            say()
    if is_json:
        usage = {
            "prompt_tokens": made.num_prompt_tokens,
            "completion_tokens": made.num_tokens,
        }
        shown = {"text": made.text, "finish_reason": made.finish_reason, "usage": usage}
        print_json(shown, is_line=True)


async def _over_grpc(
    prompt: str, connect: ConnectOptions, sample: SampleOptions, made: _Completion
) -> AsyncGenerator[str, None]:
    """Yields the text of the continuation as the gRPC server sends it. Token counts and times are recorded in
    `made`.
    """
    async with connected(connect) as client:
        params = to_sampling_params(sample, client, max_tokens=DEFAULT_MAX_TOKENS)
        outputs = client.generate(prompt, params, f"cli-{uuid.uuid4().hex}")
        async with aclosing(outputs):
            async for output in outputs:
                made.num_prompt_tokens = len(output.prompt_token_ids)
                for answer in output.outputs:
                    made.num_tokens += len(answer.token_ids)
                    made.finish_reason = answer.finish_reason
                    yield answer.text


async def _over_http(
    prompt: str, connect: ConnectOptions, sample: SampleOptions, made: _Completion
) -> AsyncGenerator[str, None]:
    """Yields the text of the continuation as the HTTP server sends it. Token counts and times are recorded in
    `made`.
    """
    body = {"max_tokens": DEFAULT_MAX_TOKENS, **given_fields(sample), "prompt": prompt}
    async with (
        OpenAIServer.connected(connect) as server,
        aclosing(server.stream("/completions", body)) as chunks,
    ):
        async for chunk in chunks:
            if chunk.usage is not None:
                made.num_prompt_tokens = chunk.usage.prompt_tokens
                made.num_tokens = chunk.usage.completion_tokens
            for choice in chunk.choices[:1]:
                made.finish_reason = choice.finish_reason or made.finish_reason
                yield choice.text
