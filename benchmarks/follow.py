"""What a followed piece of a response costs, without any wire: `python benchmarks/follow.py`.

A streamed chat whose events have no usage until the last, in each mode of the gateway. Prints microseconds of processor
time per piece.
"""

import asyncio
import time
from collections.abc import Iterator

from weft.epp.build import open_picker
from weft.epp.config.options import PickerOptions
from weft.epp.request.parsers.table import ParserTable
from weft.epp.server import ext_proc
from weft.epp.server.body_reader import BodyReader
from weft.epp.server.limits import Held, PickerLimits
from weft.epp.server.streams.services import Services
from weft.epp.server.streams.stream import Exchange
from weft.epp.server.streams.stream_metrics import WireMetrics
from weft.pb.ext_proc_pb2 import BodySendMode, ProcessingRequest

_NUM_PIECES = 20_000
_BODY = b'{"model":"m","messages":[{"role":"user","content":"Hello"}],"stream":true}'
_PIECE = (
    b'data: {"id":"chatcmpl-8a7f6","object":"chat.completion.chunk","created":1700000000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}],"usage":null}\n\n'
)


def opening(mode: BodySendMode) -> Iterator[ProcessingRequest]:
    """The messages before the response's body."""
    head = ProcessingRequest()
    for key, value in {":path": "/v1/chat/completions", "content-type": "application/json"}.items():
        head.request_headers.headers.headers.add(key=key, raw_value=value.encode())
    head.protocol_config.request_body_mode = ext_proc.FULL_DUPLEX
    head.protocol_config.response_body_mode = mode
    yield head
    body = ProcessingRequest()
    body.request_body.body, body.request_body.end_of_stream = _BODY, True
    yield body
    answer = ProcessingRequest()
    for key, value in {":status": "200", "content-type": "text/event-stream"}.items():
        answer.response_headers.headers.headers.add(key=key, raw_value=value.encode())
    yield answer


async def measure(mode: BodySendMode) -> float:
    """Microseconds of processor time per piece."""
    picker = await open_picker(PickerOptions(endpoints=("127.0.0.1:1",), track_responses=True))
    limits = PickerLimits()
    services = Services(
        picker.director, ParserTable(picker.parsers), limits, Held(limits.max_held_bytes),
        WireMetrics(picker.metrics), BodyReader(),
    )  # fmt: skip
    exchange = Exchange(services)
    for message in opening(mode):
        list(await exchange.receive(message))
    piece = ProcessingRequest()
    piece.response_body.body = _PIECE
    data = piece.SerializeToString()
    started = time.process_time()
    for _ in range(_NUM_PIECES):
        received = ext_proc.decode(data)
        assert isinstance(received, ProcessingRequest)
        for reply in await exchange.receive(received):
            ext_proc.encode(reply)
    spent_s = time.process_time() - started
    await picker.close()
    return spent_s / _NUM_PIECES * 1e6


async def main() -> None:
    for name, mode in (
        ("FULL_DUPLEX_STREAMED", ext_proc.FULL_DUPLEX),
        ("STREAMED", ext_proc.STREAMED),
    ):
        print(f"{name}: {await measure(mode):.1f} µs a piece")


if __name__ == "__main__":
    asyncio.run(main())
