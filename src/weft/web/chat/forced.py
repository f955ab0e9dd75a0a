"""Parsers of answers that have to be tool calls: the constraint of `weft.web.chat.tools`, read as it comes.

What arrives is JSON that a grammar held to its schema, or the start of it where the answer was cut off.
"""

import json
import re

from weft.text.parsers.parts import Arguments, Content, OutputParser, Part, Reasoning, ToolCall

# What is looked at one by one; everything between them is taken in one piece.
_STRUCTURE = re.compile(r'["{}\[\],:]')
_STRING_END = re.compile(r'["\\]')


class NamedCall:
    """All of the answer is the arguments of one call, whose name the caller knows."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_begun = False

    def feed(self, text: str) -> list[Part]:
        """See `OutputParser`."""
        if not text:
            return []
        arguments = Arguments(0, text)
        if self._is_begun:
            return [arguments]
        self._is_begun = True
        return [ToolCall(0, self._name), arguments]

    def finish(self) -> list[Part]:
        """See `OutputParser`."""
        return []


class RequiredCalls:
    """The answer is an array of `{"name": …, "parameters": {…}}`.

    A call is told with the first character of its parameters, and these as they come. Work is linear
    in the text: nothing is looked at twice, whatever the cuts.
    """

    def __init__(self) -> None:
        self._depth = 0  # 1 in the array, 2 in a call, 3 and more in its parameters
        self._string: list[str] | None = None  # the open string's pieces, outside parameters
        self._is_in_string = False
        self._is_escaped = False
        self._key: str | None = None
        self._name: str | None = None
        self._num_calls = 0

    def feed(self, text: str) -> list[Part]:
        """See `OutputParser`."""
        parts: list[Part] = []
        position = 0
        begin = 0  # of the parameters that are open, in this text
        while position < len(text):
            was_inside = self._depth >= 3
            if self._is_in_string:
                position = self._string_end(text, position)
            else:
                position = self._structure_end(text, position, parts)
            if was_inside and self._depth < 3:
                parts.append(Arguments(self._num_calls - 1, text[begin:position]))
            elif not was_inside and self._depth >= 3:
                begin = position - 1
        if self._depth >= 3 and text:
            parts.append(Arguments(self._num_calls - 1, text[begin:]))
        return parts

    def finish(self) -> list[Part]:
        """See `OutputParser`. What is held back is at most a name whose call never began."""
        return []

    def _string_end(self, text: str, start: int) -> int:
        """Past the open string, or all of the text; an escape may be cut in two."""
        position = start
        while position < len(text):
            if self._is_escaped:
                self._is_escaped = False
                position += 1
                continue
            found = _STRING_END.search(text, position)
            if found is None:
                position = len(text)
                break
            position = found.end()
            if found.group() == '"':
                self._is_in_string = False
                break
            self._is_escaped = True
        if self._string is not None:
            self._string.append(text[start:position])
            if not self._is_in_string:
                self._end_string()
        return position

    def _structure_end(self, text: str, start: int, parts: list[Part]) -> int:
        """Past the next character that means something."""
        found = _STRUCTURE.search(text, start)
        if found is None:
            return len(text)
        match found.group():
            case '"':
                self._is_in_string = True
                self._string = ['"'] if self._depth == 2 else None
            case "{" | "[":
                self._depth += 1
                if self._depth == 3:
                    self._begin_call(parts)
            case "}" | "]":
                self._depth -= 1
                if self._depth == 1:
                    self._name = None
            case _:
                pass
        return found.end()

    def _end_string(self) -> None:
        """A key or a name is complete."""
        assert self._string is not None
        value: str = json.loads("".join(self._string))
        self._string = None
        if self._key == "name":
            self._name = value
            self._key = None
        else:
            self._key = value

    def _begin_call(self, parts: list[Part]) -> None:
        parts.append(ToolCall(self._num_calls, self._name or ""))
        self._num_calls += 1
        self._key = None


class AfterReasoning:
    """Takes thoughts off with one parser and gives the rest to another."""

    def __init__(self, thoughts: OutputParser, rest: OutputParser) -> None:
        self._thoughts = thoughts
        self._rest = rest

    def feed(self, text: str) -> list[Part]:
        """See `OutputParser`."""
        return self._pass_on(self._thoughts.feed(text))

    def finish(self) -> list[Part]:
        """See `OutputParser`."""
        return self._pass_on(self._thoughts.finish()) + self._rest.finish()

    def _pass_on(self, found: list[Part]) -> list[Part]:
        parts: list[Part] = []
        for part in found:
            if isinstance(part, Content):
                parts += self._rest.feed(part.text)
            elif isinstance(part, Reasoning):
                parts.append(part)
        return parts
