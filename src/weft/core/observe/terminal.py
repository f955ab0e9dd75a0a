"""Output to a terminal: text from other sources must not move the cursor, set the title or type for the user.

Texts of models, requests and checkpoints can contain any character, including escape sequences. Files and pipes get
every character unchanged.
"""

import os
import sys
from typing import TextIO

_UNCHANGED = "\n\t"
_PICTURES = 0x2400  # Unicode's pictures of the control characters begin at this code point, in the same order
_UNKNOWN = "\ufffd"


def _shown_by_code() -> dict[int, str]:
    shown = {code: chr(_PICTURES + code) for code in range(0x20) if chr(code) not in _UNCHANGED}
    # A carriage return ends lines in Windows texts; alone it would move the cursor back to overwrite the line.
    shown[ord("\r")] = ""
    shown[0x7F] = "\u2421"
    # The C1 control characters; one of them begins escape sequences, like the escape character.
    shown |= dict.fromkeys(range(0x80, 0xA0), _UNKNOWN)
    # Controls of text direction, which can make a line look like different text.
    return shown | dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), _UNKNOWN)


_SHOWN = _shown_by_code()


def harmless(text: str) -> str:
    """Returns the text with a visible character in place of each control character that a terminal would act on."""
    return text.translate(_SHOWN)


def say(text: str = "", *, end: str = "\n", file: TextIO | None = None) -> None:
    """Prints text, flushed at once, to standard output or `file`; if that is a terminal, control characters are
    replaced.
    """
    file = sys.stdout if file is None else file
    print(harmless(text) if file.isatty() else text, end=end, file=file, flush=True)


def colours(stream: TextIO) -> bool:
    """True if output to `stream` may have colours: `stream` is a terminal, and the user has not disabled colours."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not is_plain


class StatusLine:
    """The last line of a terminal, rewritten repeatedly; without effect if `stream` is not a terminal.

    The cursor stays at the start of the line, so that any other output overwrites the line.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_live = stream.isatty()

    def show(self, text: str) -> None:
        """Shows `text`, cut to the terminal's width."""
        if self.is_live:
            width = os.get_terminal_size(self._stream.fileno()).columns or 80
            self._write(f"{harmless(text)[: width - 1]}\x1b[K\r")

    def clear(self) -> None:
        """Clears the line."""
        if self.is_live:
            self._write("\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
