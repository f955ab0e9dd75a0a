"""`weft` commands in a terminal of their own: what is typed, and what is shown."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios

from tests.busy import PATIENCE_S
from tests.cli.running import WEFT, clean_environment


def open_terminal(columns: int = 80) -> tuple[int, int]:
    """The ends of one: ours, at which is typed and read, and a program's."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    return ours, theirs


class Terminal:
    """A command in a terminal. `close` ends it."""

    def __init__(
        self, *argv: str, program: tuple[str, ...] = WEFT, columns: int = 80, **environment: str
    ) -> None:
        self._screen, theirs = open_terminal(columns)
        self._unread = b""
        given = {"TERM": "dumb", "PROMPT_TOOLKIT_NO_CPR": "1"} | environment
        self.process = subprocess.Popen(
            [*program, *argv],
            stdin=theirs, stdout=theirs, stderr=theirs, env=clean_environment(**given),
            preexec_fn=_take_terminal,  # noqa: PLW1509 - no threads run here
        )  # fmt: skip
        os.close(theirs)

    def type(self, text: bytes) -> None:
        os.write(self._screen, text)

    def read_until(self, text: bytes) -> bytes:
        """What was shown up to it; `AssertionError` if it does not come."""
        while text not in self._unread:
            assert self._read(), f"{text!r} did not come after {self._unread!r}"
        before, _, self._unread = self._unread.partition(text)
        return before

    def read_rest(self) -> bytes:
        """What is shown until the command ends."""
        while self._read():
            pass
        self.process.wait(timeout=PATIENCE_S)
        return self._unread

    def wait(self) -> int:
        """The exit status, once it has ended; what it goes on showing is read meanwhile."""
        self.read_rest()
        return self.process.returncode

    def _read(self) -> bool:
        """Whether more was shown before the end."""
        ready, _, _ = select.select([self._screen], [], [], PATIENCE_S)
        assert ready, f"nothing came after {self._unread!r}"
        try:
            piece = os.read(self._screen, 65536)
        except OSError:  # Linux, where the other end is closed
            return False
        self._unread += piece
        return bool(piece)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._screen)


def _take_terminal() -> None:
    """So that Ctrl-C, typed, is a signal to it."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
