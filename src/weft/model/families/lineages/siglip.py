"""Vision towers of SigLIP's kind, for Gemma 3, Idefics3 and LFM2-VL; and family rows of Idefics3 and SmolVLM."""

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from types import MappingProxyType

from weft.model.families.encoder_families import read_activation
from weft.model.families.family import Family
from weft.model.families.lineages.llama import LLAMA_FAMILIES
from weft.model.families.tower import (
    MAX_WIDTH,
    TowerRow,
    read_heads,
    read_num_layers,
    read_side,
    read_width,
)
from weft.model.fields import Fields
from weft.model.towers.spec import Projector, Resampling, TowerSpec

_GEMMA: Mapping[str, object] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
_IDEFICS = {**_GEMMA, "hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32}
# Of SigLIP's and of CLIP's tower.
LAYER_NAMES = {
    "project.patch.down": "@embeddings.patch_embedding",
    "positions": "@embeddings.position_embedding",
    "layer": "@encoder.layers.{}.",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.out_proj",
    "attention_norm_before": "layer_norm1",
    "mlp_norm_before": "layer_norm2",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
}
_NAMES = {**LAYER_NAMES, "norm": "@post_layernorm"}
_TOWERS = ("vision_tower.vision_model.", "vision_tower.")
_POOLING_HEADS = tuple(f"{tower}head." for tower in _TOWERS)


def _read_gemma(top: Fields, vision: Fields, hidden_size: int) -> TowerSpec:
    vision = Fields({**_GEMMA, **vision.values}, vision.where)
    top = Fields({"mm_tokens_per_image": 256, **top.values}, top.where)
    side = _side(vision)
    count = top.integer("mm_tokens_per_image", high=side**2)
    if isqrt(count) ** 2 != count or side % isqrt(count):
        top.refuse("mm_tokens_per_image", f"the square of a divisor of {side} patches a side")
    return replace(
        _siglip(vision, hidden_size),
        resampling=Resampling.EXACT,
        merge=side // isqrt(count),
        projector=Projector.POOL,
        projector_eps=vision.number("layer_norm_eps"),
        projector_norm_offset=1.0,
        image_token_id=_token(top, "image", 262144),
        start_token_id=_token(top, "boi", 255999),
        end_token_id=_token(top, "eoi", 256000),
    )


def _read_idefics(top: Fields, vision: Fields, hidden_size: int) -> TowerSpec:
    vision = Fields({**_IDEFICS, **vision.values}, vision.where)
    return replace(
        _siglip(vision, hidden_size),
        resampling=Resampling.BUCKETS,
        merge=top.integer_or("scale_factor", 2, high=64),
        image_token_id=top.integer_or("image_token_id", 128257, low=0),
    )


def _read_lfm2(top: Fields, vision: Fields, hidden_size: int) -> TowerSpec:
    vision = Fields({**_GEMMA, "num_patches": 256, **vision.values}, vision.where)
    top = Fields({"projector_hidden_act": "gelu", **top.values}, top.where)
    if top.values.get("vision_feature_layer", -1) != -1:
        top.refuse("vision_feature_layer", "-1, the last layer")
    return replace(
        _siglip(vision, hidden_size),
        num_positions=read_side(vision, "num_patches"),
        resampling=Resampling.SMOOTH,
        merge=top.integer_or("downsample_factor", 2, high=64),
        projector=Projector.MLP,
        projector_inner=top.integer_or("projector_hidden_size", 2560, high=MAX_WIDTH),
        projector_activation=read_activation(top, "projector_hidden_act"),
        projector_eps=1e-5,
        has_projector_norm=top.flag_or("projector_use_layernorm", True),
        has_projector_bias=top.flag_or("projector_bias", True),
        image_token_id=top.integer_or("image_token_id", 396, low=0),
    )


def _siglip(vision: Fields, hidden_size: int) -> TowerSpec:
    """Returns the spec that all towers of this kind share, with one patch per row and without token ids."""
    hidden = read_width(vision, "hidden_size")
    return TowerSpec(
        patch_size=vision.integer("patch_size", high=1024),
        num_channels=vision.integer("num_channels", high=64),
        hidden_size=hidden,
        intermediate_size=read_width(vision, "intermediate_size"),
        num_layers=read_num_layers(vision, "num_hidden_layers"),
        num_heads=read_heads(vision, "num_attention_heads", hidden, unit=1),
        norm_eps=vision.number("layer_norm_eps"),
        activation=read_activation(vision, "hidden_act"),
        has_last_norm=True,
        num_positions=_side(vision),
        merge=1,
        projector=Projector.SHUFFLE,
        output_size=hidden_size,
        has_projector_bias=False,
        image_token_id=0,
    )


def _side(vision: Fields) -> int:
    """Returns the side of the grid of learned positions."""
    patch = vision.integer("patch_size", high=1024)
    return vision.integer("image_size", low=patch, high=2**16) // patch


def _token(top: Fields, name: str, default: int) -> int:
    key = f"{name}_token_index"
    return top.integer_or(key if top.has(key) else f"{name}_token_id", default, low=0)


GEMMA3_TOWER = TowerRow(
    read=_read_gemma,
    names={
        **_NAMES,
        "project.merger.norm": "multi_modal_projector.mm_soft_emb_norm",
        "project.merger.down": "multi_modal_projector.mm_input_projection_weight",
    },
    towers=_TOWERS,
    others=("multi_modal_projector.",),
    bare=frozenset({"project.merger.down"}),
    ignored=_POOLING_HEADS,
)
_IDEFICS3_TOWER = TowerRow(
    read=_read_idefics,
    names={**_NAMES, "project.merger.down": "connector.modality_projection.proj"},
    towers=("vision_model.",),
    others=("connector.",),
)
LFM2_TOWER = TowerRow(
    read=_read_lfm2,
    names={
        **_NAMES,
        "project.merger.norm": "multi_modal_projector.layer_norm",
        "project.merger.up": "multi_modal_projector.linear_1",
        "project.merger.down": "multi_modal_projector.linear_2",
    },
    towers=_TOWERS,
    others=("multi_modal_projector.",),
    ignored=_POOLING_HEADS,
    has_flat_patches=True,
)

_IDEFICS3 = replace(
    LLAMA_FAMILIES["llama"],
    architecture="Idefics3ForConditionalGeneration",
    defaults={**LLAMA_FAMILIES["llama"].defaults, "rms_norm_eps": 1e-5},
    prefixes=("model.text_model.",),
    text_types=("llama",),
    tower=_IDEFICS3_TOWER,
)

IDEFICS_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "idefics3": _IDEFICS3,
        "smolvlm": replace(_IDEFICS3, architecture="SmolVLMForConditionalGeneration"),
    }
)
