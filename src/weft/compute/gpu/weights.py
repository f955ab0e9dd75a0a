"""Reads the weights of a checkpoint into the card's memory, in the layout of the kernels."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from weft.compute.gpu import launches
from weft.compute.gpu.products import DEPTH, PARTS, Ending, Matrix
from weft.model.spec import ModelSpec
from weft.model.switches import Activation
from weft.model.weights import Tensor, Values, Weights, refuse_values

TYPES: Mapping[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
_BIT_TYPES = {"bfloat16": np.int16}  # numpy lacks these types, so their bits are copied as integers


@dataclass(frozen=True, slots=True)
class NormWeights:
    """A norm's weights, with the model's offset already added."""

    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True)
class Reader:
    """Reads matrices in `dtype`, all other tensors in float32.

    Raises a `ConfigError` that names a tensor without numbers.
    """

    spec: ModelSpec
    weights: Weights
    dtype: torch.dtype

    def table(self, name: str) -> torch.Tensor:
        """Returns a matrix [rows, depth] in float32."""
        return self.read(name, torch.float32)

    def vector(self, name: str) -> torch.Tensor | None:
        """Returns a vector; None if the model does not have it."""
        return self.read(name, torch.float32) if name in self.weights else None

    def norm(self, name: str) -> NormWeights | None:
        """Returns a norm; None if the model does not have it."""
        weight = self.vector(name)
        if weight is None:
            return None
        bias = self.vector(f"{name}.bias") if self.spec.norm_bias else None
        return NormWeights(weight + self.spec.norm_offset, bias)

    def padded(self, *names: str) -> torch.Tensor:
        """Returns the matrices of one input, joined by rows, with zero columns up to a multiple of the tile depth."""
        parts = [self.read(name, self.dtype) for name in names]
        depth = parts[0].shape[1]
        whole = torch.zeros(
            sum(map(len, parts)), padded_depth(depth), dtype=self.dtype, device=launches.device()
        )
        first = 0
        for part in parts:
            whole[first : first + len(part), :depth] = part
            first += len(part)
        return whole

    def matrix(self, prefix: str, *names: str, ending: Ending = PARTS) -> Matrix:
        """Returns weights and biases as one matrix for products."""
        bias = self._biases(prefix, names)
        return Matrix.of(self.padded(*(prefix + name for name in names)), ending, bias)

    def _biases(self, prefix: str, names: tuple[str, ...]) -> torch.Tensor | None:
        """Returns the joined biases; zeros for a matrix without a bias, if another matrix has one."""
        found = [self.vector(f"{prefix}{name}.bias") for name in names]
        if all(bias is None for bias in found):
            return None
        spec = self.spec
        lengths = {"q": spec.num_heads * spec.head_dim, "k": spec.kv_size, "v": spec.kv_size}
        zeros = [torch.zeros(lengths.get(name, 0), device=launches.device()) for name in names]
        return torch.cat([z if b is None else b for b, z in zip(found, zeros, strict=True)])

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Returns a tensor on the card; the checkpoint must contain it."""
        values: Values = self.weights.tensors[name]
        tensor = values.unpacked()
        on_card = _to_card(tensor).to(dtype)
        if values.unchecked is not None and not bool(torch.isfinite(on_card).all()):
            refuse_values(values.unchecked)
        return on_card


def padded_depth(depth: int) -> int:
    """Returns the depth of a matrix after padding."""
    return -(-depth // DEPTH) * DEPTH


def up_ending(spec: ModelSpec) -> Ending:
    """Returns the ending of the product into an MLP's inner layer."""
    kind = "gated" if spec.is_gated else "plain"
    limit, alpha = spec.swiglu_limit or 0.0, spec.swiglu_alpha
    return Ending(kind, Activation(spec.activation).value, limit, alpha)


def head_ending(spec: ModelSpec) -> Ending:
    """Returns the ending of the product into logits."""
    return Ending("head", divisor=spec.logits_divisor, cap=spec.final_soft_cap or 0.0)


def _to_card(tensor: Tensor) -> torch.Tensor:
    if tensor.dtype not in TYPES:
        return torch.from_numpy(np.ascontiguousarray(tensor.float32())).to(launches.device())
    bits = np.ascontiguousarray(tensor.data)
    if tensor.dtype in _BIT_TYPES:
        bits = bits.view(_BIT_TYPES[tensor.dtype])
    return torch.from_numpy(bits).to(launches.device()).view(TYPES[tensor.dtype])
