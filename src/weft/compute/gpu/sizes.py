"""Memory that a model needs on a card, computed without allocating it."""

from collections.abc import Mapping
from types import MappingProxyType

from weft.compute.gpu.formats import saved_bytes
from weft.model.card import ModelCard
from weft.model.groups import GroupFormat
from weft.model.spec import ExpertsSpec, ModelSpec

_ELEMENT = 2
# Memory besides weights and pool: the driver's context, graphs, and intermediate results of a step.
_BESIDE_BYTES = 1 << 30
_STEP_ROWS = 2048
_FLOAT = 4


def resident_bytes(
    spec: ModelSpec,
    card: ModelCard,
    groups: Mapping[str, GroupFormat] = MappingProxyType({}),
    quantization: str | None = None,
) -> int:
    """Returns the bytes of weights and other memory, without the KV pool; `groups` are `Checkpoint`'s."""
    widest = max(
        (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim,
        spec.hidden_size,
    )
    of_row = _FLOAT * (spec.hidden_size + widest)
    of_row += _ELEMENT * (2 * spec.hidden_size + 2 * spec.output_size + spec.intermediate_size)
    # Logits of the largest step of single rows, allocated twice.
    logits = _FLOAT * spec.vocab_size * 512
    of_row += max(_routing_bytes(spec, layer.experts) for layer in spec.layers)
    weights = _ELEMENT * card.num_parameters
    if quantization is not None:
        weights -= saved_bytes(spec, groups, quantization, _ELEMENT)
    return weights + _STEP_ROWS * of_row + 2 * logits + _BESIDE_BYTES


def _routing_bytes(spec: ModelSpec, experts: ExpertsSpec | None) -> int:
    """Returns the bytes per row of a layer's experts: inner values and results of each pair."""
    if experts is None:
        return 0
    return experts.per_token * (_ELEMENT * experts.inner_size + _FLOAT * spec.hidden_size)


def kv_bytes_per_token(spec: ModelSpec) -> int:
    """Returns the bytes per token of the keys and values of all layers."""
    return 2 * spec.kv_size * spec.num_attention_layers * _ELEMENT
