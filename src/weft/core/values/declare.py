"""Metadata of fields, declared beside the type: `Annotated[int, Param(1, 8)]`.

`Param` describes a request parameter, `Flag` a setting. Two modules make tables from this metadata at import:
`weft.core.values.params` and `weft.cli.arguments.flags`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from difflib import get_close_matches
from enum import Enum, auto
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from weft.core.errors import ConfigError

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class Carried(Enum):
    """Form in which a message carries a parameter."""

    SAME = auto()  # in a field with the same name, whose values have the same meaning
    OWN = auto()  # in the message's own form, which code translates
    NOT = auto()  # the message has no field for it


@dataclass(frozen=True, slots=True)
class Flag:
    """A command-line flag that sets the annotated field.

    `group` is the heading above the flag in the help. The value of a number with `is_size` may be written 32k or 4GiB,
    and with `is_duration` 300ms or 1m30s; the value of a flag with `is_json` is a JSON text. `name` and `default`
    override those of the field. A flag without `negatable` has no form that begins with "no". With `takes_several`, a
    repeatable flag accepts several values at once. The help leaves out flags with `is_hidden`.
    """

    help: str
    group: str
    _: KW_ONLY
    is_size: bool = False
    is_json: bool = False
    is_duration: bool = False
    name: str | None = None
    default: Any = None
    negatable: bool = True
    takes_several: bool = False
    is_hidden: bool = False


@dataclass(frozen=True, slots=True)
class Param:
    """Range and properties of a request parameter: a number in [low, high], or in (low, high] if `above`.

    If `high` is None, code checks the value. `body` is the form in which request bodies that extend OpenAI's carry the
    parameter, `wire` the form in gRPC's `SamplingParams`. `narrows`: the parameter restricts the tokens that may be
    sampled, and so has no effect on greedy sampling. `of_model`: generation_config.json may set the default. With
    `help` the command line has a flag for the parameter; a number with `is_size` may be written 32k in this flag.
    """

    low: Any = None
    high: Any = None
    _: KW_ONLY
    above: bool = False
    body: Carried = Carried.SAME
    wire: Carried = Carried.SAME
    narrows: bool = False
    of_model: bool = False
    help: str | None = None
    is_size: bool = False

    def holds(self, value: float) -> bool:
        """True if the number is in the range; NaN is in no range."""
        return bool((self.low < value if self.above else self.low <= value) and value <= self.high)


@dataclass(frozen=True, slots=True)
class Declared:
    """A field of a class, with its type and its metadata."""

    name: str
    type: Any
    notes: tuple[Any, ...]

    @property
    def is_optional(self) -> bool:
        """True if the field accepts None."""
        return NoneType in get_args(self.type)

    @property
    def only_type(self) -> Any:
        """The field's type without None; `type` itself if more than one type remains."""
        kinds = [kind for kind in get_args(self.type) if kind is not NoneType]
        return kinds[0] if self.is_optional and len(kinds) == 1 else self.type


def declared(owner: type[Any]) -> Iterator[Declared]:
    """Yields the fields of the class `owner` and of its bases, in order."""
    for name, hint in get_type_hints(owner, include_extras=True).items():
        if get_origin(hint) is Annotated:
            bare, *notes = get_args(hint)
            yield Declared(name, bare, tuple(notes))
        else:
            yield Declared(name, hint, ())


def spelled(name: str) -> str:
    """Returns the name of the flag that sets a field."""
    return f"--{name.replace('_', '-')}"


def nearest_flag(typed: str, known: Iterable[str]) -> str | None:
    """Returns the known flag that is most similar to the typed flag; None if no flag is similar enough."""
    return next(iter(get_close_matches(typed, known, n=1, cutoff=0.8)), None)


def refuse_unused(given: object, default: object, names: Iterable[str], where: str) -> None:
    """Raises `ConfigError` for the first of `names` whose value is not the default.

    These options have no effect in the situation `where`, and an option without effect is a mistake of the user.
    """
    for name in names:
        if getattr(given, name) != getattr(default, name):
            raise ConfigError(f"{spelled(name)} does nothing {where}")
