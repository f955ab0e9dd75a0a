"""What moving a prefix from one engine to another costs: `python -m benchmarks.kv_transfer`.

The blocks of a prompt go from one KV pool into another on this machine, by each connector, beside a bare copy in
memory and a bare stream over TCP of as many bytes, in turns.
"""

import argparse
import socket
import statistics
import threading
import time
from collections.abc import Callable

import numpy as np

from weft.compute.backends import load_model
from weft.compute.runner import BlockCopies
from weft.core.config import EngineOptions
from weft.core.kv_transfer import KEY, KvConnector
from weft.core.types import Request, SamplingParams
from weft.engine.fit import fit
from weft.engine.scheduling.sequence import Sequence
from weft.engine.transfer.fetching import KvConsumer
from weft.engine.transfer.lending import KvProducer
from weft.engine.transfer.settings import read_kv_transfer
from weft.engine.transfer.wire import Identity
from weft.model.open import open_model

# The keys and values of Qwen3-0.6B, of a model that computes nothing else.
MODEL = (
    "embedded:random?layers=28&hidden=128&heads=8&kv_heads=8&head_dim=128&intermediate=128"
    "&vocab=1000&dtype=bfloat16"
)


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--blocks", type=int, default=64, help="of 16 tokens each")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    source, target = (_runner(options.model, options.blocks) for _ in range(2))
    num_bytes = source.read_block(0).nbytes * options.blocks
    ways: dict[str, Callable[[], float]] = {
        **{
            connector.value: Transfer(connector, source, target, options.blocks).seconds
            for connector in KvConnector
        },
        "memcpy": Memcpy(num_bytes).seconds,
        "bare TCP": lambda: _stream_seconds(num_bytes),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.rounds + 1):
        for name, seconds in ways.items():
            taken = seconds()
            if number:  # in the first, pages are touched
                found[name].append(num_bytes / taken / 1e9)
    print(f"{options.blocks} blocks, {num_bytes / 1e6:.0f} MB, median of {options.rounds}")
    for name, speeds in found.items():
        shares = [a / b for a, b in zip(speeds, found["bare TCP"], strict=True)]
        share = statistics.median(shares)
        print(f"{name:>13} {statistics.median(speeds):6.2f} GB/s {share:5.0%} of a bare stream")


def _runner(model: str, num_blocks: int) -> BlockCopies:
    options = EngineOptions(model=model, num_gpu_blocks_override=num_blocks, max_model_len=256)
    checkpoint = open_model(model)
    runner, _ = load_model(checkpoint, fit(checkpoint, options).config)
    runner.allocate_kv(num_blocks=num_blocks, block_size=16)
    assert isinstance(runner, BlockCopies)
    for block_id in range(num_blocks):
        runner.write_block(block_id, np.full(runner.read_block(0).nbytes, block_id, np.uint8))
    return runner


class Transfer:
    """As an engine does it: every block is written into the pool."""

    def __init__(
        self, connector: KvConnector, source: BlockCopies, target: BlockCopies, num_blocks: int
    ) -> None:
        config = read_kv_transfer(
            {"kv_connector": connector.value, "kv_role": "kv_both", "kv_port": 0}
        )
        assert config is not None
        identity = Identity("1", "m", "l", 16, source.read_block(0).nbytes)
        self._woken = threading.Event()
        self._producer = KvProducer(config, b"", identity, lambda: None)
        self._consumer = KvConsumer(config, b"", identity, self._woken.set)
        self._source, self._target, self._num_blocks = source, target, num_blocks
        self._number = 0

    def seconds(self) -> float:
        """How long one prompt takes."""
        self._number += 1
        block_ids = list(range(self._num_blocks))
        hashes = [number.to_bytes(32, "big") for number in block_ids]
        lent = self._producer.offer(str(self._number), block_ids, hashes, self._source)
        sequence = _sequence(str(self._number), lent)
        sequence.block_hashes = hashes
        began = time.perf_counter()
        assert self._consumer.start_fetch(sequence, hashes)
        block_id = 0
        while True:
            self._woken.wait()
            self._woken.clear()
            for arrived in self._consumer.take_arrived():
                if arrived.data is not None:
                    self._target.write_block(block_id, arrived.data)
                    assert arrived.release is not None
                    arrived.release()
                    block_id += 1
                if arrived.is_last:
                    assert block_id == self._num_blocks
                    taken = time.perf_counter() - began
                    self._producer.withdraw(str(self._number))
                    return taken


def _sequence(request_id: str, lent: dict[str, object]) -> Sequence:
    request = Request(
        request_id=request_id,
        engine_id=request_id,
        prompt_token_ids=[1],
        params=SamplingParams(extra_args={KEY: lent}),
        eos_token_ids=(),
        seed=0,
        arrival_time=0.0,
    )
    return Sequence.of(request, 0, (0, 0), None)


class Memcpy:
    """One copy of that much memory."""

    def __init__(self, num_bytes: int) -> None:
        self._source, self._target = (np.ones(num_bytes, np.uint8) for _ in range(2))

    def seconds(self) -> float:
        """How long it takes."""
        began = time.perf_counter()
        np.copyto(self._target, self._source)
        return time.perf_counter() - began


def _stream_seconds(num_bytes: int) -> float:
    """From a thread to this one, in pieces of a megabyte that nobody looks at."""
    piece, place = bytes(1 << 20), bytearray(1 << 20)
    listener = socket.create_server(("127.0.0.1", 0))

    def send() -> None:
        with socket.create_connection(listener.getsockname()) as connection:
            for _ in range(-(-num_bytes // len(piece))):
                connection.sendall(piece)

    sender = threading.Thread(target=send)
    began = time.perf_counter()
    sender.start()
    connection, _ = listener.accept()
    with connection, listener:
        while connection.recv_into(place):
            pass
    taken = time.perf_counter() - began
    sender.join()
    return taken


if __name__ == "__main__":
    main()
