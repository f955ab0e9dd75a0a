"""Heads for multi-token prediction, which continue from the model's last hidden states.

Such a head is a decoder with one layer. Its input rows are pairs: the embedding of a token, and the hidden state of the
previous position. The head's output rows are hidden states, from which the model's own head computes logits of the
token after the embedded one.
"""

from collections.abc import Collection
from dataclasses import replace

from weft.core.errors import ConfigError
from weft.model.families.names import DecoderNames
from weft.model.spec import ModelSpec


def has_mtp(names: DecoderNames, stored: Collection[str], num_layers: int) -> bool:
    """True if the stored tensors include a multi-token prediction head, after `num_layers` ordinary layers."""
    if names.mtp is None:
        return False
    return f"{_written(names, num_layers)['join_embed_norm']}.weight" in stored


def mtp_spec(spec: ModelSpec) -> ModelSpec:
    """Returns the spec of a multi-token prediction head: its layer is like the model's last layer with attention."""
    last = next(layer for layer in reversed(spec.layers) if layer.recurrence is None)
    return replace(
        spec, layers=(last,), joins_hidden=True, has_head=False, tied_head=False, tower=None
    )


def mtp_names(
    names: DecoderNames, stored: Collection[str], num_layers: int, where: str
) -> DecoderNames:
    """Returns the full names of the head's tensors; raises `ConfigError` if there is a second such layer."""
    following = _written(names, num_layers, number=1)["layer"]
    if any(name.startswith(following) for name in stored):
        raise ConfigError(
            f"{where}: has several layers for multi-token prediction; one is implemented"
        )
    return replace(names, names={**names.names, **_written(names, num_layers)}, mtp=None)


def _written(names: DecoderNames, num_layers: int, number: int = 0) -> dict[str, str]:
    assert names.mtp is not None
    first = num_layers if names.mtp.counts_on else 0
    return {ours: theirs.format(first + number) for ours, theirs in names.mtp.names.items()}
