"""A conversation on a terminal: the user can edit lines and recall earlier ones; lines that begin with / are
commands.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output
from prompt_toolkit.shortcuts import CompleteStyle

from weft.cli.chat.attachments import read_attachment, text_of, with_attachments
from weft.cli.chat.conversation import Conversation
from weft.cli.chat.screen import Screen, print_answer, speed
from weft.cli.options import ChatOptions
from weft.cli.process.state import state_file
from weft.core.errors import BadRequest
from weft.core.observe.terminal import say
from weft.core.values.media import WORDS, Modality
from weft.text.parsers.parts import Content, Reasoning

_PROMPT = "> "
_MAX_HISTORY_BYTES = 2**20
_BYE = ("/bye", "/exit", "/quit")


class Interrupted(Exception):
    """The user pressed Ctrl-C at the prompt."""


class ChatSession:
    """A conversation on the terminal; `hold` runs it until the user leaves."""

    def __init__(self, runner: asyncio.Runner, talk: Conversation, options: ChatOptions) -> None:
        self._runner = runner
        self._talk = talk
        self._is_verbose = options.verbose
        self._screen = Screen(options.reasoning, "/reasoning")
        self._was_interrupted = False
        self._attachments: list[dict[str, Any]] = []  # of the next message
        self._commands: dict[str, tuple[str, Callable[[str], None]]] = {
            "/help": ("list the commands", self._help),
            "/clear": ("clear the conversation; keep the system message", self._clear),
            "/system": ("TEXT: set the system message; show it without TEXT", self._system),
            **{
                f"/{modality}": (
                    f"FILE: send a {word} with the next message; repeatable",
                    partial(self._attach, modality),
                )
                for modality, word in WORDS.items()
            },
            "/regen": ("answer the last message again", self._regenerate),
            "/reasoning": ("show the reasoning of the last answer", self._unfold),
            "/verbose": (
                "switch the display of tokens per second on or off",
                self._verbose,
            ),
            "/save": (
                "FILE: save the conversation: messages for a .json file, otherwise Markdown",
                self._save,
            ),
            "/bye": ("leave, like Ctrl-D", self._help),
        }
        self._input: PromptSession[str] = PromptSession(
            history=_open_history() if options.history else InMemoryHistory(),
            key_bindings=_bindings(),
            completer=WordCompleter(list(self._commands), sentence=True),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            reserve_space_for_menu=0,
            multiline=True,
            prompt_continuation="  ",
            interrupt_exception=Interrupted,
            # On a terminal without escape sequences, prompt_toolkit uses a plainer prompt, which accepts no output
            # object.
            output=None if sys.stdout.isatty() else create_output(always_prefer_tty=True),
        )

    def hold(self) -> None:
        """Reads messages and commands and answers them, until the user leaves."""
        print(f"{self._talk.model}: /help lists commands, Ctrl-D leaves.", file=sys.stderr)
        while True:
            try:
                text = self._runner.run(self._input.prompt_async(_PROMPT)).strip()
            except EOFError:
                return
            # KeyboardInterrupt: Ctrl-C before the prompt was ready.
            except (Interrupted, KeyboardInterrupt) as error:
                is_empty = (
                    isinstance(error, KeyboardInterrupt) or not self._input.default_buffer.text
                )
                if self._was_interrupted and is_empty:
                    return
                self._was_interrupted = is_empty
                if is_empty:
                    self._screen.note("press Ctrl-C again, or Ctrl-D, to leave")
                continue
            self._was_interrupted = False
            if text in _BYE:
                return
            if text:
                self._take(text)

    def _take(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        if not text.startswith("/") or text.startswith("//"):
            said = with_attachments(text.removeprefix("/"), self._attachments)
            self._attachments = []
            self._answer(self._talk.say(said))
        elif name in self._commands:
            self._commands[name][1](rest.strip())
        else:
            say(
                f"error: unknown command {name}; /help lists the commands; // sends a message that begins with /",
                file=sys.stderr,
            )

    def _answer(self, parts: AsyncGenerator[Reasoning | Content, None]) -> None:
        try:
            self._runner.run(print_answer(self._screen, self._talk, parts))
        except KeyboardInterrupt:  # the runner has ended the answer; the conversation continues
            self._was_interrupted = True
            self._screen.note("stopped")
        # For example a conversation that is too long: the error is shown, and the next message may work.
        except BadRequest as err:
            say(f"error: {err}", file=sys.stderr)
            return
        if self._talk.last.finish_reason == "length":
            self._screen.note(
                "the answer was cut off: --max-tokens is reached or the context is full"
            )
        if self._is_verbose:
            self._screen.note(speed(self._talk.last))

    # -- commands -------------------------------------------------------------------------------

    def _help(self, rest: str) -> None:
        del rest
        for name, (text, _) in self._commands.items():
            say(f"{name:<11}{text}")
        say(
            "Alt-Enter, or a backslash and Enter, starts a new line; the arrow keys recall earlier input."
        )

    def _clear(self, rest: str) -> None:
        del rest
        self._talk.clear()
        self._attachments = []
        self._screen.note("conversation cleared")

    def _attach(self, modality: Modality, rest: str) -> None:
        if not rest:
            say(f"error: give a file: /{modality} FILE", file=sys.stderr)
            return
        path = Path(rest).expanduser()
        try:
            self._attachments.append(read_attachment(path, modality))
        except OSError as err:
            say(f"error: {path}: {err.strerror}", file=sys.stderr)
        except BadRequest as err:
            say(f"error: {path}: {err}", file=sys.stderr)
        else:
            self._screen.note(f"{path.name} goes with the next message")

    def _system(self, rest: str) -> None:
        if rest:
            self._talk.system = rest
        else:
            say(self._talk.system or "no system message is set")

    def _regenerate(self, rest: str) -> None:
        del rest
        if self._talk.messages:
            self._answer(self._talk.say_again())
        else:
            say("error: there is no answer yet", file=sys.stderr)

    def _unfold(self, rest: str) -> None:
        del rest
        self._screen.unfold(self._talk.last.reasoning or "the last answer has no reasoning")

    def _verbose(self, rest: str) -> None:
        del rest
        self._is_verbose = not self._is_verbose
        self._screen.note(
            "tokens per second: shown" if self._is_verbose else "tokens per second: hidden"
        )

    def _save(self, rest: str) -> None:
        if not rest:
            say("error: give a file: /save FILE", file=sys.stderr)
            return
        path = Path(rest).expanduser()
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(_as_text(path, self._talk))
        except OSError as err:
            say(f"error: {path}: {err.strerror}", file=sys.stderr)
        else:
            self._screen.note(f"saved {path}")


def _as_text(path: Path, talk: Conversation) -> str:
    messages = talk.all_messages
    if path.suffix == ".json":
        value = {"model": talk.model, "messages": messages}
        return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
    parts = (
        f"## {message['role']}\n\n{text_of(message['content']).strip()}\n" for message in messages
    )
    return "\n".join([f"# {talk.model}\n", *parts])


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return bindings


def _open_history() -> History:
    """Opens the input history, a file that only its owner can read. If the file cannot be used, the history is kept in
    memory.
    """
    try:
        path = state_file("chat_history")
        if path.stat().st_size > _MAX_HISTORY_BYTES:
            _shorten(path)
    except OSError as err:
        say(f"the input history is not saved: {err}", file=sys.stderr)
        return InMemoryHistory()
    return FileHistory(path)


def _shorten(path: Path) -> None:
    """Removes the older half of the history file. Entries of the file begin with an empty line."""
    with path.open("rb+") as file:
        file.seek(-_MAX_HISTORY_BYTES // 2, os.SEEK_END)
        rest = file.read().partition(b"\n\n")[2]
        file.seek(0)
        file.write(b"\n" + rest)
        file.truncate()
