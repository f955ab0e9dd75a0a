"""The scheduler decides for each step which sequences run, with how many tokens, on which blocks.

There are no prefill and decode phases: every sequence has tokens that are not computed yet, and a step spends a
token budget on them. One order, (priority, arrival), decides which sequence is served first and, in reverse, which
is preempted when blocks run out.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from weft.core.config.engine import SchedulerConfig
from weft.core.values.kv_cache import CacheConfig
from weft.core.values.pictures import TowerConfig
from weft.core.values.types import FinishReason, Request, SequenceOutput
from weft.engine.constraints.grammar import Grammar, GrammarFailed
from weft.engine.constraints.reasoning_tracker import ReasoningTracker
from weft.engine.scheduling.blocks.handing_over import hand_over
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
from weft.engine.scheduling.tower_outputs import TowerOutputs, place_items

_RUNNING = SequenceStatus.RUNNING  # looking up an enum member costs as much as a call


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
        # A sequence that is longer than the pool could never run.
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
        self._tower: TowerConfig | None = None
        self._tier = tier
        self.stopwatch = Stopwatch(clock)
        self.num_corrupted = 0
        self.drafts = DraftCounts()
        self._drafting: Drafting | None = None
        self._recomputes = config.speculation is not None and config.speculation.recomputes
        self.queues = Queues()
        self.planner = Planner(config, self.cache, self.queues, max_scored_rows, tier)
        # True if the last plan was empty and sequences wait for fetched blocks
        self._waits_for_tier = False
        self._followed: Plan | None = None  # the plan in flight when the next one was made
        self._num_arrivals = 0

    # -- what the loop reads ------------------------------------------------------------------

    def open_sequences(self) -> Iterator[Sequence]:
        """Yields running sequences, then waiting ones; each in scheduling order."""
        return self.queues.in_order()

    @property
    def is_drafting(self) -> bool:
        """True if `draft` may add drafts to a plan."""
        return self._drafting is not None

    @property
    def num_open_requests(self) -> int:
        """Number of requests with an unfinished sequence."""
        return len(self.queues.by_engine_id)

    @property
    def has_work(self) -> bool:
        """True if `plan` may return a step. Only `plan` itself decides this finally."""
        if self.admission is Admission.CLOSED:
            return False
        return bool(self.queues.running) or (
            not self._waits_for_tier and any(self.queues.admissible(self.admission))
        )

    @property
    def has_started_work(self) -> bool:
        """True if a sequence that has run before is unfinished."""
        return self.queues.has_started

    def draft_by(self, drafter: Drafter, payoff: DraftPayoff | None = None) -> None:
        """Turns speculation with `drafter` on; while `payoff` finds steps with drafts slower, plans have no drafts.
        Call it before the first plan.
        """
        assert self.config.speculation is not None
        most = self.config.speculation.num_speculative_tokens
        self._drafting = Drafting(drafter, payoff, self.drafts, most, self.max_model_len)

    def take_tower(self, config: TowerConfig) -> None:
        """Makes the scheduler take requests with pictures or sounds. Call it before the first request."""
        self._tower = config
        self.cache.outputs = TowerOutputs(config)

    # -- requests come and go -----------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queues the `n` sequences of a request, all or none. Of a request that another engine has begun, the
        unfinished ones are queued, before all requests that begin here.

        A request with a grammar or open reasoning waits for `attach_grammar`, and keeps its place in the order.
        """
        assert request.engine_id not in self.queues.by_engine_id, request.engine_id
        priority = request.priority if self.config.policy == "priority" else 0
        order = (priority, self._num_arrivals)
        self._num_arrivals += request.params.n
        sequences = Sequence.of(request, order, self.stopwatch.tick())
        if request.items and self._tower is not None:
            place_items(sequences, self._tower)
        is_compiling = request.grammar is not None or request.reasoning is not None
        self.queues.add(sequences, is_compiling=is_compiling)

    def attach_grammar(self, engine_id: str, made: Grammar | str) -> list[SequenceOutput]:
        """Queues a request that waits for its grammar. If `made` is an error message, the request ends with it."""
        outputs = []
        for sequence in list(self.queues.by_engine_id.get(engine_id, ())):
            assert sequence.status is SequenceStatus.COMPILING
            try:
                if isinstance(made, str):
                    raise GrammarFailed(made)
                sequence.attach(
                    made.start(sequence.params.stop_token_ids or ()),
                    ReasoningTracker.of(sequence.request, made.vocabulary.piece),
                )
            except GrammarFailed as failure:
                outputs.append(self._end(sequence, FinishReason.ERROR, error=str(failure)))
                continue
            self.queues.take_back(sequence)
        return outputs

    def abort(self, engine_id: str, index: int | None = None) -> list[SequenceOutput]:
        """Ends a request, or one of its answers; returns the final outputs. Unknown ids are no-ops."""
        sequences = self.queues.by_engine_id.get(engine_id, ())
        ended = [s for s in sequences if index is None or s.index == index]
        return [self._end(sequence, FinishReason.ABORT) for sequence in ended]

    def hand_over(self, engine_id: str) -> list[SequenceOutput]:
        """Ends a request that another engine continues, and lends that engine the blocks of an unfinished answer."""
        sequences = list(self.queues.by_engine_id.get(engine_id, ()))
        lent = hand_over(self.cache, sequences[0]) if sequences else None
        return [
            self._end(sequence, FinishReason.ABORT, kv_transfer_params=lent)
            for sequence in sequences
        ]

    def fail(self, *plans: Plan) -> list[SequenceOutput]:
        """Ends the sequences of steps that could not be computed; returns the final outputs."""
        error = "the engine failed while it computed this request"
        sequences = dict.fromkeys(e.sequence for plan in plans for e in plan.entries)
        return [
            self._end(sequence, FinishReason.ERROR, error=error)
            for sequence in sequences
            if sequence.status is not SequenceStatus.FINISHED
        ]

    def abort_all(self) -> list[SequenceOutput]:
        """Ends every request."""
        engine_ids = list(self.queues.by_engine_id)
        return [output for engine_id in engine_ids for output in self.abort(engine_id)]

    def reset_cache(self, *, preempt_running: bool) -> bool:
        """Drops every cached block. Returns False and changes nothing if sequences run and must not be preempted."""
        if self.queues.running and not preempt_running:
            return False
        self._preempt_all()
        self.cache.clear()
        return True

    def clear_outputs(self) -> None:
        """Drops all cached tower outputs that no sequence holds."""
        if self.cache.outputs is not None:
            self.cache.outputs.clear()

    def end_fetch(self, sequence: Sequence, error: str | None = None) -> list[SequenceOutput]:
        """Ends a sequence's fetch. With an `error` the sequence ends too; otherwise it waits, and the next plan uses
        the fetched blocks.
        """
        if sequence.status is SequenceStatus.FETCHING and self._tier is not None:
            self._tier.cancel_fetch(sequence)
            self._waits_for_tier = False
            self.cache.give_back(sequence)
            self.queues.take_back(sequence)
            if error is not None:
                return [self._end(sequence, FinishReason.ERROR, error=error)]
        return []

    def start_weights_epoch(self) -> None:
        """Handles new weights: running sequences compute their KV again, and no KV of the old weights is reused."""
        self._preempt_all()
        self.cache.start_weights_epoch()
        for sequence in self.open_sequences():
            sequence.block_hashes.clear()  # hashes depend on the weights epoch

    # -- one step -----------------------------------------------------------------------------

    def plan(self, *, is_ahead: bool = False) -> Plan | None:
        """Decides the next step; None if there is nothing to run. No step may be in flight, unless `plan_ahead` calls
        this.
        """
        if self.admission is Admission.CLOSED:
            return None
        if self._drafting is not None:
            self._drafting.begin_step()
        now = self.stopwatch.tick()
        plan = self.planner.plan(self.admission, now, is_ahead=is_ahead)
        for entry in () if plan is None else plan.entries:
            if entry.sequence.scheduled_at is None:
                entry.sequence.scheduled_at = now
        self._waits_for_tier = plan is None and any(True for _ in self.queues.fetching())
        return plan

    def plan_ahead(self, in_flight: Plan) -> Plan | None:
        """Plans the step after the one in flight, before the tokens of the step in flight are known. Returns None if
        the plan depends on these tokens.

        A sequence that may end with the step in flight has a row in the planned step, which is wasted if it ends. A
        sequence that certainly ends has no row. Only `plan` preempts sequences, when all tokens are known.
        """
        if self.planner.lacks_blocks or self.admission is Admission.CLOSED:
            return None
        self._followed = in_flight
        for entry in in_flight.entries:
            sequence = entry.sequence
            if sequence.status is not _RUNNING:
                continue
            if self.cache.states is not None:
                self.cache.states.keep(sequence, sequence.num_planned_tokens)
            num_tokens = sequence.num_tokens + 1
            is_last = num_tokens >= min(sequence.max_num_tokens, self.max_model_len)
            sequence.num_pending_tokens = int(entry.samples and not is_last)
        return self.plan(is_ahead=True)

    def draft(self, plan: Plan) -> Plan:
        """Adds drafts to the plan, as far as the step's budget and free blocks allow."""
        if self._drafting is None:
            return plan
        return self._drafting.add_to(plan, self.planner.budget.left_for_drafts, self.cache.grow)

    def commit(self, plan: Plan, results: list[Result]) -> list[SequenceOutput]:
        """Commits the results of a step: advances and finishes sequences; returns their outputs."""
        self.planner.budget.end(self.stopwatch.tick())
        # If a further step is in flight, snapshots were kept when that step was planned.
        states = None if plan is self._followed else self.cache.states
        outputs = []
        for entry, result in zip(plan.entries, results, strict=True):
            sequence = entry.sequence
            if sequence.status is not _RUNNING:
                continue  # the sequence ended or was preempted since the plan: its token is dropped
            sequence.num_pending_tokens = 0
            if entry.draft_position is not None:
                self.drafts.accept(entry.draft_position)
                sequence.num_accepted_tokens += 1
            if entry.draft_position is None or not self._recomputes:
                end = sequence.num_computed_tokens = entry.start + entry.num_tokens
                # Accepted drafts are computed, but `num_planned_tokens` does not count them yet.
                sequence.num_planned_tokens = max(sequence.num_planned_tokens, end)
                if states is not None:
                    states.keep(sequence, end)
                if sequence.outputs and self.cache.outputs is not None:
                    self.cache.outputs.release(sequence, end)
            if isinstance(result, SampledRow):
                output = self._commit_sampled(entry, result)
            else:
                output = self._commit_other(sequence, result)
            if output is not None:
                outputs.append(output)
        if self._drafting is not None:
            self._drafting.commit(sum(len(output.token_ids) for output in outputs))
        return outputs

    def _preempt_all(self) -> None:
        """Preempts all running sequences, ends all fetches, and clears the second tier and the drafter."""
        for sequence in list(self.queues.running):
            self.planner.preempt(sequence)
        for sequence in list(self.queues.fetching()):
            self.end_fetch(sequence)
        if self._tier is not None:
            self._tier.clear()
        if self._drafting is not None:
            self._drafting.forget()

    def _commit_other(
        self, sequence: Sequence, result: PooledRow | FailedRow
    ) -> SequenceOutput | None:
        if isinstance(result, PooledRow):
            return self._commit_pooled(sequence, result)
        self.num_corrupted += result.is_corrupt
        self.cache.distrust(sequence.block_ids)
        return self._end(sequence, FinishReason.ERROR, error=result.error)

    def _commit_sampled(self, entry: PlannedRows, row: SampledRow) -> SequenceOutput | None:
        sequence = entry.sequence
        rows = row.prompt_logprobs
        scored = sequence.take_scores(entry.start, rows) if rows else []
        if row.token_id is None:
            lent = self.cache.lend_ahead(sequence)
            if lent is None and not scored:
                return None
            return sequence.output(prompt_logprobs=scored or None, kv_transfer_params=lent)
        self.stopwatch.count_token(sequence)
        try:
            reason, stop_reason = sequence.append(row.token_id, self.max_model_len)
        except GrammarFailed as failure:
            return self._end(sequence, FinishReason.ERROR, error=failure.in_answer)
        if sequence.num_planned_tokens > sequence.num_computed_tokens and reason is None:
            # The step ahead was planned with a pending token, which is known now: its block can be registered.
            self.cache.register(sequence, sequence.num_planned_tokens)
        delta: dict[str, Any] = {"token_ids": [row.token_id]}
        if row.logprobs is not None:
            delta["logprobs"] = [row.logprobs]
        if sequence.params.prompt_logprobs is not None and sequence.ends_its_scores:
            delta["prompt_logprobs"] = scored
        if reason is not None:
            delta |= {"finish_reason": reason, "stop_reason": stop_reason}
            delta["kv_transfer_params"] = self.cache.lend(sequence, reason)
            self._remove(sequence)
        return sequence.output(**delta)

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

    def _end(self, sequence: Sequence, reason: FinishReason, **delta: Any) -> SequenceOutput:
        self._remove(sequence)
        return sequence.output(finish_reason=reason, **delta)

    def _remove(self, sequence: Sequence) -> None:
        if sequence.status is SequenceStatus.FETCHING:
            self.end_fetch(sequence)
        is_request_over = self.queues.remove(sequence)
        self.stopwatch.end(sequence)
        self.cache.give_back(sequence)
        if is_request_over and self._tier is not None:
            self._tier.forget(sequence.request)

    # -- for tests ----------------------------------------------------------------------------

    def check(self) -> None:
        """Asserts the invariants between steps. Expensive; for tests."""
        self.cache.check(self.open_sequences())
        if self.cache.outputs is not None:
            self.cache.outputs.check()
        held = Counter(b for sequence in self.open_sequences() for b in sequence.block_ids)
        held.update(self.cache.lent or ())
        pool = self.cache.pool
        assert all(pool.num_holders(b) == held[b] for b in range(pool.num_blocks))
        self.queues.check()
