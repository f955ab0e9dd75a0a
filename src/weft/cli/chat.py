"""`weft chat`: a conversation with the served model, in the terminal."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, aclosing
from typing import Any

from weft.cli.connect import connected, handle_interrupts, stream_text, to_sampling_params
from weft.cli.options import ChatOptions, ConnectOptions, SampleOptions
from weft.core.errors import BadRequest, ConfigError
from weft.core.terminal import say
from weft.core.types import SamplingParams
from weft.model.tokenizer import read_chat_template
from weft.rpc.client import RpcClient
from weft.text.chat import ChatTemplate
from weft.text.tokenizer import Tokenizer, open_tokenizer

PROMPT = "> "


def chat(
    message: str | None = None,
    *,
    chat_: ChatOptions = ChatOptions(),
    connect: ConnectOptions = ConnectOptions(),
    sample: SampleOptions = SampleOptions(),
) -> int:
    """Talk with the served model. Ctrl-C ends an answer, Ctrl-D the conversation.

    Parameters
    ----------
    message
        Say this, print the answer and leave. Without it, each line of standard input is a message.
    """
    handle_interrupts()
    messages = _typed() if message is None else iter([message])
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            talk = runner.run(Conversation.open(stack, chat_, connect, sample))
            for text in messages:
                _answer(runner, talk, text)
        finally:
            runner.run(stack.aclose())
    return 0


def _answer(runner: asyncio.Runner, talk: "Conversation", text: str) -> None:
    try:
        runner.run(talk.answer(text))
    except KeyboardInterrupt:  # the runner has ended the answer; the conversation goes on
        print("[stopped]", file=sys.stderr)
    except BadRequest as err:  # too long, for instance: say so, and let the next message try
        say(f"error: {err}", file=sys.stderr)


def _typed() -> Iterator[str]:
    """The lines that are typed or piped in, without empty ones."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        print("Ctrl-C ends an answer, Ctrl-D the conversation.", file=sys.stderr)
    while True:
        try:
            line = input(PROMPT) if is_terminal else sys.stdin.readline()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            continue
        if not line and not is_terminal:
            return
        if line.strip():
            yield line.strip()


class Conversation:
    """What was said so far, and what is needed to say more."""

    def __init__(
        self,
        client: RpcClient,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        params: SamplingParams,
        options: ChatOptions,
    ) -> None:
        self._client = client
        self._template = template
        self._tokenizer = tokenizer
        self._params = params
        self._kwargs: dict[str, Any] = (
            {} if options.think is None else {"enable_thinking": options.think}
        )
        self._messages: list[dict[str, str]] = []
        if options.system is not None:
            self._messages.append({"role": "system", "content": options.system})

    @classmethod
    async def open(
        cls,
        stack: AsyncExitStack,
        options: ChatOptions,
        connect: ConnectOptions,
        sample: SampleOptions,
    ) -> "Conversation":
        """Reach the server and learn how its model wants to be spoken to."""
        client = await stack.enter_async_context(connected(connect))
        files = await client.get_tokenizer_files()
        name = client.model_config.served_model_name
        source = read_chat_template(files, name)
        if source is None:
            raise ConfigError(f"{name} has no chat template; use weft complete")
        tokenizer = open_tokenizer(files, name)
        template = stack.enter_context(ChatTemplate(source, tokenizer.special_tokens))
        defaults = client.model_config.default_sampling_params
        params = to_sampling_params(sample, defaults, max_tokens=None)
        return cls(client, template, tokenizer, params, options)

    async def answer(self, text: str) -> None:
        """Say `text` and print the answer as it comes. Both become part of the conversation.

        An answer that was stopped is kept as far as it went; a message without an answer is not.
        """
        self._messages.append({"role": "user", "content": text})
        said = ""
        try:
            rendered = self._template.render(self._messages, template_kwargs=self._kwargs)
            # The template writes the special tokens itself.
            ids = self._tokenizer.encode(rendered, add_special_tokens=False)
            pieces = stream_text(self._client, {"prompt_token_ids": ids}, self._params)
            async with aclosing(pieces):
                async for piece in pieces:
                    said += piece
                    say(piece, end="")
        finally:
            if said:
                say()
                self._messages.append({"role": "assistant", "content": said})
            else:
                self._messages.pop()
