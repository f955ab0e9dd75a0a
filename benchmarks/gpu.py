"""Steps of the GPU backend beside their limits on the same card, and whole engines on it.

`python benchmarks/gpu.py` prints tables in Markdown; docs/gpu.md has the last. Weights are drawn on the card.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from triton.testing import do_bench

import weft
from weft.compute.gpu.card_tensors import TYPES
from weft.compute.gpu.formats import product_format, products_of, row_bytes
from weft.compute.gpu.matrices.stored_matrix import Numbers
from weft.compute.gpu.runner import GpuRunner
from weft.compute.gpu.weights import Reader
from weft.compute.protocols.runner import Batch
from weft.core.values.types import SamplingParams
from weft.model.files.layout import decoder_layout
from weft.model.groups import GroupFormat
from weft.model.open import open_model
from weft.model.spec import ModelSpec
from weft.model.weights import Weights

BLOCK = 16
CONTEXT = 1024
MODELS = {
    "Llama 8B": (
        "layers=32&hidden=4096&heads=32&kv_heads=8&head_dim=128&intermediate=14336&vocab=128256",
        (1, 32, 128),
    ),
    "Qwen3-0.6B": (
        (
            "layers=28&hidden=1024&heads=16&kv_heads=8&head_dim=128&intermediate=3072&vocab=151936"
            "&qk_norm=true"
        ),
        (1, 8, 32, 128, 256),
    ),
    "OLMoE": (
        (
            "layers=16&hidden=2048&heads=16&kv_heads=16&head_dim=128&intermediate=1024&vocab=50304"
            "&experts=64&experts_per_token=8"
        ),
        (1, 32),
    ),
}
PROMPTS = (512, 2048, 8192)
QUANTIZED = (("Llama 8B", "int8"), ("Llama 8B", "int4"), ("OLMoE", "int4"))
ENGINE_LOADS = ((1, 128, 256), (32, 128, 128), (256, 512, 128))  # requests, tokens in, tokens out


@dataclass(frozen=True)
class DrawnReader(Reader):
    """Draws weights on the card, of their usual spread."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        shape = self.shapes[name]
        drawn = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        if len(shape) == 1:
            return (1 + 0.1 * drawn).to(dtype)
        return (drawn * (1.0 if name == "embed" else shape[1] ** -0.5)).to(dtype)

    def numbers(self, name: str, form: GroupFormat) -> Numbers:
        rows, depth = self.shapes.get(name, self.shapes["embed"])
        drawn = torch.randint(0, 2**form.bits, (rows, depth), device="cuda", dtype=torch.uint8)
        scale = 2.0 ** (1 - form.bits) * depth**-0.5
        scales = torch.full(
            (rows, form.count(depth)), scale, device="cuda", dtype=TYPES[form.scales]
        )
        offsets = scales * -(2 ** (form.bits - 1)) if form.offset == "minimums" else None
        return Numbers.packed(form, drawn, scales, offsets)


@dataclass(frozen=True)
class Limits:
    """What the card gave at best, just now."""

    read_bytes_per_s: float
    operations_per_s: float


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--skip-engines", action="store_true", help="steps alone")
    arguments = parser.parse_args()
    limits = measure_limits()
    name, version = torch.cuda.get_device_name(), torch.__version__
    print(f"{name}, torch {version}, {time.strftime('%Y-%m-%d')}: ", end="")
    print(f"reading {limits.read_bytes_per_s / 1e9:,.0f} GB/s, ", end="")
    print(f"bfloat16 products {limits.operations_per_s / 1e12:,.0f} TFLOP/s\n", flush=True)
    for model, (query, batches) in MODELS.items():
        prompts = PROMPTS[1:2] if "experts" in query else PROMPTS
        print_steps(model, query, batches, prompts, limits)
    for model, quantization in QUANTIZED:
        query, batches = MODELS[model]
        print_steps(model, query, batches, PROMPTS[1:2], limits, quantization)
    if not arguments.skip_engines:
        print_engines()


def measure_limits() -> Limits:
    """Read a gigabyte, and multiply two matrices of 8,192 by 8,192."""
    numbers = torch.randn(1 << 29, device="cuda", dtype=torch.bfloat16).view(torch.int32)
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    read_s = seconds(numbers.max)
    product_s = seconds(lambda: matrix @ matrix)
    return Limits(numbers.numel() * 4 / read_s, 2 * 8192**3 / product_s)


def seconds(work: Callable[[], object], times: int = 1) -> float:
    """The median time of one of `times` that are launched together."""

    def launch() -> None:
        for _ in range(times):
            work()

    milliseconds = do_bench(launch, warmup=20, rep=100, return_mode="median")
    return float(milliseconds) / 1e3 / times


def make_runner(query: str, quantization: str | None = None) -> GpuRunner:
    """A model of that shape, and a pool as large as any table needs."""
    spec = open_model(f"embedded:random?{query}&max_len=16384").spec
    assert isinstance(spec, ModelSpec)
    shapes = {plan.name: plan.shape for plan in decoder_layout(spec)}
    weights = Weights(dict.fromkeys(shapes))  # type: ignore[arg-type]
    reader = DrawnReader(spec, weights, torch.bfloat16, quantization, shapes)
    runner = GpuRunner(reader, max_model_len=16384)
    runner.allocate_kv(num_blocks=256 * (CONTEXT // BLOCK + 1), block_size=BLOCK)
    return runner


def print_steps(
    model: str,
    query: str,
    batches: tuple[int, ...],
    prompts: tuple[int, ...],
    limits: Limits,
    quantization: str | None = None,
) -> None:
    """Steps of one token a sequence, and prompts."""
    runner = make_runner(query, quantization)
    title = f"{model} in {quantization}" if quantization else model
    print(
        f"| {title}, {CONTEXT:,} tokens each | ms | of reading weights and KV once |\n|---|---|---|"
    )
    for count in batches:
        batch = decode_batch(count)
        runner.forward(batch)
        took = seconds(lambda batch=batch: runner.forward(batch), times=10)  # type: ignore[misc]
        read = weight_bytes(runner.spec, quantization, count) + count * CONTEXT * kv_bytes(
            runner.spec
        )
        share = read / limits.read_bytes_per_s / took
        print(f"| {count} | {took * 1e3:.2f} | {share:.1%} |", flush=True)
    print(f"\n| {title}, a prompt | ms | of the card's products |\n|---|---|---|")
    for length in prompts:
        batch = prompt_batch(length)
        runner.forward(batch)
        took = seconds(lambda batch=batch: runner.forward(batch))  # type: ignore[misc]
        share = operations(runner.spec, length) / limits.operations_per_s / took
        print(f"| {length:,} | {took * 1e3:.1f} | {share:.1%} |", flush=True)
    print(flush=True)


def matrix_elements(spec: ModelSpec) -> int:
    """Of the linear layers that a token uses."""
    used = sum(math.prod(plan.shape) for plan in decoder_layout(spec) if is_matrix(plan.name))
    return used - spec.num_idle_parameters


def is_matrix(name: str) -> bool:
    """True of a linear layer's weights, but the router's."""
    return name.rpartition(".")[2] in ("q", "k", "v", "o", "gate", "up", "down")


def weight_bytes(spec: ModelSpec, quantization: str | None, num_rows: int) -> int:
    """That a step reads: linear layers and the head; of experts the share that random choices of the rows use."""
    shapes = {plan.name: plan.shape for plan in decoder_layout(spec)}
    read = 0.0
    for names in products_of(spec):
        form = product_format(names, {}, quantization)
        for name in names:
            rows, depth = shapes.get(name, shapes["embed"])
            share = used_share(spec, num_rows) if ".experts." in name else 1.0
            read += share * rows * (2 * depth if form is None else row_bytes(form, depth))
    return int(read)


def used_share(spec: ModelSpec, num_rows: int) -> float:
    """The expected share of a layer's experts that some row chooses."""
    experts = spec.layers[0].experts
    assert experts is not None
    return 1.0 - (1.0 - experts.per_token / experts.count) ** num_rows


def kv_bytes(spec: ModelSpec) -> int:
    """Of a token."""
    return 4 * spec.kv_size * len(spec.layers)


def operations(spec: ModelSpec, length: int) -> int:
    """Of a prompt: its linear layers, and half a square of attention."""
    attention = 2 * length**2 * spec.num_heads * spec.head_dim * len(spec.layers)
    return 2 * length * matrix_elements(spec) + attention


def decode_batch(count: int) -> Batch:
    """The next token of so many sequences."""
    of_each = CONTEXT // BLOCK + 1
    tables = np.arange(count * of_each, dtype=np.int32).reshape(count, of_each)
    rows = np.arange(count, dtype=np.int32)
    return Batch(
        token_ids=np.full(count, 7, np.int32),
        positions=np.full(count, CONTEXT - 1, np.int32),
        slots=tables[:, (CONTEXT - 1) // BLOCK] * BLOCK + (CONTEXT - 1) % BLOCK,
        query_starts=np.arange(count + 1, dtype=np.int32),
        prompt_lens=np.full(count, CONTEXT - 1, np.int32),
        block_tables=tables,
        logit_rows=rows,
    )


def prompt_batch(length: int) -> Batch:
    """The whole of a prompt."""
    places = np.arange(length, dtype=np.int32)
    return Batch(
        token_ids=places % 1000,
        positions=places,
        slots=places,
        query_starts=np.array([0, length], np.int32),
        prompt_lens=np.array([length], np.int32),
        block_tables=np.arange(-(-length // BLOCK), dtype=np.int32)[None],
        logit_rows=np.array([length - 1], np.int32),
    )


def print_engines() -> None:
    """`weft.LLM` with the small model: scheduler, steps ahead, sampling and texts."""
    query, _ = MODELS["Qwen3-0.6B"]
    begun = time.perf_counter()
    model = f"embedded:random?{query}&dtype=bfloat16&max_len=4096"
    options = {"max_num_seqs": 256, "max_model_len": 4096, "kv_cache_bytes": 20 << 30}
    with weft.LLM(model, compute="gpu", **options) as llm:
        print(f"Qwen3-0.6B through `weft.LLM`, loaded in {time.perf_counter() - begun:.1f} s\n")
        print(
            "| requests × tokens in, out | greedy, tokens/s out | temperature 0.8 |\n|---|---|---|"
        )
        for count, num_in, num_out in ENGINE_LOADS:
            rates = [f"{rate:,.0f}" for rate in engine_rates(llm, count, num_in, num_out)]
            print(f"| {count} × {num_in}, {num_out} | {' | '.join(rates)} |", flush=True)


def engine_rates(llm: "weft.LLM", count: int, num_in: int, num_out: int) -> Iterator[float]:
    """Tokens a second, greedy and sampled; the first run of each kind captures graphs and does not count."""
    rng = np.random.default_rng(0)
    for temperature in (0.0, 0.8):
        params = SamplingParams(
            temperature=temperature, seed=1, max_tokens=num_out, ignore_eos=True
        )
        rate = 0.0
        for _ in range(2):
            prompts = rng.integers(5, 30_000, (count, num_in)).tolist()
            begun = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            rate = count * num_out / (time.perf_counter() - begun)
        yield rate


if __name__ == "__main__":
    main()
