"""The description of a model in the form of the C++ core."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from weft.compute.arithmetic.grouped import LayerFormats, layer_formats
from weft.compute.native import _core
from weft.compute.rope import inverse_frequencies, section_axes
from weft.model.groups import GroupFormat
from weft.model.recurrence import DeltaSpec, Mamba1Spec, Mamba2Spec, Recurrence
from weft.model.spec import ExpertsSpec, LatentSpec, LayerSpec, ModelSpec, RopeSpec

NO_FORMATS: Mapping[str, GroupFormat] = MappingProxyType({})
_SAME = (  # fields with the same name in the core's spec
    "vocab_size hidden_size intermediate_size num_heads num_kv_heads head_dim is_causal num_positions "
    "position_offset num_token_types has_embed_norm norm_eps is_gated embedding_multiplier "
    "residual_multiplier joins_hidden has_head has_sinks has_output_gate swiglu_alpha num_cross_keys "
    "has_value_norm per_layer_size has_layer_scales has_qk_weights"
).split()
_NativeRecurrence: TypeAlias = _core.MambaSpec | _core.DeltaSpec | _core.Mamba1Spec
_RECURRENCES: Mapping[type[Recurrence], type[_NativeRecurrence]] = MappingProxyType(
    {Mamba2Spec: _core.MambaSpec, DeltaSpec: _core.DeltaSpec, Mamba1Spec: _core.Mamba1Spec}
)
_PRESENT = ("has_bias", "has_conv_bias")  # the core uses each bias that it is given


@dataclass(frozen=True, slots=True)
class Rounding:
    """Quantization of linear layers, as in `ComputeConfig`, and of keys and values.

    With quantized linear layers the head is int8; the embedding is not quantized.
    """

    quantization: str | None = None
    kv_cache_dtype: str = "auto"


NO_ROUNDING = Rounding()


def native_spec(
    spec: ModelSpec,
    dtype: str,
    max_model_len: int,
    rounding: Rounding = NO_ROUNDING,
    groups: Mapping[str, GroupFormat] = NO_FORMATS,
) -> _core.ModelSpec:
    """Returns the core's spec of a model; the core computes the model's sizes from it."""
    native = _core.ModelSpec()
    for field in _SAME:
        setattr(native, field, getattr(spec, field))
    if spec.is_causal:  # the core computes an encoder's scale in float32
        native.attention_scale = spec.attention_scale
        native.has_head = True
    if spec.has_head:
        native.tied_head = spec.tied_head
        native.logits_divisor = spec.logits_divisor
        native.final_soft_cap = spec.final_soft_cap or 0.0
    elif spec.is_causal:
        native.num_outputs = spec.hidden_size
    native.element = "bfloat16" if dtype == "bfloat16" else "float32"
    native.attention_soft_cap = spec.attention_soft_cap or 0.0
    native.swiglu_limit = spec.swiglu_limit or 0.0
    native.latent = None if spec.latent is None else _native_latent(spec.latent)
    native.set_norm(spec.norm.value)
    native.set_norm_placement(spec.norm_placement.value)
    native.set_qk_norm(spec.qk_norm.value)
    native.set_quantization("none" if rounding.quantization is None else "int8")
    native.has_int8_cache = rounding.kv_cache_dtype == "int8"
    native.set_activation(spec.activation.value)
    ropes = list(dict.fromkeys(layer.rope for layer in spec.layers if layer.rope is not None))
    native.ropes = [_native_rope(spec, rope, max_model_len) for rope in ropes]
    formats = layer_formats(spec, groups, rounding.quantization)
    native.layers = [
        _native_layer(layer, own, ropes) for layer, own in zip(spec.layers, formats, strict=True)
    ]
    return native


def _native_layer(
    layer: LayerSpec, own: LayerFormats, ropes: Sequence[RopeSpec]
) -> _core.LayerSpec:
    native = _core.LayerSpec()
    native.window = layer.window
    native.chunk = layer.chunk or 0
    native.has_qk_norm = layer.has_qk_norm
    if layer.temperature is not None:
        native.temperature_interval = layer.temperature.interval
        native.temperature_slope = layer.temperature.slope
    native.rope = None if layer.rope is None else ropes.index(layer.rope)
    native.has_attention_norm = layer.has_attention_norm
    native.num_kv_heads = layer.num_kv_heads or 0
    native.head_dim = layer.head_dim or 0
    native.intermediate_size = layer.intermediate_size or 0
    native.kv_layer = layer.kv_layer
    native.is_beside = layer.is_beside
    native.has_mlp = layer.has_mlp
    native.conv_width = layer.conv_width
    native.recurrence = native_recurrence(layer.recurrence)
    native.qkv_groups = _native_format(own.qkv)
    native.q_b_groups = _native_format(own.q_b)
    native.o_groups = _native_format(own.o)
    native.up_groups = _native_format(own.up)
    native.down_groups = _native_format(own.down)
    native.experts = None if layer.experts is None else _native_experts(layer.experts, own)
    return native


def _native_latent(latent: LatentSpec) -> _core.LatentSpec:
    native = _core.LatentSpec()
    for field in dataclasses.fields(latent):
        value = getattr(latent, field.name)
        setattr(native, field.name, 0 if value is None else value)
    return native


def native_recurrence(spec: Recurrence | None) -> _NativeRecurrence | None:
    """Returns the core's spec of a recurrence; None for attention or a convolution."""
    if spec is None:
        return None
    native = _RECURRENCES[type(spec)]()
    for field in dataclasses.fields(spec):
        if field.name not in _PRESENT:
            setattr(native, field.name, getattr(spec, field.name))
    return native


def _native_experts(experts: ExpertsSpec, formats: LayerFormats) -> _core.ExpertsSpec:
    native = _core.ExpertsSpec()
    for field in dataclasses.fields(experts):
        if field.name != "has_bias":  # the core uses each bias that it is given
            setattr(native, field.name, getattr(experts, field.name))
    native.up_groups = _native_format(formats.expert_up)
    native.down_groups = _native_format(formats.expert_down)
    return native


def _native_format(form: GroupFormat | None) -> _core.GroupFormat | None:
    if form is None:
        return None
    return _core.GroupFormat(form.bits, form.size or 0, form.offset, form.scales)


def _native_rope(spec: ModelSpec, rope: RopeSpec, max_model_len: int) -> _core.Rope:
    native = _core.Rope()
    if spec.rope_sections is not None:
        axes = section_axes(spec.rope_sections, is_interleaved=spec.has_interleaved_sections)
        native.axes = axes.tolist()
    native.frequencies = inverse_frequencies(rope, max_model_len).tolist()
    native.attention_factor = rope.attention_factor
    return native
