"""The flags of the commands of this package. What a command does is imported when it is called, for a quick --help."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Group, Parameter

from weft.cli.flags import GROUPS
from weft.cli.sizes import duration_converter

OUTPUT = Group("Output", sort_key=20)
MODELS = Group("Models", sort_key=10)

ServeArguments = Annotated[
    str,
    Parameter(allow_leading_hyphen=True, help="Model and flags, as weft serve takes them."),
]
Json = Annotated[bool, Parameter(group=OUTPUT, negative=(), help="Print JSON, for scripts.")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """How a result is printed."""

    json: Json = False


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Flags of `weft plan`, beside those of `weft serve`."""

    measure: Annotated[
        bool,
        Parameter(
            group=OUTPUT,
            help="Measure for a second how fast this machine reads and multiplies, for the speeds.",
        ),
    ] = True
    json: Json = False


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class TopOptions:
    """Flags of `weft top`."""

    url: Annotated[
        str, Parameter(group=GROUPS["Connection"], help="The server's HTTP address.")
    ] = "http://127.0.0.1:8000"
    api_key: Annotated[
        str | None, Parameter(group=GROUPS["Connection"], help="Key for the server.")
    ] = None
    ca: Annotated[
        Path | None,
        Parameter(group=GROUPS["Connection"], help="Certificate (PEM) to trust, for https."),
    ] = None
    once: Annotated[
        bool,
        Parameter(
            group=OUTPUT, negative=(), help="Print one sample, after one interval, and leave."
        ),
    ] = False
    interval: Annotated[
        float,
        Parameter(
            group=OUTPUT,
            metavar="DURATION",
            converter=duration_converter,
            help="Time between samples.",
        ),
    ] = 1.0
    json: Json = False


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigShowOptions:
    """Flags of `weft config show`, beside those of `weft serve`."""

    changed: Annotated[
        bool, Parameter(group=OUTPUT, negative=(), help="Leave out what is a default.")
    ] = False
    json: Json = False


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsOptions:
    """Flags of `weft models`."""

    dir: Annotated[
        list[Path] | None,
        Parameter(
            group=MODELS,
            negative=(),
            help="Directory of checkpoints, to look into beside the Hub's cache; repeatable.",
        ),
    ] = None
    json: Json = False


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveOptions:
    """Flags of `weft models rm`."""

    yes: Annotated[
        bool, Parameter(group=MODELS, negative=(), help="Remove it without a question.")
    ] = False


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions:
    """Flags of `weft models pull`."""

    revision: Annotated[str | None, Parameter(group=MODELS, help="Branch, tag or commit.")] = None


def plan(*arguments: ServeArguments, options: PlanOptions = PlanOptions()) -> int:
    """Say where a model's memory would go, what fits, and how fast it could be; load nothing."""
    return _call("plan", "run", arguments, measure=options.measure, json=options.json)


def doctor(*arguments: ServeArguments, options: OutputOptions = OutputOptions()) -> int:
    """Look for what keeps Weft from starting, or from being fast, and say how to mend it."""
    return _call("doctor", "run", arguments, json=options.json)


def top(*, options: TopOptions = TopOptions()) -> int:
    """Watch a running engine: requests, KV pool, steps, tokens a second."""
    module = import_module("weft.cli.machine.top")
    target = module.Target(url=options.url, api_key=options.api_key, ca=options.ca)
    status: int = module.run(
        target, once=options.once, interval_s=options.interval, json=options.json
    )
    return status


def ps(*, options: OutputOptions = OutputOptions()) -> int:
    """List the servers on this machine that are yours."""
    return _call("processes", "run", json=options.json)


def config_show(
    *arguments: ServeArguments, options: ConfigShowOptions = ConfigShowOptions()
) -> int:
    """Show every setting of `weft serve` with these arguments, and where each came from."""
    return _call("config_show", "run", arguments, changed=options.changed, json=options.json)


def models(*, options: ModelsOptions = ModelsOptions()) -> int:
    """List the models on this disk, and whether Weft can serve them."""
    return _call("models", "show", options.dir or (), json=options.json)


def models_rm(name: str, *, options: RemoveOptions = RemoveOptions()) -> int:
    """Remove a model from the Hub's cache.

    Parameters
    ----------
    name
        Its Hub id, as weft models lists it.
    """
    return _call("models", "remove", name, yes=options.yes)


def models_pull(name: str, *, options: PullOptions = PullOptions()) -> int:
    """Fetch a model from the Hub.

    Parameters
    ----------
    name
        Its Hub id, such as Qwen/Qwen3-0.6B.
    """
    return _call("models", "pull", name, options.revision)


def _call(module: str, function: str, *positional: Any, **named: Any) -> int:
    run = getattr(import_module(f"weft.cli.machine.{module}"), function)
    status: int = run(*positional, **named)
    return status


def _make_config_app() -> App:
    app = App(name="config", help="Show all settings.")
    app.command(
        config_show,
        name="show",
        help="Show every setting, its value, and where it came from: default, flag, file, environment.",
        help_epilogue=(
            "Example: weft config show --changed --config weft.toml --port 8001\n\n"
            "Keys are not shown. Exit status: 0, or 2 for arguments that weft serve refuses."
        ),
    )
    return app


def _make_models_app() -> App:
    app = App(name="models", help="List models here.")
    app.default(models)
    app.help_epilogue = (
        "Example: weft models --dir ~/checkpoints --json\n\n"
        "Exit status: 0, or 2 for a directory that is not there."
    )
    app.command(
        models_rm,
        name="rm",
        help="Remove a model from the Hub's cache.",
        help_epilogue=(
            "Example: weft models rm Qwen/Qwen3-0.6B --yes\n\n"
            "Exit status: 0 removed, 1 not confirmed, 2 no such model."
        ),
    )
    app.command(
        models_pull,
        name="pull",
        help="Fetch a model from the Hub.",
        help_epilogue=(
            "Example: weft models pull Qwen/Qwen3-0.6B\n\n"
            "Exit status: 0 fetched, 2 not there, or nothing that Weft serves."
        ),
    )
    return app


config_app = _make_config_app()  # loaded by name, when they are called
models_app = _make_models_app()
