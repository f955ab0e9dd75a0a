"""The scheduler: each step, who runs, how many of their tokens, on which blocks.

There are no prefill and decode phases: every sequence has computed tokens that chase its total, and
a step spends a budget of tokens on closing the gaps. One order, (priority, arrival), decides who is
served first and, read backwards, who is preempted when blocks run out.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator

from weft.core.config.engine import SchedulerConfig
from weft.core.values.kv_cache import CacheConfig
from weft.core.values.types import FinishReason, Request, SequenceOutput
from weft.engine.constraints.grammar import Grammar, GrammarFailed
from weft.engine.constraints.reasoning_tracker import ReasoningTracker
from weft.engine.scheduling.blocks.kv_cache import PrefixCache
from weft.engine.scheduling.blocks.second_tier import SecondTier
from weft.engine.scheduling.draft_payoff import DraftPayoff
from weft.engine.scheduling.drafter import Drafter, Drafting
from weft.engine.scheduling.drafts import DraftCounts
from weft.engine.scheduling.plan import FailedRow, Plan, PlannedRows, PooledRow, Result, SampledRow
from weft.engine.scheduling.planner import Planner
from weft.engine.scheduling.queues import Admission, Queues
from weft.engine.scheduling.sequence import Sequence, SequenceStatus
from weft.engine.scheduling.stopwatch import Stopwatch

_RUNNING = SequenceStatus.RUNNING  # to look it up costs as much as a call


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
        # A sequence longer than the pool could only wait for itself.
        self.max_model_len = min(max_model_len, cache_config.max_total_tokens)
        self.admission = Admission.OPEN
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
        self.num_corrupted = 0
        self.drafts = DraftCounts()
        self._drafting: Drafting | None = None
        self._recomputes = config.speculation is not None and config.speculation.recomputes
        self._queues = Queues()
        self.planner = Planner(config, self.cache, self._queues, max_scored_rows, tier)
        self._waits_for_tier = False  # the last plan had no room for anybody else
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
        return len(self._queues.running)

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
        return bool(self._queues.running) or (
            not self._waits_for_tier and any(self._queues.admissible(self.admission))
        )

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
        if self._queues.running and not preempt_running:
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
        return self._plan(is_ahead=False)

    def plan_ahead(self, in_flight: Plan) -> Plan | None:
        """Decide the step behind one whose tokens are not known yet; None where that has to wait for them.

        Who may end with that step has a row in this one, which is in vain if it does; who is sure to end has none.
        Nobody is preempted: that is decided once all tokens are known.
        """
        if self.planner.lacks_blocks or self.admission is Admission.CLOSED:
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
        if self._drafting is not None:
            self._drafting.begin_step()
        plan = self.planner.plan(self.admission, self.stopwatch.tick(), is_ahead=is_ahead)
        for entry in () if plan is None else plan.entries:
            if entry.sequence.scheduled_at is None:
                self.stopwatch.schedule(entry.sequence)
        self._waits_for_tier = plan is None and any(True for _ in self._queues.fetching())
        return plan

    def draft(self, plan: Plan) -> Plan:
        """Spend what a step has left of its budget, and of the blocks, on guesses at what follows."""
        if self._drafting is None:
            return plan
        return self._drafting.add_to(plan, self.planner.budget.left_for_drafts, self.cache.grow)

    def commit(self, plan: Plan, results: list[Result]) -> list[SequenceOutput]:
        """Take in what the step computed: advance, finish, free; what each sequence emits."""
        self.planner.budget.end(self.stopwatch.tick())
        # Else they were kept when the step behind it was planned.
        keeps_states = plan is not self._followed
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

    def _preempt_all(self) -> None:
        """For the cache to be cleared, of which no tier is excepted, nor what drafts have of it."""
        for sequence in list(self._queues.running):
            self.planner.preempt(sequence)
        for sequence in list(self._queues.fetching()):
            self.end_fetch(sequence)
        if self._tier is not None:
            self._tier.clear()
        if self._drafting is not None:
            self._drafting.forget()

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
