"""The parts of an answer that a parser finds, and the `OutputParser` protocol of all parsers.

Parts are structs, because a parser creates a part for every stream event, and creating a frozen dataclass takes six
times as long.
"""

from typing import Protocol, TypeAlias

import msgspec


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """The next piece of the model's reasoning."""

    text: str


class Content(msgspec.Struct, frozen=True, gc=False):
    """The next piece of the answer's content."""

    text: str


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A tool call begins. `index` counts the calls of one answer from 0; `id` only if the model wrote one."""

    index: int
    name: str
    id: str | None = None


class Arguments(msgspec.Struct, frozen=True, gc=False):
    """The next piece of the arguments of the call `index`, as JSON text; all pieces of a call joined are one JSON
    object.
    """

    index: int
    text: str


Part: TypeAlias = Reasoning | Content | ToolCall | Arguments


class OutputParser(Protocol):
    """Splits one answer into parts; each answer needs its own parser. The text may be passed in pieces that are cut
    anywhere.

    The joined parts of each kind do not depend on where the text was cut. Time and memory are linear in the length of
    the text. The parser holds back only text that may be the start of a marker, until it is decided.
    """

    def feed(self, text: str) -> list[Part]:
        """Adds text; returns the parts that later text cannot change."""

    def finish(self) -> list[Part]:
        """Returns the remaining parts at the end of the answer, whether the answer is complete or cut off."""
