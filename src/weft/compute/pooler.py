"""`Pooler`: computes an embedding or scores from a sequence's hidden states.

Hidden states arrive chunk by chunk, as the steps compute them; the result does not depend on the chunks.
"""

from dataclasses import dataclass, replace
from typing import Self, assert_never

import numpy as np

from weft.compute.arithmetic import tiles
from weft.compute.arithmetic.activations import activate
from weft.compute.protocols.runner import FloatArray
from weft.compute.reference.encoder import Linear, WeightReader
from weft.core.config.engine import PoolerConfig
from weft.core.values.types import PoolingKind, PoolingParams
from weft.model.files.checkpoint import Checkpoint
from weft.model.pooling import HeadSpec, PoolingSpec, Scale
from weft.model.weights import Weights


@dataclass(frozen=True, slots=True)
class Collected:
    """The hidden states of one sequence so far: all of them, or as many as its pooling needs."""

    kind: PoolingKind
    num_rows: int = 0
    parts: tuple[FloatArray, ...] = ()

    def plus(self, rows: FloatArray) -> Self:
        """Returns the collected states plus the next rows, [rows, hidden], at least one."""
        match self.kind:
            case PoolingKind.CLS:
                parts = self.parts or (rows[:1].copy(),)
            case PoolingKind.LAST:
                parts = (rows[-1:].copy(),)
            case PoolingKind.MEAN:
                # A reduction over the outer axis adds row after row, so chunks do not change the result.
                whole = np.concatenate([*self.parts, rows])
                parts = (np.add.reduce(whole, axis=0, keepdims=True),)
            case PoolingKind.EACH:
                parts = (*self.parts, rows)
            case _:
                assert_never(self.kind)
        return replace(self, num_rows=self.num_rows + len(rows), parts=parts)

    def result(self) -> FloatArray:
        """Returns the states to pool: [1, hidden], or [rows, hidden] for tasks with a result for every token."""
        whole = self.parts[0] if len(self.parts) == 1 else np.concatenate(self.parts)
        return whole / np.float32(self.num_rows) if self.kind is PoolingKind.MEAN else whole


class Pooler:
    """The computation that follows the hidden states, for every pooling task of one model."""

    def __init__(self, spec: PoolingSpec, weights: Weights, *, normalize: bool) -> None:
        self._normalize = normalize
        self._head = None if spec.head is None else _Head(spec.head, weights)

    def finish(self, rows: FloatArray, params: PoolingParams) -> FloatArray:
        """Returns the pooling result of the collected rows: one row, or one row for each token."""
        with np.errstate(all="ignore"):  # an overflow becomes NaN, which the engine reports
            if self._head is not None:
                return self._head(rows, is_scaled=params.use_activation is not False)
            if params.dimensions is not None:
                rows = rows[:, : params.dimensions]
            is_normal = self._normalize if params.normalize is None else params.normalize
            return normalized(rows) if is_normal else rows


def normalized(rows: FloatArray) -> FloatArray:
    """Returns the rows scaled to length 1; a row of zeros is unchanged."""
    lengths: FloatArray = np.sqrt(np.sum(rows * rows, axis=-1, keepdims=True))
    floor: FloatArray = np.maximum(lengths, np.float32(1e-12))
    return rows / floor


def load_pooler(checkpoint: Checkpoint, config: PoolerConfig | None) -> Pooler | None:
    """Returns the pooler of a model that was opened for pooling; None for other models."""
    pooling = checkpoint.card.pooling
    if pooling is None or config is None:
        return None
    weights = Weights({}) if pooling.head is None else checkpoint.load("head.")
    return Pooler(pooling, weights, normalize=config.normalize)


class _Head:
    """The layers of a classifier, which follow pooling."""

    def __init__(self, spec: HeadSpec, weights: Weights) -> None:
        reader = WeightReader(weights, spec.norm_eps)
        self._spec = spec
        self._dense: Linear | None = reader.linear("head.dense") if spec.has_dense else None
        self._norm = reader.norm("head.norm") if spec.has_norm else None
        self._labels = reader.linear("head.labels")

    def __call__(self, rows: FloatArray, *, is_scaled: bool) -> FloatArray:
        """Returns the scores, [rows, labels]; with `is_scaled`, after the activation function."""
        count, hidden = len(rows), tiles.pad_rows(rows)
        if self._dense is not None:
            hidden = activate(self._spec.activation, self._dense(hidden))
        if self._norm is not None:
            hidden = self._norm(hidden)
        scores = self._labels(hidden)[:count]
        return _scaled(self._spec.scale, scores) if is_scaled else scores


def _scaled(scale: Scale, scores: FloatArray) -> FloatArray:
    match scale:
        case Scale.SOFTMAX:
            weights: FloatArray = np.exp(scores - scores.max(axis=-1, keepdims=True))
            total: FloatArray = weights.sum(axis=-1, keepdims=True)
            return weights / total
        case Scale.SIGMOID:
            falling: FloatArray = np.exp(-scores)
            between: FloatArray = np.float32(1) / (1 + falling)
            return between
        case Scale.NONE:
            return scores
        case _:
            assert_never(scale)
