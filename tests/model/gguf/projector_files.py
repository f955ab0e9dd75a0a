"""Checkpoints with vision towers as two GGUF files, text model and projector, as llama.cpp's converter has them."""

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file, save_file

from tests.model.gguf.files import add_tensor, close, interleaved, write_gguf
from weft.model.embedded.byte_tokenizer import CHATML

QWEN = {
    300: "<|image_pad|>",
    301: "<|vision_start|>",
    302: "<|vision_end|>",
    303: "<|video_pad|>",
}
TOKENS = {
    "qwen2_vl": QWEN,
    "qwen2_5_vl": QWEN,
    "qwen3_vl": QWEN,
    "gemma3": {300: "<image_soft_token>", 301: "<start_of_image>", 302: "<end_of_image>"},
    "smolvlm": {300: "<image>"},
    "lfm2_vl": {300: "<image>"},
    "llava": {300: "[IMG]"},
}
TYPES = {
    "qwen2_vl": "qwen2vl_merger",
    "qwen2_5_vl": "qwen2.5vl_merger",
    "qwen3_vl": "qwen3vl_merger",
    "gemma3": "gemma3",
    "smolvlm": "idefics3",
    "lfm2_vl": "lfm2",
    "llava": "pixtral",
}
TOWERS = ("visual.", "vision_tower.", "vision_model.", "multi_modal_projector.", "connector.")
# Names that the package's table does not have, as the converter gives them.
OWN_NAMES = {
    "visual.merger.ln_q": "v.post_ln",
    "visual.merger.mlp.0": "mm.0",
    "visual.merger.mlp.2": "mm.2",
    "visual.merger.norm": "v.post_ln",
    "visual.merger.linear_fc1": "mm.0",
    "visual.merger.linear_fc2": "mm.2",
    "multi_modal_projector.linear_1": "mm.1",
    "multi_modal_projector.linear_2": "mm.2",
    "connector.modality_projection.proj": "mm.model.fc",
}


def write_pair(
    checkpoint: Path, directory: Path, template: str = CHATML, **how
) -> tuple[Path, Path]:
    """Both files of a checkpoint. `how` is as in `write_projector`."""
    config = json.loads((checkpoint / "config.json").read_text())
    text = directory / "text"
    _write_text(checkpoint, text, config)
    special = TOKENS[config["model_type"]]
    model = write_gguf(directory / "model.gguf", text, special=special, template=template)
    return model, write_projector(directory / "mmproj-F32.gguf", checkpoint, **how)


def _write_text(checkpoint, directory, config):
    """The text model as a checkpoint of its own."""
    directory.mkdir(parents=True)
    own = {**config["text_config"], "tie_word_embeddings": config["tie_word_embeddings"]}
    (directory / "config.json").write_text(json.dumps(own))
    kept = {}
    for name, values in load_file(checkpoint / "model.safetensors").items():
        plain = name.removeprefix("model.").removeprefix("language_model.")
        plain = plain.removeprefix("text_model.").removeprefix("model.")
        if not plain.startswith(TOWERS):
            kept[plain if plain.startswith("lm_head") else f"model.{plain}"] = values
    save_file(kept, directory / "model.safetensors", {"format": "pt"})


def write_projector(
    path: Path, checkpoint: Path, kinds="F32", *, change=None, metadata=(), is_old=False
) -> Path:
    """The tower as a file. `kinds` is a type of matrices, or a function of their names.

    `is_old`: matrices of MLPs have each other's names. `change` may spoil or drop tensors; `metadata` are keys and
    values instead of those of the tower, None for a missing key.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "clip")
    for key, value in {**_settings(config, checkpoint), **dict(metadata)}.items():
        _add(writer, key, value)
    for name, values in _tensors(config, load_file(checkpoint / "model.safetensors")).items():
        kind = kinds if isinstance(kinds, str) else kinds(name)
        swapped = name.replace("ffn_up", "ffn_x").replace("ffn_down", "ffn_up")
        own = swapped.replace("ffn_x", "ffn_down") if is_old else name
        is_packed = values.ndim == 2 and not name.startswith(("v.position", "v.token"))
        add_tensor(writer, own, values, kind if is_packed else "F32", change)
    return close(writer, path)


def _add(writer, key, value):
    match value:
        case None:
            pass
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            if key != "general.architecture":
                writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _settings(config, checkpoint):
    vision, kind = config["vision_config"], config["model_type"]
    patch = vision["patch_size"]
    settings = {
        "clip.projector_type": TYPES[kind],
        "clip.has_vision_encoder": True,
        "clip.vision.projection_dim": config["text_config"]["hidden_size"],
        "clip.vision.image_size": vision.get("image_size", 560),
        "clip.vision.patch_size": patch,
        "clip.vision.embedding_length": vision.get("embed_dim", vision["hidden_size"]),
        "clip.vision.feed_forward_length": vision.get("intermediate_size")
        or vision["embed_dim"] * vision["mlp_ratio"],
        "clip.vision.block_count": vision.get("depth", vision.get("num_hidden_layers")),
        "clip.vision.attention.head_count": vision.get(
            "num_heads", vision.get("num_attention_heads")
        ),
        "clip.vision.attention.layer_norm_epsilon": vision.get("layer_norm_eps", 1e-6),
    }
    return {**settings, **_own_settings(kind, config, vision), **_pictures(checkpoint, kind)}


def _own_settings(kind, config, vision):
    match kind:
        case "qwen2_vl":
            name = "clip.use_gelu" if vision["hidden_act"] == "gelu" else "clip.use_silu"
            return {
                name: vision["hidden_act"] == "gelu",
                "clip.vision.spatial_merge_size": vision["spatial_merge_size"],
            }
        case "qwen2_5_vl":
            own = {
                "clip.use_silu": True,
                "clip.vision.n_wa_pattern": vision["fullatt_block_indexes"][0] + 1,
            }
            # Other sizes than that of the releases, which files do not have.
            return {**own, "clip.vision.window_size": vision["window_size"]}
        case "qwen3_vl":
            deep = vision["deepstack_visual_indexes"]
            return {
                "clip.use_gelu": True,
                "clip.vision.spatial_merge_size": vision["spatial_merge_size"],
                "clip.vision.is_deepstack_layers": [i in deep for i in range(vision["depth"])],
            }
        case "gemma3":
            side = vision["image_size"] // vision["patch_size"]
            scale = side // int(config["mm_tokens_per_image"] ** 0.5)
            return {"clip.use_gelu": True, "clip.vision.projector.scale_factor": scale}
        case "lfm2_vl":
            scale = config["downsample_factor"]
            return {"clip.use_gelu": True, "clip.vision.projector.scale_factor": scale}
        case "llava":
            is_silu = vision["hidden_act"] == "silu"
            name = "clip.use_silu" if is_silu else "clip.use_gelu"
            return {name: True, "clip.vision.attention.layer_norm_epsilon": 1e-5}
        case _:
            scale = config["scale_factor"]
            return {"clip.use_gelu": True, "clip.vision.projector.scale_factor": scale}


def _pictures(checkpoint, kind):
    """What the converter takes from the picture processor, and pixels that files of releases do not have."""
    path = checkpoint / "preprocessor_config.json"
    own = json.loads(path.read_text()) if path.exists() else {}
    found = {
        f"clip.vision.{key}": own.get(key, [0.5, 0.5, 0.5]) for key in ("image_mean", "image_std")
    }
    if kind == "smolvlm" and own:
        found["clip.vision.preproc_image_size"] = own["size"]["longest_edge"]
    if kind.startswith("qwen") and own:
        size = own.get("size") or {}
        least, most = own.get("min_pixels"), own.get("max_pixels")
        found["clip.vision.image_min_pixels"] = least or size["shortest_edge"]
        found["clip.vision.image_max_pixels"] = most or size["longest_edge"]
    return found


def _tensors(config, stored):
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 128)
    tensors = {}
    for name, values in stored.items():
        plain = name.removeprefix("model.")
        if plain.startswith(TOWERS) and "head." not in plain:
            for own, part in _parts(plain, values.astype(np.float32), config):
                tensors[own if own.startswith(("v.", "mm.")) else _named(own, names)] = part
    return tensors


def _named(plain, names):
    lead, _, ending = plain.rpartition(".")
    if plain.endswith("input_projection_weight"):
        return "mm.input_projection.weight"
    if lead in OWN_NAMES:
        return f"{OWN_NAMES[lead]}.{ending}"
    for tried in (
        plain,
        f"model.{plain}",
        plain.replace("vision_tower.", "vision_tower.vision_model."),
    ):
        if (found := names.get_name(tried, (".weight", ".bias"))) is not None:
            return found
    raise AssertionError(plain)


def _parts(plain, values, config):
    """What the converter makes of one tensor: frames and heads apart, pairs of rotated rows side by side."""
    kind, vision = config["model_type"], config["vision_config"]
    if "patch_embed.proj.weight" in plain:
        for number in range(values.shape[2]):
            ending = f".{number}" if number else ""
            yield f"v.patch_embd.weight{ending}", np.ascontiguousarray(values[:, :, number])
    elif ".qkv." in plain and kind in ("qwen2_vl", "qwen2_5_vl"):
        for part, rows in zip("qkv", np.split(values, 3), strict=True):
            yield plain.replace("qkv", part), rows
    elif plain.startswith("visual.deepstack_merger_list."):
        _, _, number, part, ending = plain.split(".")
        layer = vision["deepstack_visual_indexes"][int(number)]
        yield f"v.deepstack.{layer}.{part.replace('linear_', '')}.{ending}", values
    elif kind == "lfm2_vl" and "patch_embedding.weight" in plain:
        size = vision["patch_size"]
        pixels = values.reshape(len(values), size, size, 3).transpose(0, 3, 1, 2)
        yield plain, np.ascontiguousarray(pixels)
    elif kind == "llava" and ("q_proj" in plain or "k_proj" in plain):
        yield plain, interleaved(values, vision["num_attention_heads"])
    elif "soft_emb_norm" in plain:
        yield plain, values + np.float32(1)
    else:
        yield plain, values
