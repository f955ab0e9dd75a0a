"""`ModelDrafter`: drafts with a smaller model that has the same tokenizer.

The draft model's KV is in a pool of its own, with the same block numbers as the engine's pool: a sequence has space
there as long as it has blocks. Tokens whose KV is missing are computed when the sequence is next drafted for: the
prompt, tokens of steps without drafts, blocks that were lost.

A draft token is sampled like the token itself: with the request's parameters and its random numbers for the position.
So where both models agree, sampled draft tokens are accepted as often as greedy ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from weft.compute.protocols.runner import Batch, Rows
from weft.compute.protocols.sampler import Sampler
from weft.engine.drafting.draft_blocks import DraftBlocks
from weft.engine.drafting.draft_sampler import DraftSampler, Guess
from weft.engine.scheduling.drafter import Drafts, Grow
from weft.engine.scheduling.drafts import DraftKv
from weft.engine.scheduling.plan import padded_tables, slots_of
from weft.engine.scheduling.sequence import Sequence
from weft.engine.weights.draft_model import DraftModel


@dataclass(slots=True, eq=False, kw_only=True)
class _Guess(Guess):
    """Draft tokens of one sequence in this step, and the rows of the sequence in the draft model's next batch."""

    start: int
    token_ids: list[int]  # token ids of these rows; the first row is at position `start`

    @property
    def is_open(self) -> bool:
        """True if the last row is the sequence's last known token or draft token, and more draft tokens are wanted."""
        end = self.start + len(self.token_ids)
        is_there = end == self.sequence.num_tokens + len(self.drafted)
        return is_there and len(self.drafted) < self.most


class ModelDrafter:
    """A `Drafter` that uses a draft model. The engine's thread owns it."""

    has_cost = True

    def __init__(
        self,
        model: DraftModel,
        sampler: Sampler,
        *,
        vocab_size: int,
        block_size: int,
        max_rows: int,
    ) -> None:
        self._model = model
        self._sampler = DraftSampler(sampler, vocab_size)  # the served model's vocabulary size
        self._block_size = block_size
        self._max_rows = max_rows  # maximum number of rows in a batch
        self._blocks = DraftBlocks(block_size)

    def forget(self) -> None:
        self._blocks.clear()

    def propose(self, rooms: Mapping[Sequence, int], budget: int, grow: Grow) -> Drafts:
        guesses: list[_Guess] = []
        num_rows = self._max_rows
        for sequence, room in rooms.items():
            most = min(room, budget, self._model.config.max_model_len - sequence.num_tokens)
            if most <= 0 or num_rows <= 0 or not self._can_follow(sequence):
                continue
            if not grow(sequence, sequence.num_tokens + most):
                continue
            guess = self._catch_up(sequence, most, num_rows)
            guesses.append(guess)
            num_rows -= len(guess.token_ids)
            budget -= most if guess.is_open else 0
        following = guesses
        while following:
            rows = self._forward(following)
            following = [guess for guess in following if guess.is_open]
            following = self._draw(following, rows)
        return {guess.sequence: tuple(guess.drafted) for guess in guesses if guess.drafted}

    def _can_follow(self, sequence: Sequence) -> bool:
        """True if a sequence can be drafted for: it has output, so that its first token need not wait for the draft
        model, and its prompt has no embeddings.
        """
        return sequence.num_output_tokens > 0 and not sequence.request.prompt_embeds

    def _catch_up(self, sequence: Sequence, most: int, num_rows: int) -> _Guess:
        """Returns the sequence's rows that the draft model has not computed, at most `num_rows`, and counts them as
        computed.
        """
        kv = sequence.draft_state
        if not isinstance(kv, DraftKv) or kv.num_preemptions != sequence.num_preemptions:
            sequence.draft_state = kv = self._blocks.find(sequence)
        kv.keep_right(sequence.token_ids)
        start = min(kv.num_tokens, sequence.num_tokens - 1)
        end = min(sequence.num_tokens, start + num_rows)
        kv.num_tokens = end
        is_there = end == sequence.num_tokens
        self._blocks.note(sequence, kv, start, end + most if is_there else end)
        token_ids = sequence.token_ids[start:end]
        return _Guess(sequence=sequence, most=most, start=start, token_ids=token_ids)

    def _forward(self, guesses: list[_Guess]) -> Rows:
        """Computes the rows of all guesses; returns the logits of the open guesses."""
        ends = np.cumsum([0, *(len(guess.token_ids) for guess in guesses)], dtype=np.int32)
        positions = [
            np.arange(guess.start, guess.start + len(guess.token_ids), dtype=np.int32)
            for guess in guesses
        ]
        places = np.concatenate(positions)
        sequences = [guess.sequence for guess in guesses]
        tables = padded_tables([sequence.block_ids for sequence in sequences])
        # The model may sample padding ids beyond the tokenizer's ids, which the draft model's embedding table lacks.
        token_ids = np.array([t for guess in guesses for t in guess.token_ids], np.int32)
        token_ids[token_ids >= self._model.config.vocab_size] = 0
        is_open = np.array([guess.is_open for guess in guesses])
        assert self._model.runner is not None, "no sequence is scheduled while weights are absent"
        return self._model.runner.forward(
            Batch(
                token_ids=token_ids,
                positions=places,
                slots=slots_of(tables, places, ends, self._block_size),
                query_starts=ends,
                prompt_lens=np.array([s.num_prompt_tokens for s in sequences], np.int32),
                block_tables=tables,
                logit_rows=ends[1:][is_open] - np.int32(1),
            )
        )

    def _draw(self, guesses: list[_Guess], rows: Rows) -> list[_Guess]:
        """Samples a draft token for each guess; returns the guesses that want more draft tokens."""
        following = []
        for guess in self._sampler.draw(guesses, rows):
            token_id = guess.drafted[-1]
            guess.start = guess.sequence.num_tokens + len(guess.drafted) - 1
            guess.token_ids = [token_id]
            if guess.is_open:
                kv = guess.sequence.draft_state
                assert isinstance(kv, DraftKv)
                kv.num_tokens += 1
                kv.guessed = (*kv.guessed, token_id)
                following.append(guess)
        return following
