"""The tensors of a tower, under Weft's names: `tower.` followed by the name of a part.

`positions` are the learned ones; `project.NAME.` leads norm, up and down of a projection of `TowerSpec`; layers and
norms have the names of an encoder's.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import replace

from weft.model.families.tower import TowerRow
from weft.model.files.tensor_plan import TensorPlan
from weft.model.switches import Norm
from weft.model.towers.spec import STEM_WIDTH, ProjectionSpec, TowerSpec

_QKV = ("q", "k", "v")
_LAYER_NORMS = ("attention_norm_before", "mlp_norm_before")
LAYER_PARTS = frozenset({*_QKV, "o", "gate", "up", "down", *_LAYER_NORMS})


def tower_layout(spec: TowerSpec, row: TowerRow, stored: Collection[str]) -> tuple[TensorPlan, ...]:
    """Returns the plans of all tensors of a tower, with the prefix of the `stored` names."""
    prefix, tower = row.find(stored) or (row.prefixes[0], row.towers[0])
    names = {ours: prefix + theirs.replace("@", tower) for ours, theirs in row.names.items()}
    # The name of a part of a layer follows the name of the layer.
    parts = {ours: row.names[ours] for ours in names if ours in LAYER_PARTS}
    return tuple(_Plans(spec, replace(row, names={**names, **parts})).all())


def unused_of(spec: TowerSpec, row: TowerRow) -> tuple[str, ...]:
    """Returns the beginnings of the names of tensors that a tower of this kind may have, and that are not read."""
    layers = range(spec.num_layers, spec.num_layers + spec.num_unused_layers)
    unused = (*row.ignored, *(row.names["layer"].format(index) for index in layers))
    return tuple(
        prefix + name.replace("@", tower)
        for prefix in row.prefixes
        for tower in row.towers
        for name in unused
    )


class _Plans:
    """Makes the plans of a tower's tensors from a row with complete names."""

    def __init__(self, spec: TowerSpec, row: TowerRow) -> None:
        self._spec, self._row = spec, row

    def all(self) -> Iterator[TensorPlan]:
        spec, names = self._spec, self._row.names
        if spec.num_positions:
            yield self._tensor(
                "positions", names["positions"], spec.num_position_rows, spec.hidden_size
            )
        if spec.has_class_row:
            source = names["class"]
            yield TensorPlan("tower.class", source, (spec.hidden_size,), 0, spec.hidden_size)
        for name, is_there in (("embed_norm", spec.has_first_norm), ("norm", spec.has_last_norm)):
            if is_there:
                yield from self._norm(name, names[name], spec.norm, spec.hidden_size)
        for index in range(spec.num_layers):
            yield from self._layer(index)
        for projection in spec.projections:
            yield from self._projection(projection)

    def _layer(self, index: int) -> Iterator[TensorPlan]:
        spec, names = self._spec, self._row.names
        ours, lead = f"layers.{index}.", names["layer"].format(index)
        hidden, inner = spec.hidden_size, spec.intermediate_size
        for place, name in enumerate(_QKV):
            plan = self._tensor(ours + name, lead + names[name], hidden, hidden)
            if names["q"] == names["v"]:  # all three are in one tensor
                plan = replace(plan, start=place * hidden, rows=len(_QKV) * hidden)
            yield from self._biased(plan, name)
        shapes = {"o": (hidden, hidden), "up": (inner, hidden), "down": (hidden, inner)}
        if spec.is_gated:
            shapes["gate"] = (inner, hidden)
        for name, shape in shapes.items():
            yield from self._biased(self._tensor(ours + name, lead + names[name], *shape), name)
        for name in _LAYER_NORMS:
            yield from self._norm(ours + name, lead + names[name], spec.norm, hidden)

    def _projection(self, projection: ProjectionSpec) -> Iterator[TensorPlan]:
        kind, _, number = projection.name.partition(".")
        ours, key = f"project.{projection.name}.", f"project.{kind}."

        def theirs(part: str) -> str:
            return self._row.names[key + part].format(number)

        if projection.norm_size:
            name = f"{ours}norm"
            yield from self._norm(name, theirs("norm"), projection.norm, projection.norm_size)
        inner = projection.inner or projection.input
        if projection.inner:
            plan = self._tensor(f"{ours}up", theirs("up"), inner, projection.input)
            yield from self._biased(plan, f"{key}up")
        plan = self._tensor(f"{ours}down", theirs("down"), projection.output, inner)
        if kind == "join":  # the file has, for each element, its joined patches
            plan = replace(plan, channels_last=self._spec.num_joined)
        if f"{key}down" in self._row.bare:
            plan = replace(plan, source=theirs("down"), is_transposed=True)
        if self._spec.has_conv_stem and kind in ("patch", "half", "quarter"):
            kernel = (STEM_WIDTH,) * (2 if self._spec.stem_channels else 1)
            plan = replace(plan, folded=(projection.input // math.prod(kernel), *kernel))
        elif kind == "patch":
            plan = self._of_patches(plan)
        yield from self._biased(plan, f"{key}down")

    def _of_patches(self, plan: TensorPlan) -> TensorPlan:
        """Returns the plan of the patches' matrix, which the file stores as a convolution kernel or pixel by pixel."""
        spec = self._spec
        if self._row.has_flat_patches:
            return replace(plan, channels_last=spec.num_channels)
        frames = (spec.temporal_patch_size,) if self._row.has_frames else ()
        dims = (spec.num_channels, *frames, spec.patch_size, spec.patch_size)
        return replace(plan, folded=dims)

    def _biased(self, plan: TensorPlan, key: str) -> Iterator[TensorPlan]:
        """Yields the plans of a linear layer's matrix, and of its bias if it has one."""
        yield plan
        of_projector = key.startswith("project.merger.")
        has_bias = self._spec.has_projector_bias if of_projector else key not in self._row.unbiased
        if has_bias:
            source = plan.source.removesuffix(".weight")
            yield TensorPlan(
                f"{plan.name}.bias", f"{source}.bias", plan.shape[:1], plan.start, plan.rows
            )

    def _norm(self, ours: str, source: str, kind: Norm, size: int) -> Iterator[TensorPlan]:
        yield self._tensor(ours, source, size)
        if kind is Norm.LAYER:
            yield TensorPlan(f"tower.{ours}.bias", f"{source}.bias", (size,), 0, size)

    def _tensor(self, ours: str, source: str, *shape: int) -> TensorPlan:
        return TensorPlan(f"tower.{ours}", f"{source}.weight", shape, 0, shape[0])
