"""Readers of response bodies: they get a body in pieces of any size, and collect the token usage.

A reader never changes the body, never fails, holds a bounded number of bytes, and skips parts that are too large.
"""

from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import Final, Protocol

from weft.epp.request.engine_protocol import EMBED, EngineProtocol
from weft.epp.request.parsers.parser import Dialect
from weft.epp.request.parsers.payload import HEAD_BYTES, unpack
from weft.epp.request.parsers.vertexai import field_bytes
from weft.epp.request.sglang import SGLANG
from weft.epp.request.trtllm import TRTLLM
from weft.epp.request.usage import may_have_usage, merge, usage_of
from weft.epp.request.values import Refused, Usage
from weft.epp.request.vllm import VLLM

MAX_HELD_BYTES: Final = 4 * 2**20


class Reader(Protocol):
    """Reads the token usage in a response body."""

    @property
    def has_output(self) -> bool:
        """True once the first piece of the answer has arrived."""

    def feed(self, data: bytes) -> None:
        """Reads the next bytes of the body."""

    def usage(self) -> Usage | None:
        """Returns the usage that the body has reported so far; None before any. Complete at the end of the body."""


class JsonReader:
    """Reader of a body that is one JSON value."""

    def __init__(self) -> None:
        self._held: bytearray | None = bytearray()
        self.has_output = False

    def feed(self, data: bytes) -> None:
        """Collects the body, up to a limit."""
        self.has_output = self.has_output or bool(data)
        if self._held is not None:
            self._held += data
            if len(self._held) > MAX_HELD_BYTES:
                self._held = None

    def usage(self) -> Usage | None:
        """Returns the usage in the complete JSON body; None before the end."""
        return usage_of(bytes(self._held)) if self._held else None


class EventReader:
    """Reader of server-sent events. Lines end in LF, CR LF or CR. An event ends at an empty line, or before the next
    JSON object.
    """

    def __init__(self) -> None:
        self._tail: list[bytes] = []  # pieces of an incomplete line
        self._num_tail = 0
        self._data: list[bytes] = []  # data lines of an incomplete event
        self._num_held = 0
        self._ends_in_cr = False
        self._usage: Usage | None = None
        self.has_output = False

    def feed(self, data: bytes) -> None:
        """Reads the complete lines, and keeps the incomplete last line."""
        if not data:
            return
        if self._are_whole_events(data) and not may_have_usage(data):
            self.has_output = self.has_output or data.startswith(b"data:") or b"\ndata:" in data
            return
        if self._ends_in_cr and data[:1] == b"\n":
            data = data[1:]  # the second half of a line end that was split
        self._ends_in_cr = data[-1:] == b"\r"
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *others = data.split(b"\n")
        self._buffer(first)
        for line in others:
            self._take(self._whole_line())
            self._buffer(line)
        self._bound()

    def usage(self) -> Usage | None:
        """Returns the usage of the events so far. A last event without an empty line after it is read too."""
        if self._tail:
            self._take(self._whole_line())
        self._end_event()
        return self._usage

    def _are_whole_events(self, data: bytes) -> bool:
        """True if a piece begins and ends between events, as nearly all pieces do."""
        is_between = not (self._tail or self._data or self._ends_in_cr)
        return is_between and data.endswith(b"\n\n")

    def _buffer(self, piece: bytes) -> None:
        if piece:
            self._tail.append(piece)
            self._num_tail += len(piece)

    def _whole_line(self) -> bytes:
        line = b"".join(self._tail)
        self._tail.clear()
        self._num_tail = 0
        return line

    def _take(self, line: bytes) -> None:
        if not line:
            self._end_event()
        elif line.startswith(b"data:"):
            self.has_output = True
            if len(self._data) == 1 and _is_object(self._data[0]):
                self._end_event()  # some servers write no empty line between events
            self._data.append(line[5:].removeprefix(b" "))
            self._num_held += len(line)

    def _end_event(self) -> None:
        if not self._data:
            return
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data.clear()
        self._num_held = 0
        if (usage := usage_of(data)) is not None:
            self._usage = merge(self._usage, usage)

    def _bound(self) -> None:
        if self._num_tail > MAX_HELD_BYTES:
            self._tail = [b":"]  # so that the rest of that line is read as a comment
            self._num_tail = 1
        if self._num_held > MAX_HELD_BYTES:
            self._data.clear()
            self._num_held = 0


def _is_object(data: bytes) -> bool:
    """True if a line of data is a JSON object by itself, as far as its ends tell."""
    return data.startswith(b"{") and data.endswith(b"}")


class FrameReader(ABC):
    """Reader of gRPC frames; every frame is output. A message that is too long is skipped."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._held: list[bytes] = []
        self._num_held = 0
        self._num_wanted = HEAD_BYTES  # bytes to buffer before the next read
        self._num_skipped = 0  # remaining bytes of a message that is skipped
        self.has_output = False

    @abstractmethod
    def usage(self) -> Usage | None:
        """Returns the usage of the gRPC messages so far."""

    @abstractmethod
    def _read(self, message: bytes) -> None:
        """Reads the token counts of one message."""

    def feed(self, data: bytes) -> None:
        """Reads the complete frames, and keeps the incomplete last frame."""
        if self._num_skipped:
            num_bytes = min(self._num_skipped, len(data))
            self._num_skipped -= num_bytes
            data = data[num_bytes:]
        self._held.append(data)
        self._num_held += len(data)
        if self._num_held >= self._num_wanted:
            self._take_frames(b"".join(self._held))

    def _take_frames(self, held: bytes) -> None:
        at, wanted = 0, HEAD_BYTES
        while len(held) - at >= HEAD_BYTES:
            start = at + HEAD_BYTES
            length = int.from_bytes(held[at + 1 : start], "big")
            if len(held) - start < length:
                wanted = HEAD_BYTES + length
                if length > MAX_HELD_BYTES:
                    self._num_skipped = length - (len(held) - start)
                    at, wanted = len(held), HEAD_BYTES
                    self.has_output = True
                break
            self._take(held[at], held[start : start + length])
            at = start + length
        self._held = [held[at:]]
        self._num_held, self._num_wanted = len(held) - at, wanted

    def _take(self, flag: int, message: bytes) -> None:
        self.has_output = True
        if flag & 1:
            try:
                message = unpack(message, self._encoding, MAX_HELD_BYTES)
            except Refused:
                return
        self._read(message)


class EngineReader(FrameReader):
    """Reader of the responses of an engine's Generate and Embed calls."""

    def __init__(self, protocol: EngineProtocol, path: str, encoding: str) -> None:
        super().__init__(encoding)
        self._protocol = protocol
        self._is_generate = not path.endswith(EMBED)
        self._prompt = self._cached = 0
        # Some servers count the tokens of a chunk, others all tokens so far. Token ids are reliable; the counts are
        # used only without ids.
        self._num_ids = self._most_counted = self._completed = 0
        self._saw_any = False

    def usage(self) -> Usage | None:
        """Returns the usage summed over all answers of the request."""
        if not self._saw_any:
            return None
        return Usage(
            num_prompt_tokens=self._prompt or None,
            num_completion_tokens=max(self._completed, self._num_ids or self._most_counted),
            num_cached_tokens=self._cached,
        )

    def _read(self, message: bytes) -> None:
        counts = self._protocol.counts(message, is_generate=self._is_generate)
        if counts is None:
            return
        self._saw_any = True
        self._prompt = max(self._prompt, counts.num_prompt_tokens)
        self._cached = max(self._cached, counts.num_cached_tokens)
        if counts.is_complete:
            self._completed += counts.num_completion_tokens
        else:
            self._num_ids += counts.num_new_tokens
            self._most_counted = max(self._most_counted, counts.num_completion_tokens)


class VertexReader(FrameReader):
    """Reader of HttpBody messages: each contains a JSON body, or a piece of an event stream."""

    def __init__(self, encoding: str) -> None:
        super().__init__(encoding)
        self._events = EventReader()
        self._usage: Usage | None = None

    def usage(self) -> Usage | None:
        """Returns the usage of the JSON body or of the event stream."""
        streamed = self._events.usage()
        return self._usage if streamed is None else merge(self._usage, streamed)

    def _read(self, message: bytes) -> None:
        try:
            data = field_bytes(message, 2)
        except Refused:
            return
        self._events.feed(data)
        if data[:1] in {b"{", b"["} and (usage := usage_of(data)) is not None:
            self._usage = merge(self._usage, usage)


class NoReader:
    """Reader of a body without token usage: only the arrival of bytes is recorded."""

    def __init__(self) -> None:
        self.has_output = False

    def feed(self, data: bytes) -> None:
        """Records that bytes arrived."""
        self.has_output = self.has_output or bool(data)

    def usage(self) -> Usage | None:
        """Returns None."""
        return None


_PROTOCOLS: Final = MappingProxyType(
    {Dialect.VLLM_GRPC: VLLM, Dialect.SGLANG_GRPC: SGLANG, Dialect.TRTLLM_GRPC: TRTLLM}
)


def open_reader(dialect: Dialect, path: str, content_type: str, encoding: str) -> Reader:
    """Returns the reader for a response, by the request's API, its path and the content type. `encoding` is that of
    gRPC messages.
    """
    if (protocol := _PROTOCOLS.get(dialect)) is not None:
        return EngineReader(protocol, path, encoding)
    if dialect is Dialect.VERTEX:
        return VertexReader(encoding)
    if dialect is Dialect.NONE:
        return NoReader()
    return EventReader() if content_type.startswith("text/event-stream") else JsonReader()
