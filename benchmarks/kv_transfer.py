"""What moving a prefix from one engine to another costs: `python -m benchmarks.kv_transfer`.

The blocks of a prompt go from the KV pool of another process into one of this process, by each connector, beside a
bare stream over TCP between the same two processes and a bare copy in memory of as many bytes, in turns. All memory
was written before: what the first touch of a page costs is nobody's. Processor time, of both processes, can be
compared on a busy machine too.
"""

import argparse
import mmap
import multiprocessing
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from weft.compute.backends import load_model
from weft.compute.host_blocks import Bytes
from weft.compute.protocols.runner import HostBlockCopies
from weft.core.config.engine_options import EngineOptions
from weft.core.values.kv_transfer import KEY, KvConnector
from weft.core.values.types import Request, SamplingParams
from weft.engine.scheduling.sequence import Sequence
from weft.engine.start.fit import fit
from weft.engine.transfer.fetching import KvConsumer
from weft.engine.transfer.lending import KvProducer
from weft.engine.transfer.settings import read_kv_transfer
from weft.engine.transfer.wire import Identity
from weft.model.open import open_model

# The keys and values of Qwen3-0.6B, of a model that computes nothing else.
SECRET = b"of this benchmark alone"
MODEL = (
    "embedded:random?layers=28&hidden=128&heads=8&kv_heads=8&head_dim=128&intermediate=128"
    "&vocab=1000&dtype=bfloat16"
)
NUM_SLOTS, SLOT_BYTES = 4, 2 << 20
POOLS = 4  # as many blocks as are moved
BARE = {KvConnector.TCP: "bare stream", KvConnector.SHM: "bare memcpy"}


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--blocks", type=int, default=128, help="of 16 tokens each")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    other = context.Process(target=lend, args=(far, options.model, options.blocks), daemon=True)
    other.start()
    target = _runner(options.model, options.blocks)
    num_bytes = target.read_block(0).nbytes * options.blocks
    ways: dict[str, Callable[[], float]] = {
        BARE[KvConnector.TCP]: Stream(near, num_bytes).seconds,
        **{each.value: Transfer(each, near, target, options.blocks).seconds for each in BARE},
        BARE[KvConnector.SHM]: Memcpy(num_bytes).seconds,
        "bare relay": Relay(near, num_bytes).seconds,
    }
    found: dict[str, list[Taken]] = {name: [] for name in ways}
    for number in range(options.rounds + 1):
        for name, seconds in ways.items():
            before = _processor_s(near)
            taken = seconds()
            if number:  # in the first, pages are touched
                found[name].append(Taken(taken, _processor_s(near) - before))
    near.send(None)
    other.join()
    print(f"{options.blocks} blocks, {num_bytes / 1e6:.0f} MB, median of {options.rounds}")
    beside = {each.value: bare for each, bare in BARE.items()}
    beside["bare relay"] = BARE[KvConnector.SHM]
    print("              GB/s: median, best; share of what is bare: of time, of processor time")
    for name, takes in found.items():
        pairs = list(zip(takes, found[beside.get(name, name)], strict=True))
        speeds = [num_bytes / taken.seconds / 1e9 for taken in takes]
        share = statistics.median(bare.seconds / taken.seconds for taken, bare in pairs)
        of_work = statistics.median(bare.processor_s / taken.processor_s for taken, bare in pairs)
        print(
            f"{name:>13} {statistics.median(speeds):6.2f} {max(speeds):6.2f} {share:6.0%} {of_work:6.0%}"
            f" of a {beside.get(name, name)}"
        )


class Taken(NamedTuple):
    """By one way, once."""

    seconds: float
    processor_s: float  # of both processes


def _processor_s(other: Connection) -> float:
    other.send("processor time")
    used: float = other.recv()
    return used + time.process_time()


def _runner(model: str, num_blocks: int) -> HostBlockCopies:
    """Whose pool is so much larger that it lies in huge pages, as those of engines do."""
    options = EngineOptions(model=model, num_gpu_blocks_override=num_blocks, max_model_len=256)
    checkpoint = open_model(model)
    runner, _ = load_model(checkpoint, fit(checkpoint, options).config)
    runner.allocate_kv(num_blocks=POOLS * num_blocks, block_size=16)
    assert isinstance(runner, HostBlockCopies)
    for block_id in _block_ids(num_blocks):
        runner.write_block(block_id, np.full(runner.read_block(0).nbytes, block_id % 256, np.uint8))
    return runner


def _block_ids(num_blocks: int) -> list[int]:
    return list(range((POOLS - 1) * num_blocks, POOLS * num_blocks))


def _hashes(num_blocks: int) -> list[bytes]:
    return [number.to_bytes(32, "big") for number in range(num_blocks)]


def _taking_part(connector: KvConnector, copies: HostBlockCopies) -> tuple[Any, Identity]:
    config = read_kv_transfer(
        {
            "kv_connector": connector.value,
            "kv_role": "kv_both",
            "kv_port": 0,
            "engine_id": "e",
            "kv_connector_extra_config": {"secret_file": "not read"},
        }
    )
    return config, Identity("1", "m", "l", 16, copies.read_block(0).nbytes)


def lend(pipe: Connection, model: str, num_blocks: int) -> None:
    """In a process of its own: lends all blocks of a pool, or sends as many bytes, whenever it is told to."""
    source = _runner(model, num_blocks)
    plain = np.ones(source.read_block(0).nbytes * num_blocks, np.uint8)
    producers = {
        connector.value: KvProducer(config, SECRET, identity, lambda: None)
        for connector in BARE
        for config, identity in [_taking_part(connector, source)]
    }
    while (wanted := pipe.recv()) is not None:
        match wanted:
            case (name, request_id):
                block_ids, hashes = _block_ids(num_blocks), _hashes(num_blocks)
                pipe.send(producers[name].offer(request_id, block_ids, hashes, source, num_blocks))
            case (address, process_id, file):
                _send_relayed(address, process_id, file, plain)
            case int(port):
                with socket.create_connection(("127.0.0.1", port)) as connection:
                    connection.sendall(plain.data)
            case _:
                pipe.send(time.process_time())
    for producer in producers.values():
        producer.close()


class Transfer:
    """As an engine does it: every block comes to lie in the pool."""

    def __init__(
        self, connector: KvConnector, other: Connection, target: HostBlockCopies, num_blocks: int
    ) -> None:
        config, identity = _taking_part(connector, target)
        self._woken = threading.Event()
        self._consumer = KvConsumer(config, SECRET, identity, self._woken.set)
        self._name, self._other, self._target = connector.value, other, target
        self._num_blocks = num_blocks
        self._number = 0

    def seconds(self) -> float:
        """How long one prompt takes."""
        self._number += 1
        hashes = _hashes(self._num_blocks)
        self._other.send((self._name, str(self._number)))
        sequence = _sequence(str(self._number), self._other.recv())
        sequence.block_hashes = hashes
        sequence.block_ids.extend(_block_ids(self._num_blocks))
        began = time.perf_counter()
        assert self._consumer.start_fetch(sequence, hashes)
        self._consumer.begin_fetches(self._target)
        self._woken.wait()
        taken = time.perf_counter() - began
        self._woken.clear()
        assert len(self._consumer.take_arrived()) == self._num_blocks + 1
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
    return Sequence(request, 0, (0, 0))


class Memcpy:
    """One copy of that much memory."""

    def __init__(self, num_bytes: int) -> None:
        self._source, self._target = (np.ones(num_bytes, np.uint8) for _ in range(2))

    def seconds(self) -> float:
        """How long it takes."""
        began = time.perf_counter()
        np.copyto(self._target, self._source)
        return time.perf_counter() - began


class Relay:
    """From the other process's memory into this one's, through a ring of shared memory and with a byte for each slot.

    It is what shared memory costs where neither process sees the other's pool, with nothing around it.
    """

    def __init__(self, other: Connection, num_bytes: int) -> None:
        self._other, self._target = other, np.ones(num_bytes, np.uint8)
        self._file = os.memfd_create("relay")
        os.ftruncate(self._file, NUM_SLOTS * SLOT_BYTES)
        self._slots = _slots(self._file)

    def seconds(self) -> float:
        """How long it takes, from the first byte."""
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("")  # any name that is free
            listener.listen()
            self._other.send((listener.getsockname(), os.getpid(), self._file))
            connection, _ = listener.accept()
        began = time.perf_counter()
        with connection:
            for number, part in enumerate(_parts(self._target)):
                connection.recv(1)
                np.copyto(part, self._slots[number % NUM_SLOTS, : len(part)])
                connection.send(b"-")
        return time.perf_counter() - began


def _send_relayed(address: bytes, process_id: int, file: int, plain: Bytes) -> None:
    opened = os.open(f"/proc/{process_id}/fd/{file}", os.O_RDWR)
    slots = _slots(opened)
    os.close(opened)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        for number, part in enumerate(_parts(plain)):
            if number >= NUM_SLOTS:
                connection.recv(1)
            np.copyto(slots[number % NUM_SLOTS, : len(part)], part)
            connection.send(b"-")
        while connection.recv(NUM_SLOTS):
            pass


def _slots(file: int) -> Bytes:
    mapped = mmap.mmap(file, NUM_SLOTS * SLOT_BYTES)
    return np.frombuffer(mapped, np.uint8).reshape(NUM_SLOTS, SLOT_BYTES)


def _parts(memory: Bytes) -> Iterator[Bytes]:
    return (memory[start : start + SLOT_BYTES] for start in range(0, len(memory), SLOT_BYTES))


class Stream:
    """From the other process's memory into this one's, over a connection that there is before."""

    def __init__(self, other: Connection, num_bytes: int) -> None:
        self._other, self._target = other, np.ones(num_bytes, np.uint8)

    def seconds(self) -> float:
        """How long it takes, from the first byte."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._other.send(listener.getsockname()[1])
            connection, _ = listener.accept()
        began = time.perf_counter()
        with connection:
            rest = memoryview(self._target.data)
            while rest:
                rest = rest[connection.recv_into(rest) :]
        return time.perf_counter() - began


if __name__ == "__main__":
    main()
