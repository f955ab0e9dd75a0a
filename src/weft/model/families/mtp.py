"""Layers for multi-token prediction: a head that goes on from the model's last hidden states.

It is a decoder of one layer, whose rows are pairs: the embedding of a token, and the hidden state of the position
before it. It gives hidden states, of which the model's own head makes logits of the token behind that one.
"""

from collections.abc import Collection
from dataclasses import replace

from weft.core.errors import ConfigError
from weft.model.families.names import DecoderNames
from weft.model.spec import ModelSpec


def has_mtp(names: DecoderNames, stored: Collection[str], num_layers: int) -> bool:
    """Whether tensors of such a layer are among those that are stored, beside so many others."""
    if names.mtp is None:
        return False
    return f"{_written(names, num_layers)['join_embed_norm']}.weight" in stored


def mtp_spec(spec: ModelSpec) -> ModelSpec:
    """The head of such a model: its layer is as the last one with attention."""
    last = next(layer for layer in reversed(spec.layers) if layer.recurrence is None)
    return replace(spec, layers=(last,), joins_hidden=True, has_head=False, tied_head=False)


def mtp_names(
    names: DecoderNames, stored: Collection[str], num_layers: int, where: str
) -> DecoderNames:
    """How its tensors are named, whole; a `ConfigError` where there is another such layer behind it."""
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
