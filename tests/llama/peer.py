"""llama.cpp beside Weft on the same GGUF file: each file in a process of its own, which it may end."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.peers.environments import LLAMA
from tests.compute.runners import load_runner
from tests.compute.steps import Part, step
from weft.model.open import open_model

SCRIPT = Path(__file__).parent / "run_llama.py"
# Longer than the windows of every case; of the tokens that all vocabularies here have.
PROMPT = np.random.default_rng(5).integers(0, 256, 48).tolist()
MAX_TOKENS = 16


@dataclass(frozen=True)
class Compared:
    """Both ways through the same tokens: the prompt, and what llama.cpp chose behind it."""

    ours: np.ndarray  # [positions, vocab]
    theirs: np.ndarray  # [positions, vocab]
    their_tokens: list[int]

    @property
    def our_tokens(self) -> list[int]:
        """The greedy ones; those of an answer of ours, up to the first that differs."""
        return self.ours[len(PROMPT) - 1 :].argmax(axis=1).tolist()

    @property
    def error(self) -> float:
        """Of all logits, relative to theirs."""
        return distance(self.ours, self.theirs)


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Euclidean, relative to the second."""
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def compare(path: str, **how) -> Compared:
    """`how` are Weft's options; llama.cpp has none here but float32 for keys and values."""
    found = _ask(path, prompt=PROMPT, max_tokens=MAX_TOKENS)
    token_ids = [*PROMPT, *found["tokens"][:-1]]
    theirs = np.array(found["logits"], np.float32)
    return Compared(logits(path, token_ids, **how), theirs, found["tokens"])


def logits(path: str, token_ids: list[int], *, dtype: str = "auto", **how) -> np.ndarray:
    """Weft's, of every position."""
    runner = load_runner(open_model(path, dtype=dtype), max_model_len=256, **how)
    blocks = list(range(1, 2 + len(token_ids) // 16))
    runner.allocate_kv(num_blocks=1 + len(blocks), block_size=16, num_state_slots=1)
    return runner.forward(step([Part(token_ids, len(PROMPT), blocks, 0, len(token_ids))], 16))


def tokenize(path: str, texts: list[str]) -> list[list[int]]:
    """llama.cpp's, with what it puts around them."""
    return _ask(path, texts=texts)


def _ask(path: str, **wanted):
    asked = json.dumps({"file": str(path), **wanted})
    done = subprocess.run(
        [str(LLAMA.python), str(SCRIPT)], input=asked, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)
