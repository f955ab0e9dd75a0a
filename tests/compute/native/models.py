"""Small random models for the native runner, on any of its paths."""

from dataclasses import replace

import numpy as np

from tests.compute.runners import load_runner
from tests.compute.steps import run_at_random
from weft.compute.native import Machine, NativeRunner, Rounding
from weft.compute.protocols.runner import Runner
from weft.model.families.decoders import read_config, read_spec
from weft.model.families.names import OPT
from weft.model.files.checkpoint import Checkpoint
from weft.model.files.layout import decoder_layout
from weft.model.open import open_model
from weft.model.spec import ModelSpec
from weft.model.weights import Tensor, Weights

# Odd sizes on purpose: tails of vector registers, and row tiles of every height.
SHAPES = {
    "plain": ("hidden=64&heads=4&kv_heads=2&vocab=300", None),
    "odd sizes": (
        "qk_norm=true&hidden=68&heads=5&kv_heads=1&head_dim=14&intermediate=99&vocab=301",
        33,
    ),
    "many heads": ("layers=2&hidden=96&heads=14&kv_heads=1&head_dim=40&vocab=333", 16),
    "experts": (
        (
            "qk_norm=true&hidden=68&heads=4&kv_heads=2&head_dim=18&intermediate=41&vocab=301&experts=7"
            "&experts_per_token=3"
        ),
        None,
    ),
    "a shared expert": (
        "hidden=64&heads=4&kv_heads=2&intermediate=48&vocab=300&experts=5&experts_per_token=2&shared=70",
        33,
    ),
    "experts and sinks": (
        (
            "layers=2&hidden=68&heads=6&kv_heads=2&head_dim=18&intermediate=41&vocab=301&experts=7"
            "&experts_per_token=3&sinks=true"
        ),
        33,
    ),
    "convolutions": (
        "layers=5&hidden=68&heads=5&kv_heads=1&head_dim=14&intermediate=99&vocab=301&conv=4",
        33,
    ),
    "mamba": (
        "layers=5&hidden=68&heads=5&kv_heads=1&head_dim=14&intermediate=99&vocab=301&mamba=8",
        33,
    ),
    "gated delta nets": (
        "layers=5&hidden=68&heads=5&kv_heads=1&head_dim=14&intermediate=99&vocab=301&delta=6",
        33,
    ),
    "wide": ("layers=1&hidden=256&heads=8&kv_heads=8&head_dim=32&intermediate=2200&vocab=1003", 70),
}

# These take no int8 cache.
LATENT_SHAPES = {
    "latent attention": (
        "hidden=68&heads=4&head_dim=16&intermediate=41&vocab=301&latent=32&experts=5",
        None,
    ),
    "latent attention, latent queries": (
        "layers=2&hidden=68&heads=6&head_dim=32&intermediate=41&vocab=301&latent=48&latent_queries=20",
        33,
    ),
}

# Its keys come in several blocks, of which it sees part.
LONG_WINDOW = {
    "a long window": ("layers=2&hidden=64&heads=6&kv_heads=2&head_dim=32&vocab=300", 600)
}

# As OPT is, with its norms before the products and with them after.
LEARNED_POSITIONS = ("norms before", "norms after")


def make_runner(
    shape: str,
    dtype: str,
    path: str | None = None,
    num_threads: int = 1,
    nan_token: bool = False,
    norm: float | None = None,
) -> NativeRunner:
    """Every other layer has the shape's window; soft caps are on where there is one.

    `dtype` "int8" or "int4" is bfloat16 with linear layers in that; after a "+" comes what the KV cache is rounded
    to. `nan_token` makes the embedding of token 0 NaN, `norm` all weights of the last norm the same.
    """
    dtype, _, kv_cache_dtype = dtype.partition("+")
    quantization = dtype if dtype in ("int8", "int4") else None
    dtype = "bfloat16" if quantization else dtype
    spec, weights = model_of(shape, dtype)
    if nan_token:
        embed = weights["embed"].data.copy()
        embed[0] = 0x7FC0 if dtype == "bfloat16" else np.nan
        weights = Weights({**weights.tensors, "embed": Tensor(dtype, embed)})
    if norm is not None:
        same = Tensor("float32", np.full(spec.hidden_size, norm, np.float32))
        weights = Weights({**weights.tensors, "norm": same})
    return NativeRunner(
        spec,
        weights,
        dtype=dtype,
        max_model_len=4096,
        rounding=Rounding(
            quantization=quantization, kv_cache_dtype="int8" if kv_cache_dtype == "int8" else "auto"
        ),
        machine=Machine(path, num_threads),
    )


def model_of(shape: str, dtype: str) -> tuple[ModelSpec, Weights]:
    """What `make_runner` runs."""
    if shape in LEARNED_POSITIONS:
        return _with_positions(shape == "norms before", dtype)
    query, window = (SHAPES | LATENT_SHAPES | LONG_WINDOW)[shape]
    checkpoint = open_model(f"embedded:random?{query}", dtype=dtype)
    return _with_window(checkpoint, window), checkpoint.load()


def pair(
    checkpoint: Checkpoint, path: str, dtype: str = "float32", **rounding: str
) -> tuple[Runner, Runner]:
    """The same model: by numpy in float32 around what is rounded, and on a path of the core in `dtype`."""
    native = NativeRunner(
        checkpoint.spec,
        checkpoint.load(),
        dtype=dtype,
        max_model_len=100,
        rounding=Rounding(**rounding),
        machine=Machine(path),
    )
    return load_runner(checkpoint, compute="reference", **rounding), native


def errors(
    checkpoint: Checkpoint, path: str, lengths: tuple[int, ...] = (60,), **rounding: str
) -> list[float]:
    """By sequence: how far the core is from numpy, as a relative L2."""
    random = np.random.default_rng(1)
    sequences = [random.integers(0, 300, length).tolist() for length in lengths]
    expected, logits = (
        run_at_random(runner, sequences, np.random.default_rng(2), max_chunk=20)
        for runner in pair(checkpoint, path, **rounding)
    )
    return [
        float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
        for ours, theirs in zip(logits, expected, strict=True)
    ]


def _with_window(checkpoint: Checkpoint, window: int | None) -> ModelSpec:
    assert isinstance(checkpoint.spec, ModelSpec)
    layers = tuple(
        replace(layer, window=window if place % 2 == 0 else None)
        for place, layer in enumerate(checkpoint.spec.layers)
    )
    cap = None if window is None else 20.0
    return replace(checkpoint.spec, layers=layers, attention_soft_cap=cap, final_soft_cap=cap)


def _with_positions(has_norms_before: bool, dtype: str) -> tuple[ModelSpec, Weights]:
    config = {
        "model_type": "opt",
        "vocab_size": 301,
        "hidden_size": 70,
        "ffn_dim": 99,
        "num_hidden_layers": 2,
        "num_attention_heads": 5,
        "max_position_embeddings": 450,
        "do_layer_norm_before": has_norms_before,
    }
    spec = read_spec(read_config(config, "config.json"))
    rng = np.random.default_rng(0)
    weights = {
        plan.name: Tensor("float32", rng.standard_normal(plan.shape, np.float32) * 0.1)
        for plan in decoder_layout(spec, OPT)
    }
    return spec, Weights({name: tensor.rounded_to(dtype) for name, tensor in weights.items()})
