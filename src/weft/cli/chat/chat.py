"""`weft chat`: answers one message, or runs a conversation on the terminal."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from importlib import import_module

from weft.cli.chat.connect import check_address, handle_interrupts
from weft.cli.chat.conversation import Conversation
from weft.cli.chat.screen import Screen, print_answer, speed
from weft.cli.options import ChatOptions, ConnectOptions, SampleOptions
from weft.cli.shown import print_json
from weft.core.errors import ConfigError

_EMPTY = (
    'the message must not be empty: give it as an argument (weft chat "...") or on standard input'
)
# Returns the options of the connection once the server is reachable; cleanup at the end of the conversation is
# registered in the stack.
Reach = Callable[[AsyncExitStack], Awaitable[ConnectOptions]]


def chat(
    message: str | None, options: ChatOptions, connect: ConnectOptions, sample: SampleOptions
) -> int:
    """Runs a chat with the server of the --address flag; returns the exit status."""
    check_address(connect.address)  # before the message is read from standard input

    async def reach(stack: AsyncExitStack) -> ConnectOptions:
        del stack
        return connect

    return converse(message, options, sample, reach)


def converse(message: str | None, options: ChatOptions, sample: SampleOptions, reach: Reach) -> int:
    """Answers `message` or standard input, or runs a conversation on the terminal if neither is there; returns the exit
    status.
    """
    handle_interrupts()
    if message is None and not sys.stdin.isatty():
        message = sys.stdin.read().strip()
    if message is not None and not message.strip():
        raise ConfigError(_EMPTY)
    if message is None and options.json:
        raise ConfigError('--json needs a message: weft chat "..." --json')
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            talk = runner.run(_open(stack, options, sample, reach))
            if message is None:
                session = import_module("weft.cli.chat.session").ChatSession
                session(runner, talk, options).hold()
            else:
                runner.run(_answer_once(talk, message, options))
        finally:
            # A second Ctrl-C must not leave a server process behind; closing takes at most seconds.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            runner.run(stack.aclose())
    return 0


async def _open(
    stack: AsyncExitStack, options: ChatOptions, sample: SampleOptions, reach: Reach
) -> Conversation:
    connect = await reach(stack)
    return await Conversation.open(
        stack, connect, sample, system=options.system, thinks=options.think
    )


async def _answer_once(talk: Conversation, message: str, options: ChatOptions) -> None:
    screen = Screen(options.reasoning, "--reasoning show")
    if not options.json:
        await print_answer(screen, talk, talk.say(message))
    else:
        async with aclosing(talk.say(message)) as parts:
            async for _ in parts:
                pass
        print_json(_as_json(talk), is_line=True)
    if options.verbose:
        screen.note(speed(talk.last))


def _as_json(talk: Conversation) -> dict[str, object]:
    answer = talk.last
    return {
        "model": talk.model,
        "content": answer.content,
        "reasoning": answer.reasoning or None,
        "finish_reason": answer.finish_reason,
        "usage": {
            "prompt_tokens": answer.num_prompt_tokens,
            "cached_tokens": answer.num_cached_tokens,
            "completion_tokens": answer.num_tokens,
            "reasoning_tokens": answer.num_reasoning_tokens,
        },
    }
