"""`ModelDrafter`: drafts by another, smaller model of the same tokenizer.

Its K/V lies in a pool of its own under the numbers of the engine's blocks, so that every sequence has room there
as soon as it has blocks, and loses it with them. What of a sequence it has not computed, it computes when it is
first asked: a prompt, what came while drafts were left out, or what was lost with blocks.

A guess is drawn as the token itself will be: by the request's parameters and its own noise of that position. So
where the two models agree, sampled tokens come true as greedy ones do.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from weft.compute.backends import backend_of
from weft.compute.runner import Batch, Rows
from weft.compute.sampler import Sampler
from weft.core.config import EngineConfig
from weft.engine.constraints.grammar import GrammarFailed, GrammarState
from weft.engine.draft_model import DraftModel
from weft.engine.engine_model import EngineModel
from weft.engine.scheduling.drafter import Drafter, Drafts, Grow, NgramDrafter
from weft.engine.scheduling.drafts import DraftKv
from weft.engine.scheduling.plan import block_tables, slots_of
from weft.engine.scheduling.sequence import Sequence
from weft.engine.step_sampler import noise_key, to_choice

log = logging.getLogger("weft.engine")


@dataclass(slots=True, eq=False)
class _Guess:
    """What is guessed of one sequence in this step, and the rows of its next batch."""

    sequence: Sequence
    most: int
    start: int
    token_ids: list[int]  # from `start`
    drafted: list[int] = field(default_factory=list)
    grammar: GrammarState | None = None  # behind the guesses

    @property
    def is_open(self) -> bool:
        """Whether its last row is its sequence's end, or a guess behind it, and more are wanted."""
        end = self.start + len(self.token_ids)
        is_there = end == self.sequence.num_tokens + len(self.drafted)
        return is_there and len(self.drafted) < self.most

    def follow_grammar(self) -> NDArray[np.bool_] | None:
        """What it allows next; None where there is none, or it says nothing yet. `GrammarFailed` where it ends."""
        if not self.drafted:
            ruling = self.sequence.ruling_grammar
            self.grammar = None if ruling is None else ruling.fork()
            return None if ruling is None else ruling.mask()
        if self.grammar is None:
            return None
        self.grammar.advance(self.drafted[-1])
        return self.grammar.mask()


class ModelDrafter:
    """A `Drafter`. The engine's thread owns it."""

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
        self._vocab_size = vocab_size  # of the model that it drafts for
        self._sampler = sampler
        self._block_size = block_size
        self._max_rows = max_rows  # of a batch
        # Full blocks that were computed here, by what they hold; whoever finds them there has no need to.
        self._hash_by_block: dict[int, bytes] = {}

    def forget(self) -> None:
        self._hash_by_block.clear()

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
        """Not before the first token, which is not to wait for the draft's; nor where its prompt is no tokens."""
        return sequence.num_output_tokens > 0 and not sequence.request.prompt_embeds

    def _catch_up(self, sequence: Sequence, most: int, num_rows: int) -> _Guess:
        """The rows of what is not computed yet, as many as there may be; they count as computed from here on."""
        kv = sequence.draft_state
        if not isinstance(kv, DraftKv) or kv.num_preemptions != sequence.num_preemptions:
            sequence.draft_state = kv = self._found(sequence)
        kv.keep_right(sequence.token_ids)
        start = min(kv.num_tokens, sequence.num_tokens - 1)
        end = min(sequence.num_tokens, start + num_rows)
        kv.num_tokens = end
        is_there = end == sequence.num_tokens
        self._note(sequence, kv, start, end + most if is_there else end)
        return _Guess(sequence, most, start, sequence.token_ids[start:end])

    def _found(self, sequence: Sequence) -> DraftKv:
        num_blocks = 0
        for block_id, digest in zip(sequence.block_ids, sequence.block_hashes, strict=False):
            if self._hash_by_block.get(block_id) != digest:
                break
            num_blocks += 1
        return DraftKv(sequence.num_preemptions, num_blocks * self._block_size, num_blocks)

    def _note(self, sequence: Sequence, kv: DraftKv, start: int, end: int) -> None:
        """Say which blocks are whole now, of those that rows from `start` to `end` write.

        They may be read at once: a step writes all K/V of a layer before any row attends to it.
        """
        size = self._block_size
        first = min(kv.num_noted_blocks, start // size)
        num_full = min(kv.num_tokens // size, len(sequence.block_hashes))
        for place in range(first, -(-end // size)):
            block_id = sequence.block_ids[place]
            if place < num_full:
                self._hash_by_block[block_id] = sequence.block_hashes[place]
            else:
                self._hash_by_block.pop(block_id, None)
        kv.num_noted_blocks = num_full

    def _forward(self, guesses: list[_Guess]) -> Rows:
        """The logits of those that are open."""
        ends = np.cumsum([0, *(len(guess.token_ids) for guess in guesses)], dtype=np.int32)
        positions = [
            np.arange(guess.start, guess.start + len(guess.token_ids), dtype=np.int32)
            for guess in guesses
        ]
        places = np.concatenate(positions)
        sequences = [guess.sequence for guess in guesses]
        tables = block_tables(sequences)
        # A row that the draft's embedding does not have is a token that the model gave past the tokenizer's.
        token_ids = np.array([t for guess in guesses for t in guess.token_ids], np.int32)
        token_ids[token_ids >= self._model.config.vocab_size] = 0
        is_open = np.array([guess.is_open for guess in guesses])
        assert self._model.runner is not None, "nobody is scheduled while weights are absent"
        rows = self._model.runner.forward(
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
        return self._fitted(rows)

    def _fitted(self, rows: Rows) -> Rows:
        """As wide as those of the model it drafts for: logits are padded differently within a family."""
        missing = self._vocab_size - rows.shape[1]
        if missing <= 0:
            return rows[:, : self._vocab_size]
        return np.pad(rows, ((0, 0), (0, missing)), constant_values=-np.inf)

    def _draw(self, guesses: list[_Guess], rows: Rows) -> list[_Guess]:
        """One more guess of each; those whose guess is to be followed by another."""
        plain = [i for i, guess in enumerate(guesses) if _is_plain(guess.sequence)]
        drawn: dict[int, int | None] = {}
        if plain:
            found = self._sampler.draw_rows(rows[plain], *self._noise([guesses[i] for i in plain]))
            for i, token_id, is_finite in zip(
                plain, found.token_ids.tolist(), found.is_finite.tolist(), strict=True
            ):
                drawn[i] = token_id if is_finite else None
        following = []
        for i, guess in enumerate(guesses):
            token_id = drawn[i] if i in drawn else self._choose(guess, rows[i])
            if token_id is None:
                continue
            guess.start = guess.sequence.num_tokens + len(guess.drafted)
            guess.drafted.append(token_id)
            guess.token_ids = [token_id]
            if guess.is_open:
                kv = guess.sequence.draft_state
                assert isinstance(kv, DraftKv)
                kv.num_tokens += 1
                kv.guessed = (*kv.guessed, token_id)
                following.append(guess)
        return following

    @staticmethod
    def _noise(guesses: list[_Guess]) -> tuple[list[float], list[int]]:
        temperatures, keys = [], []
        for guess in guesses:
            params, sequence = guess.sequence.params, guess.sequence
            temperatures.append(0.0 if params.is_greedy else params.temperature)
            keys.append(noise_key(sequence.seed, sequence.num_output_tokens + len(guess.drafted)))
        return temperatures, keys

    def _choose(self, guess: _Guess, row: Rows) -> int | None:
        """By the request's parameters, as if the guesses before were its output; None: no more can be guessed."""
        sequence, drafted = guess.sequence, guess.drafted
        if not drafted and sequence.forced_token_id is not None:
            return sequence.forced_token_id
        try:
            return self._chosen(guess, row)
        except GrammarFailed:
            return None
        except Exception:  # who samples the step meets it too, and ends this request alone
            log.debug("no draft: request_id=%s", sequence.request.request_id, exc_info=True)
            return None

    def _chosen(self, guess: _Guess, row: Rows) -> int | None:
        sequence, drafted = guess.sequence, guess.drafted
        mask = guess.follow_grammar()
        row = row if mask is None else self._sampler.masked(row, mask)
        choice = to_choice(sequence)
        return self._sampler.choose_token(
            row,
            replace(
                choice,
                seen=(*choice.seen, *drafted) if choice.seen else (),
                output=(*choice.output, *drafted) if choice.output else (),
                key=noise_key(sequence.seed, sequence.num_output_tokens + len(drafted)),
            ),
        )


def _is_plain(sequence: Sequence) -> bool:
    """Whether rows are drawn from by temperature alone."""
    is_ruled = sequence.grammar is not None or sequence.reasoning is not None
    return (
        sequence.is_plain
        and not is_ruled
        and sequence.num_output_tokens >= sequence.params.min_tokens
    )


def open_drafter(config: EngineConfig, model: EngineModel) -> Drafter | None:
    """What drafts as the configuration says; None where nothing does."""
    speculation = config.scheduler_config.speculation
    if speculation is None:
        return None
    if model.draft is None:
        return NgramDrafter(speculation)
    return ModelDrafter(
        model.draft,
        backend_of(config).sampler,
        vocab_size=config.model_config.vocab_size,
        block_size=config.cache_config.block_size,
        max_rows=config.scheduler_config.max_num_batched_tokens,
    )
