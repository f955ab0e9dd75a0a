"""The `weft` command: runs the command in argv and returns an exit status."""

import logging
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from cyclopts import CycloptsError, UnknownOptionError, UnusedCliTokensError

from weft.cli.commands import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, make_app
from weft.cli.help import as_called, show, wanted
from weft.core.errors import BadRequest, ConfigError, WeftError
from weft.core.extras import PARTS, WHOLE
from weft.core.observe.terminal import say
from weft.core.values.declare import nearest_flag

log = logging.getLogger("weft.cli")


def run(given: Sequence[str]) -> int:
    """Runs the command in the arguments and returns the exit status. An error that the user caused is printed on one
    line.
    """
    arguments = list(given)
    try:
        word = wanted(arguments)
        if word is not None:
            shown = show(arguments, word)
            if shown is not None:
                return shown
            # There is no such command: without its flags, the parser reports which commands exist.
            arguments = [argument for argument in arguments if not argument.startswith("-")]
        if arguments[:1] == ["serve"]:
            line = import_module("weft.cli.vllm_line")  # imported late, like the command itself
            arguments = ["serve", *line.to_own_arguments(arguments[1:])]
        status = make_app()(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as err:
        say(f"error: {as_called(_describe(err))}", file=sys.stderr)
        return EXIT_USAGE
    except ModuleNotFoundError as err:
        # Only a part lacks modules of Weft (docs/decisions/0082); elsewhere a missing module is a defect.
        if sys.argv[0] not in PARTS.values() or not (err.name or "").startswith("weft."):
            raise
        say(f"error: this command needs all of Weft: pip install {WHOLE}", file=sys.stderr)
        return EXIT_USAGE
    except WeftError as err:
        log.debug("traceback of the error", exc_info=True)  # shown with --log-level debug
        say(f"error: {err}", file=sys.stderr)
        return EXIT_USAGE if isinstance(err, ConfigError | BadRequest) else EXIT_FAILED
    return status if isinstance(status, int) else 0


def _describe(error: CycloptsError) -> str:
    """Returns the parser's message on one line, and the name of the configuration file if the bad value came from a
    file.
    """
    if isinstance(error, UnusedCliTokensError):
        extra = " ".join(error.unused_tokens or ())
        return f'unexpected argument "{extra}"; put several words in quotes: "..."'
    text = " ".join(str(error).split())
    if isinstance(error, UnknownOptionError):
        # For any unknown flag that begins with "--no-", the parser suggests another one with "--no-": that is
        # dropped.
        said, _, near = text.partition(" Did you mean ")
        is_near = nearest_flag(error.token.keyword or error.token.value, [near.removesuffix("?")])
        command = " ".join(("weft", *(error.command_chain or ())))
        text = text if is_near else f"{said} {command} --help lists all flags."
    source = getattr(getattr(error, "token", None), "source", "")
    return f"{source}: {text}" if source.startswith("--config") and source not in text else text


def main() -> NoReturn:
    """Entry point of the `weft` command."""
    # Default handling until the command installs its own: an import that Ctrl-C interrupts may swallow the exception.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        status = run(sys.argv[1:])
    except KeyboardInterrupt:  # Ctrl-C without a handler is not a failure
        status = EXIT_INTERRUPTED
    sys.exit(status)


if __name__ == "__main__":
    main()
