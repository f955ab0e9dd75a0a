"""Family rows of LLaVA with CLIP's tower, and of Pixtral and Mistral 3, whose tower rotates patches."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from weft.model.families.encoder_families import read_activation
from weft.model.families.family import Family
from weft.model.families.lineages.llama import LLAMA_FAMILIES
from weft.model.families.lineages.siglip import LAYER_NAMES
from weft.model.families.tower import (
    TowerRow,
    read_heads,
    read_mlp_activation,
    read_num_layers,
    read_width,
)
from weft.model.fields import Fields
from weft.model.switches import Norm
from weft.model.towers.spec import Projector, TowerRope, TowerSpec

_VISION: Mapping[str, object] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_channels": 3,
    "patch_size": 16,
    "hidden_act": "gelu",
    "rope_theta": 10000.0,
}


_CLIP: Mapping[str, object] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
# Of Llama, whose own files always have these.
_LLAVA_TEXT: Mapping[str, object] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}


def _read_clip(top: Fields, vision: Fields, hidden_size: int) -> TowerSpec:
    vision = Fields({**_CLIP, **vision.values}, vision.where)
    top = Fields({"projector_hidden_act": "gelu", **top.values}, top.where)
    if top.values.get("vision_feature_select_strategy", "default") != "default":
        top.refuse("vision_feature_select_strategy", "default, the rows of patches")
    hidden = read_width(vision, "hidden_size")
    patch, total = (
        vision.integer("patch_size", high=1024),
        read_num_layers(vision, "num_hidden_layers"),
    )
    num_layers = _num_layers(top, total)
    activation, factor = read_mlp_activation(vision, "hidden_act")
    return TowerSpec(
        patch_size=patch,
        num_channels=vision.integer("num_channels", high=64),
        hidden_size=hidden,
        intermediate_size=read_width(vision, "intermediate_size"),
        num_layers=num_layers,
        num_unused_layers=total - num_layers,
        num_heads=read_heads(vision, "num_attention_heads", hidden, unit=1),
        norm_eps=vision.number("layer_norm_eps"),
        activation=activation,
        activation_factor=factor,
        has_first_norm=True,
        has_class_row=True,
        num_positions=vision.integer("image_size", low=patch, high=2**16) // patch,
        **_projector(top, hidden_size),
    )


def _num_layers(top: Fields, total: int) -> int:
    """Returns the number of layers up to the rows that the projector takes."""
    layer = top.values.get("vision_feature_layer", -2)
    if type(layer) is not int or not (-total <= layer < 0 or 0 < layer <= total):
        top.refuse("vision_feature_layer", f"a number from -{total} to {total}, and not 0")
    return layer if layer > 0 else total + 1 + layer


def _read_llava(top: Fields, vision: Fields, hidden_size: int) -> TowerSpec:
    if vision.values.get("model_type") != "pixtral":
        vision.refuse("model_type", "pixtral or clip_vision_model, as towers of LLaVA")
    _check_selection(top, default=-2)
    if top.values.get("vision_feature_select_strategy", "default") != "full":
        top.refuse("vision_feature_select_strategy", "full, the rows of all patches")
    return _read(top, vision, hidden_size)


def _read_mistral(top: Fields, vision: Fields, hidden_size: int) -> TowerSpec:
    if vision.values.get("model_type", "pixtral") != "pixtral":
        vision.refuse("model_type", "pixtral")
    _check_selection(top, default=-1)
    text = top.object("text_config") or Fields({}, top.where)
    return replace(
        _read(Fields({"image_token_index": 10, **top.values}, top.where), vision, hidden_size),
        merge=top.integer_or("spatial_merge_size", 2, high=64),
        projector=Projector.JOIN,
        has_projector_bias=top.flag_or("multimodal_projector_bias", False),
        projector_eps=text.number_or("rms_norm_eps", 1e-6),
    )


def _projector(top: Fields, hidden_size: int) -> dict[str, Any]:
    """Returns the fields of a tower's spec for two linear layers from a patch to a row of the decoder."""
    return {
        "merge": 1,
        "projector": Projector.MLP,
        "projector_inner": hidden_size,
        "projector_activation": read_activation(top, "projector_hidden_act"),
        "has_projector_norm": False,
        "has_projector_bias": top.flag_or("multimodal_projector_bias", True),
        "output_size": hidden_size,
        "image_token_id": _image_token_id(top),
    }


def _read(top: Fields, vision: Fields, hidden_size: int) -> TowerSpec:
    """Returns the spec that both families share."""
    top = Fields({"projector_hidden_act": "gelu", **top.values}, top.where)
    vision = Fields({**_VISION, **vision.values}, vision.where)
    hidden = read_width(vision, "hidden_size")
    heads = read_heads(vision, "num_attention_heads", hidden, unit=4)
    if vision.integer_or("head_dim", hidden // heads) != hidden // heads:
        vision.refuse("head_dim", f"{hidden // heads}, as hidden_size and num_attention_heads say")
    rope = vision.object("rope_parameters") or vision
    return TowerSpec(
        patch_size=vision.integer("patch_size", high=1024),
        num_channels=vision.integer("num_channels", high=64),
        hidden_size=hidden,
        intermediate_size=read_width(vision, "intermediate_size"),
        num_layers=read_num_layers(vision, "num_hidden_layers"),
        num_heads=heads,
        norm=Norm.RMS,
        norm_eps=1e-5,
        is_gated=True,
        activation=read_activation(vision, "hidden_act"),
        has_first_norm=True,
        rope=TowerRope.ALTERNATING,
        rope_theta=rope.number_or("rope_theta", 10000.0),
        **_projector(top, hidden_size),
    )


def _image_token_id(top: Fields) -> int:
    key = "image_token_index" if top.has("image_token_index") else "image_token_id"
    return top.integer_or(key, 32000, low=0)


def _check_selection(top: Fields, *, default: int) -> None:
    """Raises `ConfigError` if the model uses other hidden states than those after the tower's last layer."""
    if top.values.get("vision_feature_layer", default) != -1:
        top.refuse("vision_feature_layer", "-1, the last layer")


_TOWER = TowerRow(
    read=_read_llava,
    names={
        "project.patch.down": "@patch_conv",
        "embed_norm": "@ln_pre",
        "layer": "@transformer.layers.{}.",
        "q": "attention.q_proj",
        "k": "attention.k_proj",
        "v": "attention.v_proj",
        "o": "attention.o_proj",
        "attention_norm_before": "attention_norm",
        "gate": "feed_forward.gate_proj",
        "up": "feed_forward.up_proj",
        "down": "feed_forward.down_proj",
        "mlp_norm_before": "ffn_norm",
        "project.merger.up": "multi_modal_projector.linear_1",
        "project.merger.down": "multi_modal_projector.linear_2",
    },
    towers=("vision_tower.",),
    others=("multi_modal_projector.",),
    unbiased=frozenset({"project.patch.down", "q", "k", "v", "o", "gate", "up", "down"}),
)
_CLIP_TOWER = TowerRow(
    read=_read_clip,
    names={
        **LAYER_NAMES,
        "class": "@embeddings.class_embedding",
        "embed_norm": "@pre_layrnorm",
        "project.merger.up": "multi_modal_projector.linear_1",
        "project.merger.down": "multi_modal_projector.linear_2",
    },
    towers=("vision_tower.vision_model.", "vision_tower."),
    others=("multi_modal_projector.",),
    unbiased=frozenset({"project.patch.down"}),
    ignored=("@post_layernorm.", "@embeddings.position_ids"),
)
_MISTRAL_TOWER = replace(
    _TOWER,
    read=_read_mistral,
    names={
        **_TOWER.names,
        "project.join.norm": "multi_modal_projector.norm",
        "project.join.down": "multi_modal_projector.patch_merger.merging_layer",
    },
    unbiased=_TOWER.unbiased | {"project.join.down"},
)

_PIXTRAL = replace(
    LLAMA_FAMILIES["mistral"],
    architecture="LlavaForConditionalGeneration",
    prefixes=("language_model.model.", "model.language_model."),
    text_types=("mistral",),
    tower=_TOWER,
)
_LLAVA = replace(_PIXTRAL, tower=_CLIP_TOWER)
_LLAVA_LLAMA = replace(
    LLAMA_FAMILIES["llama"],
    architecture=_PIXTRAL.architecture,
    defaults={**LLAMA_FAMILIES["llama"].defaults, **_LLAVA_TEXT},
    prefixes=_PIXTRAL.prefixes,
    text_types=("llama",),
    tower=_CLIP_TOWER,
)

PIXTRAL_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llava": replace(
            _PIXTRAL,
            variants={
                ("clip_vision_model", "llama"): _LLAVA_LLAMA,
                ("clip_vision_model", "mistral"): _LLAVA,
            },
        ),
        "mistral3": replace(
            _PIXTRAL, architecture="Mistral3ForConditionalGeneration", tower=_MISTRAL_TOWER
        ),
    }
)
