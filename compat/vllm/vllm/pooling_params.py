"""vLLM's `PoolingParams`."""

from weft.core.types import PoolingParams

__all__ = ["PoolingParams"]
