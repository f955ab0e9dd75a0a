"""vLLM's `Logprob`."""

from weft.core.types import Logprob

__all__ = ["Logprob"]
