"""Parses the arguments of `weft serve` for commands that inspect them without starting a server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cyclopts import App, ArgumentCollection, CycloptsError

from weft.cli.commands import make_app
from weft.cli.options import ServeOptions
from weft.cli.serving.servers import DEFAULT_MODEL
from weft.cli.vllm_line import to_own_arguments
from weft.core.errors import WeftError


@dataclass(frozen=True, slots=True)
class Origin:
    """Source of a setting's value: "flag", "environment", "file" or "default". `name` is the flag, the variable or the
    file.
    """

    kind: str
    name: str | None = None


DEFAULT = Origin("default")


@dataclass(frozen=True, slots=True)
class ServeLine:
    """The settings that `weft serve` would start with. `origins` has the source of each setting that is not a default,
    by field name.

    `model` is None with --remote: the remote servers have the model. `more` are further models of the same server.
    """

    model: str | None
    more: tuple[str, ...]
    options: ServeOptions
    origins: Mapping[str, Origin]


def read_serve_line(arguments: Sequence[str]) -> ServeLine:
    """Returns the settings from arguments, environment and configuration file. Invalid settings raise the same errors
    as in `weft serve`.
    """
    origins: dict[str, Origin] = {}

    def record(app: App, commands: tuple[str, ...], given: ArgumentCollection) -> None:
        """Stores the source of each setting. The parser calls this function after it has read argv, the environment and
        the file.
        """
        del app, commands
        for argument in given:
            if argument.tokens:
                name = argument.name.lstrip("-").replace("-", "_").lower()
                origins[name] = _origin(name, argument.tokens[0].source)

    app = make_app()
    app.config = (*app.config, record)
    _, bound, _ = app.parse_args(
        ["serve", *to_own_arguments(arguments)], exit_on_error=False, print_error=False
    )
    bound.apply_defaults()
    model, options = bound.arguments["model"], bound.arguments["options"]
    has_others = options.models is not None or options.model_dir is not None
    if model is None and options.remote is None and not has_others:
        model = DEFAULT_MODEL
    more = bound.arguments.get("more", ())
    return ServeLine(model, more, options, origins)


def model_in(command: str, arguments: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Returns the models in the command line or the environment of another process; None if they are set in a file, or
    not at all.
    """
    app = make_app()
    app.config = ()  # the other process has its own environment
    try:
        given = to_own_arguments(arguments) if command == "serve" else arguments
        _, bound, _ = app.parse_args([command, *given], exit_on_error=False, print_error=False)
    except (CycloptsError, WeftError):
        return None
    model: str | None = bound.arguments.get("model") or environment.get("WEFT_MODEL")
    options = bound.arguments.get("options")
    is_elsewhere = command == "epp" or any(
        getattr(options, name, None) or f"WEFT_{name.upper()}" in environment
        for name in ("config", "remote", "models", "model_dir")
    )
    if model is not None:
        return ", ".join((model, *bound.arguments.get("more", ())))
    return None if is_elsewhere else DEFAULT_MODEL


def _origin(name: str, source: str) -> Origin:
    if source.startswith("--config "):
        return Origin("file", source.removeprefix("--config "))
    if source == "env":
        return Origin("environment", f"WEFT_{name.upper()}")
    return Origin("flag")
