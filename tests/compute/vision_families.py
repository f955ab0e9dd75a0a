"""Small random models with vision towers, made by Hugging Face transformers."""

from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel

from tests.compute.families import SIZES, draw, save
from tests.compute.pictures import PicturePrompt

TEXT = {
    **SIZES,
    "num_hidden_layers": 3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
}
IDS = {"image_token_id": 300, "vision_start_token_id": 301, "vision_end_token_id": 302}
QWEN = {
    "depth": 4,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_heads": 3,
    "patch_size": 4,
    "out_hidden_size": 48,
}
CASES = {
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


def make_vision_model(model_type: str, settings: dict) -> PreTrainedModel:
    """A small model whose weights are all drawn, those of the tower too."""
    config = AutoConfig.for_model(model_type, **settings)
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
    return inputs | {
        "pixel_values": torch.tensor(prompt.inputs.patches),
        "image_grid_thw": torch.tensor(prompt.inputs.grids),
        "mm_token_type_ids": is_picture,
    }
