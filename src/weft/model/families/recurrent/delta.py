"""Gated delta nets in a config: the layers that have one instead of attention, and their sizes."""

from weft.model.fields import Fields
from weft.model.recurrence import DeltaSpec
from weft.model.spec import MAX_CONV_WIDTH, LayerSpec, RopeSpec

_FULL, _LINEAR = "full_attention", "linear_attention"
_MAX_HEADS = 2**12
_MAX_SIZE = 2**12  # maximum size of a head's keys or values
DELTA_KEYS = ("linear_num_value_heads", "full_attention_interval", "attn_output_gate")
# Defaults of missing keys.
DELTA = {
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}


def delta_layers(
    fields: Fields, num_layers: int, rope: RopeSpec, *, is_by_key_head: bool
) -> tuple[LayerSpec, ...]:
    """Returns all layers: layers with attention and this rope, and layers with gated delta nets."""
    if fields.text("hidden_act") not in ("silu", "swish"):
        fields.refuse("hidden_act", "silu, the only activation implemented with linear_attention")
    attention, delta = LayerSpec(rope=rope), LayerSpec(recurrence=_delta(fields, is_by_key_head))
    return tuple(attention if kind == _FULL else delta for kind in _kinds(fields, num_layers))


def _kinds(fields: Fields, num_layers: int) -> list[str]:
    if not fields.has("layer_types"):
        interval = fields.integer("full_attention_interval")
        if interval > num_layers:
            fields.refuse("full_attention_interval", f"at most num_hidden_layers ({num_layers})")
        return [_LINEAR if (layer + 1) % interval else _FULL for layer in range(num_layers)]
    kinds = list(fields.texts("layer_types"))
    if len(kinds) != num_layers or not set(kinds) <= {_FULL, _LINEAR} or _FULL not in kinds:
        fields.refuse(
            "layer_types",
            f"a list of {num_layers} names, each {_FULL} or {_LINEAR}, with {_FULL} in it",
        )
    return kinds


def _delta(fields: Fields, is_by_key_head: bool) -> DeltaSpec:
    num_key_heads = fields.integer("linear_num_key_heads", high=_MAX_HEADS)
    num_value_heads = fields.integer("linear_num_value_heads", high=_MAX_HEADS)
    if num_value_heads % num_key_heads:
        fields.refuse(
            "linear_num_value_heads", f"a multiple of linear_num_key_heads ({num_key_heads})"
        )
    return DeltaSpec(
        num_key_heads=num_key_heads,
        num_value_heads=num_value_heads,
        key_size=fields.integer("linear_key_head_dim", high=_MAX_SIZE),
        value_size=fields.integer("linear_value_head_dim", high=_MAX_SIZE),
        conv_width=fields.integer("linear_conv_kernel_dim", low=2, high=MAX_CONV_WIDTH),
        is_by_key_head=is_by_key_head,
    )
