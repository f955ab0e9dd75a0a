"""Towers of SigLIP's kind: Gemma 3's and Idefics3's."""

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt

from weft.model.families.encoder_families import read_activation
from weft.model.families.tower import TowerRow, read_heads, read_num_layers, read_width
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
_NAMES = {
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
    "norm": "@post_layernorm",
}


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


def _siglip(vision: Fields, hidden_size: int) -> TowerSpec:
    """Returns what all towers of this kind share, with rows of one patch each and no tokens yet."""
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
    towers=("vision_tower.vision_model.", "vision_tower."),
    others=("multi_modal_projector.",),
    unbiased=frozenset({"project.merger.down"}),
    bare=frozenset({"project.merger.down"}),
    ignored=("vision_tower.vision_model.head.", "vision_tower.head."),
)
IDEFICS3_TOWER = TowerRow(
    read=_read_idefics,
    names={**_NAMES, "project.merger.down": "connector.modality_projection.proj"},
    towers=("vision_model.",),
    others=("connector.",),
    unbiased=frozenset({"project.merger.down"}),
)
