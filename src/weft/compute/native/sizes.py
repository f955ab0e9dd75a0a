"""Memory that a model takes in the native runner: matrices and heads are padded to whole lanes."""

from dataclasses import dataclass
from typing import Literal

from weft.model.card import AdapterBytes
from weft.model.encoders.spec import EncoderSpec
from weft.model.spec import DecoderSpec
from weft.model.weights import BYTES_PER_ELEMENT

_LANES = 16  # elements of depth, of a head
_PANEL = 32  # output rows of a matrix
_SCALE_BYTES = 4  # of an output row as int8, and of a token's keys or values of a head


@dataclass(frozen=True, slots=True)
class ResidentBytes:
    """`kv_per_token` is for all layers, keys and values."""

    weights: int
    kv_per_token: int
    kv_dtype: str
    adapter: AdapterBytes


def resident_bytes(
    spec: DecoderSpec,
    dtype: str,
    quantization: Literal["int8"] | None = None,
    kv_cache_dtype: Literal["auto", "int8"] = "auto",
) -> ResidentBytes:
    """Sizes for a checkpoint that is served as `dtype`; float16 is widened.

    As int8, only the embedding keeps that type: it is looked up and not multiplied with.
    """
    element = "bfloat16" if dtype == "bfloat16" else "float32"
    width = BYTES_PER_ELEMENT[element]
    hidden = _padded(spec.hidden_size, _PANEL)
    inner = _padded(spec.intermediate_size, _LANES)
    head = _padded(spec.head_dim, _LANES)
    query, kv = spec.num_heads * head, spec.num_kv_heads * head
    qkv = _padded(query + 2 * kv, _PANEL)
    layers = len(spec.layers) * (hidden * (qkv + query) + 3 * hidden * inner)
    outputs = _padded(spec.vocab_size if spec.has_head else spec.hidden_size, _PANEL)
    embedding = spec.vocab_size * spec.hidden_size * width
    if quantization is None:
        is_shared = spec.tied_head and spec.has_head
        total = (layers + hidden * outputs) * width + (0 if is_shared else embedding)
    else:
        scales = len(spec.layers) * (qkv + 2 * hidden + 2 * inner)
        head = hidden * outputs * width  # hands on hidden states, and rounds nothing
        if spec.has_head:
            scales += outputs
            head = hidden * outputs
        total = layers + head + scales * _SCALE_BYTES + embedding
    kv_bytes = kv * width
    if kv_cache_dtype == "int8":
        kv_bytes, element = kv + spec.num_kv_heads * _SCALE_BYTES, "int8"
    adapter = _adapter_bytes(spec, width)
    return ResidentBytes(total, len(spec.layers) * 2 * kv_bytes, element, adapter)


def _adapter_bytes(spec: DecoderSpec, width: int) -> AdapterBytes:
    """As cpp/model/adapters.cpp packs them: each `a` and each `b` as wide as its packed matrix."""
    hidden = _padded(spec.hidden_size, _PANEL)
    inner = _padded(spec.intermediate_size, _LANES)
    head = _padded(spec.head_dim, _LANES)
    query = spec.num_heads * head
    qkv = _padded(query + 2 * spec.num_kv_heads * head, _PANEL)
    layers = len(spec.layers)
    alone = layers * (query + 2 * hidden + inner)  # o and down
    alone += hidden + _padded(spec.vocab_size, _PANEL)  # the head
    alone += spec.vocab_size + hidden  # the embedding
    pairs, threes = layers * (hidden + 2 * inner), layers * (hidden + qkv)
    return AdapterBytes((alone * width, pairs * width, threes * width), _PANEL)


def encoder_bytes(spec: EncoderSpec, dtype: str) -> int:
    """What the weights of an encoder take that is served as `dtype`; it keeps no KV."""
    hidden = _padded(spec.hidden_size, _PANEL)
    inner = _padded(spec.intermediate_size, _PANEL)
    query = spec.num_heads * _padded(spec.head_dim, _LANES)
    layer = (
        hidden * (_padded(3 * query, _PANEL) + query) + (3 if spec.is_gated else 2) * hidden * inner
    )
    looked_up = (spec.vocab_size + spec.num_positions + spec.num_token_types) * spec.hidden_size
    width = BYTES_PER_ELEMENT["bfloat16" if dtype == "bfloat16" else "float32"]
    return (len(spec.layers) * layer + looked_up) * width


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
