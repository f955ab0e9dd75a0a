"""`Runner`: a model on a device, as the engine uses it; `Batch`: one step, as arrays."""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from weft.model.lora import Adapter
from weft.model.spec import ModelSpec

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]
# What a step gives, [rows, ...], in the memory of its backend: numpy's, or what can be indexed as numpy's.
Rows: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Batch:
    """The packed rows of one step. Sequence `i` owns rows `query_starts[i]:query_starts[i+1]`.

    Every K/V row of the step is written to its slot before any row attends, so rows may read slots
    that other rows of the same step write. A slot is `block_id * block_size + offset`.
    """

    token_ids: IntArray  # [rows]
    positions: IntArray  # [rows], 0-based position in the sequence
    slots: IntArray  # [rows], where the row's K/V goes
    query_starts: IntArray  # [sequences + 1]
    prompt_lens: IntArray  # [sequences], prompt tokens of each sequence
    block_tables: IntArray  # [sequences, max blocks], padded with 0; a row attends to 0..position
    logit_rows: IntArray  # [wanted], rows whose logits are returned, ascending
    token_types: IntArray | None = None  # [rows], for models with several; None: 0 everywhere
    adapter_ids: IntArray | None = None  # [sequences], 0: none; None: no sequence has one
    # [given], rows that begin with `embeds` and not with what their token ids look up, ascending
    embed_rows: IntArray | None = None
    embeds: FloatArray | None = None  # [given, hidden], as rows of the embedding table
    # [sequences], slots of states: from which one goes on unless it begins, and where its state lies behind its last
    # row. Nobody else reads what one writes. None where the model keeps none.
    state_reads: IntArray | None = None
    state_writes: IntArray | None = None
    # [sequences], rows of each that states go on by; those behind are drafts, which go on from there and leave states
    # as they are. None: all are
    num_state_rows: IntArray | None = None
    # [rows], the row's place in the tokens that the step before has sampled, whose token the host does not know yet;
    # -1: `token_ids` has it. None: it has all. Only an `AsyncRunner` is given any
    token_sources: IntArray | None = None

    def state_end(self, sequence: int) -> int:
        """Behind the last row of a sequence that states go on by."""
        if self.num_state_rows is None:
            return int(self.query_starts[sequence + 1])
        return int(self.query_starts[sequence] + self.num_state_rows[sequence])


class Runner(Protocol):
    """A loaded model and its KV pool."""

    vocab_size: int

    @property
    def adapters(self) -> "AdapterStore | None":
        """Where LoRA adapters go; None where its backend takes none."""

    def allocate_kv(self, *, num_blocks: int, block_size: int, num_state_slots: int = 0) -> None:
        """Make the KV pool, and beside it that of states. Called once, before the first step."""

    def forward(self, batch: Batch) -> Rows:
        """Run one step and return float32 logits [wanted, vocab]. The result belongs to the caller.

        A model that was opened for pooling returns hidden states after its last norm instead,
        [wanted, hidden]. A row's result is bitwise independent of the other rows,
        of chunking and of block placement.
        """


@runtime_checkable
class ThreadedRunner(Protocol):
    """A runner that computes on as many threads as it is given."""

    def set_num_threads(self, num_threads: int) -> None:
        """Between steps."""


@runtime_checkable
class TimedRunner(Protocol):
    """A runner that counts where its time goes."""

    def seconds(self) -> dict[str, float]:
        """Time spent in steps since it was made, by part of a step."""


@runtime_checkable
class RoutingRunner(Protocol):
    """A runner that counts the tokens that experts get."""

    def expert_loads(self) -> list[list[int]]:
        """Tokens since it was made, by layer with experts and by expert."""

    def expert_balance(self) -> tuple[float, float]:
        """Sums over steps and layers of an expert's mean tokens, and of the busiest's."""


@runtime_checkable
class HiddenStates(Runner, Protocol):
    """A runner of a model from whose last hidden states a head for further tokens goes on.

    That head has no embeddings and no matrix of logits: it shares the model's.
    """

    def forward_hidden(self, batch: Batch) -> tuple[Rows, FloatArray]:
        """`forward`, to the same bits; and of every row its hidden state after the last norm, [rows, hidden]."""

    def embed(self, token_ids: IntArray) -> FloatArray:
        """The embeddings of tokens, [tokens, hidden]."""

    def logits(self, hidden: FloatArray) -> Rows:
        """What the model's head makes of such hidden states, [rows, vocab]."""


class Copies(Protocol):
    """Blocks of a pool that can be copied out of it and back in, into any block, bit for bit."""

    def read_block(self, block_id: int) -> NDArray[np.uint8]:
        """The bytes of a block, which belong to the caller."""

    def copy_block(self, block_id: int, place: NDArray[np.uint8]) -> None:
        """What `read_block` gives, into memory of the caller, which has that size and is aligned to 8 bytes."""

    def write_block(self, block_id: int, data: NDArray[np.uint8]) -> None:
        """Give a block the bytes that `read_block` gave of this one or another."""

    def block_rows(self, block_id: int) -> list[memoryview]:
        """The same bytes where they lie, a row after the other: to write there is to write the block."""


@runtime_checkable
class BlockCopies(Copies, Protocol):
    """A runner whose KV blocks can be copied."""

    @property
    def kv_layout(self) -> str:
        """Runners of one model that say the same understand each other's blocks, and states."""

    @property
    def state_slots(self) -> Copies | None:
        """Slots of states, copied as blocks are; None where the model keeps none."""


class AdapterStore(Protocol):
    """The LoRA adapters of a runner, of which each sequence may have one."""

    spec: ModelSpec

    def add_adapter(self, adapter_id: int, adapter: Adapter) -> None:
        """Have one more, under an id of at least 1 that none has."""

    def remove_adapter(self, adapter_id: int) -> None:
        """Forget one, which no later batch names."""
