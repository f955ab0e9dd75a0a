"""What others wrote, on a terminal: it must not move the cursor, set the title or answer for the user.

Models, requests and checkpoints can hold any character, escape sequences among them. Files and pipes
get every character as it is.
"""

import os
import sys
from typing import TextIO

_UNCHANGED = "\n\t"
_PICTURES = 0x2400  # of the control characters, in their order
_UNKNOWN = "\ufffd"


def _shown_by_code() -> dict[int, str]:
    shown = {code: chr(_PICTURES + code) for code in range(0x20) if chr(code) not in _UNCHANGED}
    # Texts of Windows end their lines with it, and alone it goes back to write over.
    shown[ord("\r")] = ""
    shown[0x7F] = "\u2421"
    # The other control characters, one of which begins a sequence as escape does.
    shown |= dict.fromkeys(range(0x80, 0xA0), _UNKNOWN)
    # Orders to write the other way round, by which a line reads as what it is not.
    return shown | dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), _UNKNOWN)


_SHOWN = _shown_by_code()


def harmless(text: str) -> str:
    """The text with a visible character for each that a terminal would obey."""
    return text.translate(_SHOWN)


def say(text: str = "", *, end: str = "\n", file: TextIO | None = None) -> None:
    """Print at once to standard output or `file`; harmless where that is a terminal."""
    file = sys.stdout if file is None else file
    print(harmless(text) if file.isatty() else text, end=end, file=file, flush=True)


def colours(stream: TextIO) -> bool:
    """Whether to write in colour there: not into files, and not where the user wants none."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not is_plain


class StatusLine:
    """The last line of a terminal, written over and over; nothing where `stream` is none.

    The cursor stays at its start, so that what anybody else writes takes its place.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_live = stream.isatty()

    def show(self, text: str) -> None:
        """Put `text` there, cut to the terminal's width."""
        if self.is_live:
            width = os.get_terminal_size(self._stream.fileno()).columns or 80
            self._write(f"{harmless(text)[: width - 1]}\x1b[K\r")

    def clear(self) -> None:
        """Leave an empty line."""
        if self.is_live:
            self._write("\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
