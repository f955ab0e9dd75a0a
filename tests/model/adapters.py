"""LoRA adapters on disk, as PEFT writes them: sound, unless a test spoils them."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from weft.model.lora import Adapter
from weft.model.spec import ModelSpec
from weft.model.weights import Tensor, Weights

ROOT = "base_model.model."
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


def modules_of(spec: ModelSpec, targets: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """Every module that the targets name, by its whole path, with [out, in] of its matrix."""
    experts = spec.layers[0].experts  # which take none, but for the shared one
    hidden, inner = spec.hidden_size, experts.shared_size if experts else spec.intermediate_size
    mlp = "mlp.shared_expert" if experts else "mlp"
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.kv_size
    shapes = {
        "self_attn.q_proj": (q_size, hidden),
        "self_attn.k_proj": (kv_size, hidden),
        "self_attn.v_proj": (kv_size, hidden),
        "self_attn.qkv_proj": (q_size + 2 * kv_size, hidden),
        "self_attn.o_proj": (hidden, q_size),
        f"{mlp}.gate_proj": (inner, hidden),
        f"{mlp}.up_proj": (inner, hidden),
        f"{mlp}.gate_up_proj": (2 * inner, hidden),
        f"{mlp}.down_proj": (hidden, inner),
    }
    found = {
        f"model.layers.{layer}.{name}": shape
        for layer in range(len(spec.layers))
        for name, shape in shapes.items()
        if name.rpartition(".")[2] in targets and 0 not in shape
    }
    if "embed_tokens" in targets:
        found["model.embed_tokens"] = (hidden, spec.vocab_size)
    if "lm_head" in targets:
        found["lm_head"] = (spec.vocab_size, hidden)
    return found


def tensors_of(
    spec: ModelSpec, targets: tuple[str, ...], *, rank: int = 4, seed: int = 1
) -> dict[str, np.ndarray]:
    """Both halves of every module; their product is about as large as the matrix it is added to."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for module, (rows, columns) in modules_of(spec, targets).items():
        embeds = module.endswith("embed_tokens")
        names = ("lora_embedding_A", "lora_embedding_B")
        first, second = names if embeds else ("lora_A.weight", "lora_B.weight")
        size = 1.0 if embeds else columns**-0.5
        tensors[f"{ROOT}{module}.{first}"] = _drawn(rng, (rank, columns), size)
        tensors[f"{ROOT}{module}.{second}"] = _drawn(rng, (rows, rank), 0.5 * rank**-0.5)
    return tensors


def _drawn(rng, shape, size):
    return (rng.standard_normal(shape) * size).astype(np.float32)


def write_adapter(
    directory: Path,
    spec: ModelSpec,
    *,
    targets: tuple[str, ...] = (*ATTENTION, *MLP),
    tensors: dict[str, np.ndarray] | None = None,
    rank: int = 4,
    seed: int = 1,
    **config: object,
) -> Path:
    """An adapter of `targets`; `config` changes keys of its configuration."""
    directory.mkdir(exist_ok=True)
    drawn = tensors_of(spec, targets, rank=rank, seed=seed) if tensors is None else tensors
    save_file(drawn, directory / "adapter_model.safetensors")
    values = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(targets),
        "bias": "none",
    } | config
    (directory / "adapter_config.json").write_text(json.dumps(values))
    return directory


def merged(weights: Weights, adapter: Adapter) -> Weights:
    """The weights with the adapter in them: what it must be equal to."""
    tensors = dict(weights.tensors)
    for name, whole in adapter.whole.items():
        tensors[name] = Tensor("float32", whole)
    for name, delta in adapter.low_rank.items():
        product = delta.b @ delta.a
        change = product.T if name == "embed" else product
        tensors[name] = Tensor("float32", tensors[name].float32() + change)
    return Weights(tensors)
