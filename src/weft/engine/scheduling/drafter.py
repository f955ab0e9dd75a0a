"""`Drafter`: guesses next tokens of sequences; `Drafting` adds the guesses to plans."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol, TypeAlias

from msgspec import structs

from weft.core.config.speculation import SpeculativeConfig
from weft.engine.scheduling.draft_payoff import DraftPayoff
from weft.engine.scheduling.drafts import DraftCounts, NgramLookup
from weft.engine.scheduling.plan import Plan, PlannedRows
from weft.engine.scheduling.sequence import Sequence

# Allocates a sequence's blocks for a number of tokens. Returns False, without a change, if too few blocks are free.
Grow: TypeAlias = Callable[[Sequence, int], bool]
Drafts: TypeAlias = dict[Sequence, tuple[int, ...]]


class Drafter(Protocol):
    """A method of speculation. The drafter keeps its state of a sequence in `Sequence.draft_state`."""

    has_cost: bool  # True if `propose` takes time even if it finds no drafts

    def propose(self, rooms: Mapping[Sequence, int], budget: int, grow: Grow) -> Drafts:
        """Returns likely next tokens of each sequence: at most the sequence's room, and at most `budget` tokens of all
        sequences. The drafter allocates the sequences' blocks for the drafts.
        """

    def forget(self) -> None:
        """Discards the drafter's KV in all blocks."""


class NgramDrafter:
    """Drafts the tokens after an earlier occurrence of the sequence's last tokens (prompt lookup)."""

    has_cost = False

    def __init__(self, config: SpeculativeConfig) -> None:
        self._config = config

    def propose(self, rooms: Mapping[Sequence, int], budget: int, grow: Grow) -> Drafts:
        drafts: Drafts = {}
        for sequence, room in rooms.items():
            if sequence.draft_state is None:
                sequence.draft_state = NgramLookup(self._config)
            assert isinstance(sequence.draft_state, NgramLookup)
            found = sequence.draft_state.propose(sequence.token_ids, min(room, budget))
            if found and grow(sequence, sequence.num_tokens + len(found)):
                drafts[sequence] = found
                budget -= len(found)
        return drafts

    def forget(self) -> None:
        """Does nothing: this drafter has no blocks."""


class Drafting:
    """Adds drafts to the scheduler's plans and counts them. With a `payoff`, adds no drafts while steps with drafts are
    slower.
    """

    def __init__(
        self,
        drafter: Drafter,
        payoff: DraftPayoff | None,
        counts: DraftCounts,
        most: int,
        max_model_len: int,
    ) -> None:
        self._counts = counts
        self._payoff = payoff
        self._drafter = drafter
        self._most = most
        self._max_model_len = max_model_len

    def begin_step(self) -> None:
        """Begins a step in `payoff`, before the step is planned."""
        if self._payoff is not None:
            self._payoff.plan()

    def commit(self, num_tokens: int) -> None:
        """Adds the tokens of one part of the present step; further parts of the step may follow."""
        if self._payoff is not None:
            self._payoff.commit(num_tokens)

    def add_to(self, plan: Plan, budget: int, grow: Grow) -> Plan:
        """Returns the plan with drafts, in at most `budget` further rows."""
        rooms = {}
        for entry in plan.entries:
            if entry.samples and (room := self._room(entry.sequence)) > 0:
                rooms[entry.sequence] = room
        num_sampling = sum(entry.samples for entry in plan.entries)
        payoff = self._payoff
        has_turn = bool(rooms) and budget > 0 and (payoff is None or payoff.wants(num_sampling))
        drafts = self._drafter.propose(rooms, budget, grow) if has_turn else {}
        if payoff is not None:
            is_decoding = all(
                entry.samples and entry.start >= entry.sequence.num_prompt_tokens
                for entry in plan.entries
            )
            is_drafted = bool(drafts) or (has_turn and self._drafter.has_cost)
            payoff.begin(num_sampling if is_decoding else None, is_drafted=is_drafted)
        for sequence, token_ids in drafts.items():
            self._counts.propose(len(token_ids))
            sequence.num_draft_tokens += len(token_ids)
        if not drafts:
            return plan
        entries = tuple(_with_draft(entry, drafts) for entry in plan.entries)
        return replace(plan, entries=entries)

    def forget(self) -> None:
        self._drafter.forget()

    def _room(self, sequence: Sequence) -> int:
        """Returns the maximum number of drafts of a sequence. The last token of an answer needs no row, because no
        token follows it.
        """
        max_tokens = sequence.params.max_tokens or sys.maxsize
        last = min(sequence.num_prompt_tokens + max_tokens, self._max_model_len)
        return min(self._most, last - sequence.num_tokens - 1)


def _with_draft(entry: PlannedRows, drafts: Drafts) -> PlannedRows:
    token_ids = drafts.get(entry.sequence)
    return entry if token_ids is None else structs.replace(entry, draft_token_ids=token_ids)
