"""`FakeRunner`: a `Runner` whose logits are a pure function of the tokens a row can see.

It finds those tokens the way a real runner finds K/V, through slots and block tables, so that a wrong
block, a block shared too early or one reused too soon changes what comes out.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from weft.compute.protocols.runner import Batch, FloatArray


class FakeRunner:
    """`nan_after`: a token id after which the logits are NaN. `epoch`: which weights it has."""

    adapters = None
    kv_layout = "fake"
    state_slots = None

    def __init__(self, vocab_size: int = 64, nan_after: int | None = None) -> None:
        self.vocab_size = vocab_size
        self.num_rows: list[int] = []  # rows of each step
        self.epoch = 0
        self._nan_after = nan_after
        self._slots = np.zeros(0, np.int64)
        self._epochs = np.zeros(0, np.int64)
        self._block_size = 0

    def allocate_kv(self, *, num_blocks: int, block_size: int, num_state_slots: int = 0) -> None:
        self._slots = np.full(num_blocks * block_size, -1, np.int64)
        self._epochs = np.full(num_blocks * block_size, -1, np.int64)
        self._block_size = block_size

    def forward(self, batch: Batch) -> FloatArray:
        self._store(batch)
        rows = [self._row(batch, row) for row in batch.logit_rows]
        return np.stack(rows) if rows else np.zeros((0, self.vocab_size), np.float32)

    def _store(self, batch: Batch) -> None:
        self.num_rows.append(len(batch.token_ids))
        self._slots[batch.slots] = batch.token_ids
        self._epochs[batch.slots] = self.epoch

    def read_block(self, block_id: int) -> NDArray[np.uint8]:
        return (
            np.stack([pool[self._places(block_id)] for pool in self._pools()])
            .reshape(-1)
            .view(np.uint8)
        )

    def copy_block(self, block_id: int, place: NDArray[np.uint8]) -> None:
        place[...] = self.read_block(block_id)

    def write_block(self, block_id: int, data: NDArray[np.uint8]) -> None:
        for pool, content in zip(self._pools(), data.view(np.int64).reshape(2, -1), strict=True):
            pool[self._places(block_id)] = content

    def block_rows(self, block_id: int) -> list[memoryview]:
        return [memoryview(pool[self._places(block_id)]).cast("B") for pool in self._pools()]

    def _pools(self):
        return self._slots, self._epochs

    def _places(self, block_id: int) -> slice:
        return slice(block_id * self._block_size, (block_id + 1) * self._block_size)

    def seen(self, batch: Batch, row: int) -> NDArray[np.int64]:
        """The tokens that a row can see."""
        owner = int(np.searchsorted(batch.query_starts, row, side="right")) - 1
        positions = np.arange(batch.positions[row] + 1)
        blocks = batch.block_tables[owner][positions // self._block_size]
        slots = blocks * self._block_size + positions % self._block_size
        assert (self._epochs[slots] == self.epoch).all(), "a row saw K/V of other weights"
        return self._slots[slots]

    def _row(self, batch: Batch, row: int) -> FloatArray:
        seen = self.seen(batch, row)
        if seen[-1] == self._nan_after:
            return np.full(self.vocab_size, np.nan, np.float32)
        return logits_after(seen.tolist(), self.vocab_size)


def logits_after(token_ids: list[int], vocab_size: int) -> FloatArray:
    """The logits that follow these tokens."""
    digest = hashlib.sha256(np.array(token_ids, np.int64).tobytes()).digest()
    generator = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    return (generator.normal(size=vocab_size) * 2).astype(np.float32)


def greedy_after(token_ids: list[int], num_tokens: int, vocab_size: int = 64) -> list[int]:
    """What greedy decoding must give, worked out without an engine."""
    tokens = list(token_ids)
    for _ in range(num_tokens):
        tokens.append(int(logits_after(tokens, vocab_size).argmax()))
    return tokens[len(token_ids) :]
