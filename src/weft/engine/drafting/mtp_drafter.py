"""`MtpDrafter`: drafts with a checkpoint's head for multi-token prediction (MTP).

The head's row at a position takes the model's hidden state at that position and the next token, and predicts the token
after the next. So the head's rows of a step are computed after the step's tokens are sampled, before the next step. The
rows of all sequences are computed, even without drafting, because hidden states are not stored.

The head's KV is in a pool of its own, with the same block numbers as the engine's pool. A sequence is not drafted for
if the head lacks KV of some of the sequence's blocks, because these blocks came from elsewhere.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np

from weft.compute.protocols.runner import Batch, FloatArray, HiddenStates, Rows
from weft.compute.protocols.sampler import Sampler
from weft.engine.drafting.draft_blocks import DraftBlocks
from weft.engine.drafting.draft_sampler import DraftSampler, Guess
from weft.engine.scheduling.drafter import Drafts, Grow
from weft.engine.scheduling.drafts import DraftKv
from weft.engine.scheduling.plan import Plan, padded_tables, slots_of
from weft.engine.scheduling.sequence import Sequence
from weft.engine.weights.draft_model import DraftModel


class Target(Protocol):
    """The model that the MTP head belongs to. Its runner is replaced after a sleep or a weight update."""

    @property
    def runner(self) -> object | None:
        """Runner of the model; None while weights are absent."""


@dataclass(slots=True, eq=False)
class _Held:
    """Hidden states of a sequence from position `start` on, held until the tokens that follow them are known."""

    sequence: Sequence
    num_preemptions: int
    start: int
    hidden: FloatArray
    block_ids: "array[int]"  # the sequence's blocks when the hidden states were computed

    @property
    def is_current(self) -> bool:
        """True if the sequence has not been preempted since, and so still has these blocks."""
        return self.num_preemptions == self.sequence.num_preemptions

    @property
    def num_rows(self) -> int:
        """Number of rows whose next token is known.

        Rejected draft tokens do not count, nor does the last row if no token follows it.
        """
        return min(len(self.hidden), self.sequence.num_tokens - 1 - self.start)


@dataclass(slots=True, eq=False)
class _Rows:
    """Successive rows of a sequence, as input of the MTP head."""

    block_ids: "array[int]"
    start: int
    token_ids: list[int]  # the token after each position
    hidden: FloatArray
    is_open: bool  # True if the head's output for the last row is needed


class MtpDrafter:
    """A `Drafter` that uses an MTP head. The engine's thread owns it."""

    has_cost = True

    def __init__(
        self,
        target: Target,
        model: DraftModel,
        sampler: Sampler,
        *,
        vocab_size: int,
        block_size: int,
    ) -> None:
        self._target = target
        self._model = model
        self._sampler = DraftSampler(sampler, vocab_size)
        self._block_size = block_size
        self._blocks = DraftBlocks(block_size)
        self._held: list[_Held] = []

    def forward(self, plan: Plan) -> Rows:
        """Computes a step of the model, and holds the step's hidden states for the head."""
        rows, hidden = self._runner.forward_hidden(plan.to_batch(self._block_size))
        self._catch_up({})
        first = 0
        for entry in plan.entries:
            last = first + entry.num_rows
            self._hold(entry.sequence, entry.start, entry.num_tokens, hidden[first:last])
            first = last
        return rows

    def forget(self) -> None:
        self._blocks.clear()
        self._held.clear()

    def propose(self, rooms: Mapping[Sequence, int], budget: int, grow: Grow) -> Drafts:
        wanted: dict[Sequence, Guess] = {}
        for held in self._held:
            sequence = held.sequence
            most = min(rooms.get(sequence, 0), budget)
            # No drafts before the first token, which must not wait for them.
            if most <= 0 or not sequence.num_output_tokens or not held.is_current:
                continue
            is_there = held.num_rows > 0 and held.start + held.num_rows == sequence.num_tokens - 1
            if is_there and grow(sequence, sequence.num_tokens + most):
                kv = sequence.draft_state
                assert isinstance(kv, DraftKv)
                self._blocks.note(sequence, kv, kv.num_tokens, sequence.num_tokens + most)
                wanted[sequence] = Guess(sequence, most)
                budget -= most
        guesses, hidden = self._catch_up(wanted)
        while guesses:
            places = {id(guess): place for place, guess in enumerate(guesses)}
            drawn = self._sampler.draw(guesses, self._runner.logits(hidden))
            guesses = [guess for guess in drawn if len(guess.drafted) < guess.most]
            rows = [
                _Rows(
                    guess.sequence.block_ids,
                    guess.sequence.num_tokens - 2 + len(guess.drafted),
                    guess.drafted[-1:],
                    hidden[places[id(guess)]][None],
                    is_open=True,
                )
                for guess in guesses
            ]
            hidden = self._compute(rows)
        return {sequence: tuple(g.drafted) for sequence, g in wanted.items() if g.drafted}

    @property
    def _runner(self) -> HiddenStates:
        runner = self._target.runner
        assert isinstance(runner, HiddenStates), "no sequence is scheduled while weights are absent"
        return runner

    def _hold(self, sequence: Sequence, start: int, num_tokens: int, hidden: FloatArray) -> None:
        """Holds hidden states of a sequence until the tokens that follow them are known.

        The held rows count as computed, because the head will compute them before any other row.
        """
        if sequence.request.prompt_embeds:
            return
        kv = sequence.draft_state
        if not isinstance(kv, DraftKv) or kv.num_preemptions != sequence.num_preemptions:
            sequence.draft_state = kv = self._blocks.find(sequence)
        if kv.num_tokens < start:
            return
        first, end = kv.num_tokens, start + num_tokens
        hidden = hidden[first - start :]
        if not len(hidden):
            return
        kv.num_tokens = max(first, end)
        self._blocks.note(sequence, kv, first, first + len(hidden))
        blocks = array("i", sequence.block_ids)
        self._held.append(_Held(sequence, sequence.num_preemptions, first, hidden, blocks))

    def _catch_up(self, wanted: Mapping[Sequence, Guess]) -> tuple[list[Guess], FloatArray]:
        """Computes the head's held rows; returns the `wanted` guesses, and the hidden states to sample them from."""
        rows: list[_Rows] = []
        guesses: list[Guess] = []
        for held in self._held:
            sequence, count = held.sequence, held.num_rows
            if count <= 0:
                continue
            end = held.start + count
            kv = sequence.draft_state
            if held.is_current and isinstance(kv, DraftKv):
                kv.num_tokens = end  # accepted draft tokens included
            guess = wanted.get(sequence)
            if guess is not None:
                guesses.append(guess)
            tokens = sequence.token_ids[held.start + 1 : end + 1]
            hidden = held.hidden[:count]
            rows.append(_Rows(held.block_ids, held.start, tokens, hidden, guess is not None))
        self._held.clear()
        return guesses, self._compute(rows)

    def _compute(self, parts: list[_Rows]) -> FloatArray:
        """Computes rows of the head; returns the hidden states of the last rows of the open parts."""
        if not parts:
            return np.zeros((0, 0), np.float32)
        ends = np.array([0, *accumulate(len(part.token_ids) for part in parts)], np.int32)
        positions = np.concatenate(
            [np.arange(p.start, p.start + len(p.token_ids), dtype=np.int32) for p in parts]
        )
        tables = padded_tables([part.block_ids for part in parts])
        token_ids = np.array([t for part in parts for t in part.token_ids], np.int32)
        hidden = np.concatenate([part.hidden for part in parts])
        assert self._model.runner is not None, "no sequence is scheduled while weights are absent"
        given: FloatArray = self._model.runner.forward(
            Batch(
                token_ids=np.zeros(len(token_ids), np.int32),
                positions=positions,
                slots=slots_of(tables, positions, ends, self._block_size),
                query_starts=ends,
                prompt_lens=ends[1:],
                block_tables=tables,
                logit_rows=ends[1:][[part.is_open for part in parts]] - np.int32(1),
                embed_rows=np.arange(len(token_ids), dtype=np.int32),
                embeds=np.concatenate([self._runner.embed(token_ids), hidden], axis=1),
            )
        )
        return given
