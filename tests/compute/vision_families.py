"""Small random models with vision towers, made by Hugging Face transformers."""

from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel

from tests.compute.families import DELTA, QWEN_EXPERTS, SIZES, draw, save
from tests.compute.pictures import PicturePrompt

TEXT = {
    **SIZES,
    "num_hidden_layers": 3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
}
IDS = {
    "image_token_id": 300,
    "vision_start_token_id": 301,
    "vision_end_token_id": 302,
    "video_token_id": 303,
}
QWEN = {
    "depth": 4,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_heads": 3,
    "patch_size": 4,
    "out_hidden_size": 48,
}
QWEN2 = {
    "depth": 3,
    "embed_dim": 48,
    "hidden_size": 48,
    "mlp_ratio": 2,
    "num_heads": 3,
    "patch_size": 4,
}
CASES = {
    "qwen2_vl": (
        "qwen2_vl",
        {
            **IDS,
            "text_config": {**TEXT, "num_attention_heads": 3, "num_key_value_heads": 1},
            "vision_config": QWEN2,
        },
    ),
    "qwen2_vl, a tower of another size, wide merge, GELU": (
        "qwen2_vl",
        {
            **IDS,
            "text_config": {**TEXT, "num_attention_heads": 3, "num_key_value_heads": 1},
            "vision_config": {
                **QWEN2,
                "embed_dim": 32,
                "num_heads": 4,
                "spatial_merge_size": 3,
                "hidden_act": "gelu",
            },
        },
    ),
    "qwen2_5_vl": (
        "qwen2_5_vl",
        {
            **IDS,
            "text_config": {**TEXT, "num_attention_heads": 3, "num_key_value_heads": 1},
            "vision_config": {**QWEN, "window_size": 16, "fullatt_block_indexes": [1, 3]},
        },
    ),
    "qwen2_5_vl, every layer windowed, two frames a patch no more, tied": (
        "qwen2_5_vl",
        {
            **IDS,
            "tie_word_embeddings": True,
            "text_config": {**TEXT, "num_attention_heads": 3, "num_key_value_heads": 1},
            "vision_config": {
                **QWEN,
                "window_size": 24,
                "fullatt_block_indexes": [],
                "temporal_patch_size": 1,
                "hidden_act": "gelu",
            },
        },
    ),
    "qwen3_vl": (
        "qwen3_vl",
        {
            **IDS,
            "text_config": {**TEXT, "head_dim": 16},
            "vision_config": {
                **QWEN,
                "num_position_embeddings": 25,
                "deepstack_visual_indexes": [0, 2],
            },
        },
    ),
    "qwen3_vl without deepstack, wide merge, biases": (
        "qwen3_vl",
        {
            **IDS,
            "text_config": {**TEXT, "head_dim": 16, "attention_bias": True},
            "vision_config": {
                **QWEN,
                "spatial_merge_size": 3,
                "num_position_embeddings": 9,
                "deepstack_visual_indexes": [],
                "num_heads": 4,
            },
        },
    ),
}


SIGLIP = {
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "patch_size": 4,
}
_GATED = {
    **TEXT,
    **DELTA,
    "num_hidden_layers": 4,
    "head_dim": 64,
    "rope_parameters": {**TEXT["rope_parameters"], "partial_rotary_factor": 0.25},
}
CASES |= {
    "qwen3_5": (
        "qwen3_5",
        {
            **IDS,
            "text_config": _GATED,
            "vision_config": {**QWEN, "num_position_embeddings": 25},
        },
    ),
    "qwen3_5_moe": (
        "qwen3_5_moe",
        {
            **IDS,
            "text_config": {
                **_GATED,
                **QWEN_EXPERTS,
                "num_experts": 6,
                "num_experts_per_tok": 3,
            },
            "vision_config": {**QWEN, "num_position_embeddings": 25},
        },
    ),
    "gemma3": (
        "gemma3",
        {
            "image_token_index": 300,
            "boi_token_index": 301,
            "eoi_token_index": 302,
            "mm_tokens_per_image": 9,
            "text_config": {
                **SIZES,
                "num_hidden_layers": 7,
                "head_dim": 16,
                "sliding_window": 12,
                "query_pre_attn_scalar": 20,
            },
            "vision_config": {**SIGLIP, "image_size": 24},
        },
    ),
    "gemma3, windows shorter than a picture, its number of tokens that of its patches": (
        "gemma3",
        {
            "image_token_index": 300,
            "boi_token_index": 301,
            "eoi_token_index": 302,
            "mm_tokens_per_image": 16,
            "text_config": {**SIZES, "num_hidden_layers": 7, "head_dim": 16, "sliding_window": 6},
            "vision_config": {**SIGLIP, "image_size": 16, "vision_use_head": False},
        },
    ),
    "llava with Pixtral's tower": (
        "llava",
        {
            "image_token_index": 300,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
            "text_config": {**SIZES, "model_type": "mistral", "sliding_window": None},
            "vision_config": {
                **SIGLIP,
                "model_type": "pixtral",
                "num_attention_heads": 4,
                "image_size": 64,
            },
        },
    ),
    "llava with Pixtral's tower, no biases, SiLU": (
        "llava",
        {
            "image_token_index": 300,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
            "multimodal_projector_bias": False,
            "projector_hidden_act": "silu",
            "text_config": {**SIZES, "model_type": "mistral", "sliding_window": 30},
            "vision_config": {
                **SIGLIP,
                "model_type": "pixtral",
                "num_attention_heads": 3,
                "hidden_act": "silu",
                "image_size": 64,
                "rope_parameters": {"rope_type": "axial", "rope_theta": 500.0},
            },
        },
    ),
    "llava": (
        "llava",
        {
            "image_token_index": 300,
            "text_config": {**SIZES, "model_type": "llama"},
            "vision_config": {
                **SIGLIP,
                "model_type": "clip_vision_model",
                "num_hidden_layers": 4,
                "image_size": 16,
            },
        },
    ),
    "llava with a Mistral, all layers of the tower, GELU": (
        "llava",
        {
            "image_token_index": 300,
            "vision_feature_layer": -1,
            "multimodal_projector_bias": False,
            "text_config": {**SIZES, "model_type": "mistral", "sliding_window": 30},
            "vision_config": {
                **SIGLIP,
                "model_type": "clip_vision_model",
                "hidden_act": "gelu",
                "image_size": 12,
            },
        },
    ),
    "mistral3": (
        "mistral3",
        {
            "image_token_index": 300,
            "tie_word_embeddings": False,
            "text_config": {**SIZES, "model_type": "mistral", "sliding_window": None},
            "vision_config": {
                **SIGLIP,
                "model_type": "pixtral",
                "num_attention_heads": 4,
                "image_size": 64,
            },
        },
    ),
    "mistral3, wide merge, biases, tied": (
        "mistral3",
        {
            "image_token_index": 300,
            "spatial_merge_size": 3,
            "multimodal_projector_bias": True,
            "text_config": {
                **SIZES,
                "model_type": "mistral",
                "sliding_window": None,
                "rms_norm_eps": 1e-2,
            },
            "vision_config": {
                **SIGLIP,
                "model_type": "pixtral",
                "hidden_size": 64,
                "num_attention_heads": 4,
                "hidden_act": "silu",
                "image_size": 64,
            },
        },
    ),
    "lfm2_vl": (
        "lfm2_vl",
        {
            "image_token_id": 300,
            "projector_hidden_size": 56,
            "text_config": {
                **SIZES,
                "model_type": "lfm2",
                "full_attn_idxs": [1, 3],
                "block_multiple_of": 16,
            },
            "vision_config": {
                **SIGLIP,
                "model_type": "siglip2_vision_model",
                "num_patches": 16,
                "vision_use_head": False,
            },
        },
    ),
    "lfm2_vl, no norm and no biases, wide merge, a fine grid of positions": (
        "lfm2_vl",
        {
            "image_token_id": 300,
            "projector_hidden_size": 40,
            "projector_use_layernorm": False,
            "projector_bias": False,
            "downsample_factor": 3,
            "text_config": {
                **SIZES,
                "model_type": "lfm2",
                "full_attn_idxs": [1, 3],
                "block_multiple_of": 16,
            },
            "vision_config": {
                **SIGLIP,
                "model_type": "siglip2_vision_model",
                "num_patches": 400,
            },
        },
    ),
    "idefics3": (
        "idefics3",
        {
            "image_token_id": 300,
            "text_config": {**SIZES, "model_type": "llama"},
            "vision_config": {**SIGLIP, "image_size": 28},
            "scale_factor": 2,
        },
    ),
    "smolvlm": (
        "smolvlm",
        {
            "image_token_id": 300,
            "tie_word_embeddings": True,
            "text_config": {**SIZES, "model_type": "llama"},
            "vision_config": {**SIGLIP, "image_size": 36, "hidden_act": "gelu"},
            "scale_factor": 3,
        },
    ),
}


def make_vision_model(model_type: str, settings: dict) -> PreTrainedModel:
    """A small model whose weights are all drawn, those of the tower too."""
    config = AutoConfig.for_model(model_type, **settings)
    with torch.random.fork_rng(devices=[]):  # some vectors keep a part of what they are made with
        torch.manual_seed(2)
        model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager")
    return draw(model.float().eval())


def save_vision_model(name: str, directory: Path) -> tuple[PreTrainedModel, str]:
    """The model of a case, and the name to open it by."""
    model = make_vision_model(*CASES[name])
    return model, save(model, directory)


def logits_of(model: PreTrainedModel, prompt: PicturePrompt, token_ids: list[int]) -> np.ndarray:
    """transformers' logits of all tokens of a prompt and what follows it."""
    ids = torch.tensor([token_ids])
    with torch.no_grad():
        return model(**_inputs(model, prompt, ids)).logits[0].numpy()


def _inputs(model: PreTrainedModel, prompt: PicturePrompt, ids: torch.Tensor) -> dict:
    inputs = {"input_ids": ids, "use_cache": False}
    is_picture = (ids == model.config.image_token_id).int()
    patches, grids = torch.tensor(prompt.inputs.patches), prompt.inputs.grids
    match model.config.model_type:
        case "gemma3":
            pixels = torch.cat(_pixels(model, patches, grids))
            return inputs | {"pixel_values": pixels, "token_type_ids": is_picture}
        case "idefics3" | "smolvlm":
            return inputs | _padded(_pixels(model, patches, grids))
        case "llava" | "mistral3":
            if model.config.vision_config.model_type == "clip_vision_model":
                return inputs | {"pixel_values": torch.cat(_pixels(model, patches, grids))}
            size = model.config.vision_config.patch_size
            pixels = _padded(_pixels(model, patches, grids))["pixel_values"][0]
            sizes = torch.tensor([[h * size, w * size] for _, h, w in grids])
            return inputs | {"pixel_values": pixels, "image_sizes": sizes}
        case "lfm2_vl":
            return inputs | _flat(model, _pixels(model, patches, grids))
        case _:
            return inputs | {
                "pixel_values": patches,
                "image_grid_thw": torch.tensor(grids),
                "mm_token_type_ids": is_picture,
            }


def _pixels(model: PreTrainedModel, patches: torch.Tensor, grids: list) -> list[torch.Tensor]:
    """Pictures [1, channels, height, width] of patches in merge order."""
    config = model.config
    size = config.vision_config.patch_size
    pictures = []
    for one, (_, rows, columns) in zip(
        patches.split([t * h * w for t, h, w in grids]), grids, strict=True
    ):
        merge = _merge(config, rows)
        blocks = one.reshape(rows // merge, columns // merge, merge, merge, 3, size, size)
        turned = blocks.permute(4, 0, 2, 5, 1, 3, 6)
        pictures.append(turned.reshape(1, 3, rows * size, columns * size))
    return pictures


def _merge(config: AutoConfig, rows: int) -> int:
    match config.model_type:
        case "gemma3":
            return rows // int(config.mm_tokens_per_image**0.5)
        case "llava":
            return 1
        case "mistral3":
            return config.spatial_merge_size
        case "lfm2_vl":
            return config.downsample_factor
        case _:
            return config.scale_factor


def _flat(model: PreTrainedModel, pictures: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Patches row by row, pixel by pixel, filled up to one number of patches."""
    size = model.config.vision_config.patch_size
    shapes = torch.tensor([[one.shape[2] // size, one.shape[3] // size] for one in pictures])
    most = int(shapes.prod(1).max())
    pixels = torch.zeros(len(pictures), most, 3 * size**2)
    is_real = torch.zeros(len(pictures), most, dtype=torch.int)
    for place, (one, (rows, columns)) in enumerate(zip(pictures, shapes.tolist(), strict=True)):
        split = one[0].reshape(3, rows, size, columns, size).permute(1, 3, 2, 4, 0)
        pixels[place, : rows * columns] = split.reshape(rows * columns, -1)
        is_real[place, : rows * columns] = 1
    return {"pixel_values": pixels, "spatial_shapes": shapes, "pixel_attention_mask": is_real}


def _padded(pictures: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Pictures of one size, and which of their pixels are real."""
    height, width = (max(one.shape[axis] for one in pictures) for axis in (2, 3))
    pixels = torch.zeros(1, len(pictures), 3, height, width)
    is_real = torch.zeros(1, len(pictures), height, width, dtype=torch.bool)
    for place, one in enumerate(pictures):
        pixels[0, place, :, : one.shape[2], : one.shape[3]] = one[0]
        is_real[0, place, : one.shape[2], : one.shape[3]] = True
    return {"pixel_values": pixels, "pixel_attention_mask": is_real}
