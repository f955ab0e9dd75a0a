"""Experts in a decoder's config, and the layers that have experts."""

from collections.abc import Collection
from dataclasses import replace

from weft.model.families.family import ExpertsRule, Family
from weft.model.families.latent import has_expert_groups
from weft.model.families.recurrent.nemotron_blocks import expert_blocks
from weft.model.fields import Fields
from weft.model.spec import ExpertsSpec, LayerSpec

_MAX_EXPERTS = 4096
_MAX_WIDTH = 2**24


def with_experts(
    family: Family, fields: Fields, layers: tuple[LayerSpec, ...]
) -> tuple[LayerSpec, ...]:
    """Returns the layers, with experts added to the layers that have some."""
    rule = family.experts
    if rule is None or (rule.switch is not None and not fields.flag_or(rule.switch, False)):
        return layers
    count = fields.integer_or(rule.count, 0, low=0, high=_MAX_EXPERTS)
    if count == 0 and not (rule.has_steps or rule.is_optional):
        fields.refuse(rule.count, f"a whole number from 1 to {_MAX_EXPERTS}")
    if count == 0:
        return layers
    is_normalized = rule.is_normalized
    experts = ExpertsSpec(
        count,
        fields.integer("num_experts_per_tok", high=count),
        fields.integer(rule.inner_size, high=_MAX_WIDTH),
        _shared_size(rule, fields),
        has_shared_gate=rule.has_shared_gate,
        is_normalized=fields.flag_or("norm_topk_prob", False)
        if is_normalized is None
        else is_normalized,
        is_sigmoid=rule.is_sigmoid,
        has_correction=rule.has_correction,
        weighs_inputs=rule.weighs_inputs,
        epsilon=rule.epsilon,
        has_bias=rule.has_bias,
        has_norms=rule.has_norms,
    )
    if rule.has_groups:
        experts = _with_groups(fields, experts)
    sparse = _sparse_layers(rule, fields, len(layers))
    return tuple(
        replace(layer, experts=experts) if index in sparse else layer
        for index, layer in enumerate(layers)
    )


def _shared_size(rule: ExpertsRule, fields: Fields) -> int:
    if rule.num_shared is not None:
        count = fields.integer_or(rule.num_shared, 0, low=0, high=_MAX_EXPERTS)
        return count * fields.integer(rule.inner_size, high=_MAX_WIDTH)
    return 0 if rule.shared_size is None else fields.integer(rule.shared_size, high=_MAX_WIDTH)


def _with_groups(fields: Fields, experts: ExpertsSpec) -> ExpertsSpec:
    """Returns the experts with a router and a shared expert in DeepSeek's form."""
    count, num_groups, num_chosen = experts.count, 1, 1
    if has_expert_groups(fields, is_sigmoid=experts.is_sigmoid):
        num_groups = fields.integer_or("n_group", 1, high=count)
        num_chosen = fields.integer_or("topk_group", 1, high=num_groups)
    size = count // num_groups
    if count % num_groups or (num_groups > 1 and size < 2):
        fields.refuse("n_group", f"a divisor of {count}, with two experts or more in a group")
    if num_chosen * size < experts.per_token:
        fields.refuse("topk_group", f"enough groups for {experts.per_token} experts")
    num_shared = fields.integer_or("n_shared_experts", 0, low=0, high=_MAX_EXPERTS)
    return replace(
        experts,
        shared_size=experts.shared_size or num_shared * experts.inner_size,
        has_shared_gate=False,
        num_groups=num_groups,
        groups_per_token=num_chosen,
        scale=fields.factor_or("routed_scaling_factor", 1.0),
    )


def _sparse_layers(rule: ExpertsRule, fields: Fields, num_layers: int) -> Collection[int]:
    """Returns the numbers of layers that have experts."""
    if rule.kinds is not None and fields.has(rule.kinds):
        kinds = fields.texts(rule.kinds)
        if len(kinds) != num_layers or not set(kinds) <= {"sparse", "dense"}:
            fields.refuse(rule.kinds, f"a list of {num_layers} names, each sparse or dense")
        return frozenset(index for index, kind in enumerate(kinds) if kind == "sparse")
    if rule.has_blocks:
        return expert_blocks(fields)
    if rule.span is not None:
        return _span(rule.span, fields, num_layers)
    if rule.listed is not None and rule.steps is not None:
        return _listed(rule.listed, rule.steps, fields, num_layers)
    if rule.has_groups:
        return range(fields.integer_or("first_k_dense_replace", 0, low=0), num_layers)
    if not rule.has_steps:
        return range(num_layers)
    return _with_steps(fields, num_layers)


def _span(keys: tuple[str, str, str], fields: Fields, num_layers: int) -> Collection[int]:
    step, first = fields.integer(keys[0]), fields.integer(keys[1], low=0)
    last = num_layers - 1  # as -1 says
    if fields.values.get(keys[2]) != -1:
        last = fields.integer(keys[2], low=0)
    return frozenset(i for i in range(num_layers) if (i + 1) % step == 0 and first <= i <= last)


def _listed(key: str, steps: str, fields: Fields, num_layers: int) -> Collection[int]:
    listed = fields.values.get(key)
    if listed is None:
        step = fields.integer(steps)
        return range(step - 1, num_layers, step)
    if not isinstance(listed, list) or any(
        type(index) is not int or not 0 <= index < num_layers for index in listed
    ):
        fields.refuse(key, f"a list of numbers of layers, from 0 to {num_layers - 1}")
    return frozenset(listed)


def _with_steps(fields: Fields, num_layers: int) -> Collection[int]:
    step = fields.integer("decoder_sparse_step")
    dense = fields.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or any(type(index) is not int for index in dense):
        fields.refuse("mlp_only_layers", "a list of the numbers of layers")
    return frozenset(i for i in range(num_layers) if (i + 1) % step == 0 and i not in dense)
