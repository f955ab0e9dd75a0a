"""Writes docs/reference/, the help pages, and Perses' dashboard: `make docs`. --check lists the outdated files."""

import argparse
import dataclasses
import sys
import tomllib
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from tools.engines_reference import engines_page
from tools.grpc_reference import grpc_page
from tools.help_pages import help_pages
from tools.http_reference import http_page
from tools.markdown import page, row, table
from tools.model_reference import models
from tools.perses_dashboard import PERSES, perses_dashboard
from tools.picker_reference import picker_metrics, plugins
from tools.vllm_reference import vllm_flags_page
from weft.cli.arguments.flags import SHORT
from weft.cli.commands import COMMANDS, EXIT_STATUSES, Command
from weft.cli.help import PAGES as HELP
from weft.core.checks.object_ids import STORE_SERIES
from weft.core.errors import Code, WeftError
from weft.core.observe.metric_series import (
    ABSENT,
    ENGINE_LABELS,
    OLDER_NAMES,
    PREFIX,
    SERIES,
    Kind,
    Series,
)
from weft.rpc.status import to_status
from weft.text.parsers.call_tags import call_tag
from weft.text.parsers.families import ToolFamily
from weft.text.parsers.table import REASONING_PARSERS, TOOL_PARSERS
from weft.web.batches.batch_series import COUNTERS as BATCH_COUNTERS
from weft.web.http.connections.socket_sessions import OPEN as OPEN_SESSIONS
from weft.web.http.connections.socket_sessions import SESSIONS
from weft.web.http.problem import to_http_status
from weft.web.model_pool.pool_series import COUNTERS, GAUGES, LABEL, NAME, STATES
from weft.web.resuming.resumable import SERIES as RESUMING
from weft.web.store.store_series import GAUGES as STORE_GAUGES
from weft.web.store.store_series import PREFIX as STORE_PREFIX
from weft.web.store.store_series import TEXT as STORE_TEXT

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
INTERFACE = ROOT / "tools" / "engine_interface.toml"


def command_line() -> str:
    """Returns the page of all commands and flags."""
    return page(
        "Command line",
        (
            "A flag may be spelled with `-` or `_`, and set in the environment as `WEFT_` and its name in "
            "capitals (`--max-model-len`: `WEFT_MAX_MODEL_LEN`). `weft serve --config FILE` reads "
            "flags from a TOML, YAML or JSON file; each key is a flag's name without `--`. "
            "A flag overrides the environment, the environment overrides the file, and the file overrides the default. "
            "A SIZE is a number such as 4096, 32k (32,000), 32K (32,768), 4GB or 4GiB. "
            "`weft COMMAND --help` shows the flags, `--help=WORD` only those that contain the word. "
            "`weft completion SHELL` prints a completion script for bash, zsh or fish."
        ),
        "## Exit statuses",
        "Every command ends with one of these statuses. Further statuses are listed with their command.",
        table(("status", "meaning"), EXIT_STATUSES.items()),
        *(part for command in COMMANDS for part in _command_parts(command)),
    )


def _command_parts(command: Command) -> Iterator[str]:
    yield f"## weft {command.words} {command.arguments}".rstrip()
    yield command.help
    yield "\n".join(["```sh", *command.examples, "```"])
    if command.exits:
        statuses = ", ".join(f"{status} {text}" for status, text in command.exits.items())
        yield f"Exit status: {statuses}."
    if rows := [row for options in _options_of(command) for row in _flag_rows(options)]:
        yield table(("flag", "value", "default", "meaning"), rows)


def _options_of(command: Command) -> Iterator[type[Any]]:
    """Yields the dataclasses of a command's flags."""
    module, _, name = command.target.partition(":")
    function = getattr(import_module(module), name.removesuffix("_app"))
    hints = typing.get_type_hints(function, include_extras=True).values()
    return (hint for hint in hints if dataclasses.is_dataclass(hint) and isinstance(hint, type))


def _flag_rows(options: type[Any]) -> Iterable[Sequence[str]]:
    rows = []
    hints = typing.get_type_hints(options, include_extras=True)
    for field in dataclasses.fields(options):
        kind, parameter, flag = typing.get_args(hints[field.name])
        if flag.is_hidden:
            continue
        value = parameter.metavar or _value(kind)
        name = field.name.replace("_", "-")
        is_negatable = value == "" and flag.negatable
        short = f", `{SHORT[field.name]}`" if field.name in SHORT else ""
        spellings = f"`--{name}`{short}" + (f", `--no-{name}`" if is_negatable else "")
        default = "" if field.default in (None, "", dataclasses.MISSING) else f"`{field.default}`"
        (group,) = parameter.group
        rows.append((group.sort_key, (spellings, value, default, flag.help)))
    return [row for _, row in sorted(rows, key=lambda row: row[0])]  # by the headings of the help


def _value(hint: Any) -> str:
    """Returns the notation of a flag's value in the table; a switch has no value."""
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(hint))
    options = [option for option in typing.get_args(hint) or (hint,) if option is not type(None)]
    if typing.get_origin(options[0]) is typing.Literal:
        return _value(options[0])
    if typing.get_origin(options[0]) is list or typing.get_origin(hint) is list:
        return "TEXT, repeatable"
    names = {int: "INT", float: "NUMBER", str: "TEXT", Path: "FILE", bool: ""}
    return names[options[0]]


def errors() -> str:
    """Returns the page of all errors: code, HTTP status, gRPC status and class."""
    rows = []
    for code in Code:
        classes = [error for error in _subclasses(WeftError) if error.code is code]
        for error in sorted(classes, key=lambda error: error.__name__):
            when = " ".join((error.__doc__ or "").strip().split("\n\n")[0].split())
            statuses = (to_http_status(code), to_status(code).name)
            rows.append((code.value, *statuses, f"`{error.__name__}`", when))
    return page(
        "Errors",
        (
            "A failed call ends with an HTTP or gRPC status and a message that says what is wrong and what is allowed. "
            "Over HTTP, the message is in the error object of the API that was called. In Python, failures are "
            "exceptions of `weft.core.errors`. Anthropic's API has status 529 instead of 503."
        ),
        table(("code", "HTTP", "gRPC status", "raised as", "when"), rows),
    )


def _subclasses(error: type[WeftError]) -> Iterator[type[WeftError]]:
    yield error
    for subclass in error.__subclasses__():
        if subclass.__module__ == WeftError.__module__:
            yield from _subclasses(subclass)


def engine() -> str:
    """Returns the page of all methods of an engine client, and of all parameters of a request."""
    parts = []
    for title, rows in tomllib.loads(INTERFACE.read_text(encoding="utf-8")).items():
        names = "\n".join(row((f"`{name}`", _interface_cell(said))) for name, said in rows.items())
        parts += [f"## {title}", f"| name | |\n| --- | --- |\n{names}"]
    return page(
        "The engine from Python",
        (
            "The methods of `weft.core.client.EngineClient` and the parameters of a request have the names that vLLM "
            "gives them. Each row names the test that covers a method or parameter, or says why Weft refuses it."
        ),
        *parts,
    )


def _interface_cell(said: dict[str, str]) -> str:
    if "refused" in said:
        return f"refused: {said['refused']}"
    file, _, name = said["test"].partition("::")
    return f"`{name}` in tests/{file}"


def parsers() -> str:
    """Returns the page of all parsers of tool calls and of reasoning."""
    tools = (
        (name, tool.models, _code(tool.example), _forced(tool))
        for name, tool in sorted(TOOL_PARSERS.items())
    )
    reasonings = []
    for name, family in sorted(REASONING_PARSERS.items()):
        start = _code(family.starts[0]) + (", or the start" if family.may_omit_start else "")
        reasonings.append((name, family.models, start, _code(family.reasoning_end)))
    return page(
        "Parsers",
        (
            "A parser splits a model's answer into reasoning, text and tool calls while it is generated. The names are "
            "the values of vLLM's `--tool-call-parser` and `--reasoning-parser`."
        ),
        "## Tool calls",
        (
            'If a request demands a tool call (`tool_choice` "required" or a named function), a grammar forces the '
            "answer into the model's own format of calls. The column *forces* says for which tools the parser has such "
            'a grammar: "any" tools, or "flat" tools, whose parameters can be written one by one. For other tools, and '
            "without a parser, the grammar forces a JSON array of calls, or the JSON arguments of the named function."
        ),
        table(("name", "models", "reads", "forces"), tools),
        "## Reasoning",
        table(("name", "models", "from", "to"), reasonings),
    )


def _forced(family: ToolFamily) -> str:
    """Returns the tools for which a family's own format can be forced: "any", "flat", or "JSON" for none."""
    flat = {"type": "object", "properties": {"a": {"type": "string"}}}
    other = {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    tags = [call_tag(family, {"f": schema}, is_parallel=True) for schema in (flat, other)]
    return "JSON" if tags[0] is None else "flat" if tags[1] is None else "any"


def _code(text: str) -> str:
    """Returns text as inline code for a table cell: on one line, with escaped bars."""
    fence = "``" if "`" in text else "`"
    return fence + text.replace("\n", " ").replace("|", "\\|") + fence


def metrics() -> str:
    """Returns the page of the engine's metric series, their older names, and vLLM's series that Weft lacks."""
    labels = " and ".join(f"`{label}`" for label in ENGINE_LABELS)
    older = []
    for name in OLDER_NAMES:
        suffix = _suffix(next(series for series in SERIES if series.name == name.current))
        names = (f"`{PREFIX}{one}{suffix}`" for one in (name.name, name.current))
        older.append((*names, ".".join(map(str, name.last_version))))
    absent = (
        (", ".join(f"`{PREFIX}{name}`" for name in names.split(", ")), reason)
        for names, reason in ABSENT.items()
    )
    return page(
        "Metrics",
        (
            f"The metric series of the engine have vLLM's names. Each series has the labels {labels} and its own "
            "labels. "
            "A request with `n` has `n` answers. The engine measures times between its own events; the server "
            "measures times that start at the arrival of a request."
        ),
        table(
            ("series", "type", "labels of its own", "meaning", "buckets"), map(_series_row, SERIES)
        ),
        "## Several models",
        f"Of a server with several models ([guide](../models.md)); each has the label `{LABEL}`.",
        table(("series", "type", "labels of its own", "meaning"), _pool_rows()),
        "## Stored objects and batches",
        "Of the [store](../store.md). With several API servers, each process reports all of the file that they share: "
        "samples about it have the label `process`, so take their maximum. Counters are sums. Pickers read the name "
        "([guide](../store.md#behind-several-servers)).",
        table(("series", "type", "labels of its own", "meaning"), _store_rows()),
        "## Sessions",
        "Of [realtime sessions](../realtime.md) and [responses over WebSockets](../open-responses.md).",
        table(("series", "type", "labels of its own", "meaning"), _session_rows()),
        "## Streams that continue",
        "Of a server with `--resume-secret-file` ([guide](../resuming.md)).",
        table(("series", "type", "labels of its own", "meaning"), [_resuming_row()]),
        "## Older names",
        "`--show-hidden-metrics-for-version X.Y` also exposes the older names whose last version is X.Y or later.",
        table(("older name", "current name", "last version"), older),
        "## Series of vLLM that Weft does not have",
        table(("series", "why"), absent),
    )


def _resuming_row() -> Sequence[str]:
    name, text, label = RESUMING
    return f"`{name}_total`", "counter", f"`{label}`", text


def _session_rows() -> Iterator[Sequence[str]]:
    for (name, labels, text), kind in ((OPEN_SESSIONS, "gauge"), (SESSIONS, "counter")):
        shown = ", ".join(f"`{label}`" for label in labels.split(", "))
        yield f"`{name}{'_total' if kind == 'counter' else ''}`", kind, shown, text


def _pool_rows() -> Iterator[Sequence[str]]:
    name, text = STATES
    yield f"`{NAME}_{name}`", "gauge", f"`{name}`", text
    for name, text, _ in GAUGES:
        yield f"`{NAME}_{name}`", "gauge", "", text
    for name, text, _ in COUNTERS:
        yield f"`{NAME}_{name}_total`", "counter", "", text


def _store_rows() -> Iterator[Sequence[str]]:
    name, label = STORE_SERIES
    yield f"`{name}`", "gauge", f"`{label}`", STORE_TEXT
    for name, label, text in STORE_GAUGES:
        yield f"`{STORE_PREFIX}{name}`", "gauge", f"`{label}`", text
    for name, label, text in BATCH_COUNTERS:
        yield f"`{name}_total`", "counter", f"`{label}`", text


def _series_row(series: Series) -> Sequence[str]:
    labels = ", ".join(f"`{label}`" for label in series.labels)
    buckets = "1, 2, 5, 10 ... to the model's length" if series.kind is Kind.HISTOGRAM else ""
    if series.buckets is not None:
        buckets = ", ".join(f"{bound:g}" for bound in series.buckets)
    return f"`{PREFIX}{series.name}{_suffix(series)}`", series.kind, labels, series.text, buckets


def _suffix(series: Series) -> str:
    return "_total" if series.kind is Kind.COUNTER else ""


def index() -> str:
    """Returns the page that lists all pages by title."""
    rows = [
        (name, render().partition("\n# ")[2].partition("\n")[0])
        for name, render in PAGES.items()
        if name != INDEX
    ]
    links = "\n".join(f"- [{title}]({name})" for name, title in rows)
    return page("Reference", "Generated from the code by `make docs`.", links)


INDEX = "README.md"
PAGES: dict[str, Callable[[], str]] = {
    INDEX: index,
    "command-line.md": command_line,
    "engine.md": engine,
    "engines.md": engines_page,
    "errors.md": errors,
    "grpc.md": grpc_page,
    "http.md": http_page,
    "metrics.md": metrics,
    "models.md": models,
    "parsers.md": parsers,
    "picker-metrics.md": picker_metrics,
    "picker-plugins.md": plugins,
    "vllm-flags.md": vllm_flags_page,
}


FILES = {REFERENCE / name: render for name, render in PAGES.items()} | {
    HELP: help_pages,
    PERSES: perses_dashboard,
}


def out_of_date() -> list[str]:
    """Returns the names of the files that differ from their newly generated content."""
    return [
        path.name
        for path, render in FILES.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != render()
    ]


def main() -> int:
    """Writes or checks every file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if stale")
    if parser.parse_args().check:
        stale = out_of_date()
        print(f"docs: out of date, run `make docs`: {stale}" if stale else "docs: up to date")
        return 1 if stale else 0
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for path, render in FILES.items():
        path.write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
