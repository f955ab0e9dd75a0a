"""Flags of the command line, made of what stands beside the fields they set (`weft.core.declare`)."""

from collections.abc import Iterator
from dataclasses import make_dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin

from cyclopts import Group, Parameter

from weft.cli.sizes import count_converter, duration_converter, size_converter
from weft.core.declare import Declared, Flag, declared
from weft.core.params import PARAMETERS

T = TypeVar("T")

GROUPS = {
    name: Group(name, sort_key=position)
    for position, name in enumerate(
        (
            *("Target", "Prompts", "Traffic", "Result"),  # of `weft bench`
            *("Workers", "Configuration", "Pool"),
            *("Model", "Memory", "Scheduling", "API", "Server", "Remote engines"),
            *("Chat", "Connection", "Sampling", "Compatibility", "Not offered"),
        ),
        start=1,
    )
}


def as_flags(*kinds: type[Any]) -> type[Any]:
    """A dataclass with those settings of these that have a `Flag`: by name, type and default."""
    flags = []
    for kind in kinds:
        for field, flag in _flags(kind):
            default = getattr(kind(), field.name) if flag.default is None else flag.default
            flags.append((_name(field, flag), _annotated(field, flag), _single(default)))
    return make_dataclass("Flags", flags, frozen=True, kw_only=True)


def pick(given: object, options: type[T], **others: Any) -> T:
    """`options`, with the values of those flags in `given`, and `others`, which come first."""
    values = {}
    for field, flag in _flags(options):
        value = getattr(given, _name(field, flag))
        values[field.name] = tuple(value or ()) if _is_tuple(field) else value
    return options(**values | others)


def flag_names(*kinds: type[Any]) -> list[str]:
    """Of those flags that set something of `kinds`, as fields are written."""
    return [_name(field, flag) for kind in kinds for field, flag in _flags(kind)]


def sample_flags() -> type[Any]:
    """A dataclass with the parameters of a request that have a help text; None is not given."""
    flags = []
    for parameter in PARAMETERS.values():
        if parameter.param.help is not None:
            flag = Flag(parameter.param.help, "Sampling", is_size=parameter.param.is_size)
            # A text or a list of texts is a flag that may be repeated.
            kind = list[str] if parameter.kind == str | list[str] | None else parameter.kind
            field = Declared(parameter.name, kind | None, (flag,))
            flags.append((field.name, _annotated(field, flag), None))
    return make_dataclass("SampleFlags", flags, frozen=True, kw_only=True)


def _name(field: Declared, flag: Flag) -> str:
    return flag.name or field.name


def _single(default: object) -> object:
    return None if default == () else default


def _is_tuple(field: Declared) -> bool:
    return get_origin(field.type) is tuple


def _flags(options: type[Any]) -> Iterator[tuple[Declared, Flag]]:
    for field in declared(options):
        for note in field.notes:
            if isinstance(note, Flag):
                yield field, note


def _annotated(field: Declared, flag: Flag) -> Any:
    # What may be repeated is a list, and None where it is not given.
    kind = list[get_args(field.type)[0]] | None if _is_tuple(field) else field.type  # type: ignore[misc]  # a type of run time
    only = field.only_type
    settings: dict[str, Any] = {}
    if flag.is_json:
        kind, settings = str | None, {"metavar": "JSON"}
    elif only is int and flag.is_size:
        settings = {"metavar": "SIZE", "converter": size_converter}
    elif only is int:
        settings = {"metavar": "INT", "converter": count_converter}
    elif flag.is_duration:
        settings = {"metavar": "DURATION", "converter": duration_converter}
    elif get_origin(only) in (list, tuple) or not flag.negatable:
        settings = {"negative": (), "consume_multiple": flag.takes_several}
    return Annotated[kind, Parameter(group=GROUPS[flag.group], help=flag.help, **settings)]
