"""The layers that keep a state of a sequence, with their weights."""

from typing import assert_never

import numpy as np

from weft.compute.delta import DeltaNet
from weft.compute.encoder import Linear
from weft.compute.mamba import Mamba2
from weft.compute.recurrent import RecurrentLayer
from weft.compute.runner import FloatArray
from weft.model.recurrence import DeltaSpec, Mamba2Spec, Recurrence
from weft.model.weights import Weights


def read_recurrent(
    weights: Weights, prefix: str, spec: Recurrence, norm_eps: float
) -> RecurrentLayer:
    """That whose tensors' names begin so."""
    match spec:
        case DeltaSpec():
            return _delta(weights, prefix, spec)
        case Mamba2Spec():
            return RecurrentLayer.of(_mamba(weights, prefix, spec, norm_eps), spec, None)
        case _:
            assert_never(spec)


def _delta(weights: Weights, prefix: str, spec: DeltaSpec) -> RecurrentLayer:
    """A gated delta net; b and a, on which the whole state depends, are never rounded."""
    parts = ("conv", "delta_a_log", "delta_dt_bias", "delta_scale")
    conv, *others = (weights[prefix + name].float32() for name in parts)
    net = DeltaNet(spec, conv.reshape(spec.conv_size, -1), *others)
    names = [name for name in spec.products if name not in spec.rounded]
    unrounded = np.concatenate([weights[prefix + name].float32() for name in names])
    return RecurrentLayer.of(net, spec, Linear(unrounded, None))


def _mamba(weights: Weights, prefix: str, spec: Mamba2Spec, norm_eps: float) -> Mamba2:
    def vector(name: str) -> FloatArray:
        return weights[prefix + name].float32()

    return Mamba2(
        spec,
        conv=vector("conv").reshape(spec.conv_size, -1),
        conv_bias=vector("conv.bias") if spec.has_conv_bias else None,
        step_bias=vector("mamba_step_bias"),
        a_log=vector("mamba_a_log"),
        skip=vector("mamba_skip"),
        norm=vector("mamba_norm"),
        norm_eps=np.float32(norm_eps),
    )
