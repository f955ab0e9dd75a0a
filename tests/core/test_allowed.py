"""Refusals that say what is allowed."""

import enum
from typing import Annotated, Literal

import msgspec
import pytest

from weft.core.checks.allowed import explain


class Colour(enum.Enum):
    """Two."""

    RED = "red"
    BLUE = "blue"


class Left(msgspec.Struct, tag="left"):
    """A member of a union."""

    sides: dict[str, list[Literal["a", "b"] | None]] = {}


class Right(msgspec.Struct, tag="right"):
    """The other."""


Large = enum.Enum("Large", {f"N{number}": number for number in range(100)})


class Whole(msgspec.Struct, rename={"pair": "the_pair"}):
    """Every shape in which a value can stand."""

    one: Left | Right | None = None
    pair: tuple[int, Literal[1, 2]] = (1, 1)
    many: Annotated[list[Colour], msgspec.Meta(max_length=3)] = []
    either: str | list[Literal["q"]] = ""
    large: Large = Large(0)
    number: int = 0


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            '{"one": {"type": "up"}}',
            "Invalid value 'up'; allowed: 'left', 'right' - at `$.one.type`",
        ),
        (
            '{"one": {"type": "left", "sides": {"x": ["a", "c"]}}}',
            "Invalid enum value 'c'; allowed: 'a', 'b' - at `$.one.sides[...][1]`",
        ),
        ('{"the_pair": [1, 3]}', "Invalid enum value 3; allowed: 1, 2 - at `$.the_pair[1]`"),
        ('{"many": ["x"]}', "Invalid enum value 'x'; allowed: 'red', 'blue' - at `$.many[0]`"),
        ('{"either": ["w"]}', "Invalid enum value 'w'; allowed: 'q' - at `$.either[0]`"),
        ('{"large": 100}', "Invalid enum value 100 - at `$.large`"),
        ('{"number": "1"}', "Expected `int`, got `str` - at `$.number`"),
        ('{"number": ', "Input data was truncated"),
    ],
)
def test_a_value_of_none_of_the_known_ones_is_refused_with_those(document: str, said: str) -> None:
    """At any depth; a long list is left out, and other errors are as they were."""
    with pytest.raises(msgspec.DecodeError) as refused:
        msgspec.json.decode(document, type=Whole)
    assert explain(refused.value, Whole) == said
