"""Write docs/reference/, what --help prints, and Perses' dashboard: `make docs`. --check says what is out of date."""

import argparse
import dataclasses
import sys
import tomllib
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

from tools.engines_reference import engines_page
from tools.help_pages import help_pages
from tools.markdown import page, row, table
from tools.model_reference import models
from tools.perses_dashboard import PERSES, perses_dashboard
from tools.picker_reference import picker_metrics, plugins
from tools.vllm_reference import vllm_flags_page
from weft.cli.arguments.flags import SHORT
from weft.cli.commands import COMMANDS, EXIT_STATUSES, Command
from weft.cli.help import PAGES as HELP
from weft.core.checks.lora import LORA_METADATA
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
from weft.pb import common_pb2, vllm_engine_pb2
from weft.rpc.auth import ACCESS_BY_METHOD, Access
from weft.rpc.convert.request import REFUSED_FIELDS
from weft.rpc.metadata import REASONING_END_METADATA, REASONING_ENDED_METADATA
from weft.rpc.methods import REFUSALS, VERSION_METADATA
from weft.rpc.status import PARAMETER_METADATA, to_status
from weft.text.parsers.call_tags import call_tag
from weft.text.parsers.families import ToolFamily
from weft.text.parsers.table import REASONING_PARSERS, TOOL_PARSERS
from weft.web.http.problem import to_http_status

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
INTERFACE = ROOT / "tools" / "engine_interface.toml"


def command_line() -> str:
    """Every flag of every command."""
    return page(
        "Command line",
        (
            "A flag may be spelled with `-` or `_`, and set in the environment as `WEFT_` and its name in "
            "capitals (`--max-model-len`: `WEFT_MAX_MODEL_LEN`). `weft serve --config FILE` reads "
            "flags from a TOML, YAML or JSON file; each key is a flag's name without `--`. "
            "A flag wins over the environment, that over the file, and that over the default. "
            "A SIZE is a number such as 4096, 32k (32,000), 32K (32,768), 4GB or 4GiB. "
            "`weft COMMAND --help` shows the flags, `--help=WORD` those with that word in name, help or heading. "
            "`weft completion SHELL` prints what bash, zsh or fish needs to complete all of it."
        ),
        "## Exit statuses",
        "Every command ends with one of these; what else one ends with stands under it.",
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
    """The classes of its flags."""
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
    """How a type is written on the command line; a switch has no value."""
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
    """The code of each error class, and its HTTP and gRPC status."""
    rows = []
    for code in Code:
        classes = [error for error in _subclasses(WeftError) if error.code is code]
        for error in sorted(classes, key=lambda error: error.__name__):
            when = (error.__doc__ or "").strip().splitlines()[0]
            statuses = (to_http_status(code), to_status(code).name)
            rows.append((code.value, *statuses, f"`{error.__name__}`", when))
    return page(
        "Errors",
        (
            "Every failure of a call is an HTTP or gRPC status with a sentence that says what was wrong and "
            "what is allowed; over HTTP in the error object of the API that was called. From Python the same "
            "failures are exceptions of `weft.core.errors`. Anthropic's API has 529 in place of 503."
        ),
        table(("code", "HTTP", "gRPC status", "raised as", "when"), rows),
    )


def _subclasses(error: type[WeftError]) -> Iterator[type[WeftError]]:
    yield error
    for subclass in error.__subclasses__():
        if subclass.__module__ == WeftError.__module__:
            yield from _subclasses(subclass)


_OF_LORA = (
    "Of Generate: the LoRA adapter to answer with, for which the messages have no field. An unknown one "
    "is NOT_FOUND; the name of the model itself, or none, is no adapter."
)


_OF_REASONING = (
    "Of Generate: the text that ends reasoning, in UTF-8. A constraint begins behind it, unless "
    "`grammar_from_first_token` is set; without this key the `--reasoning-parser` that is named says where."
)
_OF_KEYS = (
    "Keys are those of `--api-key` and `--control-api-key`, and each kind opens its own calls. Without API keys the "
    "calls that take one are open; without control keys those that take one are off (PERMISSION_DENIED). A server "
    "with keys of neither kind is open to whoever reaches it. An API key aborts requests that were begun with the "
    "same key, a control key any; ids of others' requests are passed over like unknown ones. Events hold the tokens "
    "of everybody's prompts."
)


_OF_OTHERS = (
    "`grpc.health.v1` is served beside it, to anybody, and with `--grpc-reflection` `grpc.reflection.v1` and "
    "`v1alpha`, to holders of an API key."
)


def _key(method: str) -> str:
    if method == "HealthCheck":
        return "API, or none with `--grpc-open-health-check`"
    return {Access.API: "API", Access.OWN: "API or control", Access.CONTROL: "control"}[
        ACCESS_BY_METHOD.get(method, Access.API)
    ]


def grpc() -> str:
    """Every method, message, field and number of the protocol."""
    service = vllm_engine_pb2.DESCRIPTOR.services_by_name["VllmEngine"]
    metadata = {
        "`authorization`": "`Bearer KEY`: one of `--api-key`, or of `--control-api-key`.",
        f"`{LORA_METADATA}`": _OF_LORA,
        "`traceparent`, `tracestate`": "The trace that a request belongs to, where traces are exported.",
        f"`{REASONING_END_METADATA}`": _OF_REASONING,
        f"`{REASONING_ENDED_METADATA}`": "Of Generate: whether the prompt leaves no reasoning open.",
        f"`{VERSION_METADATA}`": "Before GetServerInfo's answer: this is Weft, and follows all of this.",
        f"`{PARAMETER_METADATA}`": "Behind a refusal: the field that is at fault, in UTF-8.",
    }
    messages = (
        message
        for module in (vllm_engine_pb2, common_pb2)
        for message in module.DESCRIPTOR.message_types_by_name.values()
    )
    return page(
        "gRPC",
        "What the fields mean is said beside them in `proto/`.",
        f"## {service.full_name}",
        table(
            ("method", "request", "response", "key", "refused where"),
            map(_method_row, service.methods),
        ),
        _OF_KEYS,
        _OF_OTHERS,
        "## Metadata",
        table(("key", "meaning"), metadata.items()),
        *(part for message in messages for part in _message_parts(message)),
    )


def _method_row(method: MethodDescriptor) -> Sequence[str]:
    stream = "stream of " if method.server_streaming else ""
    status, where = REFUSALS.get(method.name, (None, ""))
    refused = where if status is None else f"{where} ({status.name})"
    types = (method.input_type.name, f"{stream}{method.output_type.name}")
    return (method.name, *types, _key(method.name), refused)


def engine() -> str:
    """Every method of an engine's client, every parameter of a request."""
    parts = []
    for title, rows in tomllib.loads(INTERFACE.read_text(encoding="utf-8")).items():
        names = "\n".join(row((f"`{name}`", _interface_cell(said))) for name, said in rows.items())
        parts += [f"## {title}", f"| name | |\n| --- | --- |\n{names}"]
    return page(
        "The engine from Python",
        (
            "`weft.core.client.EngineClient` has the method names of vLLM's protocol, and the parameters of a "
            "request the names that vLLM gives them. Each row names the test that proves it, or says why a call "
            "is refused."
        ),
        *parts,
    )


def _interface_cell(said: dict[str, str]) -> str:
    if "refused" in said:
        return f"refused: {said['refused']}"
    file, _, name = said["test"].partition("::")
    return f"`{name}` in tests/{file}"


def parsers() -> str:
    """Every family of tool calls and of reasoning."""
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
            "What takes a model's answer apart into reasoning, text and tool calls, while it is written. The "
            "names are those that vLLM's `--tool-call-parser` and `--reasoning-parser` take."
        ),
        "## Tool calls",
        (
            'Where a call is demanded (`tool_choice` "required" or a named function), the answer is forced into '
            "what the model was taught, and read by the same parser. The last column says for which tools: "
            '"any", or "flat", those whose parameters can be written one by one. For other tools, and without a '
            "parser, a JSON array of calls is forced, or the JSON of a named function's arguments."
        ),
        table(("name", "models", "reads", "forces"), tools),
        "## Reasoning",
        table(("name", "models", "from", "to"), reasonings),
    )


def _forced(family: ToolFamily) -> str:
    """For which tools a family's own format can be forced."""
    flat = {"type": "object", "properties": {"a": {"type": "string"}}}
    other = {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    tags = [call_tag(family, {"f": schema}, is_parallel=True) for schema in (flat, other)]
    return "JSON" if tags[0] is None else "flat" if tags[1] is None else "any"


def _code(text: str) -> str:
    """Text as code in a cell of a table: on one line, its bars escaped."""
    fence = "``" if "`" in text else "`"
    return fence + text.replace("\n", " ").replace("|", "\\|") + fence


def metrics() -> str:
    """Every series of the engine, older names, and what is absent."""
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
            f"The engine's series, under the names of vLLM. Each has the labels {labels} beside its own. "
            "An answer is one of the `n` of a request. Times between events of the engine are taken by the "
            "engine; those that start at a request's arrival by the server."
        ),
        table(
            ("series", "type", "labels of its own", "meaning", "buckets"), map(_series_row, SERIES)
        ),
        "## Older names",
        "Shown beside the current one by `--show-hidden-metrics-for-version X.Y`, up to that version.",
        table(("older name", "current name", "last version"), older),
        "## Series of vLLM that are not here",
        table(("series", "why"), absent),
    )


def _series_row(series: Series) -> Sequence[str]:
    labels = ", ".join(f"`{label}`" for label in series.labels)
    buckets = "1, 2, 5, 10 ... to the model's length" if series.kind is Kind.HISTOGRAM else ""
    if series.buckets is not None:
        buckets = ", ".join(f"{bound:g}" for bound in series.buckets)
    return f"`{PREFIX}{series.name}{_suffix(series)}`", series.kind, labels, series.text, buckets


def _suffix(series: Series) -> str:
    return "_total" if series.kind is Kind.COUNTER else ""


def _message_parts(message: Descriptor) -> Iterator[str]:
    if message.GetOptions().map_entry:
        return
    yield f"### {message.full_name}"
    if not message.fields:
        yield "No fields."
        return
    rows = []
    for field in sorted(message.fields, key=lambda field: field.number):
        is_refused = field.name in REFUSED_FIELDS.get(message.name, ())
        kind = f"{_field_type(field)}{', refused' if is_refused else ''}"
        rows.append((field.number, field.name, kind))
    yield table(("no.", "field", "type"), rows)
    for nested in message.nested_types:
        yield from _message_parts(nested)


def _field_type(field: FieldDescriptor) -> str:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (
            field.message_type.fields_by_name["key"],
            field.message_type.fields_by_name["value"],
        )
        return f"map from {_field_type(key)} to {_field_type(value)}"
    kind = field.message_type or field.enum_type
    name = kind.name if kind is not None else _SCALARS[field.type]
    if field.is_repeated:
        return f"repeated {name}"
    oneof = field.containing_oneof
    if oneof is not None and not oneof.name.startswith("_"):
        return f"{name}, one of `{oneof.name}`"
    return f"optional {name}" if oneof is not None else name


_SCALARS = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


def index() -> str:
    """The pages, by their titles."""
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
    "grpc.md": grpc,
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
    """Names of the files that differ from what the code says now."""
    return [
        path.name
        for path, render in FILES.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != render()
    ]


def main() -> int:
    """Write every page, or check them."""
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
