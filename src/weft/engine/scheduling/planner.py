"""`Planner`: decides which sequences are in the next step, with how many tokens and on which blocks.

One order, (priority, arrival), decides which sequence is served first and, in reverse, which is preempted when
blocks run out.
"""

import sys

from weft.core.config.engine import SchedulerConfig
from weft.engine.scheduling.blocks.kv_cache import PrefixCache
from weft.engine.scheduling.blocks.second_tier import SecondTier
from weft.engine.scheduling.plan import Plan, PlannedRows
from weft.engine.scheduling.queues import Admission, Queues
from weft.engine.scheduling.sequence import Sequence, SequenceStatus
from weft.engine.scheduling.step_budget import StepBudget, TimedStepBudget

_RUNNING = SequenceStatus.RUNNING  # looking up an enum member costs as much as a call


class Planner:
    """Planner of a scheduler, which owns it."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: PrefixCache,
        queues: Queues,
        max_scored_rows: int,
        tier: SecondTier | None,
    ) -> None:
        self.budget = TimedStepBudget(config) if config.target_itl_ms else StepBudget(config)
        # True if the last plan ahead stopped because a sequence must be preempted
        self.lacks_blocks = False
        self.num_preemptions = 0
        self.num_lookups = 0
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self._config = config
        self._cache = cache
        self._queues = queues
        # Limits the memory for logits of a step with prompt logprobs: each row has logits of the whole vocabulary.
        self.max_scored_rows = max_scored_rows
        self._tier = tier

    def plan(self, admission: Admission, now: float, *, is_ahead: bool) -> Plan | None:
        """Decides the next step; returns None if no sequence can run. With `is_ahead` no sequence is preempted."""
        self.budget.begin(self._queues.running, now, is_ahead=is_ahead)
        outputs = self._cache.outputs
        if outputs is not None:
            outputs.begin_step()
        self.lacks_blocks = False
        num_preemptions = self.num_preemptions
        entries = self._plan_running(may_preempt=not is_ahead)
        for sequence in entries:
            self._cache.register(sequence, sequence.num_planned_tokens)
        if self.num_preemptions == num_preemptions and not self.lacks_blocks:
            self._plan_waiting(entries, admission)
        if not entries:
            return None
        return Plan(tuple(entries.values()), () if outputs is None else outputs.to_compute())

    def preempt(self, sequence: Sequence) -> None:
        """Frees the sequence's blocks. The sequence keeps its tokens, and their KV is computed again later."""
        self._cache.give_back(sequence)
        self._queues.preempt(sequence)
        sequence.num_preemptions += 1
        self.num_preemptions += 1

    def _plan_running(self, *, may_preempt: bool) -> dict[Sequence, PlannedRows]:
        entries: dict[Sequence, PlannedRows] = {}
        for sequence in list(self._queues.running):
            if sequence.status is not _RUNNING:
                continue  # preempted earlier in this loop
            budget = self.budget.left_for(sequence, sequence.num_planned_tokens)
            wanted = self._chunk(sequence, sequence.num_planned_tokens, budget)
            if sequence.params.prompt_logprobs is not None:
                wanted = min(wanted, self._scorable(sequence, entries))
            if wanted <= 0:
                continue
            while not self._cache.grow(sequence, sequence.num_planned_tokens + wanted):
                if not may_preempt:
                    self.lacks_blocks = True
                    return entries
                victim = self._queues.running[-1]  # not planned yet: this loop runs in order
                self.preempt(victim)
                if victim is sequence:
                    break
            else:
                entries[sequence] = self._take_up(sequence, wanted)
        return entries

    def _plan_waiting(self, entries: dict[Sequence, PlannedRows], admission: Admission) -> None:
        """Adds waiting sequences to the step."""
        # Fetching sequences need some of the free blocks; otherwise their fetched blocks would be evicted again.
        reserved = 0
        if self._queues.held_back:
            reserved = self._cache.num_missing(self._queues.fetching())
        for sequence in list(self._queues.admissible(admission)):
            if self.budget.is_full or len(self._queues.running) >= self._config.max_num_seqs:
                return
            found = self._cache.find(sequence)
            if not self._cache.fits(sequence, found, reserved):
                return  # no sequence may overtake the first waiting one: otherwise a long prompt would wait forever
            if self._tier is not None and self._starts_fetch(self._tier, sequence, found):
                reserved += self._cache.num_missing([sequence])
                continue
            num_cached = len(found) * self._cache.block_size
            budget = self.budget.left_for(sequence, num_cached)
            if sequence.num_tokens - num_cached > budget and not self._config.chunks_prompts:
                return  # the sequence runs in the next step, whose whole budget holds any prompt
            num_tokens = self._chunk(sequence, num_cached, budget)
            if sequence.params.prompt_logprobs is not None:
                num_tokens = min(num_tokens, self._scorable(sequence, entries))
            if not num_tokens:
                return  # the sequence runs when the sequences before it have scored their prompts
            self._start(sequence, found)
            is_grown = self._cache.grow(sequence, num_cached + num_tokens)
            assert is_grown, "the whole sequence fits, so its first chunk does"
            entries[sequence] = self._take_up(sequence, num_tokens)
            self._cache.register(sequence, sequence.num_planned_tokens)

    def _chunk(self, sequence: Sequence, start: int, budget: int) -> int:
        """Returns the number of tokens from `start` on that the step computes. The tower outputs of these tokens exist,
        or the step computes them.
        """
        num_tokens = self._cache.next_chunk(sequence, start, budget)
        if not sequence.request.items or self._cache.outputs is None:
            return num_tokens
        return self._cache.outputs.chunk(sequence, start, num_tokens)

    def _scorable(self, sequence: Sequence, entries: dict[Sequence, PlannedRows]) -> int:
        """Returns the maximum number of rows for the sequence in this step. It is limited only if the rows need prompt
        logprobs.
        """
        if not sequence.wants_prompt_logprobs:
            return sys.maxsize
        return self.max_scored_rows - sum(entry.num_leading for entry in entries.values())

    def _starts_fetch(self, tier: SecondTier, sequence: Sequence, found: list[int]) -> bool:
        """Starts to fetch blocks of the sequence's prefix from the second tier. Returns False if the tier has none. A
        fetching sequence waits for its blocks.
        """
        if sequence.has_fetched:
            return False
        blocks = self._cache.find_blocks(sequence)  # blocks in the pool may lack only their state
        missing = self._cache.readable_hashes(sequence)[len(found) :]
        if not tier.start_fetch(sequence, missing, len(blocks) - len(found)):
            return False
        # The sequence holds these blocks, so that they are not evicted during the fetch.
        num_cached = self._cache.hold(sequence, blocks, has_state=False)
        num_placed = tier.num_placed(sequence) * self._cache.block_size
        is_grown = self._cache.grow(sequence, num_cached + num_placed)
        assert is_grown, "the whole sequence fits, so its fetched blocks do"
        self._queues.fetch(sequence)
        return True

    def _start(self, sequence: Sequence, found: list[int]) -> None:
        num_cached = self._cache.hold(sequence, found)
        sequence.has_fetched = False
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = num_cached
            self.num_lookups += 1
            self.num_queried_tokens += sequence.num_tokens
            self.num_hit_tokens += max(0, num_cached - sequence.num_fetched_tokens)
        self._queues.run(sequence)

    def _take_up(self, sequence: Sequence, num_tokens: int) -> PlannedRows:
        self.budget.take(sequence, num_tokens)
        entry = PlannedRows.of(sequence, sequence.num_planned_tokens, num_tokens)
        sequence.num_planned_tokens += num_tokens
        return entry
