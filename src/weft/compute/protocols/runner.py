"""`Runner`: a model on a device, in the form that the engine uses; `Batch`: the arrays of one step."""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from weft.model.lora import Adapter
from weft.model.spec import ModelSpec

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]
# Keys and values of one sequence's cross-attention, in the layout of the runner that made them
Memory: TypeAlias = NDArray[Any]
# Result of a step, [rows, ...], in its backend's memory: a numpy array, or an object that is indexed like one.
Rows: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Batch:
    """The packed rows of one step. Sequence `i` has the rows `query_starts[i]:query_starts[i+1]`.

    The keys and values of all rows are written to their slots before any row attends, so rows may read slots that other
    rows of the same step write. A slot is `block_id * block_size + offset`.
    """

    token_ids: IntArray  # [rows]
    positions: IntArray  # [rows], 0-based position in the sequence
    slots: IntArray  # [rows], slot of the row's K/V
    query_starts: IntArray  # [sequences + 1]
    prompt_lens: IntArray  # [sequences], prompt tokens of each sequence
    block_tables: IntArray  # [sequences, max blocks], padded with 0; a row attends to 0..position
    logit_rows: IntArray  # [wanted], rows whose logits are returned, ascending
    token_types: IntArray | None = None  # [rows], for models with several; None: 0 everywhere
    adapter_ids: IntArray | None = None  # [sequences], 0: none; None: no sequence has one
    # [given], rows that begin with `embeds` instead of the embeddings of their token ids, ascending
    embed_rows: IntArray | None = None
    embeds: FloatArray | None = None  # [given, hidden], as rows of the embedding table
    # [levels, given, hidden], added to the hidden states of `embed_rows` after layers 0 to levels - 1
    deep_embeds: FloatArray | None = None
    # [rows, 3], positions for rope of frame, row and column, for models with sections; None: all are `positions`
    rope_positions: IntArray | None = None
    # [rows], a row attends to 0..attend_end, which is at least its position; None: to 0..position. Rows up to the
    # highest attend_end of a sequence are in this step or an earlier one
    attend_ends: IntArray | None = None
    # [sequences], what each attends to in cross-attention, as `SoundRunner.remember` returned it; None: the model has
    # none
    memories: list[Memory] | None = None
    # [sequences], slots of states: the slot that a sequence continues from, unless it begins, and the slot for its
    # state after its last row. No other sequence reads the latter. None if the model keeps no states.
    state_reads: IntArray | None = None
    state_writes: IntArray | None = None
    # [sequences], number of rows that advance a sequence's state; rows after these are drafts, which continue from the
    # state and do not change it. None: all rows advance it
    num_state_rows: IntArray | None = None
    # [rows], for a row whose token the host does not know yet, its index in the tokens that the previous step sampled;
    # -1: the token is in `token_ids`. None: all tokens are. Only an `AsyncRunner` gets such rows
    token_sources: IntArray | None = None

    def state_end(self, sequence: int) -> int:
        """Returns the end of the sequence's rows that advance its state; later rows are drafts."""
        if self.num_state_rows is None:
            return int(self.query_starts[sequence + 1])
        return int(self.query_starts[sequence] + self.num_state_rows[sequence])


class Runner(Protocol):
    """A loaded model and its KV pool."""

    vocab_size: int

    @property
    def adapters(self) -> "AdapterStore | None":
        """Store of LoRA adapters; None if the backend supports none."""

    def allocate_kv(self, *, num_blocks: int, block_size: int, num_state_slots: int = 0) -> None:
        """Allocates the KV pool, and state slots beside it. Called once, before the first step."""

    def forward(self, batch: Batch) -> Rows:
        """Computes one step and returns float32 logits [wanted, vocab], which belong to the caller.

        A model that was opened for pooling returns hidden states after its last norm instead, [wanted, hidden]. A row's
        result is bitwise independent of the other rows, of chunking and of block placement.
        """


@runtime_checkable
class ThreadedRunner(Protocol):
    """A runner with a variable number of compute threads."""

    def set_num_threads(self, num_threads: int) -> None:
        """Sets the number of threads; called only between steps."""


@runtime_checkable
class TimedRunner(Protocol):
    """A runner that measures the time of each part of a step."""

    def seconds(self) -> dict[str, float]:
        """Returns the seconds spent in steps since the runner was created, by part of a step."""


@runtime_checkable
class RoutingRunner(Protocol):
    """A runner that counts the tokens of each expert."""

    def expert_loads(self) -> list[list[int]]:
        """Returns the number of tokens since the runner was created, by layer with experts and by expert."""

    def expert_balance(self) -> tuple[float, float]:
        """Returns two sums over steps and layers: the mean number of tokens per expert, and that of the busiest
        expert.
        """


@runtime_checkable
class HiddenStates(Runner, Protocol):
    """A runner that also returns hidden states, for a multi-token prediction head.

    The head has no embeddings and no logits matrix of its own: it uses the model's.
    """

    def forward_hidden(self, batch: Batch) -> tuple[Rows, FloatArray]:
        """Computes `forward`, with the same bits; also returns each row's hidden state after the last norm, [rows,
        hidden].
        """

    def embed(self, token_ids: IntArray) -> FloatArray:
        """Returns the embeddings of tokens, [tokens, hidden]."""

    def logits(self, hidden: FloatArray) -> Rows:
        """Returns the logits of hidden states, [rows, vocab], computed with the model's head."""


class Copies(Protocol):
    """Copies blocks of a pool out of the pool and back, to any block, bit for bit."""

    def read_block(self, block_id: int) -> NDArray[np.uint8]:
        """Returns the bytes of a block, which belong to the caller."""

    def write_block(self, block_id: int, data: NDArray[np.uint8]) -> None:
        """Overwrites a block with bytes that `read_block` has returned for this block or another."""


class HostCopies(Copies, Protocol):
    """Copies of blocks of a pool in the host's memory, which transfers read and write in place."""

    def copy_block(self, block_id: int, place: NDArray[np.uint8]) -> None:
        """Copies a block's bytes into the caller's memory, which has the size of a block and is aligned to 8
        bytes.
        """

    def block_rows(self, block_id: int) -> list[memoryview]:
        """Returns views of the block's bytes in the pool, row by row; writing to a view changes the block."""


@runtime_checkable
class BlockCopies(Copies, Protocol):
    """A runner whose KV blocks can be copied."""

    @property
    def kv_layout(self) -> str:
        """Name of the layout of blocks: runners of one model with the same name can exchange blocks and states."""

    @property
    def state_slots(self) -> Copies | None:
        """Copies of state slots, in the same form as copies of blocks; None if the model stores no states."""


@runtime_checkable
class HostBlockCopies(BlockCopies, HostCopies, Protocol):
    """A runner whose KV blocks can be lent to other engines."""

    @property
    def state_slots(self) -> HostCopies | None: ...


class AdapterStore(Protocol):
    """The LoRA adapters of a runner; each sequence may use one adapter."""

    spec: ModelSpec

    def add_adapter(self, adapter_id: int, adapter: Adapter) -> None:
        """Adds an adapter under an unused id of at least 1."""

    def remove_adapter(self, adapter_id: int) -> None:
        """Removes an adapter that no later batch uses."""
