"""The names that programs import from vLLM, on Weft. What is not here says so."""

from importlib.metadata import PackageNotFoundError, distribution

try:
    distribution("vllm")
except PackageNotFoundError:
    pass
else:
    raise ImportError("vLLM itself is installed beside weft-vllm: uninstall one of them")

from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.engine.async_llm_engine import AsyncLLMEngine
from vllm.inputs import PromptType, TextPrompt, TokensPrompt
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
    "AsyncEngineArgs",
    "AsyncLLMEngine",
    "BeamSearchParams",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RequestOutput",
    "SamplingParams",
    "ScoringRequestOutput",
    "TextPrompt",
    "TokensPrompt",
]

_NOT_HERE = {
    "LLMEngine": "use LLM(...), or AsyncLLMEngine to add requests while others run",
    "ModelRegistry": "Weft's families of models are in docs/reference/models.md; code of models is not loaded",
    "initialize_ray_cluster": "there is one machine",
}


def __getattr__(name: str) -> object:
    if name in _NOT_HERE:
        raise ImportError(f"weft-vllm has no {name}: {_NOT_HERE[name]}")
    raise AttributeError(f"module 'vllm' (weft-vllm) has no attribute {name!r}")
