"""Rotary settings of a config, from its old key (`rope_scaling`) or its new key (`rope_parameters`)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from weft.core.errors import ConfigError
from weft.model.fields import Fields, shown
from weft.model.spec import RopeKind, RopeSpec

# Required and optional keys of each kind. Any other key is refused, because it would change the angles.
_KEYS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "default": (frozenset(), frozenset()),
    "linear": (frozenset({"factor"}), frozenset()),
    "dynamic": (frozenset({"factor"}), frozenset({"original_max_position_embeddings"})),
    "llama3": (
        frozenset({"factor", "low_freq_factor", "high_freq_factor"}),
        frozenset({"original_max_position_embeddings"}),
    ),
    "yarn": (
        frozenset(),
        frozenset(
            "factor original_max_position_embeddings attention_factor attn_factor beta_fast beta_slow"
            " mscale mscale_all_dim truncate".split()
        ),
    ),
    "proportional": (frozenset(), frozenset({"factor"})),
    "longrope": (
        frozenset({"short_factor", "long_factor"}),
        frozenset({"factor", "original_max_position_embeddings", "attention_factor"}),
    ),
}
# `finetuned` describes how the model was made, and changes no angle.
_ANY_KIND = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned"})
_LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class RopeRules:
    """Rules by which a family's rotary settings are read."""

    partial: bool = False  # the config's partial_rotary_factor is read
    per_layer_type: bool = False  # sliding layers have their own settings
    has_sections: bool = False  # sections for positions in images; a text token has the same position in all sections
    sections: tuple[int, int, int] | None = (
        None  # sections if the config has none; None: sections are not used
    )
    has_interleaved_sections: bool = False  # as in `ModelSpec`
    aliases: tuple[tuple[str, str], ...] = ()  # old names of kinds
    # Dynamic ropes with `alpha` are not dynamic: theta is larger. Their files have keys of yarn, which change nothing.
    has_alpha: bool = False


def read_rope(config: Fields, rules: RopeRules, head_dim: int, layer_type: str) -> RopeSpec:
    """Returns the rope of the layers of type `layer_type` ("full_attention" or "sliding_attention")."""
    settings, theta = _settings(config, rules, layer_type)
    kind = _kind(settings, rules)
    _check_keys(settings, kind, rules)
    if kind == "proportional":
        return _proportional(settings, RopeSpec(dim=head_dim, theta=theta))
    dim = _rotary_dim(config, settings, rules, head_dim)
    common = RopeSpec(dim=dim, theta=theta)
    if kind == "dynamic" and settings.has("alpha") and dim > 2:
        stretch = settings.factor("alpha") ** (dim / (dim - 2))
        return replace(common, theta=theta * stretch)
    if kind in ("default", "dynamic"):
        # Dynamic scaling equals the default up to the trained length. Beyond this length every new token would change
        # the angles of cached keys, so `context_length` ends there.
        return common
    return _SCALED[kind](config, settings, common)


def read_sections(config: Fields, rules: RopeRules, rope: RopeSpec) -> tuple[int, int, int]:
    """Returns the number of rotary pairs for each of the three positions."""
    assert rules.sections is not None
    settings, _ = _settings(config, rules, "full_attention")
    pairs = rope.dim // 2
    listed = settings.values.get("mrope_section", list(rules.sections))
    sizes = listed if isinstance(listed, list) and len(listed) == len(rules.sections) else [0]
    if any(type(size) is not int or size < 1 for size in sizes) or sum(sizes) != pairs:
        settings.refuse(
            "mrope_section", f"a list of three numbers, each at least 1, whose sum is {pairs}"
        )
    frames, rows, columns = sizes
    return frames, rows, columns


def context_length(config: Fields, rules: RopeRules) -> int:
    """Returns the maximum number of positions, after the scaling of rotary frequencies."""
    trained = config.integer("max_position_embeddings")
    settings, _ = _settings(config, rules, "full_attention")
    kind = _kind(settings, rules)
    if rules.per_layer_type or kind not in ("linear", "yarn") or not settings.has("factor"):
        return trained
    base = _original(config, settings) if kind == "yarn" else trained
    return max(trained, int(base * settings.factor("factor")))


def _settings(config: Fields, rules: RopeRules, layer_type: str) -> tuple[Fields, float]:
    """Returns the config's object with the rotary settings, and theta."""
    old, new = config.object("rope_scaling"), config.object("rope_parameters")
    block = old if old is not None and old.values else new
    if block is None:
        block = Fields({}, f"{config.where}: rope_parameters")
    nested = [name for name in _LAYER_TYPES if name in block.values]
    if rules.per_layer_type:
        return _settings_of_layer_type(config, block, bool(nested), layer_type)
    if nested:
        raise ConfigError(
            f"{block.where}: {nested[0]} is set, but this family has one rope for all layers"
        )
    return block, block.number_or("rope_theta", config.number("rope_theta"))


def _settings_of_layer_type(
    config: Fields, block: Fields, nested: bool, layer_type: str
) -> tuple[Fields, float]:
    sliding = layer_type == "sliding_attention"
    theta = config.number("rope_theta")
    if sliding:
        theta = config.number_or("rope_local_base_freq", theta)
    if nested:
        inner = block.object(layer_type) or Fields({}, f"{block.where}: {layer_type}")
        return inner, inner.number_or("rope_theta", theta)
    if block.values and config.object("rope_parameters") is block:
        raise ConfigError(
            f"{block.where}: must hold one object each for {' and '.join(_LAYER_TYPES)}"
        )
    if sliding:  # the old spelling scales full attention only
        return Fields({}, block.where), theta
    return block, theta


def _kind(settings: Fields, rules: RopeRules) -> str:
    key = "rope_type" if settings.has("rope_type") else "type"
    kind = settings.text(key) if settings.has(key) else "default"
    kind = dict(rules.aliases).get(kind, kind)
    if kind not in _KEYS:
        settings.refuse(key, "one of " + ", ".join(_KEYS))
    return kind


def _check_keys(settings: Fields, kind: str, rules: RopeRules) -> None:
    needed, allowed = _KEYS[kind]
    if rules.has_sections:
        allowed |= {"mrope_section", "mrope_interleaved"}
    if rules.has_alpha and kind == "dynamic":
        allowed |= {"alpha", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}
    for key in sorted(needed):
        if not settings.has(key):
            settings.refuse(key, f"set for rope type {kind}")
    for key in settings.values:
        if settings.has(key) and key not in needed | allowed | _ANY_KIND:
            raise ConfigError(
                f"{settings.where}: {shown(key)} is not implemented for rope type {kind}"
            )


def _rotary_dim(config: Fields, settings: Fields, rules: RopeRules, head_dim: int) -> int:
    source = settings if settings.has("partial_rotary_factor") else config
    fraction = source.number_or("partial_rotary_factor", 1.0)
    if fraction > 1 or (fraction != 1 and not rules.partial):
        source.refuse(
            "partial_rotary_factor", "at most 1" if rules.partial else "1 for this family"
        )
    dim = int(head_dim * fraction)
    if dim < 2 or dim % 2:
        raise ConfigError(
            f"{config.where}: head_dim {head_dim} × partial_rotary_factor {fraction:g} "
            f"gives {dim} rotary elements; an even number from 2 is needed"
        )
    if rules.partial and config.integer_or("attn_rotary_emb", dim) != dim:
        config.refuse("attn_rotary_emb", f"{dim}, as partial_rotary_factor says, or left out")
    return dim


def _original(config: Fields, settings: Fields) -> int:
    key = "original_max_position_embeddings"
    source = config if config.has(key) else settings
    # At least 2: scaling divides by the logarithm, which is 0 for one position.
    return source.integer_or(key, config.integer("max_position_embeddings"), low=2)


def _linear(config: Fields, settings: Fields, rope: RopeSpec) -> RopeSpec:
    return RopeSpec(rope.dim, rope.theta, RopeKind.LINEAR, factor=settings.factor("factor"))


def _proportional(settings: Fields, rope: RopeSpec) -> RopeSpec:
    share = settings.number_or("partial_rotary_factor", 1.0, high=1.0)
    if rope.dim % 2:
        settings.refuse("rope_type", "another one for heads of an odd size")
    turned = int(share * rope.dim // 2)
    factor = settings.factor_or("factor", 1.0)
    return replace(rope, kind=RopeKind.PROPORTIONAL, factor=factor, num_turned=turned)


def _llama3(config: Fields, settings: Fields, rope: RopeSpec) -> RopeSpec:
    low, high = settings.factor("low_freq_factor"), settings.factor("high_freq_factor")
    if high <= low:
        settings.refuse("high_freq_factor", f"above low_freq_factor ({low:g})")
    return RopeSpec(
        rope.dim,
        rope.theta,
        RopeKind.LLAMA3,
        factor=settings.factor("factor"),
        original_max_position=_original(config, settings),
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(config: Fields, settings: Fields, rope: RopeSpec) -> RopeSpec:
    original = _original(config, settings)
    factor = settings.factor_or("factor", config.integer("max_position_embeddings") / original)
    if settings.has("attention_factor"):
        attention = settings.number("attention_factor", low=1e-3, high=1e3)
    elif settings.has("mscale") and settings.has("mscale_all_dim"):
        attention = _mscale(factor, settings.number("mscale", low=1e-3, high=1e3)) / _mscale(
            factor, settings.number("mscale_all_dim", low=1e-3, high=1e3)
        )
    else:
        attention = _mscale(factor, 1.0)
    if not settings.has("attention_factor"):
        attention *= settings.number_or("attn_factor", 1.0, low=1e-3, high=1e3)
    return RopeSpec(
        rope.dim,
        rope.theta,
        RopeKind.YARN,
        factor=factor,
        attention_factor=attention,
        original_max_position=original,
        beta_fast=settings.factor_or("beta_fast", 32.0),
        beta_slow=settings.factor_or("beta_slow", 1.0),
        truncate=settings.flag_or("truncate", True),
    )


def _mscale(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _longrope(config: Fields, settings: Fields, rope: RopeSpec) -> RopeSpec:
    original = _original(config, settings)
    factor = settings.factor_or("factor", config.integer("max_position_embeddings") / original)
    plain = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    short, long = settings.numbers("short_factor"), settings.numbers("long_factor")
    for key, factors in (("short_factor", short), ("long_factor", long)):
        if len(factors) != rope.dim // 2:
            settings.refuse(key, f"a list of {rope.dim // 2} numbers")
    return RopeSpec(
        rope.dim,
        rope.theta,
        RopeKind.LONGROPE,
        factor=factor,
        attention_factor=settings.number_or("attention_factor", plain, low=1e-3, high=1e3),
        original_max_position=original,
        short_factors=short,
        long_factors=long,
    )


_SCALED = {"linear": _linear, "llama3": _llama3, "yarn": _yarn, "longrope": _longrope}
