"""Spans of requests in traces across processes: reading and writing W3C trace context, and the attributes of spans.

This module imports nothing of OpenTelemetry: `weft.core.observe.otlp` samples and exports. OpenTelemetry's own spans
cost several times as much: a span here is a few integers until it has ended.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from random import getrandbits
from typing import Final, TypeAlias

TRACE_HEADERS: Final = ("traceparent", "tracestate")
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MAX_STATE: Final = 512  # in characters, the limit of the W3C recommendation
_MAX_TEXT: Final = 256  # in characters of an attribute, as clients choose some of the values

Value: TypeAlias = str | int | float | bool | tuple[str, ...]


class SpanKind(Enum):
    """Origin of a span: SERVER for a request from another process, INTERNAL for a part of this process's work."""

    SERVER = auto()
    INTERNAL = auto()


@dataclass(frozen=True, slots=True)
class Parent:
    """The span of another process that is the parent of a request's spans."""

    trace_id: int
    span_id: int
    is_sampled: bool
    state: str = ""


def read_parent(headers: Mapping[str, str]) -> Parent | None:
    """Returns the parent span in `traceparent` and `tracestate`; None without valid headers.

    Later versions of `traceparent` may have more fields after the flags.
    """
    match = _TRACEPARENT.fullmatch(headers.get("traceparent", "").strip())
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    if not trace_id or not span_id:
        return None
    state = headers.get("tracestate", "").strip()
    if len(state) > _MAX_STATE or not _is_plain(state):
        state = ""
    return Parent(trace_id, span_id, bool(int(match[4], 16) & 1), state)


def carried(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the trace headers in `headers` whose length and characters other servers accept."""
    return {
        name: value
        for name in TRACE_HEADERS
        if (value := headers.get(name)) and len(value) <= _MAX_STATE and _is_plain(value)
    }


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _sendable(text: str) -> str:
    """Returns the text in a form that a span may have: cut to the limit, and without characters that UTF-8 cannot
    encode.

    A single unencodable character would fail the export of a whole batch of spans.
    """
    if text.isascii() and len(text) <= _MAX_TEXT:  # true for nearly all texts
        return text
    return text[:_MAX_TEXT].encode("utf-8", "replace").decode()


def trace_id_of(traceparent: str | None) -> str | None:
    """Returns the trace id in a `traceparent` header, in the form that log records have."""
    parent = None if traceparent is None else read_parent({"traceparent": traceparent})
    return None if parent is None else f"{parent.trace_id:032x}"


class Span:
    """A timed part of a request's work: begun by a `Tracer`, exported when it has ended. One event loop owns the span.

    `headers` pass the trace on to other servers. A span that is not sampled costs no more than its headers.
    """

    __slots__ = (
        "_export", "attributes", "ended_ns", "error", "is_sampled", "kind", "name", "parent_id",
        "span_id", "started_ns", "state", "trace_id",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        kind: SpanKind,
        parent: "Parent | Span | None",
        trace_id: int,
        export: "Callable[[Span], None] | None",
    ) -> None:
        self.name = name
        self.kind = kind
        self.trace_id = trace_id
        self.span_id = getrandbits(64) or 1
        self.parent_id = None if parent is None else parent.span_id
        self.state: str = "" if parent is None else parent.state
        self.is_sampled = export is not None
        self.attributes: dict[str, Value] = {}
        self.error: str | None = None
        self.started_ns = time.time_ns()
        self.ended_ns: int | None = None
        self._export = export

    @property
    def headers(self) -> dict[str, str]:
        """W3C trace context headers for calls to other servers within this span."""
        flags = 1 if self.is_sampled else 0
        headers = {"traceparent": f"00-{self.trace_id:032x}-{self.span_id:016x}-{flags:02x}"}
        if self.state:
            headers["tracestate"] = self.state
        return headers

    def child(self, name: str) -> "Span":
        """Begins a child span for a part of this span's work; the child is sampled if this span is."""
        return Span(name, SpanKind.INTERNAL, self, self.trace_id, self._export)

    def set(self, name: str, value: Value | None) -> None:
        """Sets an attribute; None sets nothing."""
        if value is not None:
            self.attributes[name] = _sendable(value) if isinstance(value, str) else value

    def fail(self, error: str) -> None:
        """Marks the span as failed with this error; later errors are ignored."""
        if self.error is None:
            self.error = _sendable(error)

    def end(self, at_ns: int | None = None) -> None:
        """Ends the span, now or at the time `at_ns`; only the first call has an effect."""
        if self.ended_ns is None:
            self.ended_ns = time.time_ns() if at_ns is None else max(at_ns, self.started_ns)
            if self._export is not None:
                self._export(self)


# Called with the span's name, the trace id and the parent; True if the trace is exported.
Sampler: TypeAlias = Callable[[str, int, Parent | None], bool]


class Tracer:
    """Begins spans, and passes ended spans to `export`, which never waits.

    With `uses_latest_names` the engine's spans have the current names of OpenTelemetry's conventions, not vLLM's.
    """

    def __init__(
        self, samples: Sampler, export: Callable[[Span], None], *, uses_latest_names: bool = False
    ) -> None:
        self.uses_latest_names = uses_latest_names
        self._samples = samples
        self._export = export
        self._before_close: list[Callable[[], None]] = []

    def begin(
        self, name: str, headers: Mapping[str, str], kind: SpanKind = SpanKind.SERVER
    ) -> Span:
        """Begins a span in the trace that `headers` name; without trace headers, the first span of a new trace."""
        parent = read_parent(headers)
        trace_id = (getrandbits(128) or 1) if parent is None else parent.trace_id
        is_sampled = self._samples(name, trace_id, parent)
        return Span(name, kind, parent, trace_id, self._export if is_sampled else None)

    def before_close(self, end_spans: Callable[[], None]) -> None:
        """Registers a function that ends the owner's open spans; called before the last spans are exported."""
        self._before_close.append(end_spans)

    def close(self) -> None:
        """Ends all open spans."""
        for end_spans in self._before_close:
            end_spans()
