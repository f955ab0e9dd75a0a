"""`ReferenceTower`: the complete vision tower spec in float32 numpy, one grid after the other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.compute.arithmetic import tiles
from weft.compute.arithmetic.activations import activate
from weft.compute.arithmetic.chunk_stem import enter_chunks
from weft.compute.arithmetic.conv_stem import enter_stem
from weft.compute.arithmetic.tower_grids import (
    Segments,
    class_grids,
    frames,
    learned_positions,
    rotary_pairs,
    rotary_places,
    windows,
    with_class_rows,
    without_class_rows,
)
from weft.compute.protocols.runner import FloatArray
from weft.compute.protocols.tower import TowerInputs, check_inputs
from weft.compute.reference.encoder import LayerNorm, Linear, attend
from weft.compute.reference.parts import Norm, RmsNorm
from weft.compute.rope import rotate, rotations
from weft.model.spec import RopeSpec
from weft.model.switches import Norm as NormKind
from weft.model.towers.spec import Grid, ProjectionSpec, Projector, TowerSpec
from weft.model.weights import Weights


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: Linear
    o: Linear
    up: Linear  # if there is a gate, the gate's rows come first
    down: Linear
    attention_norm: Norm
    mlp_norm: Norm


@dataclass(frozen=True, slots=True)
class _Projection:
    spec: ProjectionSpec
    norm: Norm | None
    up: Linear | None
    down: Linear

    def __call__(self, rows: FloatArray) -> FloatArray:
        """Returns the projection of [rows, input] as [rows, output]."""
        count = len(rows)
        if self.norm is not None:
            parts = rows.reshape(count, -1, self.spec.norm_size)
            rows = self.norm(parts).reshape(count, -1)
        rows = tiles.pad_rows(rows)
        if self.up is not None:
            rows = activate(self.spec.activation, self.up(rows))
        return self.down(rows)[:count]


class ReferenceTower:
    """Loaded weights of a vision tower."""

    def __init__(self, spec: TowerSpec, weights: Weights) -> None:
        self._spec = spec
        reader = _Reader(spec, weights)
        self._positions = reader.matrix("positions") if spec.num_positions else None
        self._first: FloatArray | None = None  # the class row with its position, [1, hidden]
        if spec.has_class_row and self._positions is not None:
            self._first = reader.vector("class")[None] + self._positions[:1]
            self._positions = self._positions[1:]
        self._first_norm = reader.norm("embed_norm", spec.norm) if spec.has_first_norm else None
        self._last_norm = reader.norm("norm", spec.norm) if spec.has_last_norm else None
        self._layers = [reader.layer(f"layers.{index}.") for index in range(spec.num_layers)]
        self._projections = {one.name: reader.projection(one) for one in spec.projections}
        self._frequencies, self._axes = rotary_pairs(spec)

    def encode(self, inputs: TowerInputs) -> FloatArray:
        """Returns the tower's rows of all items, as `TowerRunner` describes them."""
        check_inputs(self._spec, inputs)
        sizes = [t * h * w for t, h, w in inputs.grids]
        parts = np.split(inputs.patches, np.cumsum(sizes)[:-1])
        with np.errstate(all="ignore"):  # an overflow becomes NaN, only in its own grid
            rows = [self._encode(p, grid) for p, grid in zip(parts, inputs.grids, strict=True)]
        return np.concatenate(rows)

    def _encode(self, patches: FloatArray, grid: Grid) -> FloatArray:
        spec, count = self._spec, len(patches)
        if spec.has_conv_stem:
            rows, [grid] = self._hear(TowerInputs(patches, [grid]))
            count = len(rows)
        else:
            rows = self._project("patch", patches)
            if self._positions is not None:
                rows += np.tile(learned_positions(spec, self._positions, grid), (grid[0], 1))
        if self._first is not None:
            rows, [grid] = with_class_rows(rows, [grid], self._first), class_grids([grid])
            count = len(rows)
        if self._first_norm is not None:
            rows = self._first_norm(rows)
        at = np.tile(rotary_places(spec, grid), (grid[0], 1))
        turns = self._turns(at.astype(np.int32)) if len(self._axes) else None
        whole = frames(grid)
        parts = whole if spec.window is None else windows(grid, spec.merge, spec.window)
        rows, deep = tiles.pad_rows(rows), []
        for run in spec.runs:
            for layer in self._layers[run.first : run.end]:
                segments = parts if run.is_windowed else whole
                rows = self._run_layer(layer, rows, segments, turns)
            if run.deepstack is not None:
                joined = rows[:count].reshape(-1, spec.joined_size)
                deep.append((run.deepstack, self._projections[f"deep.{run.deepstack}"](joined)))
        rows = rows[: count - count % spec.num_joined]
        if self._first is not None:
            rows = without_class_rows(rows, [grid])
        if self._last_norm is not None:
            rows = self._last_norm(rows)
        levels = [level for _, level in sorted(deep, key=lambda one: one[0])]
        return np.concatenate([*self._tokens(rows), *levels], axis=1)

    def _hear(self, inputs: TowerInputs) -> tuple[FloatArray, Sequence[Grid]]:
        if self._spec.stem_channels:
            return enter_chunks(self._spec, inputs, self._project)
        assert self._positions is not None, "these towers have positions"
        return enter_stem(inputs, self._positions, self._project)

    def _project(self, name: str, rows: FloatArray) -> FloatArray:
        return self._projections[name](rows)

    def _tokens(self, rows: FloatArray) -> list[FloatArray]:
        spec = self._spec
        if spec.projector is Projector.CROSS:
            return [self._project(name, rows) for name in spec.cross_names]
        if spec.projector is Projector.POOL:
            joined = rows.reshape(-1, spec.num_joined, spec.hidden_size).mean(axis=1)
        else:
            joined = rows.reshape(-1, spec.joined_size)
        if spec.projector is Projector.JOIN:
            joined = self._project("join", joined)
        return [self._project("merger", joined)]

    def _turns(self, at: np.ndarray) -> tuple[FloatArray, FloatArray]:
        plain = RopeSpec(dim=2 * len(self._axes), theta=self._spec.rope_theta)
        return rotations(plain, self._frequencies, at[:, self._axes - 1])

    def _run_layer(
        self,
        layer: _Layer,
        rows: FloatArray,
        segments: Segments,
        turns: tuple[FloatArray, FloatArray] | None,
    ) -> FloatArray:
        spec = self._spec
        count = len(segments.order)
        qkv = layer.qkv(layer.attention_norm(rows))[:count]
        q, k, v = qkv.reshape(count, 3, spec.num_heads, spec.head_dim).transpose(1, 0, 2, 3)
        if turns is not None:
            rotate(q, *turns)
            rotate(k, *turns)
        q *= np.float32(spec.head_dim**-0.5)
        output = np.zeros((len(rows), spec.hidden_size), np.float32)
        for part in np.split(segments.order, np.cumsum(segments.lengths)[:-1]):
            output[part] = attend(q[None, part], k[None, part], v[None, part], None)[0]
        rows = rows + layer.o(output)
        inner = layer.up(layer.mlp_norm(rows))
        if spec.is_gated:
            size = spec.intermediate_size
            inner = activate(spec.activation, inner[:, :size]) * inner[:, size:]
        else:
            factor = np.float32(spec.activation_factor)
            inner = activate(spec.activation, inner * factor) / factor
        return rows + layer.down(inner)


@dataclass(frozen=True, slots=True)
class _Reader:
    spec: TowerSpec
    weights: Weights

    def matrix(self, name: str) -> FloatArray:
        """Returns one aligned matrix."""
        return np.require(self.weights[f"tower.{name}"].float32(), np.float32, ["C", "ALIGNED"])

    def vector(self, name: str) -> FloatArray:
        """Returns one vector."""
        return self.weights[f"tower.{name}"].float32()

    def linear(self, *names: str) -> Linear:
        """Returns the linear layers of one input, joined; a layer without a bias has zeros if another one has it."""
        parts = [self.matrix(name) for name in names]
        bias = None
        if any(f"tower.{name}.bias" in self.weights for name in names):
            bias = np.concatenate(
                [self._bias(name, len(part)) for name, part in zip(names, parts, strict=True)]
            )
        return Linear(np.concatenate(parts), bias)

    def _bias(self, name: str, size: int) -> FloatArray:
        key = f"tower.{name}.bias"
        return self.weights[key].float32() if key in self.weights else np.zeros(size, np.float32)

    def norm(self, name: str, kind: NormKind, eps: float | None = None) -> Norm:
        """Returns one norm."""
        weight = self.weights[f"tower.{name}"].float32()
        eps32 = np.float32(self.spec.norm_eps if eps is None else eps)
        if kind is NormKind.RMS:
            return RmsNorm(weight, eps32)
        return LayerNorm(weight, self.weights[f"tower.{name}.bias"].float32(), eps32)

    def _projection_norm(self, spec: ProjectionSpec) -> Norm:
        norm = self.norm(f"project.{spec.name}.norm", spec.norm, spec.norm_eps)
        return replace(norm, weight=norm.weight + np.float32(self.spec.projector_norm_offset))

    def layer(self, prefix: str) -> _Layer:
        """Returns all weights of one layer."""
        up = ("gate", "up") if self.spec.is_gated else ("up",)
        return _Layer(
            qkv=self.linear(*(prefix + name for name in ("q", "k", "v"))),
            o=self.linear(f"{prefix}o"),
            up=self.linear(*(prefix + name for name in up)),
            down=self.linear(f"{prefix}down"),
            attention_norm=self.norm(f"{prefix}attention_norm_before", self.spec.norm),
            mlp_norm=self.norm(f"{prefix}mlp_norm_before", self.spec.norm),
        )

    def projection(self, spec: ProjectionSpec) -> _Projection:
        """Returns all weights of one projection."""
        prefix = f"project.{spec.name}."
        return _Projection(
            spec=spec,
            norm=self._projection_norm(spec) if spec.norm_size else None,
            up=self.linear(f"{prefix}up") if spec.inner else None,
            down=self.linear(f"{prefix}down"),
        )
