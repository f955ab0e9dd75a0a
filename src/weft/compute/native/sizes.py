"""Memory that a decoder takes in the native runner: matrices and heads are padded to whole lanes."""

from dataclasses import dataclass

from weft.model.spec import DecoderSpec
from weft.model.weights import BYTES_PER_ELEMENT

_LANES = 16  # elements of depth, of a head
_PANEL = 32  # output rows of a matrix


@dataclass(frozen=True, slots=True)
class ResidentBytes:
    """`kv_per_token` is for all layers, keys and values."""

    weights: int
    kv_per_token: int
    kv_dtype: str


def resident_bytes(spec: DecoderSpec, dtype: str) -> ResidentBytes:
    """Sizes for a checkpoint that is served as `dtype`; float16 is widened."""
    kv_dtype = "bfloat16" if dtype == "bfloat16" else "float32"
    width = BYTES_PER_ELEMENT[kv_dtype]
    hidden = _padded(spec.hidden_size, _PANEL)
    inner = _padded(spec.intermediate_size, _LANES)
    head = _padded(spec.head_dim, _LANES)
    query, kv = spec.num_heads * head, spec.num_kv_heads * head
    layer = hidden * (_padded(query + 2 * kv, _PANEL) + query) + 3 * hidden * inner
    is_shared = spec.tied_head and spec.has_head
    embedding = 0 if is_shared else spec.vocab_size * spec.hidden_size
    outputs = spec.vocab_size if spec.has_head else spec.hidden_size
    total = len(spec.layers) * layer + hidden * _padded(outputs, _PANEL) + embedding
    return ResidentBytes(total * width, len(spec.layers) * 2 * kv * width, kv_dtype)


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
