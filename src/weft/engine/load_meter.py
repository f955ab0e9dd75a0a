"""`LoadMeter`: converts the scheduler's counters into the load that routers and metrics read."""

import time
from collections import deque
from collections.abc import Callable

from weft.core.config.engine import EngineConfig
from weft.core.observe.stats import StepStats, TransferStats
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.types import SequenceOutput
from weft.engine.kv.kv_tier import KvTier
from weft.engine.scheduling.plan import Plan
from weft.engine.scheduling.scheduler import Scheduler

_THROUGHPUT_WINDOW_S = 5.0


class LoadMeter:
    """Measures the load of one engine. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        config: EngineConfig,
        num_loras: Callable[[], int],
        tier: KvTier | None = None,
        transfers: Callable[[], TransferStats | None] | None = None,
        expert_load: Callable[[], tuple[float, float]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._max_total_tokens = config.cache_config.max_total_tokens
        self._num_loras = num_loras
        self._tier = tier
        self._transfers = transfers
        self._expert_load = expert_load
        self._clock = clock
        self._recent: deque[tuple[float, int]] = deque()  # (time, number of tokens) of recent steps
        self._num_recent_tokens = 0
        self._num_steps = 0
        self._num_computed_tokens = 0  # tokens of the last step, until `take_stats` reports them
        self._reported: tuple[int, ...] = ()

    def count_step(self, plan: Plan, outputs: list[SequenceOutput]) -> None:
        """Counts a step, its computed tokens and its generated tokens."""
        num_tokens = sum([len(output.token_ids) for output in outputs])
        self._num_steps += 1
        self._num_computed_tokens = plan.num_tokens
        self._recent.append((self._clock(), num_tokens))
        self._num_recent_tokens += num_tokens

    def read(self, scheduler: Scheduler) -> EngineLoad:
        """Returns the current load."""
        self._forget_old()
        queried = scheduler.planner.num_queried_tokens
        pool, queues = scheduler.cache.pool, scheduler.queues
        loras = self._config.lora_config
        return EngineLoad(
            data_parallel_rank=self._config.data_parallel_rank or 0,
            num_running=len(queues.running),
            num_waiting=queues.num_waiting,
            num_used_tokens=pool.num_held * scheduler.cache.block_size,
            max_total_tokens=self._max_total_tokens,
            max_running=self._config.scheduler_config.max_num_seqs,
            num_waiting_uncached_tokens=queues.num_waiting_tokens,
            gen_throughput=self._num_recent_tokens / _THROUGHPUT_WINDOW_S,
            cache_hit_rate=scheduler.planner.num_hit_tokens / queried if queried else 0.0,
            num_held_blocks=pool.num_held,
            num_blocks=pool.num_blocks,
            num_steps=self._num_steps,
            num_preemptions=scheduler.planner.num_preemptions,
            num_draft_tokens=scheduler.drafts.num_tokens,
            num_accepted_tokens=scheduler.drafts.num_accepted,
            num_loras=self._num_loras(),
            max_loras=0 if loras is None else loras.max_loras,
        )

    def has_changed(self, scheduler: Scheduler) -> bool:
        """True if a step or a command changed anything since the last `take_stats`."""
        return scheduler.stopwatch.has_samples or self._reported != self._key(scheduler)

    def take_stats(self, scheduler: Scheduler) -> StepStats:
        """Returns the measurements since the last call, and the current totals."""
        self._reported = self._key(scheduler)
        num_computed_tokens, self._num_computed_tokens = self._num_computed_tokens, 0
        intervals, ended = scheduler.stopwatch.take()
        outputs = scheduler.cache.outputs
        return StepStats(
            num_computed_tokens=num_computed_tokens,
            intervals=intervals,
            ended=ended,
            total_prompt_tokens=scheduler.stopwatch.num_prompt_tokens,
            total_generated_tokens=scheduler.stopwatch.num_generated_tokens,
            total_lookups=scheduler.planner.num_lookups,
            total_queried_tokens=scheduler.planner.num_queried_tokens,
            total_hit_tokens=scheduler.planner.num_hit_tokens,
            total_preemptions=scheduler.planner.num_preemptions,
            total_corrupted=scheduler.num_corrupted,
            total_drafts=scheduler.drafts.num_drafts,
            total_draft_tokens=scheduler.drafts.num_tokens,
            total_accepted_at=scheduler.drafts.num_accepted_at,
            tier=None if self._tier is None else self._tier.stats(),
            transfer=None if self._transfers is None else self._transfers(),
            total_expert_load=(0.0, 0.0) if self._expert_load is None else self._expert_load(),
            total_item_lookups=0 if outputs is None else outputs.counts.num_queries,
            total_item_hits=0 if outputs is None else outputs.counts.num_hits,
        )

    def _key(self, scheduler: Scheduler) -> tuple[int, ...]:
        held, queues = scheduler.cache.pool.num_held, scheduler.queues
        return (self._num_steps, len(queues.running), queues.num_waiting, held)

    def _forget_old(self) -> None:
        horizon = self._clock() - _THROUGHPUT_WINDOW_S
        while self._recent and self._recent[0][0] < horizon:
            self._num_recent_tokens -= self._recent.popleft()[1]
