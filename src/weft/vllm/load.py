"""`LoadMeter`: computes the load of a rank from vLLM's statistics of each step."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from weft.core.config.engine import EngineConfig
from weft.core.values.engine_snapshots import EngineLoad

_THROUGHPUT_WINDOW_S = 5.0
_WINDOW_LOOKUPS = 1000  # number of last prompts that the hit rate covers


class LoadMeter:
    """Load of one rank. `record` has the arguments of vLLM's stat loggers. `clock` is monotonic, in seconds."""

    def __init__(self, rank: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.last_report_at = clock()
        self._rank = rank
        self._clock = clock
        self._recent: deque[tuple[float, int]] = deque()  # (time, tokens)
        self._lookups: deque[tuple[int, int, int]] = deque()  # (prompts, tokens, tokens found)
        self._num_prompts = 0  # sums over these lookups
        self._num_running = 0
        self._num_waiting = 0
        self._usage = 0.0
        self._num_steps = 0
        self._num_preemptions = 0
        self._num_drafted = 0
        self._num_accepted = 0

    def record(self, scheduler: Any, iteration: Any) -> None:
        """Stores vLLM's `SchedulerStats` and `IterationStats` of a step; either may be None."""
        self.last_report_at = self._clock()
        if iteration is not None:
            self._recent.append((self.last_report_at, iteration.num_generation_tokens))
            self._num_preemptions += iteration.num_preempted_reqs
            self._forget_old()  # also while recording, since the load may never be read
        if scheduler is None:
            return
        self._num_steps += 1
        self._num_running = scheduler.num_running_reqs
        self._num_waiting = scheduler.num_waiting_reqs + scheduler.num_skipped_waiting_reqs
        self._usage = scheduler.kv_cache_usage
        cache = scheduler.prefix_cache_stats
        if cache is not None and cache.requests:
            self._lookups.append((cache.requests, cache.queries, cache.hits))
            self._num_prompts += cache.requests
            while self._num_prompts - self._lookups[0][0] >= _WINDOW_LOOKUPS:
                self._num_prompts -= self._lookups.popleft()[0]
        drafts = scheduler.spec_decoding_stats
        if drafts is not None:
            self._num_drafted += drafts.num_draft_tokens
            self._num_accepted += drafts.num_accepted_tokens

    def read(
        self, config: EngineConfig, *, is_idle: bool, num_loras: int, num_waiting_tokens: int
    ) -> EngineLoad:
        """Returns the present load. An engine without requests makes no reports, so its last report no longer
        counts.
        """
        self._forget_old()
        cache, loras = config.cache_config, config.lora_config
        num_held = 0 if is_idle else round(self._usage * cache.num_blocks)
        queried = sum(tokens for _, tokens, _ in self._lookups)
        return EngineLoad(
            data_parallel_rank=self._rank,
            num_running=0 if is_idle else self._num_running,
            num_waiting=0 if is_idle else self._num_waiting,
            num_used_tokens=num_held * cache.block_size,
            max_total_tokens=cache.max_total_tokens,
            max_running=config.scheduler_config.max_num_seqs,
            num_waiting_uncached_tokens=num_waiting_tokens,
            gen_throughput=sum(tokens for _, tokens in self._recent) / _THROUGHPUT_WINDOW_S,
            cache_hit_rate=sum(hits for _, _, hits in self._lookups) / queried if queried else 0.0,
            num_held_blocks=num_held,
            num_blocks=cache.num_blocks,
            num_steps=self._num_steps,
            num_preemptions=self._num_preemptions,
            num_draft_tokens=self._num_drafted,
            num_accepted_tokens=self._num_accepted,
            num_loras=num_loras,
            max_loras=0 if loras is None else loras.max_loras,
        )

    def _forget_old(self) -> None:
        horizon = self._clock() - _THROUGHPUT_WINDOW_S
        while self._recent and self._recent[0][0] < horizon:
            self._recent.popleft()
