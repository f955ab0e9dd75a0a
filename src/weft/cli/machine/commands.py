"""Flags of the commands that inspect this machine. A command's code is imported when the command is called, so that
--help is quick.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from weft.cli.arguments.flags import flags
from weft.cli.commands import branch, call
from weft.core.values.declare import Flag

ServeArguments = Annotated[
    str,
    Parameter(allow_leading_hyphen=True, help="Model and flags of weft serve."),
]
Json = Annotated[bool, Flag("Print JSON.", "Output", negatable=False)]


@flags()
class OutputOptions:
    """How a result is printed."""

    json: Json = False


@flags()
class PlanOptions:
    """Flags of `weft plan`, in addition to those of `weft serve`."""

    measure: Annotated[
        bool,
        Flag(
            "Measure memory bandwidth and multiplication speed for a second, and estimate speeds from them.",
            "Output",
        ),
    ] = True
    json: Json = False


@flags()
class TopOptions:
    """Flags of `weft top`. `ca` is the file with the CA certificate to trust."""

    url: Annotated[
        str, Flag("Address of the server: http://HOST:PORT of its HTTP port.", "Connection")
    ] = "http://127.0.0.1:8000"
    api_key: Annotated[str | None, Flag("API key of the server.", "Connection")] = None
    ca: Annotated[Path | None, Flag("CA certificate (PEM) for https.", "Connection")] = None
    once: Annotated[
        bool, Flag("Print one sample after one interval, then exit.", "Output", negatable=False)
    ] = False
    interval: Annotated[float, Flag("Seconds between samples.", "Output", is_duration=True)] = 1.0
    json: Json = False


@flags()
class ConfigShowOptions:
    """Flags of `weft config show`, in addition to those of `weft serve`."""

    changed: Annotated[
        bool, Flag("Show only settings that differ from their default.", "Output", negatable=False)
    ] = False
    json: Json = False


@flags()
class ModelsOptions:
    """Flags of `weft models`."""

    dir: Annotated[
        list[Path] | None,
        Flag(
            "Directory of checkpoints to list, in addition to the Hub cache; repeatable.", "Models"
        ),
    ] = None
    json: Json = False


@flags()
class RemoveOptions:
    """Flags of `weft models rm`."""

    yes: Annotated[
        bool, Flag("Remove without asking for confirmation.", "Models", negatable=False)
    ] = False
    json: Json = False


@flags()
class PullOptions:
    """Flags of `weft models pull`."""

    revision: Annotated[str | None, Flag("Branch, tag or commit of the Hub model.", "Models")] = (
        None
    )
    json: Json = False


def plan(*arguments: ServeArguments, options: PlanOptions = PlanOptions()) -> int:
    """Estimate memory use, context and speed of a model without loading it."""
    return call("weft.cli.machine.plan:run", arguments, measure=options.measure, json=options.json)


def doctor(*arguments: ServeArguments, options: OutputOptions = OutputOptions()) -> int:
    """Diagnose problems that prevent a start or slow Weft down, with fixes."""
    return call("weft.cli.machine.doctor:run", arguments, json=options.json)


def top(*, options: TopOptions = TopOptions()) -> int:
    """Monitor a running engine: requests, KV pool, steps, tokens per second."""
    return call("weft.cli.machine.top:run", options)


def ps(*, options: OutputOptions = OutputOptions()) -> int:
    """List your Weft servers on this machine."""
    return call("weft.cli.machine.processes:run", json=options.json)


def config_show(
    *arguments: ServeArguments, options: ConfigShowOptions = ConfigShowOptions()
) -> int:
    """Show every setting of `weft serve` with these arguments, and where each came from."""
    return call(
        "weft.cli.machine.config_show:run", arguments, changed=options.changed, json=options.json
    )


def models(*, options: ModelsOptions = ModelsOptions()) -> int:
    """List local models, and whether Weft can serve them."""
    return call("weft.cli.machine.models:show", options.dir or (), json=options.json)


def models_rm(name: str, *, options: RemoveOptions = RemoveOptions()) -> int:
    """Remove a model from the Hub's cache.

    Parameters
    ----------
    name
        Its Hub id, as weft models lists it, or its short name.
    """
    return call("weft.cli.machine.models:remove", name, yes=options.yes, json=options.json)


def models_pull(name: str, *, options: PullOptions = PullOptions()) -> int:
    """Fetch a model from the Hub.

    Parameters
    ----------
    name
        Its Hub id, such as Qwen/Qwen3-0.6B (for a GGUF file OWNER/NAME:FILE), or its short name, such as qwen3:0.6b.
    """
    return call("weft.cli.machine.models:pull", name, options.revision, json=options.json)


def models_names(*, options: OutputOptions = OutputOptions()) -> int:
    """List the short names of models."""
    return call("weft.cli.machine.models:show_names", json=options.json)


models_app = branch("models", models)  # called by name, when the command runs
