"""A checkpoint's shape as a GGUF file with random weights in BF16; runs in llama.cpp's environment."""

import argparse
import json
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
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face tensor."""
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def main() -> None:
    """Write one file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("tensors", type=Path, help="JSON: tensor names and sizes")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    config = json.loads((arguments.checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(arguments.out, config["model_type"])
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
    _add_tokenizer(writer, json.loads((arguments.checkpoint / "tokenizer.json").read_text()))
    kind = gguf.GGMLQuantizationType.BF16
    random = np.random.default_rng(0)
    for name, size in json.loads(arguments.tensors.read_text()).items():
        if len(size) == 1:
            writer.add_tensor(gguf_name(name), np.ones(size, np.float32))
            continue
        values = random.standard_normal(size, np.float32) * np.float32(0.02)
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
