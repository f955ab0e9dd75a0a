"""`weft complete`: prints the continuation of a text while it is generated."""

import asyncio
import sys
import uuid
from contextlib import aclosing

from weft.cli.chat.connect import check_address, connected, handle_interrupts, to_sampling_params
from weft.cli.options import CompleteOptions, ConnectOptions, SampleOptions
from weft.cli.shown import print_json
from weft.core.errors import ConfigError
from weft.core.observe.terminal import say

DEFAULT_MAX_TOKENS = 128  # a model that was not trained to stop would fill its context


def complete(
    prompt: str | None, options: CompleteOptions, connect: ConnectOptions, sample: SampleOptions
) -> int:
    """Print the continuation of the prompt, or of standard input."""
    handle_interrupts()
    check_address(connect.address)
    if prompt is None and sys.stdin.isatty():
        raise ConfigError('give a text to continue: weft complete "Once upon a time"')
    text = sys.stdin.read() if prompt is None else prompt
    asyncio.run(_complete(text, connect, sample, is_json=options.json))
    return 0


async def _complete(
    prompt: str, connect: ConnectOptions, sample: SampleOptions, *, is_json: bool
) -> None:
    async with connected(connect) as client:
        params = to_sampling_params(sample, client, max_tokens=DEFAULT_MAX_TOKENS)
        text, num_tokens, finish_reason, num_prompt_tokens = "", 0, None, 0
        try:
            async with aclosing(
                client.generate(prompt, params, f"cli-{uuid.uuid4().hex}")
            ) as outputs:
                async for output in outputs:
                    num_prompt_tokens = len(output.prompt_token_ids)
                    for answer in output.outputs:
                        text += answer.text
                        num_tokens += len(answer.token_ids)
                        finish_reason = answer.finish_reason
                        if not is_json:
                            say(answer.text, end="")
        finally:
            if not is_json:
                say()
        if is_json:
            usage = {"prompt_tokens": num_prompt_tokens, "completion_tokens": num_tokens}
            print_json({"text": text, "finish_reason": finish_reason, "usage": usage}, is_line=True)
