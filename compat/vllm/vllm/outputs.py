"""vLLM's outputs. What is generated is as Weft has it; what is pooled is wrapped."""

from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from weft.core.values.types import CompletionOutput, RequestOutput
from weft.core.values.types import PoolingRequestOutput as _Own

__all__ = [
    "Classification", "ClassificationRequestOutput", "CompletionOutput", "Embedding",
    "EmbeddingRequestOutput", "Pooling", "PoolingRequestOutput", "RequestOutput", "Scoring",
    "ScoringRequestOutput",
]  # fmt: skip

T = TypeVar("T")


@dataclass(frozen=True)
class Pooling:
    """What a model made of a prompt."""

    data: Any


@dataclass(frozen=True)
class Embedding:
    """A vector."""

    embedding: list[float]


@dataclass(frozen=True)
class Classification:
    """Probabilities of classes."""

    probs: list[float]


@dataclass(frozen=True)
class Scoring:
    """How well two texts go together."""

    score: float


@dataclass(frozen=True)
class PoolingRequestOutput(Generic[T]):
    """The output of a request that pools; `outputs` is one."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: T
    finished: bool = True

    @classmethod
    def of(cls, own: _Own, outputs: T) -> Self:
        """Weft's, in this form."""
        return cls(own.request_id, list(own.prompt_token_ids), outputs)


class EmbeddingRequestOutput(PoolingRequestOutput[Embedding]):
    """Of `LLM.embed`."""


class ClassificationRequestOutput(PoolingRequestOutput[Classification]):
    """Of `LLM.classify`."""


class ScoringRequestOutput(PoolingRequestOutput[Scoring]):
    """Of `LLM.score`."""
