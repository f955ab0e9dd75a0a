"""`Decoder`: the layers of a model on the card, as launches of kernels over the arrays of a step."""

from dataclasses import dataclass
from typing import Any

import torch

from weft.compute.gpu import launches
from weft.compute.gpu.kernels import rows
from weft.compute.gpu.kernels.lone_rows import lone_rows
from weft.compute.gpu.kernels.tiles_of_rows import tiles_of_rows
from weft.compute.gpu.matrices.products import Matrix, WideMatrix
from weft.compute.gpu.matrices.routed_experts import RoutedExperts
from weft.compute.gpu.steps.step import StepArrays
from weft.compute.gpu.weights import NormWeights, Reader, head_ending, up_ending
from weft.compute.gpu.workspace import Workspace
from weft.compute.rope import inverse_frequencies
from weft.model.spec import LayerSpec, NormPlacement, QkNorm, RopeSpec
from weft.model.switches import Norm

LOG2_E = 1.4426950408889634  # for powers of two instead of exponentials
_HEADS_OF_A_PROGRAM = 8
Rotations = tuple[torch.Tensor, torch.Tensor]
Pool = tuple[
    torch.Tensor, torch.Tensor
]  # keys and values of a layer, [blocks, kv heads, block, head_dim]


@dataclass(frozen=True, slots=True)
class _Layer:
    """The weights of one layer; a norm that the model does not have is None."""

    spec: LayerSpec
    qkv: Matrix
    o: Matrix
    up: Matrix | None  # without an MLP or shared expert, None
    down: Matrix | None
    experts: RoutedExperts | None
    head_norm: torch.Tensor | None  # [heads of queries and keys, head_dim]
    sinks: torch.Tensor | None
    attention_norms: "_Norms"
    mlp_norms: "_Norms"


@dataclass(frozen=True, slots=True)
class _Norms:
    """Norms around attention or an MLP: before it, after it, and after the residual sum."""

    before: NormWeights | None
    after: NormWeights | None
    sum: NormWeights | None


@dataclass(frozen=True, slots=True)
class _Product:
    """A product whose partial sums have not yet been added to the residual stream."""

    num_parts: int
    bias: torch.Tensor | None
    norms: _Norms


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Rows of a step that begin with given embeddings instead of those of their token ids."""

    rows: torch.Tensor  # [given] int64
    embeds: torch.Tensor  # [given, hidden] float32, as rows of the embedding table


_NOTHING = _Product(0, None, _Norms(None, None, None))


class Decoder:
    """A decoder's loaded weights. `forward` launches kernels without waiting for them."""

    def __init__(self, reader: Reader, max_model_len: int) -> None:
        spec = self.spec = reader.spec
        self.tuning = launches.tuning()
        self._embed = reader.padded("embed")
        self._positions = reader.table("positions") if spec.num_positions else None
        self._layers = [_read_layer(reader, i, layer) for i, layer in enumerate(spec.layers)]
        self._last_norm = reader.norm("norm")
        self._is_parallel = spec.norm_placement is NormPlacement.PARALLEL
        ending = head_ending(spec)
        self._head: Matrix | None = None
        if spec.has_head:
            is_shared = spec.tied_head and reader.format_of(("head",)) is None
            self._head = (
                WideMatrix.of(self._embed, ending, reader.vector("head.bias"))
                if is_shared
                else reader.matrix("", "head", ending=ending)
            )
        ropes = {layer.rope for layer in spec.layers if layer.rope is not None}
        self._rotations = {rope: _rotations(rope, max_model_len) for rope in ropes}
        self.matrices = [
            matrix
            for layer in self._layers
            for matrix in (layer.qkv, layer.o, layer.up, layer.down)
            if matrix is not None
        ]
        self.experts = [layer.experts for layer in self._layers if layer.experts is not None]

    def forward(
        self, step: StepArrays, pools: list[Pool], space: Workspace, given: GivenRows | None = None
    ) -> None:
        """Computes a step: writes keys and values into `pools`, and the normed wanted rows into `space.wanted`."""
        self._enter(step, space)
        if given is not None:
            self._enter_given(given, step, space)
        product = _NOTHING
        for layer, pool in zip(self._layers, pools, strict=True):
            self._add_norm(step, space, product, layer.attention_norms.before)
            num_parts = layer.qkv(space.hidden[: step.num_rows], space.parts)
            self._attend(layer, pool, step, space, num_parts)
            num_parts = layer.o(space.attended[: step.num_rows], space.parts)
            product = _Product(num_parts, layer.o.bias, layer.attention_norms)
            self._add_norm(
                step, space, product, layer.mlp_norms.before, is_parallel=self._is_parallel
            )
            product = self._mlp(layer, space, space.hidden[: step.num_rows])
        self._add_norm(step, space, product, self._last_norm, wanted=step.wanted)

    def logits(self, wanted: torch.Tensor) -> torch.Tensor:
        """Returns the logits of normed rows, float32 [rows, vocab]; the rows themselves for a model without a head."""
        if self._head is None:
            return wanted[:, : self.spec.hidden_size].to(torch.float32, copy=True)
        width = self.spec.vocab_size
        out = torch.empty((len(wanted), width), dtype=torch.float32, device=wanted.device)
        if len(wanted):
            self._head(wanted, out)
        return out

    def _mlp(self, layer: _Layer, space: Workspace, rows: torch.Tensor) -> _Product:
        num_parts, bias = 0, None
        if layer.up is not None and layer.down is not None:
            middle = space.middles[self.spec.mlp_size(layer.spec)][: len(rows)]
            layer.up(rows, middle)
            num_parts, bias = layer.down(middle, space.parts), layer.down.bias
        if layer.experts is not None and space.routing is not None:
            layer.experts(rows, space.routing, space.parts, num_parts)
            num_parts, bias = 1, None
        return _Product(num_parts, bias, layer.mlp_norms)

    # -- launches ---------------------------------------------------------------------------------

    def _enter(self, step: StepArrays, space: Workspace) -> None:
        spec = self.spec
        table = self._positions
        rows.enter[(step.num_rows,)](
            step.token_ids,
            step.positions,
            self._embed,
            self._embed if table is None else table,
            space.residual,
            spec.hidden_size,
            self._embed.stride(0),
            spec.position_offset,
            MULTIPLIER=spec.embedding_multiplier,
            HAS_TABLE=table is not None,
            BLOCK=launches.power_of_two(spec.hidden_size),
            num_warps=4,
            **launches.exact(),
        )

    def _enter_given(self, given: GivenRows, step: StepArrays, space: Workspace) -> None:
        embeds = given.embeds
        if self._positions is not None:
            places = step.positions[given.rows].long() + self.spec.position_offset
            embeds = embeds + self._positions[places]
        space.residual[given.rows] = embeds * self.spec.embedding_multiplier

    def _add_norm(
        self,
        step: StepArrays,
        space: Workspace,
        product: _Product,
        before: NormWeights | None,
        *,
        wanted: torch.Tensor | None = None,
        is_parallel: bool = False,
    ) -> None:
        """Adds a product to the residual stream, and computes the norm for the next product.

        With `wanted`, only the wanted rows are normed, for the head. `is_parallel`: the norm is that of the residual
        stream before the sum.
        """
        spec, bias, norms = self.spec, product.bias, product.norms
        num_programs = step.num_rows if wanted is None else len(wanted)
        if num_programs == 0:
            return
        place = space.hidden if wanted is None else space.wanted
        nothing = space.residual
        pairs = [
            (None, None) if n is None else (n.weight, n.bias)
            for n in (norms.after, norms.sum, before)
        ]
        arrays = [nothing if array is None else array for pair in pairs for array in pair]
        width = spec.hidden_size
        rows.add_norm[(num_programs,)](
            space.parts,
            nothing if bias is None else bias,
            space.residual,
            place,
            nothing if wanted is None else wanted,
            *arrays,
            step.num_rows,
            width,
            place.stride(0),
            spec.norm_eps,
            MULTIPLIER=spec.residual_multiplier,
            PARTS=product.num_parts,
            HAS_P_BIAS=bias is not None,
            HAS_AFTER=norms.after is not None,
            HAS_SUM=norms.sum is not None,
            HAS_BEFORE=before is not None,
            IS_LAYER=spec.norm is Norm.LAYER,
            HAS_BIAS=spec.norm_bias,
            IS_PICKED=wanted is not None,
            IS_PARALLEL=is_parallel,
            BLOCK=launches.power_of_two(width),
            num_warps=4 if width <= 2048 else 8,
            **launches.exact(),
        )

    def _attend(
        self, layer: _Layer, pool: Pool, step: StepArrays, space: Workspace, num_parts: int
    ) -> None:
        self._write_heads(layer, pool, step, space, num_parts)
        spec, tuning = self.spec, self.tuning
        cap, sinks = spec.attention_soft_cap, layer.sinks
        group = launches.power_of_two(spec.num_heads // spec.num_kv_heads)
        constants: dict[str, Any] = {
            "HQ": spec.num_heads,
            "HK": spec.num_kv_heads,
            "D": spec.head_dim,
            "BLOCK_D": max(16, launches.power_of_two(spec.head_dim)),
            "BS": pool[0].shape[2],
            "BN": tuning.keys,
            "PART": tuning.part,
            "WINDOW": layer.spec.window or 0,
            "CHUNK": layer.spec.chunk or 0,
            "HAS_CAP": cap is not None,
            "HAS_SINKS": sinks is not None,
            **launches.exact(),
        }
        cached = (space.queries, *pool, step.tables, step.table_stride)
        weights = space.residual if sinks is None else sinks
        scale = spec.attention_scale * (1.0 if cap else LOG2_E)
        out = (space.attended, space.attended.stride(0), scale, cap or 1.0)
        if step.num_lone:
            parts = step.num_attention_parts
            lone_rows[(parts, spec.num_kv_heads, step.num_lone)](
                *(*cached, step.lone_rows, step.lone_sequences, step.positions, weights),
                *(space.highest, space.totals, space.sums, space.parts_done, *out),
                BM=max(tuning.lone_tile, group),
                BLOCK_G=group,
                PARTS=parts,
                num_warps=4,
                num_stages=tuning.lone_stages,
                **constants,
            )
        if step.num_tiles:
            tile = max(tuning.tile, group)
            tiles_of_rows[(spec.num_kv_heads, step.num_tiles)](
                *(*cached, *step.tiles, step.positions, weights, *out),
                BM=tile,
                num_warps=8 if tile >= 128 else 4,
                num_stages=tuning.tile_stages,
                **constants,
            )

    def _write_heads(
        self, layer: _Layer, pool: Pool, step: StepArrays, space: Workspace, num_parts: int
    ) -> None:
        spec = self.spec
        count = spec.num_heads + 2 * spec.num_kv_heads
        norm = QkNorm.NONE if layer.head_norm is None else spec.qk_norm
        is_whole = norm is QkNorm.FULL
        of_program = launches.power_of_two(count) if is_whole else _HEADS_OF_A_PROGRAM
        rope = layer.spec.rope
        cosine, sine = (space.residual, space.residual) if rope is None else self._rotations[rope]
        rows.heads[(step.num_rows, -(-count // of_program))](
            *(space.parts, space.residual if layer.qkv.bias is None else layer.qkv.bias),
            *(space.residual if layer.head_norm is None else layer.head_norm, cosine, sine),
            *(step.positions, step.slots, space.queries, *pool, step.num_rows, spec.norm_eps),
            HQ=spec.num_heads,
            HK=spec.num_kv_heads,
            D=spec.head_dim,
            BLOCK_D=launches.power_of_two(spec.head_dim),
            BLOCK_H=of_program,
            PARTS=num_parts,
            ROPE=0 if rope is None else rope.dim,
            NORM=(QkNorm.HEAD if norm is QkNorm.HEAD_LAYER else norm).value,
            IS_LAYER=norm is QkNorm.HEAD_LAYER or (spec.norm is Norm.LAYER and spec.has_qk_weights),
            INTERVAL=0 if layer.spec.temperature is None else layer.spec.temperature.interval,
            SLOPE=0.0 if layer.spec.temperature is None else layer.spec.temperature.slope,
            HAS_BIAS=layer.qkv.bias is not None,
            BS=pool[0].shape[2],
            num_warps=4 if is_whole else 2,
            **launches.exact(),
        )


def _read_layer(reader: Reader, index: int, layer: LayerSpec) -> _Layer:
    spec, prefix = reader.spec, f"layers.{index}."
    up, has_mlp = ("gate", "up") if spec.is_gated else ("up",), spec.mlp_size(layer) > 0
    return _Layer(
        spec=layer,
        qkv=reader.matrix(prefix, "q", "k", "v"),
        o=reader.matrix(prefix, "o"),
        up=reader.matrix(prefix, *up, ending=up_ending(spec)) if has_mlp else None,
        down=reader.matrix(prefix, "down") if has_mlp else None,
        experts=None if layer.experts is None else reader.experts(prefix, layer.experts),
        head_norm=_head_norm(reader, prefix, layer),
        sinks=reader.vector(f"{prefix}sinks"),
        attention_norms=_read_norms(reader, f"{prefix}attention_norm"),
        mlp_norms=_read_norms(reader, f"{prefix}mlp_norm"),
    )


def _read_norms(reader: Reader, name: str) -> _Norms:
    return _Norms(*(reader.norm(f"{name}_{place}") for place in ("before", "after", "sum")))


def _head_norm(reader: Reader, prefix: str, layer: LayerSpec) -> torch.Tensor | None:
    """Returns the weights of the norms of queries and keys, one row for each head; None without such norms."""
    spec = reader.spec
    if spec.qk_norm is QkNorm.NONE or not layer.has_qk_norm:
        return None
    if not spec.has_qk_weights:
        shape = (spec.num_heads + spec.num_kv_heads, spec.head_dim)
        return torch.ones(shape, device=launches.device())
    norms = [reader.norm(f"{prefix}{name}_norm") for name in ("q", "k")]
    weights = [
        norm.weight.reshape(-1, spec.head_dim).expand(count, -1)
        for norm, count in zip(norms, (spec.num_heads, spec.num_kv_heads), strict=True)
        if norm is not None
    ]
    return torch.cat(weights).contiguous() if weights else None


def _rotations(rope: RopeSpec, max_model_len: int) -> Rotations:
    """Returns cosines and sines of every position, [positions, dim / 2], from the frequencies of
    `weft.compute.rope`.
    """
    frequencies = torch.from_numpy(inverse_frequencies(rope, max_model_len)).to(launches.device())
    positions = torch.arange(max_model_len, dtype=torch.float32, device=launches.device())
    angles = (positions[:, None] * frequencies).double()
    factor = rope.attention_factor
    return (angles.cos() * factor).float(), (angles.sin() * factor).float()
