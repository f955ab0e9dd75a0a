"""The `weft` command. Commands are loaded when they are called, so that `weft --help` is quick."""

import logging
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError
from cyclopts.config import Env

from weft import __version__
from weft.cli.settings import apply_config_file, refuse_empty_key
from weft.core.errors import BadRequest, ConfigError, WeftError
from weft.core.terminal import say

log = logging.getLogger("weft.cli")

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # what shells report for SIGINT

_SERVE_NOTES = (
    "SIZE is a number such as 4096, 32k (32,000), 32K (32,768), 4GB or 4GiB. Every flag may be "
    "spelled with - or _, and set in the environment (--max-model-len as WEFT_MAX_MODEL_LEN) or in "
    "the file that --config names; flags win over the environment, and that over the file."
)

# Of each command that looks at this machine: what it does, an example and its exit statuses.
_MACHINE = {
    "plan": (
        "Say where a model's memory would go, what fits, and how fast it could be; load nothing.",
        (
            "Example: weft plan Qwen/Qwen3-0.6B --max-model-len 8k --quantization int8\n\n"
            "Exit status: 0 it fits, 2 it does not, or cannot be served. A Hub id that is not in the cache is fetched."
        ),
    ),
    "doctor": (
        "Look for what keeps Weft from starting, or from being fast, and say how to mend it.",
        (
            "Example: weft doctor --port 8000 --ssl-certfile cert.pem --ssl-keyfile key.pem\n\n"
            "Exit status: 0 nothing to mend, 1 something, 2 for arguments that weft serve refuses."
        ),
    ),
    "top": (
        "Watch a running engine: requests, KV pool, steps, tokens a second.",
        (
            "Example: weft top --url http://127.0.0.1:8000 --once --json\n\n"
            "Exit status: 0, or 1 if the server cannot be reached."
        ),
    ),
    "ps": (
        "List the servers on this machine that are yours.",
        "Example: weft ps --json\n\nExit status: 0, whether there are some or none.",
    ),
}


def make_app() -> App:
    """The commands, each by the name of its function."""
    app = App(
        name="weft",
        help="Serve a language model over HTTP and gRPC, and talk to it.",
        version=__version__,
        config=(Env("WEFT_", command=False), refuse_empty_key, apply_config_file),
        default_parameter=Parameter(show_env_var=False),
        help_format="plaintext",
        result_action="return_value",
    )
    app.command(
        "weft.cli.serve:serve",
        name="serve",
        help="Serve a model over HTTP and gRPC until SIGTERM or Ctrl-C.",
        help_epilogue=_SERVE_NOTES,
    )
    app.command("weft.cli.complete:complete", name="complete", help="Continue a text.")
    app.command("weft.cli.chat:chat", name="chat", help="Talk with the served model.")
    app.command("weft.cli.bench:app", name="bench", help="Measure a server under load.")
    app.command("weft.cli.epp:app", name="epp", help="Pick endpoints for Envoy (ext_proc).")
    app.command("weft.cli.up:up", name="up", help="Start workers, a picker and Envoy here.")
    for name, (text, notes) in _MACHINE.items():
        app.command(f"weft.cli.machine.commands:{name}", name=name, help=text, help_epilogue=notes)
    app.command("weft.cli.machine.commands:config_app", name="config", help="Show all settings.")
    app.command("weft.cli.machine.commands:models_app", name="models", help="List models here.")
    return app


def run(given: Sequence[str]) -> int:
    """Run one command; the result is the exit status. Mistakes of the user end in one line."""
    arguments = list(given)
    try:
        if arguments[:1] == ["serve"]:
            line = import_module("weft.cli.vllm_line")  # as late as the command itself
            arguments = ["serve", *line.to_own_arguments(arguments[1:])]
        status = make_app()(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as err:
        say(f"error: {_describe(err)}", file=sys.stderr)
        return EXIT_USAGE
    except WeftError as err:
        log.debug("where this came from", exc_info=True)  # with --log-level debug
        say(f"error: {err}", file=sys.stderr)
        return EXIT_USAGE if isinstance(err, ConfigError | BadRequest) else EXIT_FAILED
    return status if isinstance(status, int) else 0


def _describe(error: CycloptsError) -> str:
    """The parser's sentence on one line, with the file that a bad value came from."""
    if isinstance(error, UnusedCliTokensError):
        extra = " ".join(error.unused_tokens or ())
        return f'unexpected argument "{extra}"; several words go in quotes: "..."'
    text = " ".join(str(error).split())
    source = getattr(getattr(error, "token", None), "source", "")
    return f"{source}: {text}" if source.startswith("--config") and source not in text else text


def main() -> NoReturn:
    """Entry point of the `weft` command."""
    # Until the command handles it: an import that is interrupted may swallow the exception and go on.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        status = run(sys.argv[1:])
    except KeyboardInterrupt:  # where nobody handles Ctrl-C: it is no failure to explain
        status = EXIT_INTERRUPTED
    sys.exit(status)


if __name__ == "__main__":
    main()
