"""Reads the weights of a checkpoint into the card's memory, in the layout of the kernels."""

from dataclasses import dataclass

import torch

from weft.compute.gpu import launches
from weft.compute.gpu.card_tensors import to_card
from weft.compute.gpu.formats import BY_ROW, padded_depth, product_format
from weft.compute.gpu.matrices.products import PARTS, Ending, Matrix, WideMatrix
from weft.compute.gpu.matrices.routed_experts import ExpertMatrix, RoutedExperts
from weft.compute.gpu.matrices.stored_matrix import Numbers, StoredMatrix, numbers_by_row
from weft.compute.native.groups import round_to_groups
from weft.model.groups import GroupFormat, StoredGroups
from weft.model.spec import ExpertsSpec, ModelSpec
from weft.model.switches import Activation
from weft.model.weights import Values, Weights, refuse_values


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
    quantization: str | None = None

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
        """Returns weights and biases as one matrix for products, in the format that it is kept in."""
        whole = tuple(prefix + name for name in names)
        form = self.format_of(whole)
        if form is None:
            return self.wide(prefix, *names, ending=ending)
        parts = [self.numbers(name, form) for name in whole]
        return StoredMatrix.of(Numbers.join(parts), ending, self._biases(prefix, names))

    def expert_matrix(
        self, prefix: str, spec: ExpertsSpec, *names: str, ending: Ending = PARTS
    ) -> ExpertMatrix:
        """Returns the matrices `names` of each expert, joined, of all experts."""
        leads = [f"{prefix}experts.{number}." for number in range(spec.count)]
        form = self.format_of(tuple(lead + name for lead in leads for name in names))
        weights: Numbers | torch.Tensor
        if form is None:
            weights = torch.stack([self.padded(*(lead + n for n in names)) for lead in leads])
            rows, depth = weights.shape[1:]
        else:
            joined = [Numbers.join([self.numbers(lead + n, form) for n in names]) for lead in leads]
            weights = Numbers.stack(joined)
            rows, depth = weights.num_rows, weights.depth
        biases = [self._biases(lead, names) for lead in leads]
        bias = torch.stack([b for b in biases if b is not None]) if spec.has_bias else None
        return ExpertMatrix(num_rows=rows, depth=depth, ending=ending, bias=bias, weights=weights)

    def experts(self, prefix: str, spec: ExpertsSpec) -> RoutedExperts:
        """Returns the experts of a layer."""
        router = ("router", "shared_gate") if spec.weighs_shared else ("router",)
        up = ("gate", "up") if self.spec.is_gated else ("up",)
        return RoutedExperts(
            spec,
            self.wide(prefix, *router, ending=Ending("head")),
            self.vector(f"{prefix}router_correction") if spec.has_correction else None,
            self.expert_matrix(prefix, spec, *up, ending=up_ending(self.spec)),
            self.expert_matrix(prefix, spec, "down"),
            self.vector(f"{prefix}down.bias") if spec.shared_size else None,
        )

    def wide(self, prefix: str, *names: str, ending: Ending) -> WideMatrix:
        """Returns a matrix that always has the model's type."""
        weights = self.padded(*(prefix + name for name in names))
        return WideMatrix.of(weights, ending, self._biases(prefix, names))

    def format_of(self, names: tuple[str, ...]) -> GroupFormat | None:
        """Returns the format in which the card keeps the product of these matrices; None: in `dtype`."""
        stored: dict[str, GroupFormat] = {}
        for name in names:
            if name not in self.weights:  # a tied head
                continue
            values = self.weights.tensors[name]
            if isinstance(values, StoredGroups) and values.group_format is not None:
                stored[name] = values.group_format
        return product_format(names, stored, self.quantization)

    def numbers(self, name: str, form: GroupFormat) -> Numbers:
        """Returns a matrix in this format: its stored numbers, or floats quantized to it."""
        is_tied = name == "head" and self.spec.tied_head
        values = self.weights.tensors["embed" if is_tied else name]
        if isinstance(values, StoredGroups) and values.group_format == form:
            numbers = Numbers.of(values.grouped())
        elif form == BY_ROW:
            numbers = numbers_by_row(values.unpacked())
        else:
            numbers = Numbers.of(round_to_groups(values.unpacked()))
        if values.unchecked is not None and not numbers.is_finite(self.dtype):
            refuse_values(values.unchecked)
        return numbers

    def _biases(self, prefix: str, names: tuple[str, ...]) -> torch.Tensor | None:
        """Returns the joined biases; zeros for a matrix without a bias, if another matrix has one."""
        found = [self.vector(f"{prefix}{name}.bias") for name in names]
        if all(bias is None for bias in found):
            return None
        spec = self.spec
        lengths = {
            "shared_gate": 1,
            "q": spec.num_heads * spec.head_dim,
            "k": spec.kv_size,
            "v": spec.kv_size,
        }
        zeros = [torch.zeros(lengths.get(name, 0), device=launches.device()) for name in names]
        return torch.cat([z if b is None else b for b, z in zip(found, zeros, strict=True)])

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Returns a tensor on the card; the checkpoint must contain it."""
        values: Values = self.weights.tensors[name]
        tensor = values.unpacked()
        on_card = to_card(tensor).to(dtype)
        if values.unchecked is not None and not bool(torch.isfinite(on_card).all()):
            refuse_values(values.unchecked)
        return on_card


def up_ending(spec: ModelSpec) -> Ending:
    """Returns the ending of the product into an MLP's inner layer."""
    kind = "gated" if spec.is_gated else "plain"
    limit, alpha = spec.swiglu_limit or 0.0, spec.swiglu_alpha
    return Ending(kind, Activation(spec.activation).value, limit, alpha)


def head_ending(spec: ModelSpec) -> Ending:
    """Returns the ending of the product into logits."""
    return Ending("head", divisor=spec.logits_divisor, cap=spec.final_soft_cap or 0.0)
