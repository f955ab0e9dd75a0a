"""Where readers put what they found, and the parts come out."""

from weft.text.parsers.parts import Arguments, Content, Part, Reasoning, ToolCall


class Outlet:
    """Collects parts between two looks at them; neighbours of one kind become one part.

    With `first_id`, a call without an id of its own gets `functions.NAME:N`, counted from there.
    """

    __slots__ = ("_first_id", "_kind", "_parts", "_texts", "num_calls")

    def __init__(self, first_id: int | None = None) -> None:
        self.num_calls = 0
        self._first_id = first_id
        self._parts: list[Part] = []
        self._texts: list[str] = []
        self._kind: type[Reasoning | Content | Arguments] = Content

    def reasoning(self, text: str) -> None:
        """More thoughts."""
        self._add(Reasoning, text)

    def content(self, text: str) -> None:
        """More of the answer."""
        self._add(Content, text)

    def arguments(self, text: str) -> None:
        """More arguments of the latest call."""
        self._add(Arguments, text)

    def call(self, name: str, call_id: str | None = None) -> None:
        """A call begins."""
        if call_id is None and self._first_id is not None:
            call_id = f"functions.{name}:{self._first_id + self.num_calls}"
        self._join()
        self._parts.append(ToolCall(self.num_calls, name, call_id))
        self.num_calls += 1

    def take(self) -> list[Part]:
        """The parts since the last time."""
        self._join()
        parts, self._parts = self._parts, []
        return parts

    def _add(self, kind: type[Reasoning | Content | Arguments], text: str) -> None:
        if kind is not self._kind:
            self._join()
            self._kind = kind
        if text:
            self._texts.append(text)

    def _join(self) -> None:
        text = "".join(self._texts)
        self._texts.clear()
        if not text:
            return
        if self._kind is Arguments:
            self._parts.append(Arguments(self.num_calls - 1, text))
        else:
            self._parts.append(Reasoning(text) if self._kind is Reasoning else Content(text))
