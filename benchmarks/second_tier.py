"""What a second tier of the prefix cache is worth: `python -m benchmarks.second_tier`.

Conversations take turns, more of them than the pool holds. Engines without a tier, with one of memory and
with one of files do the same round after round, in turns; the share of prompt tokens that was found in a cache,
and the time to the first token, of every round but the first.
"""

import argparse
import random
import statistics
import tempfile
import time
from contextlib import ExitStack
from typing import Any

from weft import LLM, SamplingParams

MODEL = (
    "embedded:random?layers=12&hidden=576&heads=9&kv_heads=3&head_dim=64&intermediate=1536"
    "&vocab=16384&dtype=bfloat16"
)
BLOCK_SIZE = 16


def main() -> None:
    """Print a line an engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1024, help="of each prompt")
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    draw = random.Random(1)
    prompts = [
        [draw.randrange(100, 200) for _ in range(options.tokens)]
        for _ in range(options.conversations)
    ]
    with ExitStack() as stack:
        path = stack.enter_context(tempfile.TemporaryDirectory())
        tiers: dict[str, dict[str, Any]] = {
            "no tier": {},
            "memory": {"kv_offloading_size": 4.0},
            "files": {"kv_offloading_size": 4.0, "kv_offloading_path": path},
        }
        pool = 3 * options.tokens // BLOCK_SIZE  # of two conversations, and what runs
        engines = {
            name: stack.enter_context(
                LLM(
                    options.model,
                    max_model_len=options.tokens + 64,
                    num_gpu_blocks_override=pool,
                    **tier,
                )
            )
            for name, tier in tiers.items()
        }
        found: dict[str, list[int]] = {name: [] for name in engines}
        seconds: dict[str, list[float]] = {name: [] for name in engines}
        for number in range(options.rounds):
            for prompt in prompts:
                for name, engine in engines.items():
                    began = time.perf_counter()
                    [output] = engine.generate(
                        {"prompt_token_ids": prompt}, SamplingParams(max_tokens=1), use_tqdm=False
                    )
                    if number:
                        seconds[name].append(time.perf_counter() - began)
                        found[name].append(output.num_cached_tokens or 0)
    print("| engine | tokens found | time to first token, median | slowest |")
    print("| --- | --- | --- | --- |")
    for name in engines:
        share = sum(found[name]) / (len(found[name]) * options.tokens)
        times = [each * 1000 for each in seconds[name]]
        print(f"| {name} | {share:.0%} | {statistics.median(times):.0f} ms | {max(times):.0f} ms |")


if __name__ == "__main__":
    main()
