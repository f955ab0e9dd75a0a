"""Scores of text pairs: forming the pairs, and the cosine similarity of two embeddings."""

import math
from collections.abc import Sequence

from weft.core.config.engine import PoolerConfig
from weft.core.errors import BadRequest

Pair = tuple[str, str]


def pair_up(
    first: Sequence[str], second: Sequence[str], names: tuple[str, str] = ("text_1", "text_2")
) -> list[Pair]:
    """Returns the pairs of texts to score: the only text of `first` with each of `second`, or texts with equal indexes.

    Raises `BadRequest` if a list is empty or the lengths do not match.
    """
    for name, texts in zip(names, (first, second), strict=True):
        if not texts:
            raise BadRequest(name, f"{name} must hold at least one text")
    if len(first) not in (1, len(second)):
        raise BadRequest(
            names[0],
            f"{names[0]} must hold one text, or as many as {names[1]} ({len(second)}), "
            f"got {len(first)}",
        )
    repeated = [first[0]] * len(second) if len(first) == 1 else first
    return list(zip(repeated, second, strict=True))


def is_cross_encoder(pooler: PoolerConfig) -> bool:
    """True if the model scores a pair of texts itself; False if the similarity of two embeddings is the score."""
    if "embed" in pooler.tasks:
        return False
    if "classify" not in pooler.tasks:
        raise BadRequest(
            "model", f"this model cannot score texts; it supports {', '.join(pooler.tasks)}"
        )
    if len(pooler.labels) != 1:
        raise BadRequest(
            "model",
            f"scores need a model with exactly 1 label; this model has {len(pooler.labels)} labels",
        )
    return True


def cosine(first: Sequence[float], second: Sequence[float]) -> float:
    """Returns the cosine of the angle between two vectors; 0 if one of the vectors has length 0."""
    lengths = math.sqrt(_dot(first, first) * _dot(second, second))
    return _dot(first, second) / lengths if lengths else 0.0


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(first, second, strict=True))
