"""`weft run`: serves a model on a loopback port for as long as a chat with it runs."""

import signal
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TextIO

from weft.cli.arguments.flags import flag_names
from weft.cli.chat.chat import converse
from weft.cli.commands import EXIT_USAGE
from weft.cli.options import ChatOptions, ConnectOptions, RunOptions, SampleOptions
from weft.cli.process.children import Child, ChildFailed, inherited_environment, weft_command
from weft.cli.process.limits import check_port
from weft.cli.process.state import state_file
from weft.cli.serving.servers import DEFAULT_MODEL, EXIT_SIGNALLED
from weft.cli.up.up import Worker
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.core.values.declare import spelled

_HOST = "127.0.0.1"
_STOP_S = 10.0


def run(
    model: str | None,
    message: str | None,
    options: RunOptions,
    chat: ChatOptions,
    sample: SampleOptions,
) -> int:
    """Starts the server, runs the chat and stops the server; returns the exit status."""
    # Ends the server process when this process gets a signal.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(EXIT_SIGNALLED + number))
    check_port(_HOST, options.port, "--port")
    argv = [*weft_command(), "serve", model or DEFAULT_MODEL, "--host", _HOST]
    argv += ["--port", str(options.port), "--grpc-port", "0", *_engine_flags(options)]
    argv += ["--log-format", options.log_format]

    async def reach(stack: AsyncExitStack) -> ConnectOptions:
        path, log = _open_log(options.log_file)
        stack.callback(log.close)
        print(f"starting {model or DEFAULT_MODEL}; its log is {path}", file=sys.stderr)
        child = await Child.start(
            "server", argv, inherited_environment(1), log, log_format=options.log_format
        )
        stack.push_async_callback(child.stop, _STOP_S)
        try:
            place = Worker.from_banner(await child.read_until("  try"))
        except ChildFailed as failed:
            if child.process.returncode == EXIT_USAGE:
                raise ConfigError(child.last_line.removeprefix("error: ")) from failed
            raise
        print(f"serves http://{place.http}/v1 meanwhile", file=sys.stderr)
        return ConnectOptions(address=place.grpc)

    return converse(message, chat, sample, reach)


def _engine_flags(options: RunOptions) -> Iterator[str]:
    """Yields the options that are set, as flags of `weft serve`."""
    neutral = RunOptions()
    for name in flag_names(EngineOptions):
        value = getattr(options, name)
        flag = spelled(name)
        if value == getattr(neutral, name):
            continue
        if isinstance(value, bool):
            yield flag if value else f"--no-{flag[2:]}"
        else:
            yield from (f"{flag}={one}" for one in (value if isinstance(value, list) else [value]))


def _open_log(given: Path | None) -> tuple[Path, TextIO]:
    try:
        path = state_file("run.log") if given is None else given
        return path, path.open("w", encoding="utf-8")
    except OSError as err:
        raise ConfigError(f"--log-file: {err}") from err
