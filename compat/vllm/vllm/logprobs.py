"""vLLM's `Logprob`."""

from weft.core.values.types import Logprob

__all__ = ["Logprob"]
