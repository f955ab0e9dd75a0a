"""Layers of experts in the reference backend: the choice of each row's experts, and the sum of their results.

The rows of an expert are computed together, in products of the same shape however many rows there are (`tiles`): so a
row's bits do not depend on other rows of the same expert.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.compute.arithmetic import tiles
from weft.compute.protocols.runner import FloatArray, IntArray
from weft.compute.reference.encoder import Linear
from weft.compute.reference.parts import Norm
from weft.model.spec import ExpertsSpec

Mlp = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, slots=True)
class ExpertNorms:
    """Norms of router, experts and shared expert that `has_norms` of the spec describes, and scales by expert."""

    router: Norm
    before: Norm
    after: Norm
    shared: Norm
    scales: FloatArray


@dataclass(frozen=True, slots=True)
class Experts:
    """Experts of a layer. The router is [experts, hidden]; it has one more row if the shared expert has a weight."""

    spec: ExpertsSpec
    router: Linear
    correction: FloatArray | None
    mlps: tuple[Mlp, ...]
    norms: ExpertNorms | None = None

    def beside(self, hidden: FloatArray, shared: FloatArray) -> FloatArray:
        """Returns the result of experts that read the hidden state by norms of their own."""
        norms = self.norms
        assert norms is not None
        chosen, weights = choose(self.spec, self.router(norms.router(hidden)))
        weights = weights * norms.scales[chosen]
        result = norms.after(self._sum(norms.before(hidden), chosen, weights))
        return norms.shared(shared) + result

    def __call__(self, rows: FloatArray, shared: FloatArray | None) -> FloatArray:
        """Returns the layer's result, [whole tiles of rows, hidden]; `shared` is the result of the shared expert."""
        logits = self.router(rows)
        chosen, weights = choose(self.spec, logits[:, : self.spec.count], self.correction)
        result = self._sum(rows, chosen, weights)
        if shared is None or not self.spec.weighs_shared:
            return result if shared is None else result + shared
        raised: FloatArray = np.exp(-logits[:, self.spec.count :])
        total: FloatArray = result + shared / (1 + raised)
        return total

    def _sum(self, rows: FloatArray, chosen: IntArray, weights: FloatArray) -> FloatArray:
        """Returns the sums of the results of each row's experts."""
        result = np.zeros_like(rows)
        for number, mlp in enumerate(self.mlps):  # results are added in order of expert number
            taken, place = np.nonzero(chosen == number)
            if len(taken):
                own, by = rows[taken], weights[taken, place, None]
                if self.spec.weighs_inputs:
                    result[taken] += mlp(tiles.pad_rows(own * by))[: len(taken)]
                else:
                    result[taken] += mlp(tiles.pad_rows(own))[: len(taken)] * by
        return result


def choose(
    spec: ExpertsSpec, logits: FloatArray, correction: FloatArray | None = None
) -> tuple[IntArray, FloatArray]:
    """Returns the experts of each row, [rows, per_token], in order of their numbers, and their weights."""
    if spec.is_sigmoid or correction is not None:
        scores = _scores(spec, logits)
        return _choose_by_scores(
            spec, scores, logits if correction is None else scores + correction
        )
    best = _best(_of_best_groups(spec, logits, 1), spec.per_token)
    chosen = np.sort(best, axis=1)
    raised: FloatArray = np.exp(logits - np.take_along_axis(logits, best[:, :1], axis=1))
    own = np.take_along_axis(raised, chosen, axis=1)
    total = (own if spec.is_normalized else raised).sum(axis=1, keepdims=True)
    weights: FloatArray = np.divide(own, total, dtype=np.float32) * np.float32(spec.scale)
    return chosen.astype(np.int32), weights


def _scores(spec: ExpertsSpec, logits: FloatArray) -> FloatArray:
    """Returns sigmoids, or the softmax over all experts."""
    if spec.is_sigmoid:
        falling: FloatArray = np.exp(-logits)
        return np.reciprocal(1 + falling, dtype=np.float32)
    raised: FloatArray = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: FloatArray = np.divide(raised, raised.sum(axis=1, keepdims=True), dtype=np.float32)
    return shares


def _choose_by_scores(
    spec: ExpertsSpec, scores: FloatArray, keys: FloatArray
) -> tuple[IntArray, FloatArray]:
    keys = _of_best_groups(spec, keys, 2 if spec.is_sigmoid else 1)
    chosen = np.sort(_best(keys, spec.per_token), axis=1)
    own: FloatArray = np.take_along_axis(scores, chosen, axis=1)
    if spec.is_normalized:
        total, epsilon = own.sum(axis=1, keepdims=True), np.float32(spec.epsilon)
        own = own / (total + epsilon if spec.is_sigmoid else np.maximum(total, epsilon))
    return chosen.astype(np.int32), own * np.float32(spec.scale)


def _of_best_groups(spec: ExpertsSpec, keys: FloatArray, num_best: int) -> FloatArray:
    """Returns the keys of experts in the best groups, -inf for all others.

    A group is ranked by the sum of its `num_best` highest keys.
    """
    if spec.groups_per_token == spec.num_groups:
        return keys
    groups = keys.reshape(len(keys), spec.num_groups, -1)
    sums = np.sort(groups, axis=2)[:, :, -num_best:].sum(axis=2)
    is_left = np.zeros(sums.shape, np.bool_)
    np.put_along_axis(is_left, _best(sums, spec.groups_per_token), True, axis=1)
    left: FloatArray = np.where(is_left[:, :, None], groups, np.float32(-np.inf))
    return left.reshape(keys.shape)


def _best(keys: FloatArray, count: int) -> NDArray[np.intp]:
    """Returns the indexes of each row's `count` highest keys; of equal keys the first one. NaN counts as lowest."""
    return np.argsort(-keys, axis=1, kind="stable")[:, :count]
