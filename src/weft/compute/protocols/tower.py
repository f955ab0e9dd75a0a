"""`TowerRunner`: the vision tower of a loaded model; `TowerInputs`: pictures, as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from weft.compute.protocols.runner import FloatArray
from weft.model.towers.spec import Grid


@dataclass(frozen=True, slots=True)
class TowerInputs:
    """Patches of the pictures of one or more items, in the order that `TowerSpec` describes.

    The patches of the first grid come first, then those of the next. An item that is divided into tiles has several
    grids, one after the other.
    """

    patches: FloatArray  # [patches, patch_dim]
    grids: Sequence[Grid]  # in patches


@runtime_checkable
class TowerRunner(Protocol):
    """A runner of a model whose spec has a tower."""

    def encode(self, inputs: TowerInputs) -> FloatArray:
        """Returns the rows of all items, [tokens, row_size]; they belong to the caller.

        The rows of a grid are bitwise independent of the other grids. Raises `ValueError` for inputs that contradict
        each other or the spec.
        """
