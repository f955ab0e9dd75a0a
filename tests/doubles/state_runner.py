"""`StateRunner`: a model that is all state, of which a wrong one cannot go unseen."""

import numpy as np
from numpy.typing import NDArray

from tests.doubles.fake_runner import FakeRunner
from weft.compute.protocols.runner import Batch, FloatArray

_MODULUS = (1 << 61) - 1


class StateSlots:
    """Slots as `Copies`: a state is 8 bytes."""

    def __init__(self, states: NDArray[np.int64]) -> None:
        self._states = states

    def read_block(self, block_id: int) -> NDArray[np.uint8]:
        assert self._states[block_id] >= 0, "nothing was written there"
        return self._states[block_id : block_id + 1].copy().view(np.uint8)

    def copy_block(self, block_id: int, place: NDArray[np.uint8]) -> None:
        place[...] = self.read_block(block_id)

    def write_block(self, block_id: int, data: NDArray[np.uint8]) -> None:
        self._states[block_id : block_id + 1].view(np.uint8)[...] = data

    def block_rows(self, block_id: int) -> list[memoryview]:
        return [memoryview(self._states[block_id : block_id + 1]).cast("B")]


class StateRunner(FakeRunner):
    """A sequence's state is a hash of its tokens; the next token follows from it alone.

    It looks after the rule that nobody reads a slot that another writes, and that blocks hold the same tokens as
    the state behind them.
    """

    def __init__(self, vocab_size: int = 64) -> None:
        super().__init__(vocab_size)
        self.chunks: list[int] = []  # rows of each sequence of each step
        self._states = np.zeros(0, np.int64)

    @property
    def state_slots(self) -> StateSlots:
        return StateSlots(self._states)

    def allocate_kv(self, *, num_blocks: int, block_size: int, num_state_slots: int = 0) -> None:
        super().allocate_kv(num_blocks=num_blocks, block_size=block_size)
        self._states = np.full(num_state_slots, -1, np.int64)

    def forward(self, batch: Batch) -> FloatArray:
        reads, writes = batch.state_reads.tolist(), batch.state_writes.tolist()
        starts = batch.query_starts.tolist()
        begins = [batch.positions[start] == 0 for start in starts[:-1]]
        assert len(set(writes)) == len(writes)
        for read, own, is_new in zip(reads, writes, begins, strict=True):
            assert is_new or read == own or read not in writes
        self._store(batch)
        hashes: list[int] = []
        for index, (read, own) in enumerate(zip(reads, writes, strict=True)):
            state = 0 if begins[index] else int(self._states[read])
            assert state >= 0, "nothing was written there"
            hashes += hash_all(batch.token_ids[starts[index] : starts[index + 1]], state)
            end = batch.state_end(index)
            self._states[own] = hashes[end - 1]
            seen = self.seen(batch, end - 1)
            assert hashes[end - 1] == hash_all(seen)[-1], (
                "its blocks are of other tokens than its state"
            )
            self.chunks.append(starts[index + 1] - starts[index])
        logits = np.zeros((len(batch.logit_rows), self.vocab_size), np.float32)
        for place, row in enumerate(batch.logit_rows):
            logits[place, _token_after(hashes[row], self.vocab_size)] = 5
        return logits


def hash_all(token_ids, state: int = 0) -> list[int]:
    """The states behind each of these tokens."""
    hashes = []
    for token in np.asarray(token_ids).tolist():
        state = (state * 31 + token + 1) % _MODULUS
        hashes.append(state)
    return hashes


def _token_after(state: int, vocab_size: int) -> int:
    return 3 + state % (vocab_size - 3)


def answer_of(prompt: list[int], num_tokens: int, vocab_size: int = 64) -> list[int]:
    """What greedy decoding must give, worked out without an engine."""
    state, answer = hash_all(prompt)[-1], []
    for _ in range(num_tokens):
        answer.append(_token_after(state, vocab_size))
        [state] = hash_all(answer[-1:], state)
    return answer
