"""`GpuRunner`: a decoder on the card, with its pool of keys and values and the CUDA graphs of its steps."""

from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from weft.compute.gpu import launches
from weft.compute.gpu.card import find_card, is_interpreted
from weft.compute.gpu.decoder import Decoder, GivenRows, Pool
from weft.compute.gpu.kernels import rows as row_kernels
from weft.compute.gpu.launches import power_of_two
from weft.compute.gpu.matrices.routed_experts import RoutingSpace
from weft.compute.gpu.memory import refusing_memory, release_memory
from weft.compute.gpu.steps.inputs import Inputs
from weft.compute.gpu.steps.step import Layout, StepArrays, StepShape
from weft.compute.gpu.steps.step_shapes import exact_shape, padded_shape
from weft.compute.gpu.weights import Reader
from weft.compute.gpu.workspace import Workspace
from weft.compute.protocols.runner import Batch, Rows

_ROWS = 512  # rows of a step for which memory is allocated at the start
_INPUTS = 1 << 18  # numbers in a step's arrays for which memory is allocated at the start
_STEPS_IN_FLIGHT = 4
_BLOCK = 1024


class GpuRunner:
    """An `AsyncRunner` with its weights and its KV pool on one card.

    A step replays a CUDA graph, which is captured when a step of its size occurs first. Without `graphs` the same
    kernels are launched one by one, with the same bits.
    """

    adapters = None
    state_slots = None

    def __init__(self, reader: Reader, *, max_model_len: int, graphs: bool = True) -> None:
        spec = self.spec = reader.spec
        self.vocab_size = spec.vocab_size
        self._dtype = reader.dtype
        self._decoder = Decoder(reader, max_model_len)
        self._has_graphs = graphs and not is_interpreted()
        self._graphs: dict[StepShape, torch.cuda.CUDAGraph] = {}
        self._pool = torch.empty(0)
        self._pools: list[Pool] = []  # views of `_pool`
        self._spare_slot = 0
        self._inputs = Inputs(_INPUTS)
        self._space = self._make_space(_ROWS, _ROWS, 4 * _ROWS)
        self._ends: deque[tuple[torch.Tensor, Any]] = deque(maxlen=_STEPS_IN_FLIGHT)

    def allocate_kv(self, *, num_blocks: int, block_size: int, num_state_slots: int = 0) -> None:
        """Allocates the pool, [layers, keys and values, blocks, kv heads, block, head_dim].

        Padding rows write to one additional block.
        """
        spec = self.spec
        of_layers = (spec.num_attention_layers, 2)
        shape = (*of_layers, num_blocks + 1, spec.num_kv_heads, block_size, spec.head_dim)
        self._graphs.clear()
        with refusing_memory():
            self._pool = torch.zeros(shape, dtype=self._dtype, device=launches.device())
        self._pools = [(keys, values) for keys, values in self._pool]
        self._spare_slot = num_blocks * block_size

    @property
    def kv_layout(self) -> str:
        """Name of the pool's layout; bits differ between cards and between versions of the compiler."""
        card = find_card()
        name = "" if card is None else card.name
        return f"gpu-1 {name} {triton.__version__} {self._dtype}"

    def read_block(self, block_id: int) -> NDArray[np.uint8]:
        """Waits for all launched steps."""
        block = self._pool[:, :, block_id].contiguous().view(-1).view(torch.uint8)
        copied: NDArray[np.uint8] = block.cpu().numpy()
        return copied

    def write_block(self, block_id: int, data: NDArray[np.uint8]) -> None:
        block = self._pool[:, :, block_id]
        own = torch.from_numpy(data.copy()).to(launches.device())
        block.copy_(own.view(self._dtype).view(block.shape))

    def __del__(self) -> None:
        """Releases the card's memory, because a sleeping engine must free it."""
        self.__dict__.clear()
        release_memory()

    def forward(self, batch: Batch) -> Rows:
        """Launches one step; returns float32 logits [wanted, vocab] on the card, which belong to the caller.

        For a model without a head, waits for the step and returns hidden states [wanted, hidden] on the host.
        """
        rows = self._forward(batch, None)
        return rows if self.spec.has_head else rows.cpu().numpy()

    def forward_after(self, batch: Batch, device_token_ids: torch.Tensor) -> Rows:
        return self._forward(batch, device_token_ids)

    def wait(self, rows: torch.Tensor) -> None:
        for launched, end in self._ends:
            if launched is rows and end is not None:
                end.synchronize()

    def _forward(self, batch: Batch, sampled: torch.Tensor | None) -> torch.Tensor:
        tuning, spec = self._decoder.tuning, self.spec
        layout = Layout.of(batch, max(1, tuning.tile // (spec.num_heads // spec.num_kv_heads)))
        given = _given_rows(batch)
        # A graph has no place for given rows: such a step belongs to a prompt, and launches its kernels one by one.
        has_graph = self._has_graphs and given is None
        padded = padded_shape(batch, layout, tuning.part) if has_graph else None
        shape = exact_shape(batch, layout, tuning.part) if padded is None else padded
        self._make_room(shape, batch.block_tables.size)
        arrays = self._inputs.send(shape, batch, layout, self._spare_slot)
        if sampled is not None:
            _take_tokens(arrays, sampled)
        if padded is None:
            self._launch(arrays, given)
        else:
            self._replay(arrays)
        logits = self._decoder.logits(self._space.wanted[: len(batch.logit_rows)])
        self._ends.append((logits, _now()))
        return logits

    def _replay(self, arrays: StepArrays) -> None:
        graph = self._graphs.get(arrays.shape)
        if graph is None:
            # Compiles kernels that are not compiled yet, which is impossible during a capture.
            self._launch(arrays)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._launch(arrays)
            self._graphs[arrays.shape] = graph
        graph.replay()

    def _launch(self, arrays: StepArrays, given: GivenRows | None = None) -> None:
        self._decoder.forward(arrays, self._pools, self._space, given)

    def _make_room(self, shape: StepShape, table_size: int) -> None:
        """Allocates memory for a larger step.

        Graphs contain addresses, so they are dropped together with the old memory.
        """
        space, size = self._space, shape.table_start + table_size
        lone_parts = shape.num_lone * shape.num_attention_parts
        if not self._inputs.has_room(size):
            self._graphs.clear()
            self._inputs = Inputs(power_of_two(size))
        if not space.has_room(shape.num_rows, shape.num_wanted, lone_parts):
            self._graphs.clear()
            self._space = self._make_space(
                max(space.max_rows, shape.num_rows),
                max(space.max_wanted, shape.num_wanted),
                max(space.max_lone_parts, lone_parts),
            )

    def _make_space(self, num_rows: int, num_wanted: int, num_lone_parts: int) -> Workspace:
        decoder = self._decoder
        space = Workspace.of(
            self.spec,
            decoder.matrices,
            self._dtype,
            max_rows=num_rows,
            max_wanted=num_wanted,
            max_lone_parts=num_lone_parts,
        )
        if not decoder.experts:
            return space
        return replace(space, routing=RoutingSpace.of(decoder.experts, num_rows, self._dtype))


def _given_rows(batch: Batch) -> GivenRows | None:
    if batch.embed_rows is None or batch.embeds is None:
        return None
    assert batch.deep_embeds is None, "only models with towers have them"
    device = launches.device()
    rows = torch.from_numpy(batch.embed_rows).to(device, torch.int64)
    return GivenRows(rows, torch.from_numpy(batch.embeds).to(device, torch.float32))


def _take_tokens(arrays: StepArrays, sampled: torch.Tensor) -> None:
    row_kernels.take_tokens[(-(-arrays.num_rows // _BLOCK),)](
        arrays.token_ids, arrays.token_sources, sampled, arrays.num_rows, BLOCK=_BLOCK
    )


def _now() -> Any:
    """Returns an event after all launched work; None if no work is in flight."""
    if is_interpreted():
        return None
    event = torch.cuda.Event()
    event.record()
    return event
