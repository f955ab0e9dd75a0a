"""vLLM's `PoolingParams`."""

from weft.core.values.types import PoolingParams

__all__ = ["PoolingParams"]
