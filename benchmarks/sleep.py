"""Times sleep and wake beside a start, and what stays resident.

    python -m benchmarks.sleep [qwen3-0.6b | smollm2-135m]

The checkpoint is made where it is not there yet, of random numbers. Every level in turns; the wake of a
level 1 or 2 reads the weights again, from packed files where these have been written.
"""

import statistics
import sys
import time
from functools import partial

import psutil

from benchmarks.peers.checkpoints import checkpoint
from benchmarks.steps.timing import timed
from weft import LLM
from weft.core.values.prompts import TokensPrompt
from weft.core.values.types import SamplingParams

LEVELS = (0, 1, 2)
ROUNDS = 3
PROMPT: TokensPrompt = {"prompt_token_ids": list(range(100, 612))}
PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


def resident_bytes() -> int:
    """Of this process, which has the engine, without what it shares with the page cache."""
    memory = psutil.Process().memory_info()
    return memory.rss - memory.shared


def main() -> None:
    """A line for each level."""
    model = checkpoint(sys.argv[1] if len(sys.argv) > 1 else "qwen3-0.6b")
    rows: dict[int, list[tuple[float, float, int]]] = {level: [] for level in LEVELS}
    began = time.perf_counter()
    with LLM(str(model), max_model_len=2048) as llm:
        started = time.perf_counter() - began
        expected = llm.generate(PROMPT, PARAMS, use_tqdm=False)[0].outputs[0].token_ids
        awake = resident_bytes()
        for _ in range(ROUNDS):
            for level in LEVELS:
                slept = timed(partial(llm.sleep, level))
                asleep = resident_bytes()
                woken = timed(llm.wake_up)
                rows[level].append((slept, woken, asleep))
                answer = llm.generate(PROMPT, PARAMS, use_tqdm=False)[0].outputs[0].token_ids
                assert answer == expected, "a wake changed an answer"
    print(f"start {started:.2f} s, resident awake {awake / 2**20:.0f} MiB\n")
    print("| level | sleep, ms | wake, s | resident asleep, MiB |\n| --- | --- | --- | --- |")
    for level, found in rows.items():
        sleeps, wakes, sizes = zip(*found, strict=True)
        print(
            f"| {level} | {1000 * statistics.median(sleeps):.0f} | {statistics.median(wakes):.2f} | "
            f"{max(sizes) / 2**20:.0f} |"
        )


if __name__ == "__main__":
    main()
