"""Where logs go: standard error, one line an event, through the standard library's loggers."""

import logging
import sys
from typing import TextIO

from weft.core.terminal import harmless

_ROOT = "weft"


class _TerminalFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


def configure_logging(level: str | int, stream: TextIO | None = None) -> None:
    """Send Weft's logs from `level` up, and the warnings of libraries, to `stream`."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    kind = _TerminalFormatter if stream.isatty() else logging.Formatter
    handler.setFormatter(kind("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(_ROOT).setLevel(level.upper() if isinstance(level, str) else level)
    # A full disk behind the log must not stop the service, nor print a traceback for each line.
    logging.raiseExceptions = False
