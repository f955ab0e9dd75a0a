"""Floats rounded to groups of four bits by the core, for whoever computes with them outside of it."""

import numpy as np

from weft.compute.native import _core
from weft.model.groups import ROUNDED, GroupedMatrix
from weft.model.weights import Tensor


def round_to_groups(tensor: Tensor) -> GroupedMatrix:
    """A matrix of floats in the form of `ROUNDED`, as the core rounds what it packs."""
    rows, depth = tensor.shape
    numbers = np.empty((rows, depth), np.uint8)
    scales, minimums = np.empty((2, rows, ROUNDED.count(depth)), np.uint16)
    values = np.require(tensor.float32(), np.float32, ["C", "ALIGNED"])
    _core.round_to_groups(values, numbers, scales, minimums)
    return GroupedMatrix(ROUNDED, numbers, scales, minimums, tensor.unchecked)
