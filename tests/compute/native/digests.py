"""Digests of what a path computes, to be compared with another architecture's.

python -m tests.compute.native.digests PATH
"""

import hashlib
import sys

import numpy as np

from tests.compute.native.models import LEARNED_POSITIONS, SHAPES, make_runner
from tests.compute.steps import run_at_random

DTYPES = ("float32", "bfloat16", "int8", "int4", "bfloat16+int8")


def main() -> None:
    """A line for each model and type: logits of three sequences, in a schedule."""
    (path,) = sys.argv[1:]
    random = np.random.default_rng(3)
    sequences = [random.integers(0, 300, length).tolist() for length in (33, 1, 50)]
    for shape in (*SHAPES, *LEARNED_POSITIONS):
        for dtype in DTYPES:
            runner = make_runner(shape, dtype, path)
            logits = run_at_random(runner, sequences, np.random.default_rng(4), max_chunk=20)
            digest = hashlib.sha256(np.concatenate(logits).tobytes()).hexdigest()
            print(f"{shape}, {dtype}: {digest}")


if __name__ == "__main__":
    main()
