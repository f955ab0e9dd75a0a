"""Gemma 4's config: heads, MLPs and inputs of their own for some layers, and layers that share keys and values."""

from collections.abc import Iterator
from dataclasses import replace

from weft.model.families.family import Family
from weft.model.families.layers import FULL
from weft.model.families.rope import read_rope
from weft.model.fields import Fields
from weft.model.spec import LayerSpec, ModelSpec

_MAX_SIZE = 2**16
_GLOBAL_HEAD_DIM = 512
_HEAD_KEYS = frozenset({"head_dim", "num_key_value_heads"})
LAYER_SIZE_KEYS = frozenset(
    "per_layer_config num_kv_shared_layers attention_k_eq_v hidden_size_per_layer_input enable_moe_block"
    " use_double_wide_mlp use_bidirectional_attention".split()
)


def with_layer_sizes(family: Family, fields: Fields, spec: ModelSpec) -> ModelSpec:
    """Returns the spec with what Gemma 4's config says about its layers; other families keep their spec."""
    if not family.has_layer_sizes:
        return spec
    if fields.values.get("use_bidirectional_attention") not in (None, False, "vision"):
        fields.refuse("use_bidirectional_attention", "vision or null")
    per_layer_size = fields.integer_or("hidden_size_per_layer_input", 0, low=0, high=_MAX_SIZE)
    rows = fields.integer_or("vocab_size_per_layer_input", spec.vocab_size)
    if per_layer_size and rows != spec.vocab_size:
        fields.refuse("vocab_size_per_layer_input", f"vocab_size ({spec.vocab_size})")
    if spec.layers[-1].window is not None:
        fields.refuse("layer_types", f"a list that ends with {FULL}")
    return replace(
        spec,
        layers=tuple(_layers(family, fields, spec)),
        attention_scale=1.0,
        has_value_norm=True,
        per_layer_size=per_layer_size,
        has_layer_scales=True,
    )


def _layers(family: Family, fields: Fields, spec: ModelSpec) -> Iterator[LayerSpec]:
    layers = spec.layers
    head_dim, kv_heads = _full_heads(fields, spec)
    rope = read_rope(fields, family.rope, head_dim, FULL)
    num_own = _num_own(fields, layers)
    is_wide = fields.flag_or("use_double_wide_mlp", False)
    has_value_matrix = not fields.flag_or("attention_k_eq_v", False)
    makers = {layer.window: index for index, layer in enumerate(layers[:num_own])}
    for index, layer in enumerate(layers):
        if layer.window is None:
            layer = replace(
                layer,
                rope=rope,
                head_dim=head_dim,
                num_kv_heads=kv_heads,
                has_value_matrix=has_value_matrix,
            )
        if index >= num_own:
            layer = replace(layer, kv_layer=makers[layer.window])
            layer = _widened(layer, 2 * spec.intermediate_size) if is_wide else layer
        yield layer


def _widened(layer: LayerSpec, size: int) -> LayerSpec:
    if layer.experts is None:
        return replace(layer, intermediate_size=size)
    return replace(layer, experts=replace(layer.experts, shared_size=size))


def _num_own(fields: Fields, layers: tuple[LayerSpec, ...]) -> int:
    """Returns the number of layers that make keys and values; those that follow share them."""
    key = "num_kv_shared_layers"
    count = fields.integer_or(key, 0, low=0, high=len(layers) - 1)
    num_own = len(layers) - count
    if {layer.window for layer in layers[:num_own]} != {layer.window for layer in layers}:
        fields.refuse(key, "a number that leaves a layer of each type with keys and values")
    return num_own


def _full_heads(fields: Fields, spec: ModelSpec) -> tuple[int, int]:
    """Returns the size of a head, and the number of KV heads, of layers with full attention."""
    listed = fields.object("per_layer_config")
    if listed is not None and listed.values:
        own = _listed_heads(listed, spec)
        head_dim = own.integer_or("head_dim", spec.head_dim, high=_MAX_SIZE)
        kv_heads = own.integer_or("num_key_value_heads", spec.num_kv_heads, high=_MAX_SIZE)
    else:
        own, kv_heads = fields, spec.num_kv_heads
        head_dim = fields.integer_or("global_head_dim", _GLOBAL_HEAD_DIM, high=_MAX_SIZE)
        if fields.flag_or("attention_k_eq_v", False):
            kv_heads = fields.integer_or("num_global_key_value_heads", kv_heads, high=_MAX_SIZE)
    if spec.num_heads % kv_heads:
        key = "num_key_value_heads" if own is not fields else "num_global_key_value_heads"
        own.refuse(key, f"a divisor of num_attention_heads ({spec.num_heads})")
    return head_dim, kv_heads


def _listed_heads(listed: Fields, spec: ModelSpec) -> Fields:
    """Returns the settings that `per_layer_config` has, the same, for all layers with full attention and no other."""
    full = {str(index) for index, layer in enumerate(spec.layers) if layer.window is None}
    first = listed.object(min(full))
    if first is None or set(listed.values) != full or not set(first.values) <= _HEAD_KEYS:
        listed.refuse(
            min(full),
            f"an object with {' and '.join(sorted(_HEAD_KEYS))}, for each layer of {FULL}",
        )
    for index in sorted(full):
        if listed.values[index] != first.values:
            listed.refuse(index, "the same for all layers")
    return first
