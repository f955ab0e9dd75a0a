"""One kind of step, timed beside what memory and registers give; shared by the tables of `step.py`."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from weft.compute.native import NativeRunner, Roofline, measure_roofline
from weft.compute.protocols.runner import Batch, Runner

BLOCK_SIZE = 16
_SOME_BYTE = 0x3C  # in every byte of a float: 0.0115


def timed(what: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that it takes."""
    began = clock()
    what()
    return clock() - began


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of step: `tokens` new ones for each of `sequences`, which then have `length`."""

    name: str
    sequences: int
    tokens: int
    length: int

    @property
    def num_blocks(self) -> int:
        """Blocks that its sequences take together."""
        return self.sequences * -(-self.length // BLOCK_SIZE)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of each run; seconds of a run by part; seconds of a run that each thread was running."""

    taken: list[float]
    parts: dict[str, float]
    running_s: float
    limits: Roofline | None


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the weights are, and what linear layers are rounded to."""

    dtype: str
    quantization: Literal["int8", "int4"] | None


def make_batch(shape: Shape, vocab_size: int) -> Batch:
    """Every sequence on blocks of its own, with random tokens."""
    tables = np.arange(shape.num_blocks, dtype=np.int32).reshape(shape.sequences, -1)
    new = np.arange(shape.length - shape.tokens, shape.length, dtype=np.int32)
    positions = np.tile(new, shape.sequences)
    owners = np.repeat(np.arange(shape.sequences), shape.tokens)
    slots = tables[owners, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    starts = np.arange(shape.sequences + 1, dtype=np.int32) * shape.tokens
    random = np.random.default_rng(0)
    return Batch(
        token_ids=random.integers(0, vocab_size, len(positions), dtype=np.int32),
        positions=positions,
        slots=slots.astype(np.int32),
        query_starts=starts,
        prompt_lens=np.full(shape.sequences, shape.length, np.int32),
        block_tables=tables,
        logit_rows=(starts[1:] - 1).astype(np.int32),
    )


def fill_pool(runner: Runner, num_blocks: int) -> None:
    """Make the pool and write all of it: memory that nobody wrote reads as one page of zeros, too fast."""
    runner.allocate_kv(num_blocks=num_blocks, block_size=BLOCK_SIZE)
    if isinstance(runner, NativeRunner):
        runner.fill_kv(_SOME_BYTE)


def measure(runner: Runner, shape: Shape, num_runs: int, numbers: Numbers) -> Timing:
    """Run the shape once, then `num_runs` times that count; limits are measured around them."""
    batch = make_batch(shape, runner.vocab_size)
    runner.forward(batch)
    native = runner if isinstance(runner, NativeRunner) else None
    before = native.seconds() if native else {}
    limits = (
        [measure_roofline(numbers.dtype, native.num_threads, numbers.quantization)]
        if native
        else []
    )
    cpu_started = time.process_time()
    taken = [timed(lambda: runner.forward(batch)) for _ in range(num_runs)]
    cpu_s = time.process_time() - cpu_started
    after = native.seconds() if native else {}
    threads = native.num_threads if native else 1
    if native:
        limits.append(measure_roofline(numbers.dtype, native.num_threads, numbers.quantization))
    return Timing(
        taken,
        {part: (after[part] - before[part]) / num_runs for part in after},
        cpu_s / num_runs / threads,
        Roofline(
            max(one.bytes_per_s for one in limits), max(one.operations_per_s for one in limits)
        )
        if limits
        else None,
    )
