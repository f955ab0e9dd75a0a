"""Passes tensors of checkpoints to the native core."""

from weft.compute.native import _core
from weft.model.weights import Tensor, refuse_values


def load_tensor(model: _core.Model, name: str, tensor: Tensor) -> None:
    """Packs a tensor in the core; raises a `ConfigError` for an unchecked tensor with NaN or infinity."""
    is_finite = model.load(name, tensor.dtype, tensor.data, tensor.scales, tensor.is_mapped)
    if tensor.scales is not None:  # the scales are finite, but their products may not be
        is_finite = is_finite and tensor.is_finite()
    if tensor.unchecked is not None and not is_finite:
        refuse_values(tensor.unchecked)
