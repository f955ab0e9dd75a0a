"""Weights of a decoder in the form of the reference runner."""

from dataclasses import dataclass

import numpy as np

from weft.compute.arithmetic.activations import Xielu
from weft.compute.arithmetic.grouped import (
    LayerFormats,
    format_of,
)
from weft.compute.arithmetic.int8 import Int8Rows
from weft.compute.native.groups import round_to_groups
from weft.compute.protocols.runner import FloatArray
from weft.compute.reference.cross import CrossAttention
from weft.compute.reference.encoder import LayerNorm, Linear
from weft.compute.reference.experts import ExpertNorms, Experts
from weft.compute.reference.latent import LatentHeads
from weft.compute.reference.layer_inputs import LayerInput, LayerInputs
from weft.compute.reference.parts import HiddenJoin, Mlp, Norm, RmsNorm, plain_norm
from weft.compute.reference.products import GroupedLinear, Int8Linear, Product
from weft.compute.reference.recurrent import RecurrentLayer
from weft.compute.reference.recurrent_layers import read_recurrent
from weft.model.groups import GroupedMatrix, GroupFormat, StoredGroups
from weft.model.spec import (
    ExpertsSpec,
    LatentSpec,
    LayerSpec,
    ModelSpec,
    QkNorm,
)
from weft.model.switches import Activation
from weft.model.switches import Norm as NormKind
from weft.model.weights import Tensor, Values, Weights


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """The weights of one layer; norms that the spec lacks are None. Names of its tensors begin with `prefix`.

    In a layer with a convolution or a recurrence, `qkv` and `o` are the linear layers before and after it. `model` is
    the model's spec with the heads of this layer. `scale` multiplies the hidden state that leaves the layer.
    """

    spec: LayerSpec
    model: ModelSpec
    prefix: str
    qkv: Product
    o: Product
    mlp: "Mlp | None"  # every row uses it; in a layer with experts it is the shared expert
    experts: Experts | None
    sinks: FloatArray | None
    cross: CrossAttention | None
    latent: LatentHeads | None
    q_b: Product | None
    recurrent: RecurrentLayer | None
    recurrent_in: (
        Product  # before and after the recurrence: `qkv` and `o` unless it is beside attention
    )
    recurrent_out: Product
    conv: FloatArray | None
    conv_bias: FloatArray | None
    q_norm: Norm | None
    k_norm: Norm | None
    attention_norm_before: Norm | None
    attention_norm_after: Norm | None
    attention_norm_sum: Norm | None
    mlp_norm_before: Norm | None
    mlp_norm_after: Norm | None
    mlp_norm_sum: Norm | None
    input: LayerInput | None
    scale: FloatArray | None


_PLACES = ("before", "after", "sum")
_NORMS = tuple(f"{part}_norm_{place}" for part in ("attention", "mlp") for place in _PLACES)


@dataclass(frozen=True, slots=True)
class DecoderReader:
    """Reads weights in the runner's form: aligned float32, with linear layers of the same input joined."""

    spec: ModelSpec
    weights: Weights
    is_int8: bool
    formats: list[LayerFormats]

    def layer(self, index: int, spec: LayerSpec) -> DecoderLayer:
        """Returns all weights of one layer."""
        prefix = f"layers.{index}."
        latent = self.latent(prefix, self.spec.latent) if self.spec.latent else None
        first = "q_a" if f"{prefix}q_a" in self.weights else "q"
        into, out = spec.mixing((first, "kv_a") if latent else ("q", "k", "v"))
        qkv, o = self.linear(prefix, *into), self.linear(prefix, out)
        recurrent_in, recurrent_out = qkv, o
        if spec.recurrence is not None and spec.is_beside:
            recurrent_in = self.linear(prefix, *spec.recurrence.rounded)
            recurrent_out = self.linear(prefix, spec.recurrence.out)
        return DecoderLayer(
            spec=spec,
            model=self.spec.at(spec),
            prefix=prefix,
            cross=self.cross(prefix) if self.spec.num_cross_keys else None,
            latent=latent,
            qkv=qkv,
            o=o,
            recurrent_in=recurrent_in,
            recurrent_out=recurrent_out,
            q_b=self.linear(prefix, "q_b") if first == "q_a" else None,
            mlp=self.mlp(prefix) if self.spec.mlp_size(spec) else None,
            experts=None if spec.experts is None else self.experts(prefix, spec.experts),
            sinks=self.vector(f"{prefix}sinks"),
            recurrent=read_recurrent(self.weights, prefix, spec.recurrence, self.spec.norm_eps)
            if spec.recurrence
            else None,
            conv=self.vector(f"{prefix}conv"),
            conv_bias=self.vector(f"{prefix}conv.bias"),
            input=self.layer_input(f"{prefix}input.") if self.spec.per_layer_size else None,
            scale=self.vector(f"{prefix}scale"),
            q_norm=self.head_norm(f"{prefix}q_norm", spec),
            k_norm=self.head_norm(f"{prefix}k_norm", spec),
            **{name: self.optional_norm(prefix + name) for name in _NORMS},
        )

    def cross(self, prefix: str) -> CrossAttention:
        """Returns the cross-attention of a layer."""
        norm = self.optional_norm(f"{prefix}cross_norm")
        assert norm is not None
        q, o = (self.linear(prefix, name) for name in ("cross_q", "cross_o"))
        return CrossAttention(self.spec, norm, q, o)

    def latent(self, prefix: str, spec: LatentSpec) -> LatentHeads:
        """Returns the per-head part of latent attention, in float32 even if other linear layers are quantized."""
        norm = self.weights[f"{prefix}kv_a_norm"].float32()
        query_norm = self.vector(f"{prefix}q_a_norm")
        return LatentHeads.of(spec, self.matrix(f"{prefix}kv_b"), norm, query_norm)

    def layer_input(self, prefix: str) -> LayerInput:
        """Returns how a layer uses its input; its linear layers are never quantized."""
        norm = self.optional_norm(f"{prefix}norm")
        assert norm is not None
        gate, down = (Linear(self.matrix(prefix + name), None) for name in ("gate", "down"))
        return LayerInput(self.spec.activation, gate, down, norm)

    def layer_inputs(self) -> LayerInputs:
        """Returns the weights from which the inputs of all layers are made."""
        norm = self.optional_norm("inputs.norm")
        assert norm is not None
        join = Linear(self.matrix("inputs.join"), None)
        return LayerInputs(self.spec, self.matrix("inputs.embed"), join, norm)

    def join(self) -> HiddenJoin:
        """Returns the layer that joins pairs of an embedding and a hidden state into rows."""
        embed, hidden = (self.optional_norm(f"join_{part}_norm") for part in ("embed", "hidden"))
        assert embed is not None
        assert hidden is not None
        return HiddenJoin(embed, hidden, Linear(self.matrix("join"), None))

    def mlp(self, prefix: str) -> Mlp:
        """Returns the MLP whose tensor names begin with `prefix`."""
        names = ("gate", "up") if self.spec.is_gated else ("up",)
        up, down = self.linear(prefix, *names), self.linear(prefix, "down")
        return Mlp(self.spec, up, down, self.xielu(prefix))

    def xielu(self, prefix: str) -> Xielu | None:
        """Returns the activation of an MLP if it has learned numbers."""
        if self.spec.activation is not Activation.XIELU:
            return None
        parts = ("positive", "negative", "linear")
        return Xielu.of(*(self.weights[f"{prefix}xielu_{part}"].float32() for part in parts))

    def experts(self, prefix: str, spec: ExpertsSpec) -> Experts:
        """Returns the experts of a layer."""
        names = ("router", "shared_gate") if spec.weighs_shared else ("router",)
        router = np.concatenate([self.matrix(prefix + name) for name in names])
        mlps = (self.mlp(f"{prefix}experts.{number}.") for number in range(spec.count))
        return Experts(
            spec,
            Linear(router, self.vector(f"{prefix}router.bias")),
            self.vector(f"{prefix}router_correction"),
            tuple(mlps),
            self.expert_norms(prefix) if spec.has_norms else None,
        )

    def expert_norms(self, prefix: str) -> ExpertNorms:
        """Returns the norms of experts that are beside the shared expert; the router's scale includes its width."""
        names = ("expert_norm_before", "expert_norm_after", "shared_norm")
        before, after, shared = (self.optional_norm(prefix + name) for name in names)
        assert before is not None
        assert after is not None
        assert shared is not None
        weight = self.weights[f"{prefix}router_norm"].float32()
        weight = weight * np.float32(self.spec.hidden_size**-0.5)
        router = RmsNorm(weight, np.float32(self.spec.norm_eps))
        scales = self.weights[f"{prefix}router_scales"].float32()
        return ExpertNorms(router, before, after, shared, scales)

    def matrix(self, name: str) -> FloatArray:
        """Returns one aligned matrix.

        A file may store it unaligned, and BLAS would then copy the matrix at every use.
        """
        return _aligned(self.weights[name])

    def vector(self, name: str) -> FloatArray | None:
        """Returns a tensor that not every decoder has, or the weights of a convolution; None if it is absent."""
        return self.weights[name].float32() if name in self.weights else None

    def optional_norm(self, name: str) -> Norm | None:
        """Returns a norm; None if the decoder does not have it."""
        if name not in self.weights:
            return None
        weight = self.weights[name].float32() + np.float32(self.spec.norm_offset)
        eps, bias = np.float32(self.spec.norm_eps), f"{name}.bias"
        if self.spec.norm is NormKind.LAYER:
            return LayerNorm(weight, self.vector(bias), eps)
        return RmsNorm(weight, eps)

    def head_norm(self, name: str, layer: LayerSpec) -> Norm | None:
        """Returns a norm of queries or keys; None if the layer has none."""
        spec = self.spec
        if spec.qk_norm is QkNorm.NONE or not layer.has_qk_norm:
            return None
        if not spec.has_qk_weights:
            return plain_norm(spec)
        if spec.qk_norm is QkNorm.HEAD_LAYER and name in self.weights:
            weight = self.weights[name].float32().reshape(-1, spec.head_dim)
            return LayerNorm(weight, None, np.float32(spec.norm_eps))
        return self.optional_norm(name)

    def linear(self, prefix: str, *names: str) -> Product:
        """Returns the linear layers `names` of one input, joined."""
        bias = self.biases(prefix, names)
        form = format_of(prefix + names[0], self.formats)
        if form is not None:
            tensors = self.weights.tensors
            return GroupedLinear(
                tuple(_in_groups(tensors[prefix + name], form) for name in names), bias
            )
        if self.is_int8:
            return Int8Linear(Int8Rows.join([self._int8(prefix + name) for name in names]), bias)
        parts = [self.matrix(prefix + name) for name in names]
        return Linear(parts[0] if len(parts) == 1 else np.concatenate(parts), bias)

    def biases(self, prefix: str, names: tuple[str, ...]) -> FloatArray | None:
        """Returns the biases, joined; zeros for a matrix without a bias if another one has it."""
        if not any(f"{prefix}{name}.bias" in self.weights for name in names):
            return None
        found = (self.vector(f"{prefix}{name}.bias") for name in names)
        shapes = (self.weights.tensors[prefix + name].unpacked().shape for name in names)
        return np.concatenate(
            [
                np.zeros(shape[0], np.float32) if bias is None else bias
                for bias, shape in zip(found, shapes, strict=True)
            ]
        )

    def _int8(self, name: str) -> Int8Rows:
        tensor = self.weights[name]
        if tensor.scales is not None:
            return Int8Rows(tensor.data, tensor.scales)
        return Int8Rows.round(_aligned(tensor))


def _aligned(tensor: Tensor) -> FloatArray:
    return np.require(tensor.float32(), np.float32, ["C", "ALIGNED"])


def _in_groups(values: Values, form: GroupFormat) -> GroupedMatrix:
    """Returns a matrix in the group format: its stored numbers, or floats quantized to this format."""
    if isinstance(values, StoredGroups) and values.group_format == form:
        return values.grouped()
    return round_to_groups(values.unpacked())
