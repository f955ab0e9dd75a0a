"""Follow what a server's prefix cache holds, over ZeroMQ.

    weft serve --kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", "replay_endpoint": "tcp://127.0.0.1:5558"}'
    pip install pyzmq msgspec
    python examples/kv_events.py

Numbers without a gap mean that nothing was missed; behind a gap, what is missing is asked for again.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import msgspec
import zmq


class Blocks:
    """The hashes of the blocks that are cached."""

    def __init__(self) -> None:
        self.hashes: set[int | bytes] = set()
        self.next_number = 0

    def apply(self, number: int, payload: bytes) -> None:
        """A batch: [time, events, rank], and an event is [name, its fields...]."""
        for name, *fields in msgspec.msgpack.decode(payload)[1]:
            if name == "BlockStored":
                self.hashes.update(fields[0])
            elif name == "BlockRemoved":
                self.hashes.difference_update(fields[0])
            elif name == "AllBlocksCleared":
                self.hashes.clear()
        self.next_number = number + 1


def replayed(context: zmq.Context[Any], endpoint: str, start: int) -> Iterator[tuple[int, bytes]]:
    """What was sent from number `start` on, as far as the server still holds it."""
    with context.socket(zmq.DEALER) as socket:
        socket.connect(endpoint)
        socket.send_multipart([b"", start.to_bytes(8, "big")])
        while socket.poll(1000):
            *_, number, payload = socket.recv_multipart()
            if not payload:  # the end of the replay
                return
            yield int.from_bytes(number, "big"), payload


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", default="tcp://127.0.0.1:5557")
    parser.add_argument("--replay", default="tcp://127.0.0.1:5558")
    parser.add_argument("--batches", type=int, help="end after so many")
    args = parser.parse_args()
    context = zmq.Context()
    blocks, num_batches = Blocks(), 0
    with context.socket(zmq.SUB) as socket:
        socket.connect(args.endpoint)
        socket.subscribe("")
        print("subscribed", flush=True)
        while args.batches is None or num_batches < args.batches:
            _topic, number_bytes, payload = socket.recv_multipart()
            number = int.from_bytes(number_bytes, "big")
            if number > blocks.next_number:
                for missed, earlier in replayed(context, args.replay, blocks.next_number):
                    if missed < number:
                        blocks.apply(missed, earlier)
            blocks.apply(number, payload)
            num_batches += 1
            print(f"batch {number}: {len(blocks.hashes)} blocks", flush=True)
    context.destroy(linger=0)


if __name__ == "__main__":
    main()
