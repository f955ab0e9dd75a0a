"""`NativeTower`: towers in C++. Products, norms and attention are calls to the core, without the GIL."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.compute.arithmetic.chunk_stem import enter_chunks
from weft.compute.arithmetic.conv_stem import enter_stem
from weft.compute.arithmetic.tower_grids import (
    class_grids,
    frames,
    learned_positions,
    rotary_pairs,
    rotary_places,
    windows,
    with_class_rows,
    without_class_rows,
)
from weft.compute.native import _core
from weft.compute.native.loading import load_tensor
from weft.compute.protocols.runner import Batch, FloatArray, IntArray
from weft.compute.protocols.tower import TowerInputs, check_inputs
from weft.model.towers.spec import Grid, LayerRun, Projector, TowerSpec
from weft.model.weights import Tensor, Values, Weights

PREFIX = "tower."


@dataclass(frozen=True, slots=True)
class _Rows:
    """The patches of all grids: their order in the layers, and the segments that attend to each other."""

    order: IntArray  # indexes in the inputs of the patches, by row
    windows: IntArray  # [windows], lengths
    frames: IntArray  # [frames], lengths
    rope_positions: IntArray  # [rows, 3]


class NativeTower:
    """A loaded vision tower; its layers are an encoder of the core.

    Weights are bfloat16 or float32, never quantized.
    """

    def __init__(
        self, spec: TowerSpec, weights: Weights, *, dtype: str, path: str, num_threads: int
    ) -> None:
        self._spec = spec
        self._positions: FloatArray | None = None
        self._first: FloatArray | None = None  # the class row with its position, [1, hidden]
        self._model = _core.Model(native_tower(spec, dtype), path, num_threads)
        zeros = np.zeros((1, spec.hidden_size), np.float32)
        load_tensor(self._model, "embed", Tensor("float32", zeros))  # rows come with each batch
        for name, values in weights.tensors.items():
            if name == f"{PREFIX}positions":
                self._positions = values.unpacked().float32()
            elif name == f"{PREFIX}class":
                self._first = values.unpacked().float32()[None]
            elif name.startswith(PREFIX):
                load_tensor(self._model, name.removeprefix(PREFIX), _prepared(spec, name, values))

        if self._first is not None and self._positions is not None:
            self._first = self._first + self._positions[:1]
            self._positions = self._positions[1:]

    def set_num_threads(self, num_threads: int) -> None:
        self._model.set_num_threads(num_threads)

    def encode(self, inputs: TowerInputs) -> FloatArray:
        """Returns the tower's rows of all items, as `TowerRunner` describes them."""
        spec = self._spec
        check_inputs(spec, inputs)
        rows, grids = self._entering(inputs)
        where = _rows_of(spec, grids)
        rows, back = rows[where.order], np.argsort(where.order)
        deep: dict[int, FloatArray] = {}
        for run in spec.runs:
            rows = self._run(run, rows, where)
            if run.deepstack is not None:
                joined = rows[back].reshape(-1, spec.joined_size)
                deep[run.deepstack] = self._project(f"deep.{run.deepstack}", joined)
        if spec.projector is Projector.CROSS:
            return np.concatenate([self._project(name, rows) for name in spec.cross_names], axis=1)
        joined = self._joined(rows[back], grids)
        if spec.projector is Projector.JOIN:
            joined = self._project("join", joined)
        tokens = self._project("merger", joined)
        return np.concatenate([tokens, *(deep[level] for level in sorted(deep))], axis=1)

    def _entering(self, inputs: TowerInputs) -> tuple[FloatArray, Sequence[Grid]]:
        """Returns the input of the first layer, and the grids of its rows."""
        spec = self._spec
        if spec.stem_channels:
            return enter_chunks(spec, inputs, self._project)
        if spec.has_conv_stem:
            assert self._positions is not None, "towers of sounds have positions"
            return enter_stem(inputs, self._positions, self._project)
        rows = self._project("patch", inputs.patches)
        if self._positions is not None:
            for grid, part in zip(inputs.grids, _split(rows, inputs.grids), strict=True):
                of_frame = learned_positions(spec, self._positions, grid)
                for frame in np.split(part, grid[0]):
                    frame += of_frame
        if self._first is not None:
            return with_class_rows(rows, inputs.grids, self._first), class_grids(inputs.grids)
        return rows, inputs.grids

    def _joined(self, rows: FloatArray, grids: Sequence[Grid]) -> FloatArray:
        spec = self._spec
        if spec.has_class_row:
            rows = without_class_rows(rows, grids)
        if spec.has_conv_stem:  # rows that fill no token are dropped
            each = [part[: len(part) - len(part) % spec.merge] for part in _split(rows, grids)]
            rows = np.concatenate(each)
        if spec.projector is Projector.POOL:
            mean: FloatArray = rows.reshape(-1, spec.num_joined, spec.hidden_size).mean(axis=1)
            return mean
        return rows.reshape(-1, spec.joined_size)

    def _project(self, name: str, rows: FloatArray) -> FloatArray:
        width = next(one.output for one in self._spec.projections if one.name == name)
        out = np.empty((len(rows), width), np.float32)
        self._model.project(name, np.ascontiguousarray(rows), out)
        return out

    def _run(self, run: LayerRun, rows: FloatArray, where: _Rows) -> FloatArray:
        lengths = where.windows if run.is_windowed else where.frames
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        every = np.arange(len(rows), dtype=np.int32)
        batch = Batch(
            token_ids=np.zeros(len(rows), np.int32),
            positions=every - np.repeat(starts[:-1], lengths),
            slots=every,  # not used, as no KV is stored
            query_starts=starts,
            prompt_lens=lengths,
            block_tables=np.zeros((0, 0), np.int32),
            logit_rows=every,
            embed_rows=every,
            embeds=rows,
            rope_positions=where.rope_positions,
        )
        out = np.empty_like(rows)
        self._model.forward(batch, out, None, run.first, run.end)
        return out


def native_tower(spec: TowerSpec, dtype: str) -> _core.ModelSpec:
    """Returns the core's spec of a tower: an encoder whose input rows come with the batch, and projections."""
    native = _core.ModelSpec()
    native.vocab_size = 1
    native.hidden_size, native.intermediate_size = spec.hidden_size, spec.intermediate_size
    native.num_heads = native.num_kv_heads = spec.num_heads
    native.head_dim = spec.head_dim
    native.is_causal = native.has_head = False
    native.set_norm(spec.norm.value)
    native.set_norm_placement("before")
    native.norm_eps = spec.norm_eps
    native.has_embed_norm, native.has_last_norm = spec.has_first_norm, spec.has_last_norm
    native.is_gated = spec.is_gated
    native.set_activation(spec.activation.value)
    native.element = "bfloat16" if dtype == "bfloat16" else "float32"
    frequencies, axes = rotary_pairs(spec)
    if len(axes):
        rope = _core.Rope()
        rope.frequencies, rope.axes = frequencies.tolist(), axes.tolist()
        native.ropes = [rope]
    layers = [_core.LayerSpec() for _ in range(spec.num_layers)]
    for layer in layers:
        layer.rope = 0 if len(axes) else None
    native.layers = layers
    native.projections = [
        _core.ProjectionSpec(
            name=one.name,
            width=one.input,
            output=one.output,
            norm=one.norm.value,
            norm_size=one.norm_size,
            norm_eps=one.norm_eps,
            inner=one.inner,
            activation=one.activation.value,
        )
        for one in spec.projections
    ]
    return native


def _prepared(spec: TowerSpec, name: str, values: Values) -> Tensor:
    """Returns a tensor in the core's form: contiguous, and with the offset of the projector's norm added.

    The factor of the MLP's activation is in the norm before the MLP, the bias of `up`, and the matrix `down`.
    """
    tensor = values.unpacked()
    factor = _factor(spec, name)
    if factor != 1.0:
        scaled = tensor.float32() * np.float32(factor)
        return Tensor("float32", scaled, unchecked=tensor.unchecked)
    if spec.projector_norm_offset and name.startswith("tower.project.") and name.endswith(".norm"):
        weight = tensor.float32() + np.float32(spec.projector_norm_offset)
        return Tensor("float32", weight, unchecked=tensor.unchecked)
    data = np.ascontiguousarray(tensor.data)
    return replace(tensor, data=data, is_mapped=tensor.is_mapped and data is tensor.data)


def _factor(spec: TowerSpec, name: str) -> float:
    if name.endswith((".mlp_norm_before", ".mlp_norm_before.bias", ".up.bias")):
        return 1.0 if name.startswith("tower.project.") else spec.activation_factor
    is_down = name.startswith("tower.layers.") and name.endswith(".down")
    return 1 / spec.activation_factor if is_down else 1.0


def tower_bytes(spec: TowerSpec, dtype: str) -> int:
    """Returns the memory of a tower's weights."""
    positions = spec.num_position_rows * spec.hidden_size * 4
    return native_tower(spec, dtype).sizes()[0] + positions


def _split(rows: FloatArray, grids: Sequence[Grid]) -> list[FloatArray]:
    return np.split(rows, np.cumsum([t * h * w for t, h, w in grids])[:-1])


def _rows_of(spec: TowerSpec, grids: Sequence[Grid]) -> _Rows:
    orders, cut, whole, positions, begin = [], [], [], [], 0
    for grid in grids:
        full = frames(grid)
        parts = full if spec.window is None else windows(grid, spec.merge, spec.window)
        at = np.zeros((len(full.order), 3), np.int32)
        at[:, 1:] = np.tile(rotary_places(spec, grid), (grid[0], 1))
        orders.append(begin + parts.order)
        positions.append(at[parts.order])
        cut.append(parts.lengths)
        whole.append(full.lengths)
        begin += len(full.order)
    return _Rows(
        order=np.concatenate(orders),
        windows=np.concatenate(cut).astype(np.int32),
        frames=np.concatenate(whole).astype(np.int32),
        rope_positions=np.concatenate(positions),
    )
