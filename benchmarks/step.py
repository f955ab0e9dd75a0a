"""Time steps of a runner, and say where the time goes and how near the machine's limits it is.

`make bench`; README.md says how to read the tables.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.steps.budget import measure_budget, print_budget
from benchmarks.steps.scaling import (
    PROMPTS,
    measure_prompts,
    measure_scaling,
    print_prompts,
    print_scaling,
)
from benchmarks.steps.timing import Numbers, Shape, Timing, fill_pool, measure
from weft.compute.backends import BACKENDS, choose
from weft.compute.native import NativeRunner, NativeSampler, cpu, resident_bytes
from weft.compute.protocols.runner import Batch, Runner
from weft.compute.protocols.sampler import Choice, Choices
from weft.core.config.engine import ComputeConfig
from weft.core.config.engine_options import EngineOptions
from weft.model.card import ModelCard
from weft.model.files.checkpoint import Checkpoint
from weft.model.open import open_model
from weft.model.spec import ModelSpec

DEFAULT_MODEL = (
    "embedded:random?layers=8&hidden=512&heads=8&kv_heads=4&head_dim=64&intermediate=1536&vocab=8192"
    "&max_len=32768"
)
PARTS = ("prepare", "linear", "cache", "attention", "head")
BUDGET_ROWS = 32
BUDGET_STEPS = 100


@dataclass(frozen=True, slots=True)
class Step:
    """One shape, timed. `of_read` and `of_operations` are shares of what the machine gave beside."""

    name: str
    median_ms: float
    min_ms: float
    tokens_per_s: float
    running: float
    of_read: float | None
    of_operations: float | None
    parts_ms: dict[str, float]
    rest_ms: float


def shapes(context: int) -> Iterator[Shape]:
    """Decode by batch size, then prefill by chunk."""
    for batch_size in (1, 2, 4, 8, 16, 32):
        yield Shape(f"decode, {batch_size} x {context}", batch_size, 1, context)
    for chunk in (16, 64, 256, 512):
        yield Shape(f"prefill, {chunk}", 1, chunk, chunk)


def shares_of_limits(
    spec: ModelSpec, numbers: Numbers, shape: Shape, timing: Timing
) -> tuple[float, float] | tuple[None, None]:
    """Weights read, and multiplications done by linear layers, over what the machine gave beside."""
    if (
        timing.limits is None or spec.num_idle_parameters
    ):  # which experts are read hangs on the rows
        return None, None
    width = 2 if numbers.dtype == "bfloat16" else 4
    head = spec.vocab_size * spec.hidden_size
    sizes = resident_bytes(spec, numbers.dtype)
    matrices = sizes.weights // width - (head if spec.tied_head else 2 * head)
    of_matrices = {None: width, "int8": 1, "int4": 0.625}[numbers.quantization]  # bytes a weight
    width = width if numbers.quantization is None else 1
    rows = shape.sequences * shape.tokens
    bytes_per_s = (matrices * of_matrices + head * width) / timing.running_s
    operations_per_s = 2 * (matrices * rows + head * shape.sequences) / timing.running_s
    return (
        bytes_per_s / timing.limits.bytes_per_s,
        operations_per_s / timing.limits.operations_per_s,
    )


def time_steps(
    runner: Runner, spec: ModelSpec, numbers: Numbers, context: int, num_runs: int
) -> Iterator[Step]:
    """Every shape, one after the other."""
    fill_pool(runner, max(shape.num_blocks for shape in shapes(context)))
    for shape in shapes(context):
        timing = measure(runner, shape, num_runs, numbers)
        median, mean = statistics.median(timing.taken), statistics.fmean(timing.taken)
        of_read, of_operations = shares_of_limits(spec, numbers, shape, timing)
        yield Step(
            name=shape.name,
            median_ms=1e3 * median,
            min_ms=1e3 * min(timing.taken),
            tokens_per_s=shape.sequences * shape.tokens / median,
            running=timing.running_s / mean,
            of_read=of_read,
            of_operations=of_operations,
            parts_ms={part: 1e3 * timing.parts[part] for part in PARTS if timing.parts},
            rest_ms=1e3 * (mean - sum(timing.parts.values())),
        )


def print_steps(steps: Iterator[Step], *, has_parts: bool) -> list[Step]:
    """One row a shape, as soon as it is there."""
    heads = "".join(f"{part:>10}" for part in PARTS) if has_parts else ""
    print(
        f"{'step':<18}{'median ms':>10}{'min':>9}{'tokens/s':>10}{'CPU':>6}"
        f"{'of read':>8}{'of ops':>8}{heads}{'rest':>8}"
    )
    printed = []
    for step in steps:
        limits = (
            ""
            if step.of_read is None or step.of_operations is None
            else f"{step.of_read:>8.0%}{step.of_operations:>8.0%}"
        )
        parts = "".join(f"{step.parts_ms[part]:>10.2f}" for part in step.parts_ms)
        print(
            f"{step.name:<18}{step.median_ms:>10.2f}{step.min_ms:>9.2f}{step.tokens_per_s:>10.1f}"
            f"{step.running:>6.0%}{limits}{parts}{step.rest_ms:>8.2f}",
            flush=True,
        )
        printed.append(step)
    return printed


def time_drawing(vocab_size: int, num_runs: int) -> dict[str, float]:
    """Milliseconds of choosing tokens for a batch of 32."""
    logits = np.random.default_rng(0).standard_normal((32, vocab_size)).astype(np.float32) * 3
    medians = {}
    for name, temperature in (("greedy", 0.0), ("temperature 1", 1.0)):
        taken = []
        for run in range(num_runs):
            choices = Choices.of(range(32), [Choice(temperature=temperature, key=run)] * 32)
            started = time.perf_counter()
            NativeSampler.sample(logits, choices)
            taken.append(time.perf_counter() - started)
        medians[name] = 1e3 * statistics.median(taken)
        print(f"choose 32 tokens, {name}: {medians[name]:.2f} ms")
    return medians


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
    numpy, native = (
        BACKENDS[name].load(
            checkpoint,
            ComputeConfig(compute=name, num_threads=1),
            max_model_len=checkpoint.card.max_position_embeddings,
        )
        for name in ("reference", "native")
    )
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


def describe(model: str, card: ModelCard, compute: ComputeConfig) -> dict[str, str]:
    """What is timed, and on what."""
    return {
        "model": f"{model}: {card.num_parameters:,} parameters, {card.dtype}",
        "machine": BACKENDS[compute.compute].describe(card, compute),
        "python": f"python {platform.python_version()}",
    }


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="as for weft serve")
    parser.add_argument("--dtype", default="auto", help="as for weft serve")
    parser.add_argument("--compute", default="auto", choices=("auto", "native", "reference"))
    parser.add_argument("--quantization", choices=("int8", "int4"), help="as for weft serve")
    parser.add_argument(
        "--context", type=int, default=256, help="tokens a decoded sequence or a text has"
    )
    parser.add_argument("--runs", type=int, default=10, help="how often each shape is run")
    parser.add_argument("--threads", type=int, help="of the native runner; all CPUs if unset")
    parser.add_argument(
        "--kv-gib", type=float, default=2.0, help="the most KV that the scaling table may take"
    )
    parser.add_argument(
        "--longest",
        type=int,
        choices=PROMPTS,
        default=8192,
        help="tokens of the longest prompt by itself",
    )
    parser.add_argument("--json", type=Path, help="write all tables there too")
    return parser.parse_args()


def main() -> None:
    """Print what was run, where, and the tables."""
    options = parse()
    checkpoint = open_model(options.model, dtype=options.dtype)
    if not isinstance(checkpoint.spec, ModelSpec):
        raise SystemExit("--model must compute something")
    if not checkpoint.spec.is_causal:
        print(
            f"{options.model}: {checkpoint.card.num_parameters:,} parameters, {checkpoint.card.dtype}"
        )
        print(f"{cpu().describe()}; python {platform.python_version()}\n")
        print_encoding(checkpoint, options.context, options.runs)
        return
    spec = checkpoint.spec
    started = time.perf_counter()
    asked = EngineOptions(
        compute=options.compute, num_threads=options.threads, quantization=options.quantization
    )
    compute = choose(asked, checkpoint.card)
    runner = BACKENDS[compute.compute].load(
        checkpoint, compute, max_model_len=checkpoint.card.max_position_embeddings
    )
    loaded_s = time.perf_counter() - started
    found: dict[str, object] = {
        **describe(options.model, checkpoint.card, compute),
        "loaded_s": loaded_s,
    }
    print(f"{found['model']}\n{found['machine']}")
    print(f"{found['python']}; read and packed in {loaded_s:.1f} s\n")
    numbers = Numbers(checkpoint.card.dtype, options.quantization)
    has_parts = isinstance(runner, NativeRunner)
    steps = time_steps(runner, spec, numbers, options.context, options.runs)
    found["steps"] = [asdict(step) for step in print_steps(steps, has_parts=has_parts)]
    print()
    found["drawing_ms"] = time_drawing(runner.vocab_size, options.runs)
    if isinstance(runner, NativeRunner):
        found |= _time_growth(runner, checkpoint, options)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def _time_growth(
    runner: NativeRunner, checkpoint: Checkpoint, options: argparse.Namespace
) -> dict[str, object]:
    """The tables that take the native runner's speed."""
    compute = ComputeConfig(compute="native", num_threads=runner.num_threads)
    card = BACKENDS["native"].sized(checkpoint, compute).card
    max_kv_bytes = int(options.kv_gib * 2**30)
    print()
    cells = measure_scaling(runner, card.kv_bytes_per_token, max_kv_bytes)
    print_scaling(cells, max_kv_bytes)
    print()
    prompts = measure_prompts(runner, options.longest)
    print_prompts(prompts)
    print()
    budget = measure_budget(
        runner, card, num_rows=BUDGET_ROWS, context=options.context, num_steps=BUDGET_STEPS
    )
    print_budget(budget)
    return {
        "scaling": [asdict(cell) for cell in cells],
        "prompts": [asdict(prompt) for prompt in prompts],
        "budget": asdict(budget),
    }


if __name__ == "__main__":
    main()
