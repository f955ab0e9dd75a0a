"""Time the choice of a step's tokens: in one call, beside a call for each row and beside reading the logits once.

`python benchmarks/sampling.py`; README.md says how to read the table.
"""

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from weft.compute.native import NativeSampler, _core, available_cpus, cpu, measure_roofline
from weft.compute.protocols.masks import mask_of
from weft.compute.protocols.runner import FloatArray
from weft.compute.protocols.sampler import Choice, Choices, Lists, Scoring

NUM_ROWS = 32
VOCAB = 151_936  # of Qwen3
NUM_SEEN = 2_000


def kinds(rng: np.random.Generator) -> dict[str, Choice]:
    """What requests ask for, by name."""
    seen: list[int] = rng.integers(0, VOCAB, NUM_SEEN).tolist()  # as the engine gives them
    return {
        "greedy": Choice(),
        "temperature 1": Choice(temperature=1.0),
        "top-p 0.95": Choice(temperature=1.0, top_p=0.95),
        "top-p 0.5": Choice(temperature=1.0, top_p=0.5),
        "top-k 20, top-p 0.8": Choice(temperature=0.7, top_k=20, top_p=0.8),
        "min-p 0.05": Choice(temperature=1.0, min_p=0.05),
        "penalties": Choice(
            temperature=1.0, repetition_penalty=1.1, presence_penalty=0.5, seen=seen, output=seen
        ),
        "mask of a grammar": Choice(temperature=1.0, mask=mask_of(rng.random(VOCAB) < 0.5)),
    }


def with_keys(choice: Choice, num_rows: int, run: int) -> list[Choice]:
    """The same for each row, with noise of its own."""
    fields = {name: getattr(choice, name) for name in choice.__struct_fields__}
    return [Choice(**fields | {"key": run * NUM_ROWS + row}) for row in range(num_rows)]


@dataclass(frozen=True, slots=True)
class Taken:
    """Milliseconds of some runs: that passed, and that our threads were running, all together."""

    passed: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)

    def add(self, work: Callable[[], object]) -> None:
        """Time it once more."""
        passed, running = time.perf_counter(), time.process_time()
        work()
        self.running.append(1e3 * (time.process_time() - running))
        self.passed.append(1e3 * (time.perf_counter() - passed))

    def __str__(self) -> str:
        return f"{statistics.median(self.running):.2f} | {statistics.median(self.passed):.2f}, {min(self.passed):.2f}"


def sample_each(logits: FloatArray, rows: list[Choices]) -> None:
    """In a call for each."""
    for row in rows:
        NativeSampler.sample(logits, row)


def time_kind(
    logits: FloatArray, choice: Choice, num_threads: int, num_runs: int, scoring: Scoring | None
) -> tuple[Taken, Taken]:
    """Each run: row by row on one thread, then all rows in one call."""
    apart, together = Taken(), Taken()
    for run in range(num_runs):
        choices = with_keys(choice, NUM_ROWS, run)
        rows = [Choices.of([row], [one]) for row, one in enumerate(choices)]
        step = Choices.of(range(NUM_ROWS), choices, scoring)
        _core.use_sampling_threads(1)
        NativeSampler.sample(logits, rows[0])  # starts the threads
        apart.add(partial(sample_each, logits, rows))
        _core.use_sampling_threads(num_threads)
        NativeSampler.sample(logits, rows[0])
        together.add(partial(NativeSampler.sample, logits, step))
    return apart, together


def best_logprobs(num_best: int) -> Scoring:
    """The scores of each row's token and of its best."""
    rows = np.arange(NUM_ROWS, dtype=np.int32)
    return Scoring(rows, rows, Lists.of([()] * NUM_ROWS), np.full(NUM_ROWS, num_best, np.int32))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=available_cpus())
    parser.add_argument("--runs", type=int, default=30)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    logits = (rng.standard_normal((NUM_ROWS, VOCAB)) * 3).astype(np.float32)
    print(
        f"{cpu().describe()}, {platform.machine()}, {options.threads} threads, {NUM_ROWS} x {VOCAB}"
    )
    reading = [measure_roofline("float32", options.threads).bytes_per_s for _ in range(3)]
    print(f"reading the logits once: {1e3 * logits.nbytes / max(reading):.2f} ms")
    print("| choice | row by row, 1 thread: running | passed | one call: running | passed |")
    print("|---|---|---|---|---|")
    asked: list[tuple[str, Choice, Scoring | None]] = [
        (name, choice, None) for name, choice in kinds(rng).items()
    ]
    asked.append(("greedy, 20 log-probabilities", Choice(), best_logprobs(20)))
    for name, choice, scoring in asked:
        apart, together = time_kind(logits, choice, options.threads, options.runs, scoring)
        print(f"| {name} | {'- | -' if scoring else apart} | {together} |")


if __name__ == "__main__":
    main()
