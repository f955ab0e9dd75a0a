"""Time steps of a runner, and say where the time goes and how near the machine's limits it is.

`make bench`; README.md says how to read the tables.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from weft.compute.load import describe_runner, load_runner
from weft.compute.native import (
    Limits,
    NativeRunner,
    cpu,
    draw_rows,
    measure_limits,
    resident_bytes,
)
from weft.compute.runner import Batch, Runner
from weft.core.config import ComputeConfig
from weft.model.checkpoint import Checkpoint
from weft.model.encoders.spec import EncoderSpec
from weft.model.open import open_model
from weft.model.spec import DecoderSpec

BLOCK_SIZE = 16
DEFAULT_MODEL = "embedded:random?layers=8&hidden=512&heads=8&kv_heads=4&head_dim=64&intermediate=1536&vocab=8192"
PARTS = ("prepare", "linear", "cache", "attention", "head")


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of step: `tokens` new ones for each of `sequences`, which then have `length`."""

    name: str
    sequences: int
    tokens: int
    length: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of each run; seconds of a run by part; seconds of a run that each thread was running."""

    taken: list[float]
    parts: dict[str, float]
    running_s: float
    limits: Limits | None


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the weights are, and what linear layers are rounded to."""

    dtype: str
    quantization: Literal["int8"] | None


def shapes(context: int) -> Iterator[Shape]:
    """Decode by batch size, then prefill by chunk."""
    for batch_size in (1, 2, 4, 8, 16, 32):
        yield Shape(f"decode, {batch_size} x {context}", batch_size, 1, context)
    for chunk in (16, 64, 256, 512):
        yield Shape(f"prefill, {chunk}", 1, chunk, chunk)


def make_batch(shape: Shape, vocab_size: int) -> Batch:
    """Every sequence on blocks of its own, with random tokens."""
    blocks_each = -(-shape.length // BLOCK_SIZE)
    tables = np.arange(shape.sequences * blocks_each, dtype=np.int32).reshape(shape.sequences, -1)
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


def measure(runner: Runner, shape: Shape, num_runs: int, numbers: Numbers) -> Timing:
    """Run the shape once, then `num_runs` times that count; limits are measured around them."""
    batch = make_batch(shape, runner.vocab_size)
    runner.forward(batch)
    native = runner if isinstance(runner, NativeRunner) else None
    before = native.seconds() if native else {}
    limits = (
        [measure_limits(numbers.dtype, native.num_threads, numbers.quantization)] if native else []
    )
    cpu_started, taken = time.process_time(), []
    for _ in range(num_runs):
        started = time.perf_counter()
        runner.forward(batch)
        taken.append(time.perf_counter() - started)
    cpu_s = time.process_time() - cpu_started
    after = native.seconds() if native else {}
    threads = native.num_threads if native else 1
    if native:
        limits.append(measure_limits(numbers.dtype, native.num_threads, numbers.quantization))
    return Timing(
        taken,
        {part: (after[part] - before[part]) / num_runs for part in after},
        cpu_s / num_runs / threads,
        Limits(max(one.bytes_per_s for one in limits), max(one.operations_per_s for one in limits))
        if limits
        else None,
    )


def shares_of_limits(spec: DecoderSpec, numbers: Numbers, shape: Shape, timing: Timing) -> str:
    """Weights read, and multiplications done by linear layers, over what the machine gave beside."""
    if timing.limits is None:
        return ""
    width = 2 if numbers.dtype == "bfloat16" else 4
    head = spec.vocab_size * spec.hidden_size
    sizes = resident_bytes(spec, numbers.dtype)
    matrices = sizes.weights // width - (head if spec.tied_head else 2 * head)
    width = width if numbers.quantization is None else 1
    rows = shape.sequences * shape.tokens
    bytes_per_s = (matrices + head) * width / timing.running_s
    operations_per_s = 2 * (matrices * rows + head * shape.sequences) / timing.running_s
    reading = bytes_per_s / timing.limits.bytes_per_s
    multiplying = operations_per_s / timing.limits.operations_per_s
    return f"{reading:>8.0%}{multiplying:>8.0%}"


def print_steps(
    runner: Runner, spec: DecoderSpec, numbers: Numbers, context: int, num_runs: int
) -> None:
    """One row a shape."""
    heads = "".join(f"{part:>10}" for part in PARTS) if isinstance(runner, NativeRunner) else ""
    print(
        f"{'step':<18}{'median ms':>10}{'min':>9}{'tokens/s':>10}{'CPU':>6}"
        f"{'of read':>8}{'of ops':>8}{heads}{'rest':>8}"
    )
    for shape in shapes(context):
        timing = measure(runner, shape, num_runs, numbers)
        median = statistics.median(timing.taken)
        mean = statistics.fmean(timing.taken)
        parts = "".join(f"{1e3 * timing.parts[part]:>10.2f}" for part in PARTS if timing.parts)
        rest = 1e3 * (mean - sum(timing.parts.values()))
        print(
            f"{shape.name:<18}{1e3 * median:>10.2f}{1e3 * min(timing.taken):>9.2f}"
            f"{shape.sequences * shape.tokens / median:>10.1f}{timing.running_s / mean:>6.0%}"
            f"{shares_of_limits(spec, numbers, shape, timing)}"
            f"{parts}{rest:>8.2f}",
            flush=True,
        )


def print_drawing(vocab_size: int, num_runs: int) -> None:
    """Choosing tokens for a batch of 32."""
    logits = np.random.default_rng(0).standard_normal((32, vocab_size)).astype(np.float32) * 3
    for name, temperature in (("greedy", 0.0), ("temperature 1", 1.0)):
        taken = []
        for run in range(num_runs):
            started = time.perf_counter()
            draw_rows(logits, [temperature] * 32, [run] * 32)
            taken.append(time.perf_counter() - started)
        print(f"choose 32 tokens, {name}: {1e3 * statistics.median(taken):.2f} ms")


def texts_batch(num_texts: int, num_tokens: int, vocab_size: int) -> Batch:
    """Whole texts of about so many tokens, random ones, for an encoder."""
    random = np.random.default_rng(0)
    lengths = [num_tokens]
    if num_texts > 1:  # one of them alone has exactly so many
        lengths = random.integers(num_tokens * 2 // 3, num_tokens * 4 // 3 + 1, num_texts).tolist()
    rows = np.arange(sum(lengths), dtype=np.int32)
    return Batch(
        token_ids=random.integers(0, vocab_size, len(rows), dtype=np.int32),
        positions=np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        slots=rows,
        query_starts=np.cumsum([0, *lengths], dtype=np.int32),
        prompt_lens=np.array(lengths, np.int32),
        block_tables=np.zeros((num_texts, 1), np.int32),
        logit_rows=rows,
    )


def print_encoding(checkpoint: Checkpoint, num_tokens: int, num_runs: int) -> None:
    """An encoder's two runners on the same texts, one thread each, taking turns; processor time."""
    numpy = load_runner(checkpoint, compute="reference", num_threads=1)
    native = load_runner(checkpoint, compute="native", num_threads=1)
    print(f"{'texts':<18}{'numpy ms':>10}{'C++ ms':>10}{'ratio':>8}{'tokens/s':>10}")
    for num_texts in (1, 32):
        batch = texts_batch(num_texts, num_tokens, numpy.vocab_size)
        taken = {id(runner): list[float]() for runner in (numpy, native)}
        for runner in (numpy, native) * (num_runs + 1):
            started = time.process_time()
            runner.forward(batch)
            taken[id(runner)].append(time.process_time() - started)
        slow, fast = (statistics.median(taken[id(runner)][1:]) for runner in (numpy, native))
        print(
            f"{f'{num_texts} x {num_tokens}':<18}{1e3 * slow:>10.2f}{1e3 * fast:>10.2f}"
            f"{slow / fast:>8.2f}{len(batch.token_ids) / fast:>10.0f}"
        )


def main() -> None:
    """Print what was run, where, and the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="as for weft serve")
    parser.add_argument("--dtype", default="auto", help="as for weft serve")
    parser.add_argument("--compute", default="auto", choices=("auto", "native", "reference"))
    parser.add_argument("--quantization", choices=("int8",), help="as for weft serve")
    parser.add_argument(
        "--context", type=int, default=256, help="tokens a decoded sequence or a text has"
    )
    parser.add_argument("--runs", type=int, default=10, help="how often each shape is run")
    parser.add_argument("--threads", type=int, help="of the native runner; all CPUs if unset")
    options = parser.parse_args()
    checkpoint = open_model(options.model, dtype=options.dtype)
    if isinstance(checkpoint.spec, EncoderSpec):
        print(
            f"{options.model}: {checkpoint.card.num_parameters:,} parameters, {checkpoint.card.dtype}"
        )
        print(f"{cpu().describe()}; python {platform.python_version()}\n")
        print_encoding(checkpoint, options.context, options.runs)
        return
    if not isinstance(checkpoint.spec, DecoderSpec):
        parser.error("--model must compute something")
    started = time.perf_counter()
    runner = load_runner(
        checkpoint,
        compute=options.compute,
        num_threads=options.threads,
        quantization=options.quantization,
    )
    loaded_s = time.perf_counter() - started
    longest = max(32 * options.context, 512)
    runner.allocate_kv(num_blocks=-(-longest // BLOCK_SIZE) + 32, block_size=BLOCK_SIZE)

    card = checkpoint.card
    computed = describe_runner(
        checkpoint,
        ComputeConfig(
            compute="native" if isinstance(runner, NativeRunner) else "reference",
            num_threads=runner.num_threads if isinstance(runner, NativeRunner) else 1,
            quantization=options.quantization,
        ),
    )
    print(f"{options.model}: {card.num_parameters:,} parameters, {card.dtype}")
    print(f"{cpu().describe()}; {computed}")
    print(f"python {platform.python_version()}; read and packed in {loaded_s:.1f} s\n")
    numbers = Numbers(card.dtype, options.quantization)
    print_steps(runner, checkpoint.spec, numbers, options.context, options.runs)
    print()
    print_drawing(runner.vocab_size, options.runs)


if __name__ == "__main__":
    main()
