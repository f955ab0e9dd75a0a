"""Reads the layers that store a state per sequence."""

from typing import assert_never

import numpy as np

from weft.compute.arithmetic.convolution import Channels
from weft.compute.arithmetic.delta import DeltaNet
from weft.compute.arithmetic.mamba import Mamba2
from weft.compute.arithmetic.mamba1 import Mamba1
from weft.compute.protocols.runner import FloatArray
from weft.compute.reference.encoder import Linear
from weft.compute.reference.recurrent import RecurrentLayer
from weft.model.recurrence import DeltaSpec, Mamba1Spec, Mamba2Spec, Recurrence
from weft.model.weights import Weights


def read_recurrent(
    weights: Weights, prefix: str, spec: Recurrence, norm_eps: float
) -> RecurrentLayer:
    """Returns the layer whose tensor names begin with `prefix`.

    The layer's linear layers that are never quantized become one product.
    """

    def floats(name: str) -> FloatArray:
        return weights[prefix + name].float32()

    bias = floats("conv.bias") if spec.has_conv_bias else None
    channels = Channels(floats("conv").reshape(spec.conv_size, -1), bias)
    vectors = {name: floats(name) for name in spec.vectors}
    recurrence: DeltaNet | Mamba1 | Mamba2
    match spec:
        case DeltaSpec():
            recurrence = DeltaNet(spec, channels, np.float32(norm_eps), **vectors)
        case Mamba2Spec():
            recurrence = Mamba2(spec, channels, np.float32(norm_eps), **vectors)
        case Mamba1Spec():
            recurrence = Mamba1(spec, channels, np.float32(norm_eps), **vectors)
        case _:
            assert_never(spec)
    whole = [floats(name) for name in spec.products if name not in spec.rounded]
    unrounded = Linear(np.concatenate(whole), None) if whole else None
    return RecurrentLayer.of(recurrence, spec, unrounded)
