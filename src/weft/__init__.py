"""Weft: an LLM inference engine and its serving stack."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.core.beam_search import BeamSearchParams as BeamSearchParams
    from weft.core.values.types import RequestOutput as RequestOutput
    from weft.core.values.types import SamplingParams as SamplingParams
    from weft.engine.llm.async_llm import AsyncLLM as AsyncLLM
    from weft.engine.llm.offline import LLM as LLM

__version__ = "0.2.0"
__all__ = ["LLM", "AsyncLLM", "BeamSearchParams", "RequestOutput", "SamplingParams"]

# Loaded on first use: `import weft` costs nothing, and no server pays for what it does not use.
_MODULES = {
    "AsyncLLM": "weft.engine.llm.async_llm",
    "BeamSearchParams": "weft.core.beam_search",
    "LLM": "weft.engine.llm.offline",
    "RequestOutput": "weft.core.values.types",
    "SamplingParams": "weft.core.values.types",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
