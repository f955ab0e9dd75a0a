"""A simulated worker: continuous batching over blocks, a queue, and what it tells pickers of itself."""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.scale.blocks import BlockCache, Lease
from benchmarks.scale.service import BLOCK_SIZE, ServiceModel
from weft.epp.pool.endpoint import Load
from weft.epp.prefix.events import Event, Removed, Stored


class WorkerDiedError(Exception):
    """The worker ended, or nobody listens there."""


@dataclass(eq=False, slots=True)
class Job:
    """A request at a worker: its tokens and those of its answer, known beforehand."""

    tokens: bytes  # little-endian uint32: the prompt, then the answer
    chain: Sequence[int]  # a hash for each full block of both
    num_prompt: int
    num_answer: int
    first_token: asyncio.Future[float]  # when it came
    ended: asyncio.Future[float]
    num_cached: int = 0
    num_computed: int = 0  # of the prompt
    lease: Lease = field(default_factory=lambda: Lease([], 0))

    @property
    def num_blocks(self) -> int:
        """Blocks for prompt and answer: both are taken at once, so nothing is preempted."""
        return -(-(self.num_prompt + self.num_answer) // BLOCK_SIZE)


class Worker:
    """One engine. A step takes as long as its model says; steps that only decode are passed in one go."""

    def __init__(self, number: int, service: ServiceModel) -> None:
        self.number = number
        self.service = service
        self.is_up = True
        self.cache = BlockCache(service.num_blocks)
        self.num_ended = 0
        # Called with what became of cached blocks after a step; None: all are gone.
        self.subscribers: list[Callable[[list[Event] | None], None]] = []
        self._waiting: deque[Job] = deque()
        self._prefilling: list[Job] = []
        self._decoding: list[tuple[int, int, Job]] = []  # heap of the decode step that ends each
        self._num_decode_steps = 0
        self._num_jobs = 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._span: tuple[float, float, int] = (
            0.0,
            0.0,
            0,
        )  # of decode steps: begin, length of one, how many

    @property
    def num_running(self) -> int:
        """Sequences that have blocks."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def num_waiting(self) -> int:
        """Sequences that have none yet."""
        return len(self._waiting)

    def load(self) -> Load:
        """What it tells whoever asks."""
        return Load(
            num_waiting=len(self._waiting),
            num_running=self.num_running,
            kv_usage=self.cache.num_used / self.cache.num_blocks,
            block_size=BLOCK_SIZE,
            num_blocks=self.cache.num_blocks,
        )

    def submit(self, job: Job) -> None:
        """Queue a job; raises `WorkerDiedError` if nobody listens."""
        if not self.is_up:
            raise WorkerDiedError
        if job.num_blocks > self.cache.num_blocks:
            raise ValueError(f"a request of {job.num_blocks} blocks fits no worker of this size")
        self._waiting.append(job)
        if self._timer is None:
            self._begin_step()
        elif self._span[2] > 1:
            self._cut_span()

    def die(self) -> None:
        """End at once: all jobs fail, and the cache is lost."""
        self.is_up = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        jobs = [*self._waiting, *self._prefilling, *(job for _, _, job in self._decoding)]
        self._waiting.clear()
        self._prefilling, self._decoding = [], []
        self.cache = BlockCache(self.service.num_blocks)
        for job in jobs:
            for future in (job.first_token, job.ended):
                if not future.done():
                    future.set_exception(WorkerDiedError())
        for tell in self.subscribers:
            tell(None)

    def restart(self) -> None:
        """Come back, with nothing cached."""
        self.is_up = True

    # -- steps --------------------------------------------------------------------------------

    def _admit(self) -> None:
        while self._waiting and self.num_running < self.service.max_running:
            job = self._waiting[0]
            # The last token of a prompt is computed in any case: its logits are wanted.
            findable = job.chain[: (job.num_prompt - 1) // BLOCK_SIZE]
            lease = self.cache.lease(findable, job.num_blocks)
            if lease is None:
                break
            self._waiting.popleft()
            job.lease = lease
            job.num_cached = job.num_computed = len(lease.held) * BLOCK_SIZE
            self._prefilling.append(job)

    def _begin_step(self) -> None:
        self._admit()
        if not self._prefilling and not self._decoding:
            self._tell([])
            return
        num_decoding = len(self._decoding)
        if not self._prefilling:
            self._begin_span(num_decoding)
            return
        budget = self.service.max_batched_tokens - num_decoding
        num_prefilled = 0
        for job in self._prefilling:
            chunk = min(job.num_prompt - job.num_computed, budget - num_prefilled)
            job.num_computed += chunk
            num_prefilled += chunk
            if num_prefilled >= budget:
                break
        self._after(self.service.step_time_s(num_decoding, num_prefilled), 1)

    def _begin_span(self, num_decoding: int) -> None:
        """Nothing comes between until the first of them ends, or somebody arrives."""
        step_s = self.service.step_time_s(num_decoding, 0)
        self._after(step_s, self._decoding[0][0] - self._num_decode_steps)

    def _after(self, step_s: float, num_steps: int) -> None:
        began = self._loop.time()
        self._span = began, step_s, num_steps
        self._timer = self._loop.call_at(began + step_s * num_steps, self._end_steps)

    def _cut_span(self) -> None:
        """Who arrived joins after the step that is under way."""
        assert self._timer is not None
        began, step_s, num_steps = self._span
        num_begun = min(num_steps, int((self._loop.time() - began) / step_s) + 1)
        self._timer.cancel()
        self._span = began, step_s, num_begun
        self._timer = self._loop.call_at(began + step_s * num_begun, self._end_steps)

    def _end_steps(self) -> None:
        _, _, num_steps = self._span
        self._timer = None
        self._num_decode_steps += num_steps
        events: list[Event] = []
        while self._decoding and self._decoding[0][0] <= self._num_decode_steps:
            self._end(heapq.heappop(self._decoding)[2], events)
        done = [job for job in self._prefilling if job.num_computed == job.num_prompt]
        self._prefilling = [job for job in self._prefilling if job.num_computed < job.num_prompt]
        for job in done:
            self._publish(job, job.num_prompt // BLOCK_SIZE, events)
            job.first_token.set_result(self._loop.time())
            if job.num_answer == 1:
                self._end(job, events)
                continue
            self._num_jobs += 1
            due = self._num_decode_steps + job.num_answer - 1
            heapq.heappush(self._decoding, (due, self._num_jobs, job))
        self._tell(events)
        self._begin_step()

    def _end(self, job: Job, events: list[Event]) -> None:
        self._publish(job, (job.num_prompt + job.num_answer - 1) // BLOCK_SIZE, events)
        self.cache.release(job.lease)
        self.num_ended += 1
        job.ended.set_result(self._loop.time())

    def _publish(self, job: Job, num_full: int, events: list[Event]) -> None:
        """Blocks of so many first ones are computed now; the token that was made last has no keys yet."""
        first = len(job.lease.held)
        new = self.cache.publish(job.lease, job.chain[:num_full])
        if new and self.subscribers:
            width = 4 * BLOCK_SIZE
            events.append(
                Stored(
                    hashes=new,
                    parent=job.chain[first - 1] if first else None,
                    tokens=job.tokens[first * width : (first + len(new)) * width],
                    block_size=BLOCK_SIZE,
                )
            )

    def _tell(self, events: list[Event]) -> None:
        removed = self.cache.take_removed()
        if not self.subscribers:
            return
        if removed:
            events.insert(0, Removed(hashes=removed))
        if events:
            for tell in self.subscribers:
                tell(events)
