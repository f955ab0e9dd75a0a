"""`StateRunner`: a model that is all state, of which a wrong one cannot go unseen."""

import numpy as np

from weft.compute.runner import Batch, FloatArray

_MODULUS = (1 << 61) - 1


class StateRunner:
    """A sequence's state is a hash of its tokens; the next token follows from it alone.

    It has no use for blocks, and looks after the rule that nobody reads a slot that another writes.
    """

    adapters = None

    def __init__(self, vocab_size: int = 64) -> None:
        self.vocab_size = vocab_size
        self.chunks: list[int] = []  # rows of each sequence of each step
        self._slots: list[int] = []

    def allocate_kv(self, *, num_blocks: int, block_size: int, num_state_slots: int = 0) -> None:
        """See `Runner`."""
        self._slots = [-1] * num_state_slots

    def forward(self, batch: Batch) -> FloatArray:
        """See `Runner`."""
        reads, writes = batch.state_reads.tolist(), batch.state_writes.tolist()
        starts = batch.query_starts.tolist()
        begins = [batch.positions[start] == 0 for start in starts[:-1]]
        assert len(set(writes)) == len(writes)
        for read, own, is_new in zip(reads, writes, begins, strict=True):
            assert is_new or read == own or read not in writes
        hashes: list[int] = []
        for index, (read, own) in enumerate(zip(reads, writes, strict=True)):
            state = 0 if begins[index] else self._slots[read]
            assert state >= 0, "nothing was written there"
            for row in range(starts[index], starts[index + 1]):
                state = (state * 31 + int(batch.token_ids[row]) + 1) % _MODULUS
                hashes.append(state)
            self._slots[own] = hashes[batch.state_end(index) - 1]
            self.chunks.append(starts[index + 1] - starts[index])
        logits = np.zeros((len(batch.logit_rows), self.vocab_size), np.float32)
        for place, row in enumerate(batch.logit_rows):
            logits[place, 3 + hashes[row] % (self.vocab_size - 3)] = 5
        return logits
