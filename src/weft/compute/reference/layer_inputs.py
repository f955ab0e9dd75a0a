"""Inputs of single layers, from embeddings of tokens that the layers have besides the model's; see `ModelSpec`."""

from dataclasses import dataclass

import numpy as np

from weft.compute.arithmetic.activations import activate
from weft.compute.protocols.runner import FloatArray, IntArray
from weft.compute.reference.encoder import Linear
from weft.compute.reference.parts import Norm
from weft.model.spec import ModelSpec
from weft.model.switches import Activation


@dataclass(frozen=True, slots=True)
class LayerInput:
    """Weights of one layer: its input, times the activation of a gate, goes through a linear layer and a norm."""

    activation: Activation
    gate: Linear
    down: Linear
    norm: Norm

    def __call__(self, hidden: FloatArray, given: FloatArray) -> FloatArray:
        """Returns the sum of the hidden state and the result, [rows, hidden]; `given` is [rows, size]."""
        inner = activate(self.activation, self.gate(hidden)) * given
        total: FloatArray = hidden + self.norm(self.down(inner))
        return total


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """Weights of all layers' inputs: a table of embeddings, and a linear layer on the model's embeddings."""

    spec: ModelSpec
    embed: FloatArray  # [tokens, layers * size]
    join: Linear
    norm: Norm

    def __call__(self, token_ids: IntArray, hidden: FloatArray) -> FloatArray:
        """Returns the inputs, [rows, layers, size], from the rows that enter the model; rows may be padded."""
        shape = (len(hidden), len(self.spec.layers), self.spec.per_layer_size)
        projected = self.join(hidden) * np.float32(self.spec.hidden_size**-0.5)
        inputs = self.norm(projected.reshape(shape))
        own = self.embed[token_ids].reshape(-1, *shape[1:])
        inputs[: len(own)] += own * np.float32(self.spec.per_layer_size**0.5)
        inputs *= np.float32(2**-0.5)
        return inputs
