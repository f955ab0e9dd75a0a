"""Family rows of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: text models with positions of frame, row and column."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from weft.model.families.encoder_families import read_activation
from weft.model.families.family import Family
from weft.model.families.lineages.qwen import QWEN_FAMILIES
from weft.model.families.names import joined
from weft.model.families.rope import RopeRules
from weft.model.families.tower import (
    TowerRow,
    read_heads,
    read_layer_list,
    read_mlp_activation,
    read_num_layers,
    read_side,
    read_width,
)
from weft.model.fields import Fields
from weft.model.switches import Norm
from weft.model.towers.spec import Projector, Resampling, TowerRope, TowerSpec

_VISION: Mapping[str, object] = {
    "hidden_size": 3584,
    "intermediate_size": 3420,
    "in_channels": 3,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_heads": 16,
    "out_hidden_size": 3584,
}
_VISION_2 = {
    **_VISION,
    "depth": 32,
    "embed_dim": 1280,
    "hidden_act": "quick_gelu",
    "mlp_ratio": 4,
    "patch_size": 14,
}
_VISION_2_5 = {
    **_VISION,
    "depth": 32,
    "hidden_act": "silu",
    "patch_size": 14,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
    "tokens_per_second": 4,
}
_VISION_3 = {
    **_VISION,
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "hidden_act": "gelu_pytorch_tanh",
    "patch_size": 16,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [8, 16, 24],
}
_TOKENS = {
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
}
_TOKENS_3_5 = {
    "image_token_id": 248056,
    "video_token_id": 248057,
    "vision_start_token_id": 248053,
    "vision_end_token_id": 248054,
}
_BLOCKS = {
    "project.patch.down": "@patch_embed.proj",
    "layer": "@blocks.{}.",
    **joined("attn.qkv", "q", "k", "v"),
    "o": "attn.proj",
    "attention_norm_before": "norm1",
    "mlp_norm_before": "norm2",
}


def _read_2(top: Fields, vision: Fields, hidden_size: int) -> TowerSpec:
    vision = Fields({**_VISION_2, **vision.values}, vision.where)
    if read_width(vision, "hidden_size") != hidden_size:
        vision.refuse("hidden_size", f"hidden_size of the text model ({hidden_size})")
    size = read_width(vision, "embed_dim")
    sizes = {
        "hidden_size": size,
        "intermediate_size": size * vision.integer("mlp_ratio", high=64),
        "out_hidden_size": hidden_size,
        "in_channels": vision.integer("in_chans" if vision.has("in_chans") else "in_channels"),
    }
    activation, factor = read_mlp_activation(vision, "hidden_act")
    return replace(
        _common(top, Fields({**vision.values, **sizes, "hidden_act": "gelu"}, vision.where)),
        activation=activation,
        activation_factor=factor,
        video_positions_per_second=0,
    )


def _read_2_5(top: Fields, vision: Fields, _: int) -> TowerSpec:
    vision = Fields({**_VISION_2_5, **vision.values}, vision.where)
    common = _common(top, vision)
    side = common.patch_size * common.merge
    return replace(
        common,
        norm=Norm.RMS,
        is_gated=True,
        window=vision.integer("window_size", low=side, high=2**16) // side,
        full_layers=read_layer_list(vision, "fullatt_block_indexes", common.num_layers),
        video_positions_per_second=vision.integer("tokens_per_second", high=2**16),
    )


def _read_3(top: Fields, vision: Fields, _: int) -> TowerSpec:
    vision = Fields({**_VISION_3, **vision.values}, vision.where)
    common = _common(top, vision)
    return replace(
        common,
        num_positions=read_side(vision, "num_position_embeddings"),
        resampling=Resampling.CORNERS,
        deepstack_layers=read_layer_list(vision, "deepstack_visual_indexes", common.num_layers),
    )


def _read_3_5(top: Fields, vision: Fields, hidden_size: int) -> TowerSpec:
    if vision.values.get("deepstack_visual_indexes"):
        vision.refuse("deepstack_visual_indexes", "left out, or an empty list, for this family")
    top = Fields({**_TOKENS_3_5, **top.values}, top.where)
    vision = Fields({**vision.values, "deepstack_visual_indexes": []}, vision.where)
    return _read_3(top, vision, hidden_size)


def _common(top: Fields, vision: Fields) -> TowerSpec:
    hidden = read_width(vision, "hidden_size")
    tokens = Fields({**_TOKENS, **top.values}, top.where)
    start, end = (tokens.integer(f"vision_{part}_token_id", low=0) for part in ("start", "end"))
    rope = vision.object("rope_parameters") or Fields({}, vision.where)
    return TowerSpec(
        patch_size=vision.integer("patch_size", high=1024),
        temporal_patch_size=vision.integer("temporal_patch_size", high=64),
        num_channels=vision.integer("in_channels", high=64),
        hidden_size=hidden,
        intermediate_size=read_width(vision, "intermediate_size"),
        num_layers=read_num_layers(vision, "depth"),
        num_heads=read_heads(vision, "num_heads", hidden, unit=4),
        activation=read_activation(vision, "hidden_act"),
        rope=TowerRope.AXIAL,
        rope_theta=rope.number_or("rope_theta", 10000.0),
        merge=vision.integer("spatial_merge_size", high=64),
        projector=Projector.MERGER,
        output_size=read_width(vision, "out_hidden_size"),
        image_token_id=tokens.integer("image_token_id", low=0),
        start_token_id=start,
        end_token_id=end,
        video_token_id=tokens.integer("video_token_id", low=0),
    )


_TOWER_2 = TowerRow(
    read=_read_2,
    names={
        **_BLOCKS,
        "up": "mlp.fc1",
        "down": "mlp.fc2",
        "project.merger.norm": "@merger.ln_q",
        "project.merger.up": "@merger.mlp.0",
        "project.merger.down": "@merger.mlp.2",
    },
    towers=("visual.",),
    unbiased=frozenset({"project.patch.down"}),
    has_frames=True,
)
_TOWER_2_5 = TowerRow(
    read=_read_2_5,
    names={
        **_BLOCKS,
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
        "project.merger.norm": "@merger.ln_q",
        "project.merger.up": "@merger.mlp.0",
        "project.merger.down": "@merger.mlp.2",
    },
    towers=("visual.",),
    has_frames=True,
    unbiased=frozenset({"project.patch.down"}),
)
_TOWER_3 = TowerRow(
    read=_read_3,
    names={
        **_BLOCKS,
        "positions": "@pos_embed",
        "up": "mlp.linear_fc1",
        "down": "mlp.linear_fc2",
        "project.merger.norm": "@merger.norm",
        "project.merger.up": "@merger.linear_fc1",
        "project.merger.down": "@merger.linear_fc2",
        "project.deep.norm": "@deepstack_merger_list.{}.norm",
        "project.deep.up": "@deepstack_merger_list.{}.linear_fc1",
        "project.deep.down": "@deepstack_merger_list.{}.linear_fc2",
    },
    towers=("visual.",),
    has_frames=True,
)
QWEN3_5_TOWER = replace(_TOWER_3, read=_read_3_5)

_QWEN2_5_VL = replace(
    QWEN_FAMILIES["qwen2"],
    architecture="Qwen2_5_VLForConditionalGeneration",
    defaults={
        **QWEN_FAMILIES["qwen2"].defaults,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "max_window_layers": 80,
    },
    rope=RopeRules(has_sections=True, sections=(16, 24, 24), aliases=(("mrope", "default"),)),
    prefixes=("model.language_model.", "model."),
    tower=_TOWER_2_5,
)

QWEN_VL_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "qwen2_vl": replace(
            _QWEN2_5_VL, architecture="Qwen2VLForConditionalGeneration", tower=_TOWER_2
        ),
        "qwen2_5_vl": _QWEN2_5_VL,
        "qwen3_vl": replace(
            QWEN_FAMILIES["qwen3"],
            architecture="Qwen3VLForConditionalGeneration",
            defaults={
                **QWEN_FAMILIES["qwen3"].defaults,
                "max_position_embeddings": 128000,
                "rope_theta": 500_000.0,
            },
            windows="none",
            rope=RopeRules(
                has_sections=True,
                sections=(24, 20, 20),
                has_interleaved_sections=True,
                aliases=(("mrope", "default"),),
            ),
            prefixes=("model.language_model.", "model."),
            tower=_TOWER_3,
        ),
    }
)
