"""`EncoderRunner`: the complete encoder spec in float32 numpy. Bidirectional, and without KV.

Products are computed over all rows of a step packed together, in tiles; attention is computed over sequences of equal
length together. A sequence's rows have the same bits whatever else is in the step: `tiles` explains this for products,
and the shape of every other operation depends only on the sequence's length. Padding is computed only in the last tile
of a step.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from weft.compute.arithmetic import tiles
from weft.compute.arithmetic.activations import activate
from weft.compute.protocols.runner import Batch, FloatArray
from weft.compute.rope import inverse_frequencies, rotate, rotations
from weft.model.spec import LayerSpec, ModelSpec, NormPlacement, RopeSpec
from weft.model.weights import Weights

_MAX_SCORES = 1 << 21  # attention weights at once, so that they stay in cache and memory is bounded
_MIN_QUERIES = 16

Index = NDArray[np.intp]
Rotations = dict[RopeSpec, tuple[FloatArray, FloatArray]]


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear layer. The matrix is [out, in], as in checkpoints."""

    matrix: FloatArray
    bias: FloatArray | None

    def __call__(self, rows: FloatArray) -> FloatArray:
        """Returns the layer's result for [whole tiles of rows, in], as [rows, out]."""
        result = tiles.matmul(rows, self.matrix)
        if self.bias is not None:
            result += self.bias
        return result


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Normalises the last axis to mean 0 and variance 1, then scales and shifts it."""

    weight: FloatArray
    bias: FloatArray | None
    eps: np.float32

    def __call__(self, rows: FloatArray) -> FloatArray:
        """Returns each row, [rows, hidden], normalised independently."""
        centred: FloatArray = rows - np.mean(rows, axis=-1, keepdims=True)
        centred /= np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + self.eps)
        centred *= self.weight
        if self.bias is not None:
            centred += self.bias
        return centred


@dataclass(frozen=True, slots=True)
class _Layer:
    """The weights of one layer. If there is a gate, the gate's rows come first in `up`."""

    spec: LayerSpec
    qkv: Linear
    o: Linear
    up: Linear
    down: Linear
    attention_norm: LayerNorm | None
    mlp_norm: LayerNorm


class EncoderRunner:
    """Loaded weights of an encoder. A batch has whole prompts; the results are hidden states of the wanted rows."""

    adapters = None

    def __init__(self, spec: ModelSpec, weights: Weights, *, num_threads: int = 1) -> None:
        self.vocab_size = spec.vocab_size
        self._threads = ThreadPoolExecutor(num_threads, "weft-encoder")
        self._num_threads = num_threads
        self._spec = spec
        reader = WeightReader(weights, spec.norm_eps)
        self._embed = reader.matrix("embed")
        self._positions = reader.matrix("positions") if spec.num_positions else None
        self._token_types = reader.matrix("token_types") if spec.num_token_types else None
        self._embed_norm = reader.norm("embed_norm")
        self._layers = [
            _read_layer(reader, spec, index, layer) for index, layer in enumerate(spec.layers)
        ]
        self._norms_before = spec.norm_placement is NormPlacement.BEFORE
        self._norm = reader.norm("norm") if self._norms_before else None
        ropes = {layer.rope for layer in spec.layers if layer.rope is not None}
        self._frequencies = {
            rope: inverse_frequencies(rope, spec.max_position_embeddings) for rope in ropes
        }

    def allocate_kv(self, *, num_blocks: int, block_size: int, num_state_slots: int = 0) -> None:
        """Does nothing: an encoder stores no KV, because every step computes whole prompts."""

    def forward(self, batch: Batch) -> FloatArray:
        """Returns hidden states after the last layer, [wanted, hidden].

        Threads share the sequences of a step; each sequence is computed as it would be alone.
        """
        parts = list(split(batch, self._num_threads))
        if len(parts) == 1:
            return self._run(batch)
        return np.concatenate(list(self._threads.map(self._run, parts)))

    def _run(self, batch: Batch) -> FloatArray:
        with np.errstate(all="ignore"):  # an overflow becomes NaN, only in its own sequence
            hidden = self._embeddings(batch)
            groups = list(_groups(batch, self._spec.num_heads))
            turns: Rotations = {
                rope: rotations(rope, frequencies, batch.positions)
                for rope, frequencies in self._frequencies.items()
            }
            for layer in self._layers:
                hidden = self._run_layer(layer, hidden, groups, turns)
            hidden = hidden[batch.logit_rows]
            return hidden if self._norm is None else self._norm(hidden)

    def _embeddings(self, batch: Batch) -> FloatArray:
        """Returns the input of the first layer, [whole tiles of rows, hidden]."""
        hidden = self._embed[batch.token_ids]
        if self._token_types is not None:
            types = batch.token_types
            hidden += self._token_types[0 if types is None else types]
        if self._positions is not None:
            hidden += self._positions[batch.positions + self._spec.position_offset]
        return tiles.pad_rows(self._embed_norm(hidden))

    def _run_layer(
        self, layer: _Layer, hidden: FloatArray, groups: list[Index], turns: Rotations
    ) -> FloatArray:
        if self._norms_before:
            rows = hidden if layer.attention_norm is None else layer.attention_norm(hidden)
            hidden = hidden + self._attention(layer, rows, groups, turns)
            return hidden + self._mlp(layer, layer.mlp_norm(hidden))
        assert layer.attention_norm is not None, "a norm that follows is never left out"
        hidden = layer.attention_norm(hidden + self._attention(layer, hidden, groups, turns))
        return layer.mlp_norm(hidden + self._mlp(layer, hidden))

    def _attention(
        self, layer: _Layer, rows: FloatArray, groups: list[Index], turns: Rotations
    ) -> FloatArray:
        spec = self._spec
        num_rows = sum(group.size for group in groups)
        qkv = layer.qkv(rows)[:num_rows].reshape(num_rows, 3, spec.num_heads, spec.head_dim)
        q, k, v = qkv[:, 0], qkv[:, 1], qkv[:, 2]
        if layer.spec.rope is not None:
            rotate(q, *turns[layer.spec.rope])
            rotate(k, *turns[layer.spec.rope])
        q *= np.float32(spec.attention_scale)
        output = np.zeros((len(rows), spec.hidden_size), np.float32)
        window = layer.spec.window
        reach = None if window is None else window - 1  # number of visible keys on either side
        for group in groups:
            output[group] = attend(q[group], k[group], v[group], reach)
        return layer.o(output)

    def _mlp(self, layer: _Layer, rows: FloatArray) -> FloatArray:
        inner = layer.up(rows)
        if not self._spec.is_gated:
            return layer.down(activate(self._spec.activation, inner))
        size = self._spec.intermediate_size
        return layer.down(activate(self._spec.activation, inner[:, :size]) * inner[:, size:])


def split(batch: Batch, num_parts: int) -> Iterator[Batch]:
    """Yields the sequences of a batch in at most `num_parts` parts with about the same number of rows."""
    starts = batch.query_starts
    ends = np.unique(np.searchsorted(starts, np.linspace(0, starts[-1], num_parts + 1)))
    for first, end in pairwise(ends.tolist()):
        rows = slice(starts[first], starts[end])
        wanted = batch.logit_rows[(batch.logit_rows >= rows.start) & (batch.logit_rows < rows.stop)]
        types = batch.token_types
        yield replace(
            batch,
            token_ids=batch.token_ids[rows],
            positions=batch.positions[rows],
            slots=batch.slots[rows],
            query_starts=starts[first : end + 1] - starts[first],
            prompt_lens=batch.prompt_lens[first:end],
            block_tables=batch.block_tables[first:end],
            logit_rows=wanted - rows.start,
            token_types=None if types is None else types[rows],
        )


def _groups(batch: Batch, num_heads: int) -> Iterator[Index]:
    """Yields groups of sequences of equal length: [sequences, length], rows of the step."""
    starts = batch.query_starts.astype(np.intp)
    lengths = np.diff(starts)
    for length in np.unique(lengths):
        first_rows = starts[:-1][lengths == length]
        most = max(1, _MAX_SCORES // (num_heads * int(length) ** 2))
        for begin in range(0, len(first_rows), most):
            yield first_rows[begin : begin + most, None] + np.arange(length)


def attend(q: FloatArray, k: FloatArray, v: FloatArray, reach: int | None) -> FloatArray:
    """Returns attention within each of several sequences; q, k and v are [sequences, length, heads, head_dim].

    Queries must already be scaled. The result is [sequences, length, heads * head_dim].
    """
    count, length, heads, _ = q.shape
    q = np.ascontiguousarray(q.transpose(0, 2, 1, 3))
    k = np.ascontiguousarray(k.transpose(0, 2, 3, 1))  # [sequences, heads, head_dim, length]
    v = np.ascontiguousarray(v.transpose(0, 2, 1, 3))
    num_queries = max(_MIN_QUERIES, _MAX_SCORES // (heads * length))
    if reach is not None:
        num_queries = min(num_queries, max(_MIN_QUERIES, 2 * reach))
    parts = []
    for begin in range(0, length, num_queries):
        end = min(length, begin + num_queries)
        first = 0 if reach is None else max(0, begin - reach)
        last = length if reach is None else min(length, end + reach)
        scores = np.matmul(q[:, :, begin:end], np.ascontiguousarray(k[..., first:last]))
        if reach is not None:
            away = np.arange(begin, end)[:, None] - np.arange(first, last)
            np.copyto(scores, np.float32(-np.inf), where=np.abs(away) > reach)
        scores -= scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores, out=scores)
        totals = weights.sum(axis=-1, keepdims=True)
        parts.append(np.matmul(weights, v[:, :, first:last]) / totals)
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)
    return whole.transpose(0, 2, 1, 3).reshape(count, length, -1)


def _read_layer(reader: "WeightReader", model: ModelSpec, index: int, spec: LayerSpec) -> _Layer:
    prefix, place = f"layers.{index}.", model.norm_placement.value
    up = ("gate", "up") if model.is_gated else ("up",)
    norms = {part: f"{prefix}{part}_norm_{place}" for part in ("attention", "mlp")}
    return _Layer(
        spec=spec,
        qkv=reader.linear(*(prefix + part for part in ("q", "k", "v"))),
        o=reader.linear(prefix + "o"),
        up=reader.linear(*(prefix + part for part in up)),
        down=reader.linear(prefix + "down"),
        attention_norm=reader.norm(norms["attention"]) if spec.has_attention_norm else None,
        mlp_norm=reader.norm(norms["mlp"]),
    )


@dataclass(frozen=True, slots=True)
class WeightReader:
    """Reads weights as linear layers and norms: aligned float32, with layers of the same input joined."""

    weights: Weights
    norm_eps: float

    def matrix(self, name: str) -> FloatArray:
        """Returns one aligned matrix.

        A file may store it unaligned, and BLAS would then copy the matrix at every use.
        """
        return np.require(self.weights[name].float32(), np.float32, ["C", "ALIGNED"])

    def linear(self, *names: str) -> Linear:
        """Returns the linear layers `names`, joined; their results follow each other."""
        parts = [self.matrix(name) for name in names]
        bias = None
        if f"{names[0]}.bias" in self.weights:
            bias = np.concatenate([self.weights[f"{name}.bias"].float32() for name in names])
        return Linear(parts[0] if len(parts) == 1 else np.concatenate(parts), bias)

    def norm(self, name: str) -> LayerNorm:
        """Returns one norm."""
        bias = f"{name}.bias"
        return LayerNorm(
            self.weights[name].float32(),
            self.weights[bias].float32() if bias in self.weights else None,
            np.float32(self.norm_eps),
        )
