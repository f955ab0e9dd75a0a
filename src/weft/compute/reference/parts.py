"""Parts of the reference backend with weights and without state: norms, MLPs, and the layer that joins pairs."""

from dataclasses import dataclass

import numpy as np

from weft.compute.arithmetic import tiles
from weft.compute.arithmetic.activations import Xielu, activate
from weft.compute.protocols.runner import FloatArray, IntArray
from weft.compute.reference.encoder import LayerNorm, Linear
from weft.compute.reference.products import Product
from weft.compute.rope import rotate
from weft.model.spec import ModelSpec, QkNorm, Temperature


@dataclass(frozen=True, slots=True)
class Mlp:
    """Two linear layers and the activation between them. If there is a gate, the gate's rows come first in `up`."""

    spec: ModelSpec
    up: Product
    down: Product
    xielu: Xielu | None = None

    def __call__(self, rows: FloatArray) -> FloatArray:
        return self.down(self.middle(self.up(rows)))

    def middle(self, up: FloatArray) -> FloatArray:
        """Returns the input of the second linear layer from the result of the first one."""
        spec = self.spec
        if not spec.is_gated:
            return self._activated(up)
        inner = up.shape[1] // 2
        gate, up = up[:, :inner], up[:, inner:]
        if spec.swiglu_limit is None:
            return self._activated(gate) * up
        limit, alpha = np.float32(spec.swiglu_limit), np.float32(spec.swiglu_alpha)
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        falling: FloatArray = np.exp(-alpha * gate)
        return gate / (1 + falling) * (up + 1)

    def _activated(self, x: FloatArray) -> FloatArray:
        return activate(self.spec.activation, x) if self.xielu is None else self.xielu(x)


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """Scales the last axis to mean square 1, then by `weight`."""

    weight: FloatArray
    eps: np.float32

    def __call__(self, rows: FloatArray) -> FloatArray:
        mean_square = np.mean(rows * rows, axis=-1, keepdims=True)
        scale: FloatArray = np.sqrt(mean_square + self.eps)
        return rows / scale * self.weight


Norm = RmsNorm | LayerNorm


def plain_norm(spec: ModelSpec) -> RmsNorm:
    """Returns a norm of heads without weights."""
    return RmsNorm(np.ones(1, np.float32), np.float32(spec.norm_eps))


@dataclass(frozen=True, slots=True)
class HiddenJoin:
    """Joins pairs of an embedding and a hidden state, each normed, by one linear layer that is never quantized."""

    embed_norm: Norm
    hidden_norm: Norm
    product: Linear

    def __call__(self, pairs: FloatArray) -> FloatArray:
        embeds, hidden = np.split(pairs, 2, axis=1)
        normed = np.concatenate([self.embed_norm(embeds), self.hidden_norm(hidden)], axis=1)
        return self.product(tiles.pad_rows(normed))[: len(pairs)]


def temperatures(temperature: Temperature, positions: IntArray) -> FloatArray:
    """Returns the factor of each row's queries."""
    intervals = np.floor((positions.astype(np.float32) + 1) / np.float32(temperature.interval))
    factors: FloatArray = np.log1p(intervals) * np.float32(temperature.slope) + 1
    return factors


def turned_heads(
    spec: ModelSpec,
    norm: Norm | None,
    rows: FloatArray,
    rotation: tuple[FloatArray, FloatArray] | None,
) -> FloatArray:
    """Returns queries or keys [rows, heads * head_dim] as [rows, heads, head_dim], normed and rotated."""
    rows = np.ascontiguousarray(rows)
    if norm is not None and spec.qk_norm is QkNorm.FULL:
        rows = norm(rows)
    heads = rows.reshape(len(rows), -1, spec.head_dim)
    if norm is not None and spec.qk_norm in (QkNorm.HEAD, QkNorm.HEAD_LAYER):
        heads = norm(heads)
    if rotation is not None:
        rotate(heads, *rotation)
    if norm is not None and spec.qk_norm is QkNorm.HEAD_AFTER_ROPE:
        heads = norm(heads)
    return heads
