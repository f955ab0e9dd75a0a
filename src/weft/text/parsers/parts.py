"""The parts an answer consists of, as a parser finds them, and what every parser offers.

One is made for every event of a stream: structs, because a frozen dataclass takes six times as long.
"""

from typing import Protocol, TypeAlias

import msgspec


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """More of the model's reasoning."""

    text: str


class Content(msgspec.Struct, frozen=True, gc=False):
    """More of the answer itself."""

    text: str


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A tool call begins. `index` counts the calls of one answer from 0; `id` only if the model wrote one."""

    index: int
    name: str
    id: str | None = None


class Arguments(msgspec.Struct, frozen=True, gc=False):
    """More of the arguments of the call `index`: JSON text; all of a call's pieces joined are one object."""

    index: int
    text: str


Part: TypeAlias = Reasoning | Content | ToolCall | Arguments


class OutputParser(Protocol):
    """Takes one answer apart. One object serves one answer; texts may be cut anywhere.

    Joining the parts of equal kind gives the same whatever the cuts were. Time and memory are linear in
    the text. What looks like the start of a marker is held back until it is decided, and at most that.
    """

    def feed(self, text: str) -> list[Part]:
        """The parts that are certain now."""

    def finish(self) -> list[Part]:
        """The rest, when the answer has ended, whole or cut off."""
