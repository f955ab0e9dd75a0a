"""`StatLog`: the periodic log line about the load of a busy engine."""

import time
from collections import deque
from collections.abc import Callable

from weft.core.observe.stats import StepStats
from weft.core.values.engine_snapshots import EngineLoad

_WINDOW_LOOKUPS = 1000  # number of last prompts that the hit rate covers


class StatLog:
    """Compares the engine's counters with those of the previous call. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen = StepStats()
        self._seen_at = clock()
        self._lookups: deque[tuple[int, int, int]] = deque()  # (prompts, tokens, tokens found)

    def line(self, load: EngineLoad, stats: StepStats) -> str | None:
        """Returns the current load and the throughput since the last call; None if the engine is idle."""
        now = self._clock()
        seconds = max(now - self._seen_at, 1e-9)
        num_prompt = stats.total_prompt_tokens - self._seen.total_prompt_tokens
        num_generated = stats.total_generated_tokens - self._seen.total_generated_tokens
        self._count_lookups(stats)
        self._seen, self._seen_at = stats, now
        if not (num_prompt or num_generated or load.num_running or load.num_waiting):
            return None
        return (
            f"prompt {num_prompt / seconds:.1f} tok/s, generation {num_generated / seconds:.1f} tok/s, "
            f"running {load.num_running}, waiting {load.num_waiting}, "
            f"KV usage {load.token_usage:.1%}, prefix hit rate {self._hit_rate():.1%}"
        )

    def _count_lookups(self, stats: StepStats) -> None:
        seen = self._seen
        num_prompts = stats.total_lookups - seen.total_lookups
        if not num_prompts:
            return
        num_tokens = stats.total_queried_tokens - seen.total_queried_tokens
        self._lookups.append(
            (num_prompts, num_tokens, stats.total_hit_tokens - seen.total_hit_tokens)
        )
        total = sum(prompts for prompts, _, _ in self._lookups)
        while total - self._lookups[0][0] >= _WINDOW_LOOKUPS:
            total -= self._lookups.popleft()[0]

    def _hit_rate(self) -> float:
        num_tokens = sum(tokens for _, tokens, _ in self._lookups)
        return sum(found for _, _, found in self._lookups) / num_tokens if num_tokens else 0.0
