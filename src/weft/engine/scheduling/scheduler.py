"""The scheduler: each step, who runs, how many of their tokens, on which blocks.

There are no prefill and decode phases: every sequence has computed tokens that chase its total, and
a step spends a budget of tokens on closing the gaps. One order, (priority, arrival), decides who is
served first and, read backwards, who is preempted when blocks run out.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum

from weft.core.config import SchedulerConfig
from weft.core.kv_cache import CacheConfig
from weft.core.types import FinishReason, Request, SequenceOutput
from weft.engine.constraints.grammar import Grammar, GrammarFailed
from weft.engine.constraints.reasoning_tracker import ReasoningTracker
from weft.engine.scheduling.draft_payoff import DraftPayoff
from weft.engine.scheduling.drafter import Drafter, Drafting
from weft.engine.scheduling.drafts import DraftCounts
from weft.engine.scheduling.kv_cache import PrefixCache
from weft.engine.scheduling.plan import FailedRow, Plan, PlannedRows, PooledRow, Result, SampledRow
from weft.engine.scheduling.queues import Queues
from weft.engine.scheduling.second_tier import SecondTier
from weft.engine.scheduling.sequence import Sequence, SequenceStatus
from weft.engine.scheduling.step_budget import StepBudget
from weft.engine.scheduling.stopwatch import Stopwatch

_RUNNING = SequenceStatus.RUNNING  # to look it up costs as much as a call


class Admission(Enum):
    """Who may be scheduled."""

    OPEN = "open"  # everyone
    STARTED = "started"  # only sequences that have run before
    CLOSED = "closed"  # nobody


class Scheduler:
    """Owner of every `Sequence` and of the prefix cache. Synchronous; one thread calls it."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache_config: CacheConfig,
        max_model_len: int,
        max_scored_rows: int = sys.maxsize,
        *,
        tier: SecondTier | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        # Rows of a whole vocabulary each, which a step that scores its prompts keeps at once.
        self.max_scored_rows = max_scored_rows
        # A sequence longer than the pool could only wait for itself.
        self.max_model_len = min(max_model_len, cache_config.max_total_tokens)
        self.admission = Admission.OPEN
        self.num_preemptions = 0
        self.cache = PrefixCache(
            cache_config.num_blocks,
            cache_config.block_size,
            is_enabled=cache_config.enable_prefix_caching,
            keeps_evicted=tier is not None and tier.keeps_evicted,
            lender=None if tier is None else tier.lender,
            states=cache_config.states,
        )
        self._tier = tier
        self.stopwatch = Stopwatch(clock)
        self._budget = StepBudget(config)
        self.num_corrupted = 0
        self.num_lookups = 0
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self.drafts = DraftCounts()
        self._drafting: Drafting | None = None
        self._recomputes = config.speculation is not None and config.speculation.recomputes
        self._queues = Queues()
        self._running = self._queues.running  # the same list
        self._waits_for_tier = False  # the last plan had no room for anybody else
        self._lacks_blocks = False  # the last plan ahead ended where somebody must be preempted
        self._followed: Plan | None = None  # the plan in flight that another was made behind
        self._num_arrivals = 0

    # -- what the loop reads ------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        """Sequences that are not running."""
        return self._queues.num_waiting

    def open_sequences(self) -> Iterator[Sequence]:
        """Those that run, then those that wait; each in the order in which they are served."""
        return self._queues.in_order()

    @property
    def is_drafting(self) -> bool:
        """Whether `draft` may add anything to a plan."""
        return self._drafting is not None

    @property
    def num_running(self) -> int:
        """Sequences that run."""
        return len(self._running)

    @property
    def num_open_requests(self) -> int:
        """Requests with an unfinished sequence."""
        return len(self._queues.by_engine_id)

    @property
    def num_used_tokens(self) -> int:
        """Tokens of pool space that live sequences hold."""
        return self.cache.pool.num_held * self.cache.block_size

    @property
    def num_waiting_tokens(self) -> int:
        """Tokens that waiting sequences have still to compute, cached ones included."""
        return self._queues.num_waiting_tokens

    @property
    def has_work(self) -> bool:
        """Whether `plan` would find something to do, as far as is known before it is called."""
        if self.admission is Admission.CLOSED:
            return False
        return bool(self._running) or (not self._waits_for_tier and any(self._admissible()))

    @property
    def has_started_work(self) -> bool:
        """Whether a sequence that has run before is unfinished."""
        return self._queues.has_started

    def draft_by(self, drafter: Drafter, payoff: DraftPayoff | None = None) -> None:
        """Draft so, as its configuration says; where `payoff` finds that it loses, not. Before the first plan."""
        assert self.config.speculation is not None
        most = self.config.speculation.num_speculative_tokens
        self._drafting = Drafting(drafter, payoff, self.drafts, most, self.max_model_len)

    # -- requests come and go -----------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue the `n` sequences of a request, all or none.

        One with a grammar or open reasoning waits for `attach_grammar`, and keeps its place in the order
        meanwhile.
        """
        assert request.engine_id not in self._queues.by_engine_id, request.engine_id
        priority = request.priority if self.config.policy == "priority" else 0
        first = self._num_arrivals
        sequences = [
            Sequence.of(request, index, (priority, first + index))
            for index in range(request.params.n)
        ]
        self._num_arrivals += len(sequences)
        self.stopwatch.tick()
        for sequence in sequences:
            self.stopwatch.queue(sequence)
        is_compiling = request.grammar is not None or request.reasoning is not None
        self._queues.add(sequences, is_compiling=is_compiling)

    def attach_grammar(self, engine_id: str, made: Grammar | str) -> list[SequenceOutput]:
        """Let a request that waits for this take its place; or end it, with the sentence why there is none."""
        outputs = []
        for sequence in list(self._queues.by_engine_id.get(engine_id, ())):
            assert sequence.status is SequenceStatus.COMPILING
            try:
                if isinstance(made, str):
                    raise GrammarFailed(made)
                sequence.grammar = made.start(sequence.params.stop_token_ids or ())
            except GrammarFailed as failure:
                outputs.append(self._end(sequence, FinishReason.ERROR, error=str(failure)))
                continue
            if (reasoning := sequence.request.reasoning) is not None:
                budget = sequence.params.thinking_token_budget
                sequence.reasoning = ReasoningTracker(reasoning, made.vocabulary.piece, budget)
            self._queues.take_back(sequence)
        return outputs

    def abort(self, engine_id: str, index: int | None = None) -> list[SequenceOutput]:
        """End a request, or one of its answers; the final output of each. Unknown ids: nothing."""
        sequences = self._queues.by_engine_id.get(engine_id, ())
        ended = [s for s in sequences if index is None or s.index == index]
        return [self._end(sequence, FinishReason.ABORT) for sequence in ended]

    def fail(self, *plans: Plan) -> list[SequenceOutput]:
        """End the sequences of steps that could not be computed; the final output of each."""
        error = "the engine failed while it computed this request"
        sequences = dict.fromkeys(e.sequence for plan in plans for e in plan.entries)
        return [
            self._end(sequence, FinishReason.ERROR, error=error)
            for sequence in sequences
            if sequence.status is not SequenceStatus.FINISHED
        ]

    def abort_all(self) -> list[SequenceOutput]:
        """End every request."""
        engine_ids = list(self._queues.by_engine_id)
        return [output for engine_id in engine_ids for output in self.abort(engine_id)]

    def reset_cache(self, *, preempt_running: bool) -> bool:
        """Drop every cached block. False, and no change, if blocks are held and may not be taken."""
        if self._running and not preempt_running:
            return False
        self._preempt_all()
        self.cache.clear()
        return True

    def end_fetch(self, sequence: Sequence, error: str | None = None) -> list[SequenceOutput]:
        """No more comes of it: it takes its place again, and the next plan finds what did; or it ends."""
        if sequence.status is SequenceStatus.FETCHING and self._tier is not None:
            self._tier.cancel_fetch(sequence)
            self._waits_for_tier = False
            self.cache.give_back(sequence)
            self._queues.take_back(sequence)
            if error is not None:
                return [self._end(sequence, FinishReason.ERROR, error=error)]
        return []

    def start_weights_epoch(self) -> None:
        """The weights have changed: what runs computes its K/V again, and none is shared across."""
        self._preempt_all()
        self.cache.start_weights_epoch()
        for sequence in self.open_sequences():
            sequence.block_hashes.clear()  # they are of the weights before

    # -- one step -----------------------------------------------------------------------------

    def plan(self) -> Plan | None:
        """Decide the next step; None when there is nothing to run. No step is in flight."""
        self._lacks_blocks = False
        return self._plan(is_ahead=False)

    def plan_ahead(self, in_flight: Plan) -> Plan | None:
        """Decide the step behind one whose tokens are not known yet; None where that has to wait for them.

        Who may end with that step has a row in this one, which is in vain if it does; who is sure to end has none.
        Nobody is preempted: that is decided once all tokens are known.
        """
        if self._lacks_blocks or self.admission is Admission.CLOSED:
            return None
        self._followed = in_flight
        for entry in in_flight.entries:
            sequence = entry.sequence
            if sequence.status is not _RUNNING:
                continue
            self.cache.keep_state(sequence, sequence.num_planned_tokens)
            num_tokens = sequence.num_tokens + 1
            is_last = num_tokens >= min(sequence.max_num_tokens, self.max_model_len)
            sequence.num_pending_tokens = int(entry.samples and not is_last)
        return self._plan(is_ahead=True)

    def _plan(self, *, is_ahead: bool) -> Plan | None:
        if self.admission is Admission.CLOSED:
            return None
        self._budget.begin(self._running, self.stopwatch.tick(), is_ahead=is_ahead)
        if self._drafting is not None:
            self._drafting.begin_step()
        num_preemptions = self.num_preemptions
        entries = self._plan_running(may_preempt=not is_ahead)
        for sequence in entries:
            self.cache.register(sequence, sequence.num_planned_tokens)
        if self.num_preemptions == num_preemptions and not self._lacks_blocks:
            self._plan_waiting(entries)
        self._waits_for_tier = not entries and any(True for _ in self._queues.fetching())
        return Plan(tuple(entries.values())) if entries else None

    def draft(self, plan: Plan) -> Plan:
        """Spend what a step has left of its budget, and of the blocks, on guesses at what follows."""
        if self._drafting is None:
            return plan
        return self._drafting.add_to(plan, self._budget.left_for_drafts, self.cache.grow)

    def commit(self, plan: Plan, results: list[Result]) -> list[SequenceOutput]:
        """Take in what the step computed: advance, finish, free; what each sequence emits."""
        self._budget.end(self.stopwatch.tick())
        keeps_states = (
            plan is not self._followed
        )  # else they were, when the step behind it was planned
        outputs = []
        for entry, result in zip(plan.entries, results, strict=True):
            sequence = entry.sequence
            if sequence.status is not _RUNNING:
                continue  # ended or preempted since the plan: its token is dropped, once
            sequence.num_pending_tokens = 0
            if entry.draft_position is not None:
                self.drafts.accept(entry.draft_position)
                sequence.num_accepted_tokens += 1
            if entry.draft_position is None or not self._recomputes:
                self._advance(sequence, entry.start + entry.num_tokens)
                if keeps_states:
                    self.cache.keep_state(sequence, sequence.num_computed_tokens)
            output = self._commit_result(entry, result)
            if output is not None:
                outputs.append(output)
        if self._drafting is not None:
            self._drafting.commit(sum(len(output.token_ids) for output in outputs))
        return outputs

    # -- planning -----------------------------------------------------------------------------

    def _plan_running(self, *, may_preempt: bool) -> dict[Sequence, PlannedRows]:
        entries: dict[Sequence, PlannedRows] = {}
        for sequence in list(self._running):
            if sequence.status is not _RUNNING:
                continue  # preempted by an earlier one in this very loop
            budget = self._budget.left_for(sequence, sequence.num_planned_tokens)
            wanted = self.cache.next_chunk(sequence, sequence.num_planned_tokens, budget)
            if sequence.params.prompt_logprobs is not None:
                wanted = min(wanted, self._scorable(sequence, entries))
            if wanted <= 0:
                continue
            while not self.cache.grow(sequence, sequence.num_planned_tokens + wanted):
                if not may_preempt:
                    self._lacks_blocks = True
                    return entries
                victim = self._running[-1]  # not planned yet: this loop runs in order
                self._preempt(victim)
                if victim is sequence:
                    break
            else:
                entries[sequence] = self._take_up(sequence, wanted)
        return entries

    def _plan_waiting(self, entries: dict[Sequence, PlannedRows]) -> None:
        """Take up who waits."""
        # Of what is free, those that fetch need some: else what they fetched would be evicted again.
        reserved = self.cache.num_missing(self._queues.fetching())
        for sequence in list(self._admissible()):
            if self._budget.is_full or len(self._running) >= self.config.max_num_seqs:
                return
            found = self.cache.find(sequence)
            if not self.cache.fits(sequence, found, reserved):
                return  # nobody overtakes the head, or a long prompt would wait for ever
            if self._starts_fetch(sequence, found):
                reserved += self.cache.num_missing([sequence])
                continue
            num_cached = len(found) * self.cache.block_size
            budget = self._budget.left_for(sequence, num_cached)
            if sequence.num_tokens - num_cached > budget and not self.config.chunks_prompts:
                return  # it has the next step, whose budget holds any prompt
            chunk = self.cache.next_chunk(sequence, num_cached, budget)
            num_tokens = min(chunk, self._scorable(sequence, entries))
            if not num_tokens:
                return  # its turn comes when those before it have scored their prompts
            self._start(sequence, found)
            is_grown = self.cache.grow(sequence, num_cached + num_tokens)
            assert is_grown, "the whole sequence fits, so its first chunk does"
            entries[sequence] = self._take_up(sequence, num_tokens)
            self.cache.register(sequence, sequence.num_planned_tokens)

    def _scorable(self, sequence: Sequence, entries: dict[Sequence, PlannedRows]) -> int:
        """How many tokens the sequence may compute, if their rows are to be scored."""
        if not sequence.wants_prompt_logprobs:
            return sys.maxsize
        return self.max_scored_rows - sum(entry.num_leading for entry in entries.values())

    def _admissible(self) -> Iterator[Sequence]:
        if self.admission is Admission.OPEN:
            return iter(self._queues.waiting)
        return (sequence for sequence in self._queues.waiting if sequence.has_started)

    def _starts_fetch(self, sequence: Sequence, found: list[int]) -> bool:
        """Whether its prefix goes on in the second tier, and it waits from now on for those blocks."""
        if self._tier is None or sequence.has_fetched:
            return False
        blocks = self.cache.find_blocks(sequence)  # of some only the state may be missing
        missing = self.cache.readable_hashes(sequence)[len(found) :]
        if not self._tier.start_fetch(sequence, missing, len(blocks) - len(found)):
            return False
        # Held, or they might be evicted meanwhile.
        num_cached = self.cache.hold(sequence, blocks, has_state=False)
        num_placed = self._tier.num_placed(sequence) * self.cache.block_size
        is_grown = self.cache.grow(sequence, num_cached + num_placed)
        assert is_grown, "the whole sequence fits, so what is fetched of it does"
        self._queues.fetch(sequence)
        return True

    def _start(self, sequence: Sequence, found: list[int]) -> None:
        num_cached = self.cache.hold(sequence, found)
        sequence.has_fetched = False
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = num_cached
            self.num_lookups += 1
            self.num_queried_tokens += sequence.num_tokens
            self.num_hit_tokens += max(0, num_cached - sequence.num_fetched_tokens)
        self.stopwatch.schedule(sequence)
        self._queues.run(sequence)

    def _take_up(self, sequence: Sequence, num_tokens: int) -> PlannedRows:
        self._budget.take(sequence, num_tokens)
        entry = PlannedRows.of(sequence, sequence.num_planned_tokens, num_tokens)
        sequence.num_planned_tokens += num_tokens
        return entry

    def _preempt_all(self) -> None:
        """For the cache to be cleared, of which no tier is excepted, nor what drafts have of it."""
        for sequence in list(self._running):
            self._preempt(sequence)
        for sequence in list(self._queues.fetching()):
            self.end_fetch(sequence)
        if self._tier is not None:
            self._tier.clear()
        if self._drafting is not None:
            self._drafting.forget()

    def _preempt(self, sequence: Sequence) -> None:
        """Take the sequence's blocks; it keeps its tokens and computes them again later."""
        self.cache.give_back(sequence)
        self._queues.preempt(sequence)
        sequence.num_preemptions += 1
        self.num_preemptions += 1

    # -- committing ---------------------------------------------------------------------------

    def _advance(self, sequence: Sequence, num_tokens: int) -> None:
        """So many of its tokens are computed. A draft that turned out right was so without having been planned."""
        sequence.num_computed_tokens = num_tokens
        sequence.num_planned_tokens = max(sequence.num_planned_tokens, num_tokens)

    def _commit_result(self, entry: PlannedRows, result: Result) -> SequenceOutput | None:
        match result:
            case SampledRow():
                return self._commit_sampled(entry, result)
            case PooledRow():
                return self._commit_pooled(entry.sequence, result)
            case FailedRow():
                self.num_corrupted += result.is_corrupt
                self.cache.distrust(entry.sequence.block_ids)
                return self._end(entry.sequence, FinishReason.ERROR, error=result.error)

    def _commit_sampled(self, entry: PlannedRows, row: SampledRow) -> SequenceOutput | None:
        sequence = entry.sequence
        # What was scored before a preemption is scored again, and was emitted already.
        scored = row.prompt_logprobs[sequence.num_scored_tokens - entry.start :]
        sequence.num_scored_tokens += len(scored)
        emits_scores = sequence.index == 0  # one answer emits them for all
        if row.token_id is None:
            lent = self.cache.lend_ahead(sequence)
            if lent is None and not (scored and emits_scores):
                return None
            return sequence.output(prompt_logprobs=scored or None, kv_transfer_params=lent)
        self.stopwatch.count_token(sequence)
        try:
            reason, stop_reason = sequence.append(row.token_id, self.max_model_len)
        except GrammarFailed as failure:
            return self._end(sequence, FinishReason.ERROR, error=failure.in_answer)
        if sequence.num_planned_tokens > sequence.num_computed_tokens and reason is None:
            self.cache.register(sequence, sequence.num_planned_tokens)  # in flight, and known now
        if reason is None and row.logprobs is None and sequence.params.prompt_logprobs is None:
            return sequence.token_output(row.token_id)
        output = sequence.output(
            token_ids=[row.token_id],
            logprobs=None if row.logprobs is None else [row.logprobs],
            prompt_logprobs=scored if emits_scores and sequence.ends_its_scores else None,
            finish_reason=reason,
            stop_reason=stop_reason,
            kv_transfer_params=self.cache.lend(sequence, reason),
        )
        if reason is not None:
            self._remove(sequence)
        return output

    def _commit_pooled(self, sequence: Sequence, row: PooledRow) -> SequenceOutput | None:
        sequence.collected = row.collected
        if row.pooled is None:
            return None
        self.stopwatch.finish_prompt(sequence)
        self._remove(sequence)
        return sequence.output(
            finish_reason=FinishReason.STOP,
            pooled=row.pooled.tobytes(),
            pooled_shape=row.pooled.shape,
        )

    def _end(
        self, sequence: Sequence, reason: FinishReason, *, error: str | None = None
    ) -> SequenceOutput:
        self._remove(sequence)
        return sequence.output(finish_reason=reason, error=error)

    def _remove(self, sequence: Sequence) -> None:
        self.end_fetch(sequence)
        is_request_over = self._queues.remove(sequence)
        self.stopwatch.end(sequence)
        self.cache.give_back(sequence)
        if is_request_over and self._tier is not None:
            self._tier.forget(sequence.request)

    # -- for tests ----------------------------------------------------------------------------

    def check(self) -> None:
        """Assert what must always hold between steps. Dear; for tests."""
        self.cache.check(self.open_sequences())
        held = Counter(b for sequence in self.open_sequences() for b in sequence.block_ids)
        held.update(self.cache.lent or ())
        pool = self.cache.pool
        assert all(pool.num_holders(b) == held[b] for b in range(pool.num_blocks))
        self._queues.check()
