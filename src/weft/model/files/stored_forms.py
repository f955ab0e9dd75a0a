"""Tensors in the form in which a family stores them: the rows of heads, stacked experts, factors left out."""

from collections.abc import Sequence
from dataclasses import replace

from weft.model.families.names import DecoderNames
from weft.model.files.tensor_plan import HeadRows, TensorPlan
from weft.model.spec import ModelSpec

_QKV = ("q", "k", "v")
HEAD_NORMS = ("q_norm", "k_norm")


def as_stored(
    plans: Sequence[TensorPlan], spec: ModelSpec, names: DecoderNames
) -> list[TensorPlan]:
    """Returns the plans of a decoder's tensors, without embedding and head, with what `names` says about their form."""
    plans = list(plans)
    if names.is_transposed:
        plans = [
            replace(plan, is_transposed=plan.name.startswith("layers.") and len(plan.shape) == 2)
            for plan in plans
        ]
    if names.has_mixed_heads or names.has_neighbours:
        plans = [_of_heads(plan, spec, names) for plan in plans]
    if names.has_short_experts:
        turned = names.has_turned_experts
        plans = [p if p.stack is None else _without_suffix(p, turned) for p in plans]
    if names.has_correction_row:
        is_one = [plan.name.endswith(".router_correction") for plan in plans]
        plans = [replace(p, stack=1) if row else p for p, row in zip(plans, is_one, strict=True)]
    if names.has_bare_experts:
        plans = [plan if plan.stack is None else _bare(plan) for plan in plans]
    runs = {multiplier.name: multiplier.runs for multiplier in spec.multipliers}
    parts = [plan.name.removesuffix(".bias").rpartition(".")[2] for plan in plans]
    return [
        replace(p, multipliers=runs.get(part, ())) for p, part in zip(plans, parts, strict=True)
    ]


def _of_heads(plan: TensorPlan, spec: ModelSpec, names: DecoderNames) -> TensorPlan:
    """Returns the plan for heads in another order: q, k and v head by head, or with adjacent rotated rows."""
    lead, _, name = plan.name.removesuffix(".bias").rpartition(".")
    if name not in (*_QKV, *HEAD_NORMS):
        return plan
    layer = spec.layers[int(lead.rpartition(".")[2])]
    size = step = spec.heads_of(layer)[1]
    start, rope = plan.start, layer.rope
    if names.has_mixed_heads and name in _QKV:
        step, start = len(_QKV) * size, _QKV.index(name) * size
    turned = rope.dim if names.has_neighbours and rope is not None and name != "v" else 0
    return replace(plan, start=start, heads=HeadRows(plan.shape[0] // size, size, step, turned))


def _bare(plan: TensorPlan) -> TensorPlan:
    """Returns the plan for a layer's experts in one tensor [experts, in, out], with alternating gate and up rows."""
    stack = plan.stack
    assert stack is not None
    source = plan.source.removesuffix(".weight").replace(".bias", "_bias")
    plan = replace(plan, source=source, is_transposed=len(plan.shape) == 2)
    each = plan.rows // stack
    if plan.shape[0] == each:
        return plan
    number, first = divmod(plan.start, each)
    return replace(plan, start=number * each + (first > 0), step=2)


def _without_suffix(plan: TensorPlan, is_transposed: bool) -> TensorPlan:
    """Returns the plan for experts in a tensor whose name has no suffix."""
    return replace(plan, source=plan.source.removesuffix(".weight"), is_transposed=is_transposed)
