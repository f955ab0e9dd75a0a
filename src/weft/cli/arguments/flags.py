"""Flags of the command line, generated from the declarations of the fields that they set
(`weft.core.values.declare`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, make_dataclass
from inspect import get_annotations
from typing import Annotated, Any, TypeVar, dataclass_transform, get_args, get_origin

from cyclopts import Group, Parameter

from weft.cli.arguments.sizes import count_converter, duration_converter, size_converter
from weft.core.observe.log import LogFormat
from weft.core.values.declare import Declared, Flag, declared
from weft.core.values.params import PARAMETERS

T = TypeVar("T")

LogFormatFlag = Annotated[
    LogFormat,
    Flag(
        "Log format: lines of text, or JSON objects that include request and trace ids.", "Server"
    ),
]

GROUPS = {
    name: Group(name, sort_key=position)
    for position, name in enumerate(
        (
            *("Target", "Prompts", "Traffic", "Result"),  # panels of `weft bench`
            "Batch",
            *("Workers", "Configuration", "Pool"),
            *(
                "Model",
                "Memory",
                "Scheduling",
                "Data parallelism across nodes",
                "API",
                "Several models",
                "Server",
                "Remote engines",
            ),
            *("Chat", "Connection", "Sampling", "Models", "Output"),
            *("Compatibility", "Not offered"),
        ),
        start=1,
    )
}

# Short spellings of common flags, with the letters of llama.cpp and other clients.
SHORT = {
    "model": "-m",
    "max_model_len": "-c",
    "num_threads": "-t",
    "port": "-p",
    "address": "-a",
    "url": "-a",
    "base_url": "-a",
    "system": "-s",
    "max_tokens": "-n",
    "input_file": "-i",
    "output_file": "-o",
    "verbose": "-v",
    "v": "-v",  # the spelling of the reference picker
}


@dataclass_transform(kw_only_default=True, frozen_default=True)
def flags(*kinds: type[Any]) -> Callable[[type[T]], type[T]]:
    """Returns a class decorator that makes a frozen dataclass of flags: the flags of `kinds`, and the class's own
    fields, each with its `Flag`. A flag of `kinds` keeps its name, type and default.
    """

    def make(owner: type[T]) -> type[T]:
        own = [
            (field, flag) for field, flag in _flags(owner) if field.name in get_annotations(owner)
        ]
        made = {field.name: _annotated(field, flag) for field, flag in own}
        rows = [(kind(), field, flag) for kind in kinds for field, flag in _flags(kind)]
        for values, field, flag in rows:
            default = getattr(values, field.name) if flag.default is None else flag.default
            setattr(owner, _name(field, flag), None if default == () else default)
        others = {_name(field, flag): _annotated(field, flag) for _, field, flag in rows}
        assert not others.keys() & made.keys(), "a flag is declared once"
        owner.__annotations__ = others | made
        return Parameter(name="*")(dataclass(frozen=True, kw_only=True)(owner))

    return make


def pick(given: object, options: type[T], **others: Any) -> T:
    """Returns an instance of `options` whose fields have the values of the flags in `given`; `others` override these
    values.
    """
    values = {}
    for field, flag in _flags(options):
        value = getattr(given, _name(field, flag))
        values[field.name] = tuple(value or ()) if _is_tuple(field) else value
    return options(**values | others)


def flag_names(*kinds: type[Any]) -> list[str]:
    """Names of the flags that set fields of `kinds`."""
    return [_name(field, flag) for kind in kinds for field, flag in _flags(kind)]


def flags_under(owner: type[Any], heading: str) -> Iterator[tuple[str, Flag]]:
    """Yields the flags of the class `owner` under the heading `heading`, each after the name of its field."""
    return ((field.name, flag) for field, flag in _flags(owner) if flag.group == heading)


def sample_flags() -> type[Any]:
    """Returns a dataclass with one field for each sampling parameter that has a help text; a field is None if its flag
    is not given.
    """
    flags = []
    for parameter in PARAMETERS.values():
        if parameter.param.help is not None:
            flag = Flag(parameter.param.help, "Sampling", is_size=parameter.param.is_size)
            # A parameter of type text or list of texts is a repeatable flag.
            kind = list[str] if parameter.kind == str | list[str] | None else parameter.kind
            field = Declared(parameter.name, kind | None, (flag,))
            flags.append((field.name, _annotated(field, flag), None))
    return make_dataclass("SampleFlags", flags, frozen=True, kw_only=True)


def _name(field: Declared, flag: Flag) -> str:
    return flag.name or field.name


def _is_tuple(field: Declared) -> bool:
    return get_origin(field.type) is tuple


def _flags(options: type[Any]) -> Iterator[tuple[Declared, Flag]]:
    for field in declared(options):
        for note in field.notes:
            if isinstance(note, Flag):
                yield field, note


def _annotated(field: Declared, flag: Flag) -> Any:
    # A repeatable field is a list, or None if the flag is not given.
    kind = list[get_args(field.type)[0]] | None if _is_tuple(field) else field.type  # type: ignore[misc]  # a type of run time
    only = field.only_type
    settings: dict[str, Any] = {}
    if flag.is_json:
        kind, settings = str | None, {"metavar": "JSON"}
    elif flag.is_size:
        settings = {"metavar": "SIZE", "converter": size_converter}
    elif only is int:
        settings = {"metavar": "INT", "converter": count_converter}
    elif flag.is_duration:
        settings = {"metavar": "DURATION", "converter": duration_converter}
    elif get_origin(only) in (list, tuple) or not flag.negatable:
        settings = {"negative": (), "consume_multiple": flag.takes_several}
    show = False if flag.is_hidden else None
    return Annotated[
        kind,
        Parameter(
            group=GROUPS[flag.group],
            help=flag.help,
            alias=SHORT.get(_name(field, flag)),
            show=show,
            **settings,
        ),
        flag,
    ]
