"""Prints an answer on the terminal while it arrives: reasoning dimmed and folded to one line, content as plain text.

A pipe gets only the content. All text of a model is printed through `weft.core.observe.terminal`.
"""

import os
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal

from rich.cells import cell_len

from weft.cli.chat.conversation import Conversation
from weft.cli.chat.model_answer import Answer
from weft.core.observe.terminal import harmless, say
from weft.text.parsers.parts import Content, Reasoning

Mode = Literal["fold", "show", "hide"]
_DIM, _PLAIN = "\x1b[2m", "\x1b[22m"
_TO_START = "\r\x1b[K"
_LABEL = "reasoning: "


class Screen:
    """Prints answers. `mode` says how reasoning is displayed. Callers call `begin` before each answer and `end` after
    it.
    """

    def __init__(self, mode: Mode, unfolds_by: str) -> None:
        self.mode = mode
        self._unfolds_by = unfolds_by
        is_terminal = sys.stdout.isatty()
        self._obeys = is_terminal and os.environ.get("TERM", "dumb") != "dumb"
        self._dims = self._obeys and not os.environ.get("NO_COLOR")
        if mode == "fold" and not is_terminal:
            self.mode = "hide"
        self.begin(Answer())

    def begin(self, answer: Answer) -> None:
        """Starts the display of another answer."""
        self._answer = answer
        self._is_reasoning = False
        self._is_line_open = False

    def show(self, part: Reasoning | Content) -> None:
        """Prints the new part of an answer."""
        if isinstance(part, Reasoning):
            self._is_reasoning = True
            self._show_reasoning(part.text)
            return
        text = part.text
        if self._is_reasoning:
            self._end_reasoning()
            text = text.lstrip("\n")
        if text:
            say(text, end="")
            self._is_line_open = True

    def end(self) -> None:
        """Finishes the display of an answer that has ended or was stopped."""
        if self._is_reasoning:
            self._end_reasoning()
        if self._is_line_open:
            say()

    def unfold(self, text: str) -> None:
        """Prints the whole reasoning of an answer."""
        self._dimmed(harmless(text) if sys.stdout.isatty() else text)
        say()

    def note(self, text: str) -> None:
        """Prints a message of the program, not of the model."""
        dims = self._dims and sys.stderr.isatty()
        print(f"{_DIM}[{text}]{_PLAIN}" if dims else f"[{text}]", file=sys.stderr, flush=True)

    def _show_reasoning(self, text: str) -> None:
        if self.mode == "show":
            self._dimmed(harmless(text) if sys.stdout.isatty() else text)
        elif self.mode == "fold" and self._obeys:
            columns = shutil.get_terminal_size().columns - len(_LABEL) - 1
            sys.stdout.write(_TO_START)
            self._dimmed(_LABEL + _tail(self._answer.reasoning, columns))

    def _end_reasoning(self) -> None:
        self._is_reasoning = False
        if self.mode == "show":
            say("\n" if self._answer.content else "")
        elif self.mode == "fold":
            if self._obeys:
                sys.stdout.write(_TO_START)
            count = self._answer.num_reasoning_tokens
            self._dimmed(f"[reasoning, {count:,} tokens: {self._unfolds_by} shows it]")
            say()

    def _dimmed(self, text: str) -> None:
        sys.stdout.write(f"{_DIM}{text}{_PLAIN}" if self._dims else text)
        sys.stdout.flush()


def _tail(text: str, columns: int) -> str:
    """Returns the last words of `text` that fit on a line of `columns` characters."""
    line = harmless(" ".join(text[-4 * max(columns, 1) :].split()))
    line = line[-max(columns, 0) :] if columns > 0 else ""
    while cell_len(line) > columns:
        line = line[1:]
    return line


async def print_answer(
    screen: Screen, talk: Conversation, parts: AsyncGenerator[Reasoning | Content, None]
) -> None:
    """Prints an answer to the screen while it is generated."""
    is_begun = False
    try:
        async with aclosing(parts):
            async for part in parts:
                if not is_begun:
                    is_begun = True
                    screen.begin(talk.last)
                screen.show(part)
    finally:
        if is_begun:
            screen.end()


def speed(answer: Answer) -> str:
    """Describes the number of tokens of an answer and their speed."""
    reasoning = f" ({answer.num_reasoning_tokens:,} reasoning)" * bool(answer.num_reasoning_tokens)
    rate = answer.tokens_per_s
    # A server over HTTP counts tokens at the end of an answer; one that was stopped has no count.
    count = f"{answer.num_tokens:,} tokens" if answer.num_tokens else "uncounted tokens"
    parts = [
        f"{count}{reasoning} in {answer.ended_at - answer.began_at:.2f} s",
        *([] if rate is None else [f"{rate:,.1f} tokens/s"]),
        f"first after {max(0.0, answer.first_at - answer.began_at):.2f} s",
        f"prompt {answer.num_prompt_tokens:,} tokens, {answer.num_cached_tokens:,} cached",
    ]
    return ", ".join(parts)
