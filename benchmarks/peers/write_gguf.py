"""A shape as a GGUF file of random weights, in BF16 or in blocks of Q4_0; runs in llama.cpp's environment."""

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
EXPERT = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.\d+\.(\w+)_proj\.weight")
TYPES = gguf.GGMLQuantizationType
# Where a block has its scale, and the one with which random numbers have a deviation of 0.02.
SCALES = {TYPES.Q4_0: (0, 0.02 / 4.6), TYPES.Q8_0: (0, 0.02 / 74), TYPES.Q6_K: (208, 0.02 / 1370)}


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face tensor."""
    name = name.removesuffix(".weight")
    if name in OUTSIDE:
        return f"{OUTSIDE[name]}.weight"
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.weight"


def gguf_sizes(tensors: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """By their names in the file, where a layer's experts lie in one tensor."""
    sizes: dict[str, list[int]] = {}
    for name, size in tensors.items():
        if (found := EXPERT.fullmatch(name)) is None:
            sizes[gguf_name(name)] = size
        else:
            stack = sizes.setdefault(f"blk.{found[1]}.ffn_{found[2]}_exps.weight", [0, *size])
            stack[0] += 1
    return sizes


def type_of(name: str, size: list[int], kind: TYPES) -> TYPES:
    """As llama.cpp's own tool has them: norms and routers are floats, and what makes logits keeps more bits."""
    if len(size) == 1 or "ffn_gate_inp" in name:
        return TYPES.F32
    if kind is TYPES.Q4_0 and name in ("token_embd.weight", "output.weight"):
        return TYPES.Q8_0 if size[-1] % 256 else TYPES.Q6_K
    return kind


def main() -> None:
    """Write one file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("tensors", type=Path, help="JSON: tensor names and sizes")
    parser.add_argument("type", choices=("BF16", "Q4_0"))
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    config = json.loads((arguments.checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(arguments.out, config["model_type"])
    _add_settings(writer, config)
    _add_tokenizer(writer, json.loads((arguments.checkpoint / "tokenizer.json").read_text()))
    sizes = gguf_sizes(json.loads(arguments.tensors.read_text()))
    kinds = {name: type_of(name, size, TYPES[arguments.type]) for name, size in sizes.items()}
    for name, size in sizes.items():
        shape = gguf.quant_shape_to_byte_shape(size, kinds[name])
        num_bytes = int(np.prod(shape))
        writer.add_tensor_info(name, shape, np.dtype(np.uint8), num_bytes, kinds[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for values in drawn(
        sizes, kinds
    ):  # a tensor at a time: together they may be larger than memory
        writer.write_tensor_data(values.view(np.uint8))
    writer.close()


def drawn(
    sizes: Mapping[str, list[int]], kinds: Mapping[str, TYPES]
) -> Iterator[np.ndarray[Any, Any]]:
    """The tensors in their order: norms of ones, and what is random."""
    random = np.random.default_rng(0)
    for name, size in sizes.items():
        if len(size) == 1:
            yield np.ones(size, np.float32)
        elif kinds[name] in SCALES:
            yield _blocks(random, size, kinds[name])
        else:
            values = random.standard_normal(size, np.float32) * np.float32(0.02)
            yield gguf.quants.quantize(values, kinds[name])


def _blocks(
    random: np.random.Generator, size: list[int], kind: TYPES
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Any numbers, with one scale."""
    num_elements, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    count = int(np.prod(size)) // num_elements
    blocks = random.integers(0, 256, (count, num_bytes), np.uint8)
    at, scale = SCALES[kind]
    blocks[:, at : at + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    return blocks


def _add_settings(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict[str, Any]) -> None:
    """Byte-level pairs, and the added tokens after them."""
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    names = [*sorted(model["vocab"], key=model["vocab"].get), *(one["content"] for one in added)]
    kinds = [gguf.TokenType.NORMAL] * len(model["vocab"]) + [gguf.TokenType.CONTROL] * len(added)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_eos_token_id(len(names) - 1)


if __name__ == "__main__":
    main()
