"""`NativeEncoder`: an encoder in C++. One call a step, without Python's lock, from token ids to states."""

import numpy as np

from weft.compute.native import _core
from weft.compute.native.runner import Machine, available_cpus, native_rope, usable_paths
from weft.compute.runner import Batch, FloatArray
from weft.model.encoders.spec import EncoderSpec
from weft.model.weights import Weights, refuse_values


class NativeEncoder:
    """Computes in bfloat16 with float32 sums where `dtype` is bfloat16, otherwise in float32.

    A batch holds whole prompts; it gives the hidden states of the wanted rows. A tensor that is still
    unchecked is looked at while it is packed; a `ConfigError` names one that holds NaN or infinity.
    """

    def __init__(
        self, spec: EncoderSpec, weights: Weights, *, dtype: str, machine: Machine
    ) -> None:
        self.vocab_size = spec.vocab_size
        self._hidden_size = spec.hidden_size
        self.path = usable_paths()[0] if machine.path is None else machine.path
        self._encoder = _core.Encoder(
            _encoder_spec(spec, dtype),
            self.path,
            available_cpus() if machine.num_threads is None else machine.num_threads,
        )
        for name, values in weights.tensors.items():
            if name.startswith("head."):
                continue  # a classifier's, which comes after
            tensor = values.unpacked()
            data = np.ascontiguousarray(tensor.data)
            is_mapped = tensor.is_mapped and data is tensor.data  # and no copy of it
            is_finite = self._encoder.load(name, tensor.dtype, data, is_mapped)
            if tensor.unchecked is not None and not is_finite:
                refuse_values(tensor.unchecked)

    @property
    def num_threads(self) -> int:
        """Threads that share a step, the calling one included."""
        return self._encoder.num_threads

    def allocate_kv(self, *, num_blocks: int, block_size: int) -> None:
        """Nothing: every step computes its prompts whole."""

    def forward(self, batch: Batch) -> FloatArray:
        """Hidden states after the last layer, [wanted, hidden].

        A batch that fits no model is a `ValueError`, and so is one with adapters or with a part of a prompt.
        """
        if batch.adapter_ids is not None:
            raise ValueError("adapter_ids must be None: there are no adapters here")
        states = np.empty((len(batch.logit_rows), self._hidden_size), np.float32)
        self._encoder.forward(
            batch.token_ids,
            batch.positions,
            batch.token_types,
            batch.query_starts,
            batch.logit_rows,
            states,
        )
        return states


def _encoder_spec(spec: EncoderSpec, dtype: str) -> _core.EncoderSpec:
    native = _core.EncoderSpec()
    for field in (
        "vocab_size hidden_size intermediate_size num_heads num_positions position_offset num_token_types "
        "norm_eps norm_before is_gated"
    ).split():
        setattr(native, field, getattr(spec, field))
    native.element = "bfloat16" if dtype == "bfloat16" else "float32"
    native.set_activation(spec.activation.value)
    ropes = list(dict.fromkeys(layer.rope for layer in spec.layers if layer.rope is not None))
    native.ropes = [native_rope(rope, spec.max_position_embeddings) for rope in ropes]
    layers = []
    for layer in spec.layers:
        native_layer = _core.EncoderLayer()
        native_layer.reach = layer.reach
        native_layer.rope = None if layer.rope is None else ropes.index(layer.rope)
        native_layer.has_attention_norm = layer.has_attention_norm
        layers.append(native_layer)
    native.layers = layers
    return native
