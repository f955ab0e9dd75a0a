"""Layers of experts in the reference: which rows go to which, and the sum of what they give.

The rows of an expert are taken together, and put into products of the same shape however many there are
(`tiles`): a row's bits do not depend on which others chose the same.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weft.compute import tiles
from weft.compute.runner import FloatArray, IntArray
from weft.model.spec import ExpertsSpec

Mlp = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, slots=True)
class Experts:
    """The router is [experts, hidden], with one row more where there is a shared expert."""

    spec: ExpertsSpec
    router: FloatArray
    mlps: tuple[Mlp, ...]

    def __call__(self, rows: FloatArray, shared: FloatArray | None) -> FloatArray:
        """[whole tiles of rows, hidden]; `shared` is what the shared expert gave."""
        logits = tiles.matmul(rows, self.router)
        chosen, weights = choose(self.spec, logits[:, : self.spec.count])
        result = np.zeros_like(rows)
        for number, mlp in enumerate(self.mlps):  # a row's are added in the order of their numbers
            taken, place = np.nonzero(chosen == number)
            if len(taken):
                given = mlp(tiles.pad_rows(rows[taken]))[: len(taken)]
                result[taken] += given * weights[taken, place, None]
        if shared is None:
            return result
        raised: FloatArray = np.exp(-logits[:, self.spec.count :])
        total: FloatArray = result + shared / (1 + raised)
        return total


def choose(spec: ExpertsSpec, logits: FloatArray) -> tuple[IntArray, FloatArray]:
    """The experts of each row, [rows, per_token], by number, and their weights."""
    # Stable: of equal logits the lower number comes first. Numbers that are none come last.
    best = np.argsort(-logits, axis=1, kind="stable")[:, : spec.per_token]
    chosen = np.sort(best, axis=1)
    raised: FloatArray = np.exp(logits - np.take_along_axis(logits, best[:, :1], axis=1))
    own = np.take_along_axis(raised, chosen, axis=1)
    total = (own if spec.is_normalized else raised).sum(axis=1, keepdims=True)
    weights: FloatArray = np.divide(own, total, dtype=np.float32)
    return chosen.astype(np.int32), weights
