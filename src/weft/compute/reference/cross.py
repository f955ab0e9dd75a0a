"""`CrossAttention`: rows of a decoder attend to keys and values that come with their sequences."""

from dataclasses import dataclass

import numpy as np

from weft.compute.arithmetic import tiles
from weft.compute.protocols.runner import Batch, FloatArray, Memory
from weft.compute.reference.parts import Norm
from weft.compute.reference.products import Product
from weft.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """Cross-attention of one layer. A memory is [keys, layers, keys and values, heads, head_dim]."""

    spec: ModelSpec
    norm: Norm
    q: Product
    o: Product

    def __call__(self, hidden: FloatArray, layer: int, batch: Batch) -> FloatArray:
        """Maps [whole tiles of rows, hidden] to what is added to it."""
        assert batch.memories is not None, "every sequence has a sound"
        spec, starts = self.spec, batch.query_starts
        q = self.q(self.norm(hidden)).reshape(len(hidden), spec.num_heads, spec.head_dim)
        q = q * np.float32(spec.attention_scale)
        output = np.zeros((len(hidden), spec.num_heads * spec.head_dim), np.float32)
        for number, memory in enumerate(batch.memories):
            rows = slice(starts[number], starts[number + 1])
            output[rows] = _attend(q[rows], memory[:, layer, 0], memory[:, layer, 1])
        return self.o(tiles.pad_rows(output))


def _attend(q: FloatArray, k: Memory, v: Memory) -> FloatArray:
    """Returns [rows, heads * head_dim]. Each row is a product by itself, so that its bits do not depend on others."""
    keys, values = k.transpose(1, 2, 0), v.transpose(1, 0, 2)
    scores = np.matmul(q[:, :, None], keys)  # [rows, heads, 1, keys]
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores, out=scores)
    totals = weights.sum(axis=-1, keepdims=True)
    result: FloatArray = np.matmul(weights, values) / totals
    return result.reshape(len(q), -1)
