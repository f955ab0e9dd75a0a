"""A picker under attack: its own process, and what it answers to a request that Envoy shows it."""

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import grpc

from tests.attacks.target import PROBED, Probed, listening
from tests.cli.running import started
from weft.pb.ext_proc_pb2 import ProcessingRequest
from weft.pb.ext_proc_pb2_grpc import ExternalProcessorStub

_PIECE_BYTES = 2**16
_TIMEOUT_S = 120


class Picker(Probed):
    """A probed picker, of one endpoint at which nobody listens."""

    def __init__(self, lines: list[str], asker: Connection) -> None:
        super().__init__(asker)
        self.address = _place(lines, "  ext_proc")
        self.metrics = _place(lines, "  metrics")

    def route(self, head: ProcessingRequest, body: bytes) -> int:
        """200 if the request was sent on, else the status that it was refused with."""
        messages = [head]
        for start in range(0, len(body), _PIECE_BYTES):
            message = ProcessingRequest()
            message.request_body.body = body[start : start + _PIECE_BYTES]
            message.request_body.end_of_stream = start + _PIECE_BYTES >= len(body)
            messages.append(message)
        with grpc.insecure_channel(self.address) as channel:
            stream = ExternalProcessorStub(channel).Process(iter(messages), timeout=_TIMEOUT_S)
            refusals = [
                answer.immediate_response.status.code
                for answer in stream
                if answer.HasField("immediate_response")
            ]
        return refusals[0] if refusals else 200


def _place(lines: list[str], row: str) -> str:
    return next(line.split()[1] for line in lines if line.startswith(row)).removeprefix("http://")


@contextmanager
def picker(*argv: str) -> Iterator[Picker]:
    """A picker until the end of the block."""
    ports = ("--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0")
    whole = ("epp", *ports, "--endpoint=127.0.0.1:1", *argv)
    with (
        listening() as (listener, settings),
        started(*whole, last="  metrics", program=PROBED, **settings) as (_, lines),
        listener.accept() as asker,
    ):
        found = Picker(lines, asker)
        found.read()
        yield found
