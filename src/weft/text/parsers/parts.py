"""The parts an answer consists of, as a parser finds them, and what every parser offers."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the model's thoughts."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """More of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call begins. `index` counts the calls of one answer from 0; `id` only if the model wrote one."""

    index: int
    name: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Arguments:
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
        ...

    def finish(self) -> list[Part]:
        """The rest, when the answer has ended, whole or cut off."""
        ...
