"""Checkpoints in the shapes of known models, with random weights: speed does not depend on the values.

The tokenizer's pairs are random too; it is as large as a real one and costs as much to read.
"""

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers

from benchmarks.peers.environments import ROOT

_LONGEST = 16  # characters of a token
# As chat models have: it is parsed at the start, twice.
_TEMPLATE = (
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{%- endif %}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of one decoder. The head is tied to the embedding, but of one with experts."""

    name: str
    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    rope_theta: float
    experts: int = 0
    experts_per_token: int = 0


SHAPES = (
    Shape("qwen3-0.6b", "qwen3", 28, 1024, 16, 8, 128, 3072, 151936, 1e6),
    Shape("smollm2-135m", "llama", 30, 576, 9, 3, 64, 1536, 49152, 1e5),
)
# Run where they are named. OLMoE has twice the layers: several engines are to fit beside each other.
LARGE_SHAPES = (
    Shape("olmoe", "olmoe", 8, 2048, 16, 16, 128, 1024, 50304, 1e4, 64, 8),
    Shape("mistral-7b", "llama", 32, 4096, 32, 8, 128, 14336, 32000, 1e6),
)
SHAPE_BY_NAME = {shape.name: shape for shape in (*SHAPES, *LARGE_SHAPES)}


def tensor_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Every tensor by its Hugging Face name."""
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    tensors: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocab, shape.hidden),
        "model.norm.weight": (shape.hidden,),
    }
    if shape.experts:
        tensors["lm_head.weight"] = (shape.vocab, shape.hidden)
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        tensors |= {
            f"{at}.input_layernorm.weight": (shape.hidden,),
            f"{at}.post_attention_layernorm.weight": (shape.hidden,),
            f"{at}.self_attn.q_proj.weight": (query, shape.hidden),
            f"{at}.self_attn.k_proj.weight": (key, shape.hidden),
            f"{at}.self_attn.v_proj.weight": (key, shape.hidden),
            f"{at}.self_attn.o_proj.weight": (shape.hidden, query),
        }
        if shape.experts:
            tensors[f"{at}.mlp.gate.weight"] = (shape.experts, shape.hidden)
        experts = [f".experts.{number}" for number in range(shape.experts)]
        for mlp in experts or [""]:
            tensors |= {
                f"{at}.mlp{mlp}.gate_proj.weight": (shape.intermediate, shape.hidden),
                f"{at}.mlp{mlp}.up_proj.weight": (shape.intermediate, shape.hidden),
                f"{at}.mlp{mlp}.down_proj.weight": (shape.hidden, shape.intermediate),
            }
        if shape.model_type != "llama":
            is_by_head = shape.model_type == "qwen3"
            for part, size in (("q", query), ("k", key)):
                width = shape.head_dim if is_by_head else size
                tensors[f"{at}.self_attn.{part}_norm.weight"] = (width,)
    return tensors


def checkpoint(name: str) -> Path:
    """The directory of one of the shapes, made where it is not there yet."""
    return write_checkpoint(SHAPE_BY_NAME[name], ROOT / name)


def write_checkpoint(shape: Shape, directory: Path) -> Path:
    """A Hugging Face directory in bfloat16; one that is there already is kept."""
    if (directory / "model.safetensors").exists():
        return directory
    _write_weights(tensor_shapes(shape), write_description(shape, directory) / "model.safetensors")
    return directory


def write_description(shape: Shape, directory: Path) -> Path:
    """All of it but the weights, once."""
    if not (directory / "tokenizer_config.json").exists():
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_text(json.dumps(_config(shape), indent=1))
        _write_tokenizer(shape, directory)
    return directory


def _write_weights(tensors: dict[str, tuple[int, ...]], file: Path) -> None:
    """A safetensors file, a tensor at a time: the length of the header, the header, the data."""
    header: dict[str, object] = {}
    end = 0
    for name, size in tensors.items():
        start, end = end, end + 2 * math.prod(size)
        header[name] = {"dtype": "BF16", "shape": list(size), "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    generator = np.random.default_rng(0)
    partial = file.with_suffix(".partial")
    with partial.open("wb") as out:
        out.write(len(encoded).to_bytes(8, "little") + encoded)
        for size in tensors.values():
            out.write(_bfloat16(generator, size))
    partial.rename(file)


def _bfloat16(generator: np.random.Generator, size: tuple[int, ...]) -> bytes:
    if len(size) == 1:
        values = np.ones(size, np.float32)
    else:
        values = generator.standard_normal(size, np.float32) * np.float32(0.02)
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def _config(shape: Shape) -> dict[str, object]:
    experts = {
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.experts_per_token,
        "norm_topk_prob": False,
    }
    return {
        "architectures": [f"{shape.model_type.capitalize()}ForCausalLM"],
        "model_type": shape.model_type,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6 if shape.model_type == "qwen3" else 1e-5,
        "rope_theta": shape.rope_theta,
        "attention_bias": False,
        "tie_word_embeddings": not shape.experts,
        "torch_dtype": "bfloat16",
        "vocab_size": shape.vocab,
        "bos_token_id": 0,
        "eos_token_id": 0,
        **(experts if shape.experts else {}),
    }


def _write_tokenizer(shape: Shape, directory: Path) -> None:
    """Byte-level pairs, as many as the vocabulary holds: reading them is part of a start."""
    dice = random.Random(0)
    tokens = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    known = set(tokens)
    merges: list[tuple[str, str]] = []
    while len(tokens) < shape.vocab - 2:
        first, second = dice.choice(tokens), dice.choice(tokens)
        joined = first + second
        if len(joined) <= _LONGEST and joined not in known:
            known.add(joined)
            tokens.append(joined)
            merges.append((first, second))
    model = tokenizers.models.BPE({token: number for number, token in enumerate(tokens)}, merges)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": _TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
