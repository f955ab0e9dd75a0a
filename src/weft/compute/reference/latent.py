"""Latent attention in the reference backend: queries into the latent space, and values out of it."""

from dataclasses import dataclass

import numpy as np

from weft.compute.arithmetic import tiles
from weft.compute.protocols.runner import FloatArray
from weft.compute.reference.encoder import Linear
from weft.compute.rope import rotate
from weft.model.spec import LatentSpec


@dataclass(frozen=True, slots=True)
class LatentHeads:
    """The parts of latent attention that other kinds of attention do not have.

    `into` and `out_of` are linear layers per head: from the head's part of a query to the latent space, and from the
    latent space to the head's value.
    """

    spec: LatentSpec
    into: tuple[Linear, ...]
    out_of: tuple[Linear, ...]
    norm: FloatArray
    query_norm: FloatArray | None

    @classmethod
    def of(
        cls,
        spec: LatentSpec,
        matrix: FloatArray,
        norm: FloatArray,
        query_norm: FloatArray | None,
    ) -> "LatentHeads":
        """Returns the heads' parts of `matrix`, which has for each head the rows of its keys, then those of its
        values.
        """
        heads = matrix.reshape(-1, spec.key_size + spec.value_size, spec.rank)
        keys, values = heads[:, : spec.key_size], heads[:, spec.key_size :]
        return cls(
            spec,
            tuple(Linear(np.ascontiguousarray(of_head.T), None) for of_head in keys),
            tuple(Linear(np.ascontiguousarray(of_head), None) for of_head in values),
            norm,
            query_norm,
        )

    def normed(self, rows: FloatArray, weight: FloatArray) -> FloatArray:
        """Returns rows of a latent vector, normed with the vector's own norm."""
        mean_square = np.mean(rows * rows, axis=-1, keepdims=True)
        scale: FloatArray = np.sqrt(mean_square + np.float32(self.spec.norm_eps))
        return rows / scale * weight

    def cached(self, rows: FloatArray, cosine: FloatArray, sine: FloatArray) -> FloatArray:
        """Returns the rows' entries in the KV pool, [rows, 1, rank + rope_size]."""
        rank = self.spec.rank
        whole = np.concatenate([self.normed(rows[:, :rank], self.norm), rows[:, rank:]], axis=1)
        cached = whole[:, None]
        rotate(cached[..., rank:], cosine, sine, is_interleaved=self.spec.is_interleaved)
        return cached

    def queries(self, rows: FloatArray, cosine: FloatArray, sine: FloatArray) -> FloatArray:
        """Returns the heads' queries for the cached latent vectors, [rows, heads, rank + rope_size]."""
        heads = np.ascontiguousarray(rows).reshape(len(rows), len(self.into), -1)
        own, turned = heads[..., : self.spec.key_size], heads[..., self.spec.key_size :]
        rotate(turned, cosine, sine, is_interleaved=self.spec.is_interleaved)
        into = [_by_head(product, own[:, head]) for head, product in enumerate(self.into)]
        return np.concatenate([np.stack(into, axis=1), turned], axis=2)

    def values(self, attended: FloatArray) -> FloatArray:
        """Returns the values of all heads, [rows, heads * value_size], from attention over the cached latent
        vectors.
        """
        heads = attended.reshape(len(attended), len(self.out_of), -1)[..., : self.spec.rank]
        return np.concatenate(
            [_by_head(product, heads[:, head]) for head, product in enumerate(self.out_of)], axis=1
        )


def _by_head(product: Linear, rows: FloatArray) -> FloatArray:
    return product(tiles.pad_rows(rows))[: len(rows)]
