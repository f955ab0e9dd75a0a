"""`NativeRunner`: a decoder in C++. One call a step, without Python's lock, from token ids to logits."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from weft.compute.native import _core
from weft.compute.rope import inverse_frequencies
from weft.compute.runner import Batch, FloatArray
from weft.model.lora import Adapter
from weft.model.spec import DecoderSpec, RopeSpec
from weft.model.weights import Tensor, Weights, refuse_values

MAX_THREADS = 1024
_VECTORS = frozenset(
    "norm q_norm k_norm attention_norm_before attention_norm_after mlp_norm_before mlp_norm_after".split()
)


@dataclass(frozen=True, slots=True)
class Machine:
    """What to compute on: one of `usable_paths()` (None: the best), and how many threads.

    `num_threads` None takes the CPUs that this process may use.
    """

    path: str | None = None
    num_threads: int | None = None


@dataclass(frozen=True, slots=True)
class Rounding:
    """What is rounded to int8: linear layers, the head too but not the embedding; keys and values."""

    quantization: Literal["int8"] | None = None
    kv_cache_dtype: Literal["auto", "int8"] = "auto"


class NativeRunner:
    """Computes in bfloat16 with float32 sums where `dtype` is bfloat16, otherwise in float32.

    A tensor that is still unchecked is looked at while it is packed; a `ConfigError` names one that holds
    NaN or infinity. `max_model_len` matters to two-range rope only.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: Weights,
        *,
        dtype: str,
        rounding: Rounding = Rounding(),
        max_model_len: int,
        machine: Machine = Machine(),
    ) -> None:
        self.vocab_size = spec.vocab_size
        self.spec = spec
        self._num_outputs = spec.vocab_size if spec.has_head else spec.hidden_size
        self.path = usable_paths()[0] if machine.path is None else machine.path
        native = _model_spec(spec, dtype, max_model_len, rounding)
        self._model = _core.Model(
            native,
            self.path,
            available_cpus() if machine.num_threads is None else machine.num_threads,
        )
        for name, tensor in _prepared(spec, weights):
            is_finite = self._model.load(
                name, tensor.dtype, tensor.data, tensor.scales, tensor.is_mapped
            )
            if tensor.unchecked is not None and not is_finite:
                refuse_values(tensor.unchecked)

    @property
    def num_threads(self) -> int:
        """Threads that share a step, the calling one included."""
        return self._model.num_threads

    def allocate_kv(self, *, num_blocks: int, block_size: int) -> None:
        """Make the pool; its memory is taken as blocks are first written.

        Blocks of a multiple of 16 are read where they lie; others are gathered in each step.
        """
        self._model.allocate_kv(num_blocks, block_size)

    def add_adapter(self, adapter_id: int, adapter: Adapter) -> None:
        """See `AdapterRunner`. An adapter that does not fit the model is a `ValueError`."""
        low_rank = {name: (delta.a, delta.b) for name, delta in adapter.low_rank.items()}
        self._model.add_adapter(adapter_id, low_rank, dict(adapter.whole))

    def remove_adapter(self, adapter_id: int) -> None:
        """See `AdapterRunner`."""
        self._model.remove_adapter(adapter_id)

    def forward(self, batch: Batch) -> FloatArray:
        """Logits of the wanted rows, [wanted, vocab]; without a head, their hidden states.

        A batch that fits no model is a `ValueError`, and so is one that names an unknown adapter.
        """
        logits = np.empty((len(batch.logit_rows), self._num_outputs), np.float32)
        self._model.forward(
            batch.token_ids,
            batch.positions,
            batch.slots,
            batch.query_starts,
            batch.block_tables,
            batch.logit_rows,
            batch.adapter_ids,
            logits,
        )
        return logits

    def fill_kv(self, byte: int) -> None:
        """Set every byte of the pool: tests see by it that nothing stale is read."""
        self._model.fill_kv(byte)

    def seconds(self) -> dict[str, float]:
        """Time spent since the start, by part of a step."""
        return self._model.seconds()


def usable_paths() -> list[str]:
    """Instruction paths that this CPU can run, best first; the last is "portable"."""
    return _core.usable_paths()


def trim_heap() -> None:
    """Give back what the C library's heap holds and nothing uses: after a start, tens of MB."""
    _core.trim_heap()


def available_cpus() -> int:
    """CPUs that this process may use."""
    return min(_core.available_cpus(), MAX_THREADS)


def _prepared(spec: DecoderSpec, weights: Weights) -> Iterator[tuple[str, Tensor]]:
    """Every tensor as the core takes it: norms in float32, with the offset of the family added.

    Hidden states come out through a head that changes nothing.
    """
    if not spec.has_head:
        yield "head", Tensor("float32", np.eye(spec.hidden_size, dtype=np.float32))
    for name, values in weights.tensors.items():
        if name.startswith("head."):
            continue  # a classifier's, which comes after
        tensor = values.unpacked()
        if name.rpartition(".")[2] in _VECTORS:
            norm = tensor.float32() + np.float32(spec.norm_offset)
            yield name, Tensor("float32", norm, unchecked=tensor.unchecked)
        else:
            data = np.ascontiguousarray(tensor.data)
            is_mapped = tensor.is_mapped and data is tensor.data  # and no copy of it
            yield name, replace(tensor, data=data, is_mapped=is_mapped)


def _model_spec(
    spec: DecoderSpec, dtype: str, max_model_len: int, rounding: Rounding
) -> _core.ModelSpec:
    native = _core.ModelSpec()
    for field in (
        "vocab_size hidden_size intermediate_size num_heads num_kv_heads head_dim norm_eps "
        "attention_scale embedding_multiplier residual_multiplier"
    ).split():
        setattr(native, field, getattr(spec, field))
    if spec.has_head:
        native.tied_head = spec.tied_head
        native.logits_divisor = spec.logits_divisor
        native.final_soft_cap = spec.final_soft_cap or 0.0
    else:
        native.num_outputs = spec.hidden_size
    native.element = "bfloat16" if dtype == "bfloat16" else "float32"
    native.attention_soft_cap = spec.attention_soft_cap or 0.0
    native.set_qk_norm(spec.qk_norm.value)
    native.set_quantization(rounding.quantization or "none")
    native.has_int8_cache = rounding.kv_cache_dtype == "int8"
    native.set_activation(spec.activation.value)
    ropes = list(dict.fromkeys(layer.rope for layer in spec.layers if layer.rope is not None))
    native.ropes = [native_rope(rope, max_model_len) for rope in ropes]
    layers = []
    for layer in spec.layers:
        native_layer = _core.LayerSpec()
        native_layer.window = layer.window
        native_layer.rope = None if layer.rope is None else ropes.index(layer.rope)
        layers.append(native_layer)
    native.layers = layers
    return native


def native_rope(rope: RopeSpec, max_model_len: int) -> _core.Rope:
    """Its frequencies, worked out."""
    native = _core.Rope()
    native.frequencies = inverse_frequencies(rope, max_model_len).tolist()
    native.attention_factor = rope.attention_factor
    return native
