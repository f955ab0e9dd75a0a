"""Mamba-2 in a config: the layers that have Mamba-2 instead of attention or beside it, and their sizes."""

import math
from dataclasses import replace

from weft.model.fields import Fields, is_finite_number
from weft.model.recurrence import Mamba2Spec
from weft.model.spec import MAX_CONV_WIDTH, LayerSpec, ModelSpec, Multiplier, RopeSpec

_MAX_WIDTH = 2**24
_MAX_HEADS = 2**16
# Maximum number of float32 values of state per sequence and layer; the largest models in use have about 8 MiB.
_MAX_STATE_SIZE = 2**26
_FULL, _LINEAR = "full_attention", "linear_attention"
_NAMES = {"attention": _FULL, "mamba": _LINEAR}
_INFINITIES = ("Infinity", {"__float__": "Infinity"})
# Keys of Mamba-2 layers.
MAMBA_KEYS = frozenset(
    "mamba_n_heads mamba_d_head mamba_n_groups mamba_d_state mamba_d_conv mamba_expand mamba_conv_bias"
    " mamba_proj_bias time_step_limit".split()
)
# Keys of Falcon-H1, besides: sizes and norms, and factors of weights.
_FACTORS = "key_multiplier attention_in_multiplier attention_out_multiplier ssm_in_multiplier ssm_out_multiplier"
BESIDE_KEYS = frozenset(
    "mamba_d_ssm mamba_rms_norm mamba_norm_before_gate projectors_bias mlp_multipliers ssm_multipliers"
    f" lm_head_multiplier {_FACTORS}".split()
)
MAMBA_DEFAULTS = {
    "mamba_n_heads": 128,
    "mamba_d_head": "auto",
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}


def mamba_layers(
    fields: Fields, num_layers: int, rope: RopeSpec, *, may_lack_rope: bool
) -> tuple[LayerSpec, ...]:
    """Returns all layers: attention with this rope (or without rope, if allowed), and Mamba-2."""
    key = "position_embedding_type"
    kind = fields.values.get(key)
    if may_lack_rope and kind not in (None, "nope", "rope"):
        fields.refuse(key, "rope, nope or left out")
    has_rope = kind == "rope" or not may_lack_rope
    attention = mamba = LayerSpec(rope=rope if has_rope else None)
    kinds = _kinds(fields, num_layers)
    if _LINEAR in kinds:
        mamba = LayerSpec(recurrence=_mamba(fields, fields.integer("hidden_size", high=_MAX_WIDTH)))
    return tuple(attention if kind == _FULL else mamba for kind in kinds)


def beside_layers(fields: Fields, num_layers: int, rope: RopeSpec) -> tuple[LayerSpec, ...]:
    """Returns the layers of Falcon-H1, all of which have attention with this rope, and Mamba-2 beside it."""
    mamba = replace(
        _mamba(fields, fields.integer("hidden_size", high=_MAX_WIDTH)),
        is_normed=fields.flag_or("mamba_rms_norm", False),
        is_gated_first=not fields.flag_or("mamba_norm_before_gate", True),
    )
    if fields.flag_or("projectors_bias", False) != mamba.has_bias:
        fields.refuse("projectors_bias", "what mamba_proj_bias says")
    return (LayerSpec(rope=rope, recurrence=mamba, is_beside=True),) * num_layers


def with_multipliers(fields: Fields, spec: ModelSpec) -> ModelSpec:
    """Returns the spec of a Falcon-H1 with the factors that its config has.

    Those of queries and keys are in the scale of attention: a factor of the input of attention is twice in it.
    """
    mamba = spec.layers[0].recurrence
    assert isinstance(mamba, Mamba2Spec)
    of_key, of_input, of_output, ssm_input, ssm_output = (
        fields.factor_or(key, 1.0) for key in _FACTORS.split()
    )
    if of_input != 1 and spec.qkv_bias:
        fields.refuse("attention_in_multiplier", "1 where attention_bias is true")
    if ssm_input != 1 and mamba.has_bias:
        fields.refuse("ssm_in_multiplier", "1 where mamba_proj_bias is true")
    gate, down = _listed_factors(fields, "mlp_multipliers", 2)
    parts = _listed_factors(fields, "ssm_multipliers", 5)
    shared = mamba.num_groups * mamba.state_dim
    rows = (mamba.inner_size, mamba.inner_size, shared, shared, mamba.num_heads)
    into = tuple((count, factor * ssm_input) for count, factor in zip(rows, parts, strict=True))
    hidden = spec.hidden_size
    return replace(
        spec,
        attention_scale=spec.attention_scale * of_key * of_input**2,
        multipliers=(
            Multiplier("o", ((hidden, of_output * of_input),)),
            Multiplier("mamba_in", into),
            Multiplier("mamba_out", ((hidden, ssm_output),)),
            Multiplier("gate", ((spec.intermediate_size, gate),)),
            Multiplier("down", ((hidden, down),)),
        ),
    )


def _listed_factors(fields: Fields, key: str, count: int) -> tuple[float, ...]:
    if not fields.has(key):
        return (1.0,) * count
    factors = fields.numbers(key)
    return factors if len(factors) == count else fields.refuse(key, f"a list of {count} numbers")


def block_mamba(fields: Fields) -> Mamba2Spec:
    """Returns the Mamba-2 of Nemotron-H's blocks, whose heads say how wide it is."""
    heads = fields.integer("mamba_n_heads", high=_MAX_HEADS)
    inner = heads * fields.integer("mamba_d_head", high=_MAX_WIDTH)
    of_mamba = {
        **fields.values,
        "mamba_d_ssm": inner,
        "hidden_act": fields.text("mamba_hidden_act"),
    }
    low = fields.number_or("time_step_min", 0.0, low=0.0)
    of_mamba["time_step_limit"] = [low, "Infinity"]
    return _mamba(Fields(of_mamba, fields.where), fields.integer("hidden_size", high=_MAX_WIDTH))


def mamba_alone(fields: Fields, num_layers: int) -> tuple[LayerSpec, ...]:
    """Returns the layers of a model that has Mamba-2 in all of them, and nothing else."""
    mamba = _mamba(fields, fields.integer("hidden_size", high=_MAX_WIDTH))
    return (LayerSpec(recurrence=mamba, has_mlp=False),) * num_layers


def _mamba(fields: Fields, hidden: int) -> Mamba2Spec:
    """Returns the spec that all Mamba-2 layers of a config share."""
    heads = fields.integer("mamba_n_heads", high=_MAX_HEADS)
    inner = fields.integer("mamba_expand", high=2**10) * hidden
    inner = fields.integer_or("mamba_d_ssm", inner, high=_MAX_WIDTH)
    if inner % heads:
        fields.refuse("mamba_n_heads", f"a divisor of mamba_expand * hidden_size ({inner})")
    if fields.values.get("mamba_d_head") not in (None, "auto", inner // heads):
        fields.refuse("mamba_d_head", f"auto, or what makes {inner} of all heads: {inner // heads}")
    groups = fields.integer("mamba_n_groups", high=_MAX_HEADS)
    if heads % groups:
        fields.refuse("mamba_n_groups", f"a divisor of mamba_n_heads ({heads})")
    low, high = _step_limits(fields)
    spec = Mamba2Spec(
        num_heads=heads,
        head_dim=inner // heads,
        state_dim=fields.integer("mamba_d_state", high=_MAX_HEADS),
        num_groups=groups,
        conv_width=fields.integer("mamba_d_conv", low=2, high=MAX_CONV_WIDTH),
        has_conv_bias=fields.flag_or("mamba_conv_bias", True),
        has_bias=fields.flag_or("mamba_proj_bias", False),
        min_step=low,
        max_step=high,
    )
    if spec.in_size > _MAX_WIDTH or spec.state_size > _MAX_STATE_SIZE:
        limit = f"one with which a layer keeps at most {_MAX_STATE_SIZE} numbers a sequence"
        fields.refuse("mamba_d_state", limit)
    if fields.text("hidden_act") not in ("silu", "swish"):
        fields.refuse("hidden_act", "silu, which Mamba-2 layers are computed with")
    return spec


def _step_limits(fields: Fields) -> tuple[float, float]:
    """Returns the limits of a time step. transformers writes infinity as an object, because JSON has no infinity."""
    key = "time_step_limit"
    if not fields.has(key):
        return 0.0, math.inf
    given = fields.values[key]
    if isinstance(given, list) and len(given) == 2:
        low, high = (math.inf if item in _INFINITIES else item for item in given)
        if (
            is_finite_number(low)
            and (high == math.inf or is_finite_number(high))
            and 0 <= low < high
        ):
            return float(low), float(high)
    return fields.refuse(key, "two numbers from 0, the lower one first; the second may be Infinity")


def _kinds(fields: Fields, num_layers: int) -> list[str]:
    """Returns the kind of each layer, from a list of all kinds or from a list of the layers with attention."""
    if fields.has("layer_types") or not fields.has("attn_layer_indices"):
        kinds = [_NAMES.get(kind, kind) for kind in fields.texts("layer_types")]
        if len(kinds) != num_layers or any(kind not in _NAMES.values() for kind in kinds):
            names = f"{', '.join(_NAMES)}, {' or '.join(_NAMES.values())}"
            fields.refuse("layer_types", f"a list of {num_layers} names, each {names}")
        if _FULL not in kinds:
            fields.refuse("layer_types", "a list with attention in it")
        return kinds
    key = "attn_layer_indices"
    listed = fields.values[key]
    if (
        not isinstance(listed, list)
        or not listed
        or any(type(index) is not int or not 0 <= index < num_layers for index in listed)
    ):
        fields.refuse(key, f"a list of numbers of layers, from 0 to {num_layers - 1}")
    return [_FULL if index in listed else _LINEAR for index in range(num_layers)]
