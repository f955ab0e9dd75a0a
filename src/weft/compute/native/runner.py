"""Models in C++, and the memory that they take. A step is one call of the core, without the GIL."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from weft.compute.arithmetic.grouped import format_of, layer_formats, stored_groups
from weft.compute.host_blocks import HostBlocks
from weft.compute.native import _core
from weft.compute.native.core_spec import NO_FORMATS, NO_ROUNDING, Rounding, native_spec
from weft.compute.native.groups import load_groups
from weft.compute.native.loading import load_tensor
from weft.compute.native.tower import PREFIX, NativeTower, tower_bytes
from weft.compute.protocols.backend import PackedFile
from weft.compute.protocols.runner import AdapterStore, Batch, FloatArray, IntArray, Memory
from weft.compute.protocols.tower import TowerInputs, as_embeddings
from weft.model.card import AdapterBytes
from weft.model.groups import GroupFormat, StoredGroups
from weft.model.lora import Adapter
from weft.model.spec import ModelSpec
from weft.model.weights import Tensor, Weights

MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Machine:
    """Instruction path of the core, one of `usable_paths()` (None: the best one), and number of threads.

    `num_threads` None means one thread per CPU that the process may use. `file` is the file for packed weights, if any.
    """

    path: str | None = None
    num_threads: int | None = None
    file: PackedFile | None = None


class NativeModel:
    """A loaded model in C++: the common base of `NativeRunner` and `NativeEncoder`.

    The model computes in bfloat16 with float32 sums if `dtype` is bfloat16, otherwise in float32. Unchecked tensors are
    checked while they are packed; a `ConfigError` names a tensor with NaN or infinity.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        *,
        native: _core.ModelSpec,
        machine: Machine,
        grouped: Mapping[str, StoredGroups] = MappingProxyType({}),
    ) -> None:
        self.vocab_size = spec.vocab_size
        self.path = usable_paths()[0] if machine.path is None else machine.path
        threads = available_cpus() if machine.num_threads is None else machine.num_threads
        self._num_outputs = spec.vocab_size if spec.has_head else spec.hidden_size
        file = machine.file
        if file is None:
            self._model = _core.Model(native, self.path, threads)
        else:
            self._model = _core.Model(
                native, self.path, threads, file.descriptor, file.is_published, file.is_copied
            )
        if file is None or not file.is_published:
            self._load(spec, weights, grouped)
        if file is not None and not file.is_published and not self._model.publish():
            raise MemoryError("the packed weights could not be written")

    def _load(self, spec: ModelSpec, weights: Weights, grouped: Mapping[str, StoredGroups]) -> None:
        for name, packed in grouped.items():
            load_groups(self._model, name, packed)
        for name, tensor in _prepared(spec, weights, grouped):
            load_tensor(self._model, name, tensor)

    def packed_parts(self) -> list[memoryview]:
        return [self._model.packed_bytes.data, memoryview(self._model.vector_bytes())]

    @property
    def num_threads(self) -> int:
        """Number of threads that share a step, including the calling thread."""
        return self._model.num_threads

    def set_num_threads(self, num_threads: int) -> None:
        self._model.set_num_threads(num_threads)
        _core.use_sampling_threads(num_threads)

    def expert_loads(self) -> list[list[int]]:
        return [tokens for tokens, _ in self._model.expert_loads()]

    def expert_balance(self) -> tuple[float, float]:
        return self._model.expert_balance()

    def seconds(self) -> dict[str, float]:
        """Returns the seconds spent since the start, by part of a step."""
        return self._model.seconds()

    def forward(self, batch: Batch, hidden: FloatArray | None = None) -> FloatArray:
        """Returns logits of the wanted rows, [wanted, vocab]; hidden states for a model without a head.

        `hidden`, if given, is filled with the hidden states of all rows. Raises `ValueError` for an inconsistent batch
        or an unknown adapter.
        """
        outputs = np.empty((len(batch.logit_rows), self._num_outputs), np.float32)
        self._model.forward(batch, outputs, hidden)
        return outputs


class NativeRunner(NativeModel, HostBlocks):
    """Runner of a decoder. `max_model_len` matters only for rope with different frequencies for long contexts."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        *,
        dtype: str,
        rounding: Rounding = NO_ROUNDING,
        max_model_len: int,
        machine: Machine = Machine(),
    ) -> None:
        self.spec = spec
        self._num_blocks = self._num_state_slots = 0
        self._rounding, self._dtype = rounding, dtype
        stored = stored_groups(weights)
        groups = {name: form for name, (_, form) in stored.items()}
        native = native_spec(spec, dtype, max_model_len, rounding, groups)
        layers = layer_formats(spec, groups, rounding.quantization)
        grouped = {
            n: packed for n, (packed, form) in stored.items() if format_of(n, layers) == form
        }
        super().__init__(spec, weights, native=native, machine=machine, grouped=grouped)
        _core.use_sampling_threads(self.num_threads)
        self._memory_bytes = native.cross_bytes
        self._tile_bytes = native.tile_bytes
        self._tower = None
        if spec.tower is not None:
            self._tower = NativeTower(
                spec.tower, weights, dtype=dtype, path=self.path, num_threads=self.num_threads
            )

    def set_num_threads(self, num_threads: int) -> None:
        super().set_num_threads(num_threads)
        if self._tower is not None:
            self._tower.set_num_threads(num_threads)

    def encode(self, inputs: TowerInputs) -> FloatArray:
        assert self._tower is not None, "the spec has a tower"
        return as_embeddings(self._tower.encode(inputs), self.spec)

    def remember(self, columns: FloatArray) -> Memory:
        assert self._tower is not None, "the spec has a tower"
        rows = self._tower.encode(TowerInputs(columns, [(1, len(columns), 1)]))
        memory = np.empty(self._memory_bytes, np.uint8)
        self._model.pack_memory(rows, memory)
        return memory

    def empty_memory(self) -> Memory:
        return np.zeros(self._memory_bytes, np.uint8)

    @property
    def adapters(self) -> AdapterStore:
        return self

    def allocate_kv(self, *, num_blocks: int, block_size: int, num_state_slots: int = 0) -> None:
        """Reserves the pool's address space; the system allocates memory when blocks are first written.

        Blocks of a multiple of 16 tokens are read in place; other blocks are gathered in each step.
        """
        self._model.allocate_kv(num_blocks, block_size, num_state_slots)
        self._num_blocks, self._num_state_slots = num_blocks, num_state_slots

    def add_adapter(self, adapter_id: int, adapter: Adapter) -> None:
        """Adds an adapter; raises `ValueError` if it does not fit the model."""
        low_rank = {name: (delta.a, delta.b) for name, delta in adapter.low_rank.items()}
        self._model.add_adapter(adapter_id, low_rank, dict(adapter.whole))

    def remove_adapter(self, adapter_id: int) -> None:
        self._model.remove_adapter(adapter_id)

    def forward_hidden(self, batch: Batch) -> tuple[FloatArray, FloatArray]:
        hidden = np.empty((len(batch.token_ids), self.spec.hidden_size), np.float32)
        return self.forward(batch, hidden), hidden

    def embed(self, token_ids: IntArray) -> FloatArray:
        rows = np.empty((len(token_ids), self.spec.hidden_size), np.float32)
        self._model.embed(token_ids, rows)
        return rows

    def logits(self, hidden: FloatArray) -> FloatArray:
        rows = np.empty((len(hidden), self._num_outputs), np.float32)
        self._model.logits(np.ascontiguousarray(hidden), rows)
        return rows

    @property
    def kv_layout(self) -> str:
        """Name of the pool's layout: the core's tiles and the instruction path, because bits differ between paths."""
        return f"native-1 {self.path} {self._dtype} {self._rounding}"

    def _pool_parts(self) -> list[NDArray[np.uint8]]:
        num_blocks = self._num_blocks
        # Layers in a row with heads of one size have one view.
        runs = [(size, len(list(run))) for size, run in groupby(self._tile_bytes)]
        counts = [self.spec.kv_parts * count for _, count in runs]
        widths = np.array([size * count for size, count in runs])
        pool = self._model.kv_bytes
        ends = np.cumsum(widths) * (len(pool) // widths.sum())
        views = zip(np.split(pool, ends[:-1]), counts, strict=True)
        parts = [view.reshape(count, num_blocks, -1) for view, count in views]
        if self.spec.state_size:
            num_others = sum(layer.conv_width > 0 for layer in self.spec.layers)
            parts.append(self._model.state_bytes.reshape(num_others, num_blocks, -1))
        return parts

    def _slot_parts(self) -> list[FloatArray]:
        num_slots = self._num_state_slots
        if not num_slots:
            return []
        sizes = [layer.recurrence.state_size for layer in self.spec.layers if layer.recurrence]
        ends = np.cumsum(sizes) * num_slots
        layers = np.split(self._model.slot_bytes.view(np.float32), ends)[:-1]
        return [layer.reshape(1, num_slots, -1) for layer in layers]

    def fill_kv(self, byte: int) -> None:
        """Sets every byte of the pool and of the states, so that tests can show that a step reads no stale data."""
        self._model.kv_bytes[:] = byte
        self._model.state_bytes[:] = byte
        self._model.slot_bytes[:] = byte


class NativeEncoder(NativeModel):
    """Runner of an encoder. A batch has whole prompts; the results are the wanted rows' hidden states."""

    adapters = None

    def __init__(self, spec: ModelSpec, weights: Weights, *, dtype: str, machine: Machine) -> None:
        native = native_spec(spec, dtype, spec.max_position_embeddings)
        super().__init__(spec, weights, native=native, machine=machine)

    def allocate_kv(self, *, num_blocks: int, block_size: int, num_state_slots: int = 0) -> None:
        """Does nothing: an encoder stores no KV, because every step computes whole prompts."""

    def forward(self, batch: Batch, hidden: FloatArray | None = None) -> FloatArray:
        """Returns hidden states after the last layer, [wanted, hidden].

        Raises `ValueError` for an inconsistent batch, and for one with adapters or with a part of a prompt.
        """
        if batch.adapter_ids is not None:
            raise ValueError("adapter_ids must be None: there are no adapters here")
        return super().forward(batch, hidden)


@dataclass(frozen=True, slots=True)
class ResidentBytes:
    """Memory of a model: `kv_per_token` for keys and values of all layers, `state_per_block` for other states."""

    weights: int
    kv_per_token: int
    state_per_block: int
    kv_dtype: str
    adapter: AdapterBytes


def resident_bytes(
    spec: ModelSpec,
    dtype: str,
    quantization: str | None = None,
    kv_cache_dtype: str = "auto",
    groups: Mapping[str, GroupFormat] = NO_FORMATS,
) -> ResidentBytes:
    """Returns the sizes of a checkpoint served as `dtype` (float16 as float32). `groups` are `Checkpoint`'s."""
    rounding = Rounding(quantization, kv_cache_dtype)
    native = native_spec(spec, dtype, spec.max_position_embeddings, rounding, groups)
    weights, kv_per_token, state_per_block, per_rank, padded_to = native.sizes()
    weights += 0 if spec.tower is None else tower_bytes(spec.tower, dtype)
    kv_dtype = "int8" if kv_cache_dtype == "int8" else native.element
    adapter = AdapterBytes(per_rank, padded_to)
    return ResidentBytes(weights, kv_per_token, state_per_block, kv_dtype, adapter)


def usable_paths() -> list[str]:
    """Returns the core's instruction paths that this CPU can run, best first; the last one is "portable"."""
    return _core.usable_paths()


_NORM_WEIGHTS = ("norm", "norm_before", "norm_after", "norm_sum")


def trim_heap() -> None:
    """Returns unused heap memory of the C library to the system: tens of MB after a start."""
    _core.trim_heap()


def available_cpus() -> int:
    """Returns the number of CPUs that this process may use."""
    return min(_core.available_cpus(), MAX_THREADS)


def _prepared(
    spec: ModelSpec, weights: Weights, grouped: Collection[str]
) -> Iterator[tuple[str, Tensor]]:
    """Yields every tensor that is not group-quantized, in the core's form.

    Norms are float32, with the family's offset added. A decoder without a head gets the identity matrix as its head, so
    that the hidden states come out unchanged.
    """
    if spec.is_causal and not spec.has_head:
        yield "head", Tensor("float32", np.eye(spec.hidden_size, dtype=np.float32))
    for name, values in weights.tensors.items():
        if name.startswith(PREFIX):
            continue
        if (name.startswith("head.") and not spec.head_bias) or name in grouped:
            continue  # tensors of a classifier, which the pooler applies
        tensor = values.unpacked()
        if name == "join":  # one matrix for each half of a pair
            for part, half in zip(
                ("embed", "hidden"), np.split(tensor.float32(), 2, 1), strict=True
            ):
                whole = np.ascontiguousarray(half)
                yield f"join_{part}", Tensor("float32", whole, unchecked=tensor.unchecked)
        elif spec.norm_offset and name.endswith(_NORM_WEIGHTS):
            norm = tensor.float32() + np.float32(spec.norm_offset)
            yield name, Tensor("float32", norm, unchecked=tensor.unchecked)
        elif name.endswith(".router_norm"):
            scaled = tensor.float32() * np.float32(spec.hidden_size**-0.5)
            yield name, Tensor("float32", scaled, unchecked=tensor.unchecked)
        elif name.endswith(".conv"):  # ordered by row that the convolution looks at, not by channel
            turned = np.ascontiguousarray(tensor.float32().T).reshape(-1)
            yield name, Tensor("float32", turned, unchecked=tensor.unchecked)
        else:
            data = np.ascontiguousarray(tensor.data)
            is_mapped = tensor.is_mapped and data is tensor.data  # not a copy
            yield name, replace(tensor, data=data, is_mapped=is_mapped)
