"""The names that programs import from vLLM, on Weft. What is not here says so."""

from importlib.metadata import PackageNotFoundError, distribution

try:
    distribution("vllm")
except PackageNotFoundError:
    pass
else:
    raise ImportError("vLLM itself is installed beside weft-vllm: uninstall one of them")

from vllm.llm import LLM
from vllm.outputs import (
    ClassificationRequestOutput,
    CompletionOutput,
    EmbeddingRequestOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringRequestOutput,
)
from vllm.sampling_params import SamplingParams
from weft import BeamSearchParams
from weft.core.values.types import PoolingParams

# The release whose names these are.
__version__ = "0.32.0"
__all__ = [
    "LLM",
    "BeamSearchParams",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "RequestOutput",
    "SamplingParams",
    "ScoringRequestOutput",
]

_ASYNC = "use weft.AsyncLLM(...), which takes the same options"
_LLM = "use LLM(...), which takes the same options"
_NOT_HERE = {
    "AsyncEngineArgs": _ASYNC,
    "AsyncLLMEngine": _ASYNC,
    "EngineArgs": _LLM,
    "LLMEngine": _LLM,
    "ModelRegistry": "Weft's families of models are in docs/reference/models.md; code of models is not loaded",
    "PromptType": "prompts are texts, lists of token ids, or dicts with prompt or prompt_token_ids",
    "TextPrompt": 'write {"prompt": text}',
    "TokensPrompt": 'write {"prompt_token_ids": ids}',
    "initialize_ray_cluster": "there is one machine",
}


def __getattr__(name: str) -> object:
    if name in _NOT_HERE:
        raise ImportError(f"weft-vllm has no {name}: {_NOT_HERE[name]}")
    raise AttributeError(f"module 'vllm' (weft-vllm) has no attribute {name!r}")
