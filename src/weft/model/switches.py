"""Enumerations that the specs of decoders, encoders and towers share."""

from enum import StrEnum


class Norm(StrEnum):
    """Kind of norm."""

    RMS = "rms"  # mean square 1
    LAYER = "layer"  # mean 0 and variance 1; may have a bias


class Activation(StrEnum):
    """Activation of the MLP's gate, of an MLP without a gate, or of a classifier's first linear layer."""

    SILU = "silu"
    GELU = "gelu"  # exact, by the error function
    GELU_TANH = "gelu_tanh"
    RELU = "relu"
    RELU_SQUARED = "relu_squared"
    TANH = "tanh"
    XIELU = "xielu"  # with learned numbers for each layer; not of experts or classifiers
