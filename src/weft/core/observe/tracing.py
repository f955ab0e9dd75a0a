"""Spans of a request, in one trace across processes: W3C trace context in and out, and what is sent of each.

Nothing of OpenTelemetry is imported here: `weft.core.observe.otlp` samples and exports. Its own spans cost several
times as much: one of these is a few integers until it has ended.
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
_MAX_STATE: Final = 512  # characters, as the recommendation has it
_MAX_TEXT: Final = 256  # of an attribute: clients write some of them

Value: TypeAlias = str | int | float | bool | tuple[str, ...]


class SpanKind(Enum):
    """Who began it: a caller from outside, or the same program."""

    SERVER = auto()
    INTERNAL = auto()


@dataclass(frozen=True, slots=True)
class Parent:
    """The span of another process that a request comes from."""

    trace_id: int
    span_id: int
    is_sampled: bool
    state: str = ""


def read_parent(headers: Mapping[str, str]) -> Parent | None:
    """What `traceparent` and `tracestate` say; None where they say nothing that holds.

    A later version than ours may have more behind its flags.
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
    """Of all headers those of a trace, as far as another server takes them."""
    return {
        name: value
        for name in TRACE_HEADERS
        if (value := headers.get(name)) and len(value) <= _MAX_STATE and _is_plain(value)
    }


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _sendable(text: str) -> str:
    """As much as a span may hold. What no protocol can carry would cost a whole batch."""
    if text.isascii() and len(text) <= _MAX_TEXT:  # nearly all of them
        return text
    return text[:_MAX_TEXT].encode("utf-8", "replace").decode()


def trace_id_of(traceparent: str | None) -> str | None:
    """The trace that a header names, as logs write it."""
    parent = None if traceparent is None else read_parent({"traceparent": traceparent})
    return None if parent is None else f"{parent.trace_id:032x}"


class Span:
    """A piece of a request's work: begun by a `Tracer`, exported once it has ended. One event loop owns it.

    `headers` are for those who work on, and name it. What is not sampled costs no more than them.
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
        """W3C trace context for what is called from here."""
        flags = 1 if self.is_sampled else 0
        headers = {"traceparent": f"00-{self.trace_id:032x}-{self.span_id:016x}-{flags:02x}"}
        if self.state:
            headers["tracestate"] = self.state
        return headers

    def child(self, name: str) -> "Span":
        """A part of this one's work, begun now. What is sampled was decided with the first."""
        return Span(name, SpanKind.INTERNAL, self, self.trace_id, self._export)

    def set(self, name: str, value: Value | None) -> None:
        """Say something of it; None says nothing."""
        if value is not None:
            self.attributes[name] = _sendable(value) if isinstance(value, str) else value

    def fail(self, error: str) -> None:
        """It ends in an error; the first is the cause."""
        if self.error is None:
            self.error = _sendable(error)

    def end(self, at_ns: int | None = None) -> None:
        """It is over, now or at that time; only the first call counts."""
        if self.ended_ns is None:
            self.ended_ns = time.time_ns() if at_ns is None else max(at_ns, self.started_ns)
            if self._export is not None:
                self._export(self)


# Whether the trace with this id, that a span of this name begins or goes on with, is to be exported.
Sampler: TypeAlias = Callable[[str, int, Parent | None], bool]


class Tracer:
    """Begins spans. What has ended goes to `export`, which never waits."""

    def __init__(self, samples: Sampler, export: Callable[[Span], None]) -> None:
        self._samples = samples
        self._export = export
        self._before_close: list[Callable[[], None]] = []

    def begin(
        self, name: str, headers: Mapping[str, str], kind: SpanKind = SpanKind.SERVER
    ) -> Span:
        """A span of the trace that `headers` name, or the first of a new one."""
        parent = read_parent(headers)
        trace_id = (getrandbits(128) or 1) if parent is None else parent.trace_id
        is_sampled = self._samples(name, trace_id, parent)
        return Span(name, kind, parent, trace_id, self._export if is_sampled else None)

    def before_close(self, end_spans: Callable[[], None]) -> None:
        """Have the owner of spans that are open end them before the last are exported."""
        self._before_close.append(end_spans)

    def close(self) -> None:
        """End what is open."""
        for end_spans in self._before_close:
            end_spans()
