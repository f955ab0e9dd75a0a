"""Nemotron-H's blocks in a config: each is Mamba-2, attention, an MLP or experts; two of them make a layer."""

from collections.abc import Iterator

from weft.model.families.recurrent.mamba import block_mamba
from weft.model.fields import Fields
from weft.model.spec import LayerSpec

_MAMBA, _ATTENTION, _MLP, _EXPERTS = "linear_attention", "full_attention", "mlp", "moe"
_LETTERS = {"M": _MAMBA, "*": _ATTENTION, "-": _MLP, "E": _EXPERTS}
_OLD_NAMES = {"mamba": _MAMBA, "attention": _ATTENTION}
_PATTERN, _LISTED = "hybrid_override_pattern", "layers_block_type"
_MAX_BLOCKS = 8192
BLOCK_KEYS = frozenset({_PATTERN, _LISTED, "moe_latent_size"})


def block_layers(fields: Fields) -> tuple[LayerSpec, ...]:
    """Returns the layers: attention without rope, or Mamba-2, and what follows it if this is an MLP or experts."""
    if fields.has("moe_latent_size"):
        fields.refuse(
            "moe_latent_size", "left out: experts that read a projection are not implemented"
        )
    mamba = block_mamba(fields)
    return tuple(
        LayerSpec(recurrence=mamba if kind == _MAMBA else None, has_mlp=second is not None)
        for kind, second in _pairs(fields)
    )


def expert_blocks(fields: Fields) -> frozenset[int]:
    """Returns the numbers of layers that have experts."""
    return frozenset(i for i, (_, second) in enumerate(_pairs(fields)) if second == _EXPERTS)


def _pairs(fields: Fields) -> Iterator[tuple[str, str | None]]:
    """Yields each layer's attention or Mamba-2, with the MLP or experts that follow it, or None."""
    key, kinds = _kinds(fields)
    for index, kind in enumerate(kinds):
        is_mixing = kind in (_MAMBA, _ATTENTION)
        before = kinds[index - 1] if index else _MLP
        if not is_mixing and before not in (_MAMBA, _ATTENTION):
            fields.refuse(key, "blocks in which an MLP or experts follow attention or Mamba-2")
        if is_mixing:
            after = kinds[index + 1] if index + 1 < len(kinds) else None
            yield kind, after if after in (_MLP, _EXPERTS) else None


def _kinds(fields: Fields) -> tuple[str, list[str]]:
    """Returns the kinds of all blocks, with the key that has them."""
    key = _LISTED if fields.has(_LISTED) else _PATTERN
    if key == _LISTED:
        kinds = [_OLD_NAMES.get(kind, kind) for kind in fields.texts(key)]
        allowed = f"a list of names, each {', '.join(_LETTERS.values())}"
    else:
        kinds = [_LETTERS.get(letter, "") for letter in fields.text(key)]
        allowed = f"a text of the letters {' '.join(_LETTERS)}"
    if not set(kinds) <= set(_LETTERS.values()) or not 1 <= len(kinds) <= _MAX_BLOCKS:
        fields.refuse(key, allowed)
    if _ATTENTION not in kinds:
        fields.refuse(key, "blocks with attention among them")
    return key, kinds
