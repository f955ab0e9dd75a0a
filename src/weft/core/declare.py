"""What is said of a field beside its type, once, where the field is: `Annotated[int, Param(1, 8)]`.

`Param` is said of a parameter of a request, `Flag` of a setting. The tables that follow from them are
made at import: `weft.core.params`, `weft.cli.flags`.
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
    """How a message holds a parameter."""

    SAME = auto()  # in the field with its name, which means the same by every value
    OWN = auto()  # in words of the message's own: code translates
    NOT = auto()  # it has no field for it


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of a command that sets the field it stands beside.

    `group` is the heading it stands under. A number that `is_size` may be written 32k or 4GiB, one
    that `is_duration` 300ms or 1m30s; what `is_json` is a text of it there. `name` and `default` are the
    flag's where they are not the field's; what is not `negatable` has no flag that begins with "no". What
    may be repeated may also follow once, if it `takes_several`. Help leaves out what `is_hidden`.
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
    """A number is in [low, high], or in (low, high] where it is `above`; without a `high` code checks it.

    `body` is how the bodies hold it that extend OpenAI's, `wire` how gRPC's `SamplingParams` does.
    `narrows`: it narrows what is drawn from, and so does nothing where the likeliest token is taken.
    `of_model`: generation_config.json may say what it is where the caller does not.
    With `help` the command line has a flag for it; a number that `is_size` may be written 32k there.
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
        """Whether a number is in the range; NaN is in none."""
        return bool((self.low < value if self.above else self.low <= value) and value <= self.high)


@dataclass(frozen=True, slots=True)
class Declared:
    """A field, its type, and what is said of it."""

    name: str
    type: Any
    notes: tuple[Any, ...]

    @property
    def is_optional(self) -> bool:
        """Whether it takes None."""
        return NoneType in get_args(self.type)

    @property
    def only_type(self) -> Any:
        """`type` without None; as it is where more than one is left."""
        kinds = [kind for kind in get_args(self.type) if kind is not NoneType]
        return kinds[0] if self.is_optional and len(kinds) == 1 else self.type


def declared(owner: type[Any]) -> Iterator[Declared]:
    """The fields of `owner` and its bases, in order."""
    for name, hint in get_type_hints(owner, include_extras=True).items():
        if get_origin(hint) is Annotated:
            bare, *notes = get_args(hint)
            yield Declared(name, bare, tuple(notes))
        else:
            yield Declared(name, hint, ())


def spelled(name: str) -> str:
    """The flag that sets a field."""
    return f"--{name.replace('_', '-')}"


def nearest_flag(typed: str, known: Iterable[str]) -> str | None:
    """The flag that was most likely meant; None where none is so near that it helps."""
    return next(iter(get_close_matches(typed, known, n=1, cutoff=0.8)), None)


def refuse_unused(given: object, default: object, names: Iterable[str], where: str) -> None:
    """A flag that would do nothing is a mistake: `ConfigError` for the first of those that are not as in `default`."""
    for name in names:
        if getattr(given, name) != getattr(default, name):
            raise ConfigError(f"{spelled(name)} does nothing {where}")
