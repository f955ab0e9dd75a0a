"""How a decode step grows with the batch and with what its sequences hold, and a prompt with its length.

`step.py` prints it.
"""

import itertools
import statistics
from dataclasses import dataclass

from benchmarks.steps.timing import Shape, fill_pool, make_batch, timed
from weft.compute.native import NativeRunner
from weft.compute.protocols.runner import Runner

BATCHES = (1, 4, 16, 64, 128)
CONTEXTS = (128, 1024, 4096, 16384, 32768)
PROMPTS = (64, 512, 2048, 8192, 32768)
ROWS_OF_STEP = 512  # of a prompt, as the server takes it
_CELL_S = 0.4  # a cell is run at least thrice, and for about that long


@dataclass(frozen=True, slots=True)
class Cell:
    """A decode step; `median_ms` is None where its KV would have been larger than asked for."""

    batch: int
    context: int
    median_ms: float | None
    min_ms: float | None
    num_runs: int


def measure_scaling(runner: Runner, kv_bytes_per_token: int, max_kv_bytes: int) -> list[Cell]:
    """Every batch and context whose KV is within `max_kv_bytes`, in one pool, written before."""
    shapes = [Shape("decode", batch, 1, context) for batch in BATCHES for context in CONTEXTS]
    fitting = [s for s in shapes if s.sequences * s.length * kv_bytes_per_token <= max_kv_bytes]
    fill_pool(runner, max((shape.num_blocks for shape in fitting), default=1))
    return [_cell(runner, shape if shape in fitting else None, shape) for shape in shapes]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt by itself, from its first step to the logits of its last token."""

    tokens: int
    taken_s: float
    attention_s: float


def measure_prompts(runner: NativeRunner, longest: int) -> list[Prompt]:
    """Those of up to `longest` tokens, once each: the short ones after a run that is thrown away."""
    lengths = [tokens for tokens in PROMPTS if tokens <= longest]
    fill_pool(runner, Shape("prompt", 1, 1, lengths[-1]).num_blocks)
    _prompt(runner, lengths[0])
    return [_prompt(runner, tokens) for tokens in lengths]


def _prompt(runner: NativeRunner, tokens: int) -> Prompt:
    ends = [*range(ROWS_OF_STEP, tokens, ROWS_OF_STEP), tokens]
    steps = [
        make_batch(Shape("prefill", 1, end - start, end), runner.vocab_size)
        for start, end in itertools.pairwise([0, *ends])
    ]
    before = runner.seconds()["attention"]
    taken = timed(lambda: [runner.forward(batch) for batch in steps])
    return Prompt(tokens, taken, runner.seconds()["attention"] - before)


def print_prompts(prompts: list[Prompt]) -> None:
    """Seconds to the first token, the rate, and the part of attention."""
    print(f"{'prompt':>8}  seconds  tokens/s  attention")
    for prompt in prompts:
        print(
            f"{_tokens(prompt.tokens):>8} {prompt.taken_s:>8.2f} {prompt.tokens / prompt.taken_s:>9.0f}"
            f" {prompt.attention_s / prompt.taken_s:>9.0%}"
        )


def _cell(runner: Runner, fitting: Shape | None, shape: Shape) -> Cell:
    if fitting is None:
        return Cell(shape.sequences, shape.length, None, None, 0)
    batch = make_batch(shape, runner.vocab_size)

    def step_s() -> float:
        return timed(lambda: runner.forward(batch))

    num_runs = min(50, max(3, int(_CELL_S / step_s())))
    taken = [1e3 * step_s() for _ in range(num_runs)]
    return Cell(shape.sequences, shape.length, statistics.median(taken), min(taken), num_runs)


def print_scaling(cells: list[Cell], max_kv_bytes: int) -> None:
    """A row a batch: milliseconds of a step by context, then the same for each row of the step."""
    found = {(cell.batch, cell.context): cell.median_ms for cell in cells}
    contexts = "".join(f"{_tokens(context):>9}" for context in CONTEXTS)
    print(f"decode, median ms a step; - : its KV is more than {max_kv_bytes / 2**30:g} GiB")
    print(f"{'batch':>6} |{contexts} | a row:{contexts}")
    for batch in BATCHES:
        steps = [found[batch, context] for context in CONTEXTS]
        whole = "".join("        -" if ms is None else f"{ms:>9.2f}" for ms in steps)
        each = "".join("        -" if ms is None else f"{ms / batch:>9.3f}" for ms in steps)
        print(f"{batch:>6} |{whole} |       {each}")


def _tokens(count: int) -> str:
    return f"{count // 1024}k" if count >= 1024 else str(count)
