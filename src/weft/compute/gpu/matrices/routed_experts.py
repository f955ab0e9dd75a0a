"""`RoutedExperts`: a layer's experts on the card; a step sorts its pairs of a row and an expert by expert."""

from dataclasses import dataclass
from typing import Self

import torch

from weft.compute.gpu import launches
from weft.compute.gpu.kernels import routing
from weft.compute.gpu.kernels.stored import stored_rows
from weft.compute.gpu.matrices.products import Factor, Matrix
from weft.compute.gpu.matrices.stored_matrix import Numbers, arguments, constants
from weft.model.spec import ExpertsSpec

_PAIRS_AT_ONCE = 1024
_COLUMNS = 1024
_PIECE = 32
_WIDE = {"BITS": 16, "SIZE": 0, "OFFSET": "wide", "PIECE": _PIECE}


@dataclass(frozen=True, slots=True)
class RoutingSpace:
    """Memory for the experts of a step's rows."""

    logits: torch.Tensor  # [rows, experts, and a shared expert's logit] float32
    chosen: torch.Tensor  # [rows * per_token]
    weights: torch.Tensor  # [rows * per_token]
    counts: torch.Tensor  # [experts]
    tiles: torch.Tensor  # [tiles], the expert of each tile, or -1
    pairs: torch.Tensor  # [tiles * rows of a tile], or -1
    inputs: (
        torch.Tensor
    )  # [rows * per_token, padded hidden size] for experts that weigh inputs; else no rows
    middle: torch.Tensor  # [rows * per_token, padded inner size]
    results: torch.Tensor  # parts of [rows * per_token, hidden], float32

    @classmethod
    def of(cls, layers: "list[RoutedExperts]", max_rows: int, dtype: torch.dtype) -> Self:
        """Allocates memory for steps of up to `max_rows` rows."""

        def zeros(*shape: int, kind: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape, dtype=kind, device=launches.device())

        num_pairs = max(max_rows * layer.spec.per_token for layer in layers)
        count = max(layer.spec.count for layer in layers)
        in_parts = min(num_pairs, launches.tuning().serial_above)
        slots = num_pairs + count * launches.tuning().most_expert_rows
        return cls(
            logits=zeros(max_rows, max(layer.router.num_outputs for layer in layers)),
            chosen=zeros(num_pairs, kind=torch.int32),
            weights=zeros(num_pairs),
            counts=zeros(count, kind=torch.int32),
            tiles=zeros(num_pairs + count, kind=torch.int32),
            pairs=zeros(slots, kind=torch.int32),
            inputs=zeros(
                num_pairs if any(layer.spec.weighs_inputs for layer in layers) else 0,
                max(layer.up.depth for layer in layers),
                kind=dtype,
            ),
            middle=zeros(num_pairs, max(layer.down.depth for layer in layers), kind=dtype),
            results=zeros(
                max(
                    layer.down.num_outputs * max(num_pairs, layer.down.num_parts * in_parts)
                    for layer in layers
                )
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertMatrix(Factor):
    """A matrix of each expert, [experts, rows, depth]; its `bias` is [experts, rows]."""

    weights: Numbers | torch.Tensor

    def multiply(
        self, rows: torch.Tensor, out: torch.Tensor, step: "_Tiles", shared_by: int
    ) -> int:
        """Multiplies the rows of all pairs by their expert's matrix, into `out`; returns the number of parts.

        A row of `rows` belongs to `shared_by` adjacent pairs.
        """
        outputs, is_serial = self.num_outputs, self.is_serial(step.num_pairs)
        num_programs = 1 if is_serial else self.num_parts
        tile = launches.tuning().experts(step.height, self.ending.kind)
        weights = self.weights
        if isinstance(weights, Numbers):
            arrays, form, groups = arguments(weights), constants(weights.form), weights.num_groups
        else:
            arrays, form, groups = (weights, weights, weights), _WIDE, 0
        bias = self.bias if self.adds_bias and self.bias is not None else rows
        counts = (step.num_pairs, outputs, self.depth, self.part_depth, self.num_rows, groups)
        stored_rows[(-(-outputs // tile.outputs), num_programs, step.num_tiles)](
            *(rows, *arrays, out, bias, step.experts, step.pairs, *counts),
            *(rows.stride(0), self.stride(out)),
            **self.constants(),
            **form,
            BM=step.height,
            BN=tile.outputs,
            EVEN=outputs % tile.outputs == 0,
            PARTS=self.num_parts,
            IS_SERIAL=is_serial,
            SHARED_BY=shared_by,
            **tile.options(),
        )
        return num_programs


@dataclass(frozen=True, slots=True)
class _Tiles:
    num_pairs: int
    num_tiles: int
    height: int
    experts: torch.Tensor
    pairs: torch.Tensor


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """Router and experts of a layer, and the shared expert if there is one."""

    spec: ExpertsSpec
    router: Matrix
    correction: torch.Tensor | None
    up: ExpertMatrix
    down: ExpertMatrix
    shared_bias: torch.Tensor | None = None

    def __call__(
        self, rows: torch.Tensor, space: RoutingSpace, out: torch.Tensor, shared_parts: int
    ) -> None:
        """Writes the layer's result for `rows` into `out` [rows, hidden].

        `out` has `shared_parts` parts of the shared expert's result before.
        """
        spec, num_rows = self.spec, len(rows)
        logits = space.logits[:num_rows]
        self.router(rows, logits)
        routing.choose_experts[(num_rows,)](
            *(logits, logits if self.correction is None else self.correction),
            *(space.chosen, space.weights, logits.stride(0), spec.scale, spec.epsilon),
            E=spec.count,
            TOP=spec.per_token,
            IS_NORMALIZED=spec.is_normalized,
            IS_SIGMOID=spec.is_sigmoid,
            HAS_CORRECTION=self.correction is not None,
            GROUPS=spec.num_groups,
            TOP_GROUPS=spec.groups_per_token,
            BLOCK=launches.power_of_two(spec.count),
            num_warps=4,
            **launches.exact(),
        )
        tiles = self._sort(num_rows * spec.per_token, space)
        if spec.weighs_inputs:
            self.up.multiply(self._weighed(rows, space), space.middle, tiles, 1)
        else:
            self.up.multiply(rows, space.middle, tiles, spec.per_token)
        middle = space.middle[: tiles.num_pairs]
        parts = self.down.multiply(middle, space.results, tiles, 1)
        self._combine(num_rows, parts, space, out, shared_parts)

    def _weighed(self, rows: torch.Tensor, space: RoutingSpace) -> torch.Tensor:
        """Returns the inputs of all pairs, each row times the weight of the pair."""
        num_pairs, width = len(rows) * self.spec.per_token, self.up.depth
        inputs = space.inputs[:num_pairs]
        routing.weigh_inputs[(num_pairs,)](
            *(rows, space.weights, inputs, width, rows.stride(0), inputs.stride(0)),
            TOP=self.spec.per_token,
            BLOCK=launches.power_of_two(width),
            num_warps=4,
            **launches.exact(),
        )
        return inputs

    def _sort(self, num_pairs: int, space: RoutingSpace) -> _Tiles:
        count, exact = self.spec.count, launches.exact()
        height = launches.tuning().expert_rows(-(-num_pairs // count))
        num_tiles = min(num_pairs, num_pairs // height + min(count, num_pairs))
        pairs = (space.chosen, space.counts)
        routing.count_pairs[(count,)](*pairs, num_pairs, BLOCK=_PAIRS_AT_ONCE, **exact)
        routing.sort_pairs[(count,)](
            *(*pairs, space.tiles, space.pairs, num_pairs, num_tiles),
            E=count,
            BLOCK_E=launches.power_of_two(count),
            BM=height,
            BLOCK=_PAIRS_AT_ONCE,
            **exact,
        )
        return _Tiles(num_pairs, num_tiles, height, space.tiles, space.pairs)

    def _combine(
        self, num_rows: int, parts: int, space: RoutingSpace, out: torch.Tensor, shared_parts: int
    ) -> None:
        spec, width, bias = self.spec, self.down.num_outputs, self.down.bias
        block = min(_COLUMNS, launches.power_of_two(width))
        routing.combine[(num_rows, -(-width // block))](
            *(space.results, out if bias is None else bias, space.chosen, space.weights, out),
            *(out if self.shared_bias is None else self.shared_bias, space.logits, out),
            *(num_rows, width, space.logits.stride(0)),
            E=spec.count,
            TOP=spec.per_token,
            PARTS=parts,
            HAS_BIAS=bias is not None,
            SHARED_PARTS=shared_parts,
            HAS_SHARED_BIAS=self.shared_bias is not None,
            WEIGHS_SHARED=spec.weighs_shared,
            WEIGHS_RESULTS=not spec.weighs_inputs,
            BLOCK=block,
            num_warps=4,
            **launches.exact(),
        )
