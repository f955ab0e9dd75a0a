"""Finds the tensor of a plan in a GGUF file, and checks its shape and type."""

import math
from collections.abc import Mapping
from dataclasses import replace

from weft.core.errors import ConfigError
from weft.model.files.tensor_plan import TensorPlan
from weft.model.gguf.header import GgufTensor


def find_tensor(plan: TensorPlan, tensors: Mapping[str, GgufTensor], where: str) -> GgufTensor:
    """Returns the plan's source in its stored shape, as rows and columns; raises `ConfigError` unless it fits.

    `where` begins the message about a missing tensor.
    """
    found = tensors.get(plan.source)
    if found is None:
        raise ConfigError(f"{where}: tensor {plan.source} is missing, but the metadata requires it")
    shape = (plan.rows,) if _is_grouped_scale(plan, found.shape) else found.shape
    if _without_ones(shape) != _without_ones(plan.stored_shape):
        raise ConfigError(
            f"{found.path}: tensor {plan.source} has shape {list(shape)}; the metadata requires "
            f"{list(plan.stored_shape)}"
        )
    is_row = len(plan.shape) == 1 and plan.flattened is None
    if (len(shape) == 1 or is_row) and found.type.dtype is None:
        raise ConfigError(
            f"{found.path}: tensor {plan.source} is {found.type.name}; a row must be of floats"
        )
    if plan.flattened is not None:
        return replace(found, shape=plan.flattened)
    is_turned = plan.is_transposed and plan.stack is None
    return replace(found, shape=plan.source_shape[::-1] if is_turned else plan.source_shape)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape without dimensions of size 1, some of which converters leave out."""
    return tuple(size for size in shape if size != 1)


def _is_grouped_scale(plan: TensorPlan, shape: tuple[int, ...]) -> bool:
    """True for the scales of Mamba-2's outputs, which files have as a row for each group."""
    return plan.name.endswith(".output_scale") and math.prod(shape) == plan.rows
