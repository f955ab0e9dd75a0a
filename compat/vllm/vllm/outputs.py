"""vLLM's outputs. Those of `generate` are Weft's with vLLM's log-probabilities; those of `encode` are wrapped."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, Self, TypeVar

import msgspec

from vllm.logprobs import Logprob
from weft.core.values.types import CompletionOutput
from weft.core.values.types import PoolingRequestOutput as _Own
from weft.core.values.types import RequestOutput as _OwnRequestOutput

__all__ = [
    "Classification", "ClassificationRequestOutput", "CompletionOutput", "Embedding",
    "EmbeddingRequestOutput", "Pooling", "PoolingRequestOutput", "RequestOutput", "Scoring",
    "ScoringRequestOutput", "tensor",
]  # fmt: skip

T = TypeVar("T")


class RequestOutput(_OwnRequestOutput, frozen=False, kw_only=True):
    """The output of a request that generates. `metrics` is always None: Weft has them in its histograms."""

    metrics: None = None

    @classmethod
    def of(cls, own: _OwnRequestOutput) -> Self:
        """Returns Weft's output in this form."""
        fields = {name: getattr(own, name) for name in own.__struct_fields__}
        fields["prompt_logprobs"] = _positions(own.prompt_logprobs)
        fields["outputs"] = [
            one
            if one.logprobs is None
            else msgspec.structs.replace(one, logprobs=_positions(one.logprobs))
            for one in own.outputs
        ]
        return cls(**fields)


def _positions(rows: Sequence[Mapping[int, Any] | None] | None) -> list[Any] | None:
    if rows is None:
        return None
    return [
        None
        if row is None
        else {i: Logprob(one.logprob, one.rank, one.decoded_token) for i, one in row.items()}
        for row in rows
    ]


def tensor(data: Sequence[float], shape: tuple[int, ...]) -> Any:
    """Returns the numbers as a tensor of torch, or as a list if torch is not installed."""
    if find_spec("torch") is None:
        return list(data)
    return import_module("torch").tensor(data).reshape(shape or (-1,))


@dataclass(frozen=True)
class Pooling:
    """The numbers of a prompt, before they have a meaning."""

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
