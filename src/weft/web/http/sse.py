"""Server-sent events: their encoding, and the writing of a stream.

A stream that fails ends with an error event, so that it never looks complete.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final

import msgspec

from weft.core.values.types import RequestOutput
from weft.web.http.endpoint import Dialect, Events, PartWriter
from weft.web.http.exchange import Exchange

DONE: Final = b"data: [DONE]\n\n"
PING: Final = b": ping\n\n"
_EVENTS: Final = "text/event-stream; charset=utf-8"
_LINES: Final = "application/x-ndjson"
_HEADERS: Final = {
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # otherwise proxies that buffer responses hold events back
}
_ANY_TEXT: Final = "\0any text\0"  # a placeholder that occurs nowhere else in an event
# Bytes of a stream that are written in one turn of the event loop: some milliseconds for the smallest events.
_BYTES_AT_ONCE: Final = 2**16
_encoder = msgspec.json.Encoder()


def data_event(value: Any) -> bytes:
    """An event without a name. Fields that are `msgspec.UNSET` are left out."""
    return b"data: %b\n\n" % _encoder.encode(value)


def named_event(name: str, value: Any) -> bytes:
    """An event with a name, as in Anthropic's API and the Responses API."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encoder.encode(value))


class EventOfText:
    """Events without a name that differ in one text: the text around it is encoded once.

    `make` gives the event's value for a text. Saves a sixth of the cost of streaming a token of a chat.
    """

    __slots__ = ("_after", "_before")

    def __init__(self, make: Callable[[str], Any]) -> None:
        self._before, _, self._after = data_event(make(_ANY_TEXT)).partition(
            _encoder.encode(_ANY_TEXT)
        )

    def of(self, text: str) -> bytes:
        """Returns the same bytes as `data_event` for this text."""
        return b"%b%b%b" % (self._before, _encoder.encode(text), self._after)


class EventSink:
    """A `weft.core.client.Sink` that encodes a stream's events with `encode` and writes them immediately, without
    waking the stream's task. The sink is closed before the stream has begun, and while the client does not read:
    outputs are then merged.
    """

    __slots__ = ("_encode", "parts")

    def __init__(self, encode: Callable[[RequestOutput], list[bytes]]) -> None:
        self._encode = encode
        self.parts: PartWriter | None = None  # set once the stream has begun

    @property
    def is_open(self) -> bool:
        return self.parts is not None and self.parts.takes_parts

    def take(self, output: RequestOutput) -> None:
        assert self.parts is not None
        self.parts.write_part(b"".join(self._encode(output)))


def error_event(body: bytes, dialect: Dialect) -> bytes:
    """The last event of a stream that failed; `body` is the error object."""
    match dialect:
        case Dialect.OPENAI:
            return b"data: %b\n\n" % body
        case Dialect.ANTHROPIC:
            return b"event: error\ndata: %b\n\n" % body
        case Dialect.OLLAMA:
            return b"%b\n" % body
        case Dialect.COHERE:
            message = msgspec.json.decode(body)["message"]
            end = {"finish_reason": "ERROR", "error": message}
            return data_event({"type": "message-end", "delta": end}) + DONE


async def write_events(exchange: Exchange, events: Events, ping_interval_s: float) -> None:
    """Sends every event of `events.source`, and a comment after every silence of `ping_interval_s`.

    The headers are sent with the first event or after the first silence, so that earlier errors have their own status.
    The source is always closed at the end.
    """
    ping = asyncio.create_task(_ping(exchange, events, ping_interval_s))
    try:
        async with aclosing(events.source) as source:
            turned_at = 0
            async for event in source:
                if exchange.status is None:
                    await _begin(exchange, events)
                await exchange.write(event)
                if events.sink is not None:
                    events.sink.parts = exchange
                if exchange.num_bytes_out - turned_at >= _BYTES_AT_ONCE:
                    # Gives other tasks a turn: a source with many ready items and a fast client would never wait.
                    await asyncio.sleep(0)
                    turned_at = exchange.num_bytes_out
    finally:
        ping.cancel()
        await asyncio.wait({ping})
    if exchange.status is None:
        await _begin(exchange, events)
    await exchange.end()


async def _begin(exchange: Exchange, events: Events) -> None:
    kind = _LINES if events.is_lines else _EVENTS
    headers = {"content-type": kind, **_HEADERS, **events.headers}
    await exchange.start(200, headers, is_event_stream=True)


async def write_comment(exchange: Exchange, text: str) -> None:
    """Sends a comment, for people who watch the stream; begins the stream if it has not begun."""
    if exchange.status is None:
        headers = {"content-type": _EVENTS, **_HEADERS}
        await exchange.start(200, headers, is_event_stream=True)
    await exchange.write(f": {' '.join(text.split())}\n\n".encode())


async def _ping(exchange: Exchange, events: Events, interval_s: float) -> None:
    """Sends the headers or a comment after each silence. There is one task per stream, not per event."""
    silent_s = 0.0
    while True:
        await asyncio.sleep(max(interval_s - silent_s, 0.001))
        silent_s = exchange.silent_s
        if silent_s < interval_s:
            continue
        if exchange.status is None:
            await _begin(exchange, events)
        elif not events.is_lines:  # a line has no form of a comment
            await exchange.write(PING)
        silent_s = 0.0
