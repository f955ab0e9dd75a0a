"""Time one step of a runner: decode by batch size, prefill by chunk. `make bench`; see README.md."""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np

from weft.compute.load import load_runner
from weft.compute.native import cpu
from weft.compute.runner import Batch, Runner
from weft.model.open import open_model

BLOCK_SIZE = 16
DEFAULT_MODEL = "embedded:random?layers=8&hidden=512&heads=8&kv_heads=4&head_dim=64&intermediate=1536&vocab=8192"


def make_batch(lengths: list[int], num_new: int, vocab_size: int) -> Batch:
    """`num_new` more tokens of every sequence, which then has `lengths[i]`, on blocks of its own."""
    blocks_each = -(-max(lengths) // BLOCK_SIZE)
    tables = np.arange(len(lengths) * blocks_each, dtype=np.int32).reshape(len(lengths), -1)
    positions = np.concatenate(
        [np.arange(length - num_new, length, dtype=np.int32) for length in lengths]
    )
    owners = np.repeat(np.arange(len(lengths)), num_new)
    slots = tables[owners, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    starts = np.arange(len(lengths) + 1, dtype=np.int32) * num_new
    random = np.random.default_rng(0)
    return Batch(
        token_ids=random.integers(0, vocab_size, len(positions), dtype=np.int32),
        positions=positions,
        slots=slots.astype(np.int32),
        query_starts=starts,
        prompt_lens=np.asarray(lengths, dtype=np.int32),
        block_tables=tables,
        logit_rows=(starts[1:] - 1).astype(np.int32),
    )


def times_s(run: Callable[[], object], num_runs: int) -> list[float]:
    """Seconds of each run, after one that does not count."""
    run()
    taken = []
    for _ in range(num_runs):
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return taken


def rows(runner: Runner, context: int, num_runs: int) -> Iterator[tuple[str, int, list[float]]]:
    """What is run, the tokens one run computes, and the seconds of each run."""
    for batch_size in (1, 2, 4, 8, 16, 32):
        batch = make_batch([context] * batch_size, 1, runner.vocab_size)
        taken = times_s(lambda batch=batch: runner.forward(batch), num_runs)
        yield f"decode, {batch_size} x {context}", batch_size, taken
    for chunk in (16, 64, 256, 512):
        batch = make_batch([chunk], chunk, runner.vocab_size)
        taken = times_s(lambda batch=batch: runner.forward(batch), num_runs)
        yield f"prefill, {chunk}", chunk, taken


def main() -> None:
    """Print one row a shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="as for weft serve")
    parser.add_argument("--context", type=int, default=256, help="tokens a decoded sequence has")
    parser.add_argument("--runs", type=int, default=10, help="how often each shape is run")
    options = parser.parse_args()
    checkpoint = open_model(options.model)
    runner = load_runner(checkpoint)
    longest = max(32 * options.context, 512)
    runner.allocate_kv(num_blocks=-(-longest // BLOCK_SIZE) + 32, block_size=BLOCK_SIZE)

    threads = os.environ.get("OMP_NUM_THREADS", "unset")
    print(f"{options.model}: {checkpoint.card.num_parameters:,} parameters")
    print(f"{cpu().describe()}, {os.cpu_count()} cores, OMP_NUM_THREADS {threads}")
    print(f"python {platform.python_version()}, numpy {np.__version__}\n")
    print(f"{'step':<22}{'median ms':>10}{'min':>9}{'max':>9}{'tokens/s':>11}")
    for name, num_tokens, taken in rows(runner, options.context, options.runs):
        median = statistics.median(taken)
        cells = [f"{1e3 * value:.2f}" for value in (median, min(taken), max(taken))]
        print(f"{name:<22}{cells[0]:>10}{cells[1]:>9}{cells[2]:>9}{num_tokens / median:>11.1f}")


if __name__ == "__main__":
    main()
