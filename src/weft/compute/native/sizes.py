"""Memory that a model takes in the native runner, as the core tells it."""

from dataclasses import dataclass

from weft.compute.native.runner import Rounding, native_spec
from weft.model.card import AdapterBytes
from weft.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class ResidentBytes:
    """`kv_per_token` is for all layers, keys and values."""

    weights: int
    kv_per_token: int
    kv_dtype: str
    adapter: AdapterBytes


def resident_bytes(
    spec: ModelSpec,
    dtype: str,
    quantization: str | None = None,
    kv_cache_dtype: str = "auto",
) -> ResidentBytes:
    """Sizes for a checkpoint that is served as `dtype`; float16 is widened."""
    rounding = Rounding(quantization, kv_cache_dtype)
    native = native_spec(spec, dtype, spec.max_position_embeddings, rounding)
    weights, kv_per_token, per_rank, padded_to = native.sizes()
    kv_dtype = "int8" if kv_cache_dtype == "int8" else native.element
    return ResidentBytes(weights, kv_per_token, kv_dtype, AdapterBytes(per_rank, padded_to))
