"""Copies tensors of a checkpoint to the card, in their stored type."""

from collections.abc import Mapping

import numpy as np
import torch

from weft.compute.gpu import launches
from weft.model.weights import Tensor

TYPES: Mapping[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
_BIT_TYPES = {"bfloat16": np.int16}  # numpy lacks these types, so their bits are copied as integers


def to_card(tensor: Tensor) -> torch.Tensor:
    """Returns a tensor on the card; int8 weights with their scales become float32."""
    if tensor.dtype not in TYPES:
        return bits_to_card(tensor.float32())
    return bits_to_card(tensor.data, tensor.dtype)


def bits_to_card(
    data: np.ndarray[tuple[int, ...], np.dtype[np.generic]], dtype: str = ""
) -> torch.Tensor:
    """Returns an array on the card; `dtype` names the type if numpy lacks it."""
    bits = np.ascontiguousarray(data)
    if dtype not in _BIT_TYPES:
        return torch.from_numpy(bits).to(launches.device())
    on_card = torch.from_numpy(bits.view(_BIT_TYPES[dtype])).to(launches.device())
    return on_card.view(TYPES[dtype])
