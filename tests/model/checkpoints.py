"""Checkpoints on disk, as small as they can be: written sound, then spoilt by each test."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from weft.model.embedded.byte_tokenizer import tokenizer_files
from weft.model.families.decoder_families import FAMILIES
from weft.model.families.decoders import read_config, read_spec
from weft.model.files.layout import decoder_layout

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "eos_token_id": 256,
    "tie_word_embeddings": False,
}


def tensors_of(config=CONFIG, dtype=np.float32):
    """A tensor of small numbers under every name that the config asks for."""
    spec = read_spec(read_config(config, "config.json"))
    names = FAMILIES[config["model_type"]].names
    rng = np.random.default_rng(0)
    layout = decoder_layout(spec, names, prefix=FAMILIES[config["model_type"]].prefixes[0])
    plans = [*layout, *(plan.factor for plan in layout if plan.factor is not None)]
    return {
        plan.source: (rng.standard_normal(plan.stored_shape) * 0.1).astype(dtype) for plan in plans
    }


def write_checkpoint(directory: Path, config=CONFIG, tensors=None) -> Path:
    """A sound checkpoint."""
    directory.mkdir(exist_ok=True)
    write_json(directory / "config.json", config)
    for name, data in tokenizer_files(config["vocab_size"], "<|endoftext|>").items():
        (directory / name).write_bytes(data)
    save_file(tensors or tensors_of(config), directory / "model.safetensors")
    return directory


def write_json(path: Path, value) -> None:
    """`value` as JSON."""
    path.write_text(json.dumps(value))


def write_raw(path: Path, header: dict, data: bytes = b"") -> None:
    """A safetensors file with any header, right or wrong."""
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_shards(directory: Path, tensors) -> None:
    """Two shards and their index in place of the single file."""
    (directory / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        shard = f"model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, directory / shard)
        weight_map.update(dict.fromkeys(part, shard))
    write_json(
        directory / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map}
    )
