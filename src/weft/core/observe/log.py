"""Logging: one line per event to standard error, through the standard library's loggers."""

import json
import logging
import sys
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final, Literal, TextIO

from weft.core.observe.terminal import harmless
from weft.core.observe.tracing import trace_id_of

LogFormat = Literal["text", "json"]

_ROOT = "weft"
# Id and `traceparent` of the request that the current task works for. Tasks that this task starts inherit the value.
REQUEST: Final[ContextVar[tuple[str, str | None] | None]] = ContextVar("request", default=None)


def of_request(
    request_id: str, trace_headers: Mapping[str, str] | None
) -> dict[str, tuple[str, str | None]]:
    """Returns `extra` for a log record about a request, for code outside the request's task, as in an engine's step."""
    return {"request": (request_id, (trace_headers or {}).get("traceparent"))}


class _TerminalFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object per line, with the request's id and trace id if the record is about a
    request.
    """

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{when}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (request := getattr(record, "request", REQUEST.get())) is not None:
            line["request_id"], traceparent = request
            if (trace_id := trace_id_of(traceparent)) is not None:
                line["trace_id"] = trace_id
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure_logging(
    level: str | int, stream: TextIO | None = None, log_format: LogFormat = "text"
) -> None:
    """Sends Weft's log records from `level` up, and warnings of libraries, to `stream`."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        kind = _TerminalFormatter if stream.isatty() else logging.Formatter
        handler.setFormatter(kind("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    # A caller could fill the log: this library warns of each malformed form, and the caller gets the same sentence with
    # 400.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    logging.getLogger(_ROOT).setLevel(level.upper() if isinstance(level, str) else level)
    # A full disk behind the log must not stop the service, nor print a traceback for each line.
    logging.raiseExceptions = False


def log_format() -> LogFormat:
    """Returns the log format of this process, which passes it on to processes that it starts."""
    handlers = logging.getLogger().handlers
    return "json" if any(isinstance(one.formatter, JsonFormatter) for one in handlers) else "text"
