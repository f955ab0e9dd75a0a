"""`weft complete`: one text in, its continuation out, as it comes."""

import asyncio
import sys
from contextlib import aclosing

from weft.cli.connect import connected, handle_interrupts, stream_text, to_sampling_params
from weft.cli.options import ConnectOptions, SampleOptions
from weft.core.errors import ConfigError
from weft.core.terminal import say

DEFAULT_MAX_TOKENS = 128  # a model that was never taught to stop fills its context


def complete(
    prompt: str | None = None,
    *,
    connect: ConnectOptions = ConnectOptions(),
    sample: SampleOptions = SampleOptions(),
) -> int:
    """Continue a text with the served model.

    Parameters
    ----------
    prompt
        The text; read from standard input if not given.
    """
    handle_interrupts()
    if prompt is None and sys.stdin.isatty():
        raise ConfigError('give a text to continue: weft complete "Once upon a time"')
    text = sys.stdin.read() if prompt is None else prompt
    asyncio.run(_complete(text, connect, sample))
    return 0


async def _complete(prompt: str, connect: ConnectOptions, sample: SampleOptions) -> None:
    async with connected(connect) as client:
        params = to_sampling_params(
            sample, client.model_config.default_sampling_params, max_tokens=DEFAULT_MAX_TOKENS
        )
        try:
            async with aclosing(stream_text(client, prompt, params)) as pieces:
                async for piece in pieces:
                    say(piece, end="")
        finally:
            say()
