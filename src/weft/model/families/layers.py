"""Layers in a decoder's config: the kind of each layer, its window and its rope."""

from weft.model.families.family import Family
from weft.model.families.recurrent.delta import delta_layers
from weft.model.families.recurrent.first_mamba import first_mamba_alone
from weft.model.families.recurrent.mamba import beside_layers, mamba_alone, mamba_layers
from weft.model.families.recurrent.nemotron_blocks import block_layers
from weft.model.families.rope import read_rope
from weft.model.fields import Fields
from weft.model.spec import MAX_CONV_WIDTH, LayerSpec, Temperature

FULL, SLIDING = "full_attention", "sliding_attention"
_CHUNKED = "chunked_attention"
_MAX_LAYERS = 4096
_CONV = "conv"


def read_layers(family: Family, fields: Fields, head_dim: int) -> tuple[LayerSpec, ...]:
    num_layers = fields.integer("num_hidden_layers", high=_MAX_LAYERS)
    if family.position_offset is not None:
        return (LayerSpec(),) * num_layers
    if family.recurrence == "mamba1":
        return first_mamba_alone(fields, num_layers)
    if not family.has_attention:
        return mamba_alone(fields, num_layers)
    if family.recurrence == "delta":
        rope = read_rope(fields, family.rope, head_dim, FULL)
        return delta_layers(fields, num_layers, rope, is_by_key_head=family.is_by_key_head)
    if family.recurrence == "blocks":
        return block_layers(fields)
    if family.recurrence == "beside":
        rope = read_rope(fields, family.rope, head_dim, FULL)
        return beside_layers(fields, num_layers, rope)
    if family.recurrence == "mamba":
        rope = read_rope(fields, family.rope, head_dim, FULL)
        may_lack_rope = "position_embedding_type" in family.reads
        return mamba_layers(fields, num_layers, rope, may_lack_rope=may_lack_rope)
    has_rope = _rope_layers(family, fields, num_layers)
    if family.windows == "chunks":
        return _chunked_layers(family, fields, has_rope, head_dim)
    kinds = _layer_types(family, fields, num_layers, has_rope)
    need = family.rope_needs_window
    if need == "always" or (need == "if_any" and windows_in_use(family, fields)):
        has_rope = [kind == SLIDING for kind in kinds]
    ropes = {
        kind: read_rope(fields, family.rope, head_dim, kind)
        for kind in sorted(set(kinds) - {_CONV})
    }
    window = fields.integer("sliding_window") if SLIDING in kinds else None
    width = fields.integer("conv_L_cache", low=2, high=MAX_CONV_WIDTH) if _CONV in kinds else 0
    return tuple(
        LayerSpec(conv_width=width)
        if kind == _CONV
        else LayerSpec(
            rope=ropes[kind] if roped else None, window=window if kind == SLIDING else None
        )
        for kind, roped in zip(kinds, has_rope, strict=True)
    )


def _chunked_layers(
    family: Family, fields: Fields, has_rope: list[bool], head_dim: int
) -> tuple[LayerSpec, ...]:
    """Returns Llama 4's layers: those without rope see all keys, and their queries grow with the position."""
    if fields.has("layer_types"):
        kinds = _listed_layer_types(fields, len(has_rope), (FULL, _CHUNKED))
    else:
        is_divided = fields.has("attention_chunk_size")
        kinds = [_CHUNKED if roped and is_divided else FULL for roped in has_rope]
    chunk = fields.integer("attention_chunk_size") if _CHUNKED in kinds else None
    rope = read_rope(fields, family.rope, head_dim, FULL)
    temperature = _temperature(fields)
    return tuple(
        LayerSpec(
            rope=rope if roped else None,
            chunk=chunk if kind == _CHUNKED else None,
            temperature=None if roped else temperature,
            has_qk_norm=roped,
        )
        for kind, roped in zip(kinds, has_rope, strict=True)
    )


def _temperature(fields: Fields) -> Temperature | None:
    key = "attn_temperature_tuning"
    if type(fields.values.get(key)) is int:  # files of the first release have a number
        is_tuned = fields.integer(key, low=0) > 0
    else:
        is_tuned = fields.flag_or(key, True)
    if not is_tuned:
        return None
    return Temperature(fields.integer("floor_scale"), fields.factor("attn_scale"))


def _rope_layers(family: Family, fields: Fields, num_layers: int) -> list[bool]:
    if "no_rope_layers" not in family.reads:
        return [True] * num_layers
    listed = fields.values.get("no_rope_layers")
    if listed is None or listed == []:
        interval = fields.integer("no_rope_layer_interval")
        return [(layer + 1) % interval != 0 for layer in range(num_layers)]
    if (
        not isinstance(listed, list)
        or len(listed) < num_layers
        or any(i not in (0, 1) for i in listed)
    ):
        fields.refuse(
            "no_rope_layers", f"a list of {num_layers} numbers, each 0 (no rope) or 1 (rope)"
        )
    return [bool(item) for item in listed[:num_layers]]


def _layer_types(
    family: Family, fields: Fields, num_layers: int, has_rope: list[bool]
) -> list[str]:
    if family.recurrence == "convolution":
        return _mixed_layer_types(fields, num_layers)
    if family.windows == "none" or not windows_in_use(family, fields):
        return [FULL] * num_layers
    if family.windows == "every_layer":
        return [SLIDING] * num_layers
    if fields.has("layer_types"):
        return _listed_layer_types(fields, num_layers, (FULL, SLIDING))
    if fields.has("sliding_window_pattern"):
        pattern = fields.integer("sliding_window_pattern")
        return [SLIDING if (layer + 1) % pattern else FULL for layer in range(num_layers)]
    if "no_rope_layers" in family.reads:
        return [FULL if roped else SLIDING for roped in has_rope]
    first = fields.integer_or("max_window_layers", 28, low=0)
    if family.window_alternates:
        return [FULL if i % 2 or i >= first else SLIDING for i in range(num_layers)]
    return [FULL if layer < first else SLIDING for layer in range(num_layers)]


def windows_in_use(family: Family, fields: Fields) -> bool:
    """True if attention windows apply; in some families a second key must enable the window."""
    switched_on = not family.window_switch or fields.flag_or("use_sliding_window", False)
    return switched_on and fields.has("sliding_window")


def _listed_layer_types(fields: Fields, num_layers: int, allowed: tuple[str, str]) -> list[str]:
    kinds = list(fields.texts("layer_types"))
    if len(kinds) != num_layers or any(kind not in allowed for kind in kinds):
        fields.refuse(
            "layer_types", f"a list of {num_layers} names, each {allowed[0]} or {allowed[1]}"
        )
    return kinds


def _mixed_layer_types(fields: Fields, num_layers: int) -> list[str]:
    """Returns the kind of each layer, attention or convolution; without keys all layers have attention."""
    if fields.has("layer_types"):
        kinds = _listed_layer_types(fields, num_layers, (FULL, _CONV))
        return kinds if FULL in kinds else fields.refuse("layer_types", f"a list with {FULL} in it")
    key = "full_attn_idxs"
    listed = fields.values.get(key)
    if listed is None:
        return [FULL] * num_layers
    if not isinstance(listed, list) or not any(
        type(index) is int and 0 <= index < num_layers for index in listed
    ):
        fields.refuse(key, f"a list of numbers of layers, from 0 to {num_layers - 1}")
    return [FULL if index in listed else _CONV for index in range(num_layers)]
