"""Passes group-quantized weights to the native core, and lets the core quantize floats for other runners."""

import numpy as np

from weft.compute.native import _core
from weft.model.groups import ROUNDED, GroupedMatrix, StoredGroups
from weft.model.weights import Tensor, refuse_values


def round_to_groups(tensor: Tensor) -> GroupedMatrix:
    """Returns a matrix of floats in the format `ROUNDED`; the core quantizes it as it does when packing."""
    rows, depth = tensor.shape
    numbers = np.empty((rows, depth), np.uint8)
    scales, minimums = np.empty((2, rows, ROUNDED.count(depth)), np.uint16)
    values = np.require(tensor.float32(), np.float32, ["C", "ALIGNED"])
    _core.round_to_groups(values, numbers, scales, minimums)
    return GroupedMatrix(ROUNDED, numbers, scales, minimums, tensor.unchecked)


def load_groups(model: _core.Model, name: str, packed: StoredGroups) -> None:
    """Packs a group-quantized matrix in the core; raises `ConfigError` if a scale or offset is not finite."""
    if (halved := packed.halved()) is not None:
        is_finite = model.load_halves(
            name, halved.blocks, halved.run, halved.scales, halved.offsets
        )
        unchecked = halved.unchecked
    else:
        matrix = packed.grouped()
        is_finite = model.load_groups(name, matrix.numbers, matrix.scales, matrix.offsets)
        unchecked = matrix.unchecked
    if not is_finite:
        refuse_values(unchecked or name)
