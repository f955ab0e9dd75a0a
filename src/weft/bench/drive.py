"""Sends requests at their times and waits for the answers, within limits on concurrency and time, until Ctrl-C."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from weft.bench.record import Prompt, Record, State, Target
from weft.core.errors import ConfigError, WeftError


@dataclass(frozen=True, slots=True)
class Run:
    """Result of a load. `num_unsent` is the number of requests that were not sent because the run was cut short."""

    records: list[Record]
    duration_s: float
    num_unsent: int = 0

    def in_state(self, state: State) -> list[Record]:
        """Returns the requests that ended in this state, in the order of their send times."""
        return [record for record in self.records if record.state is state]

    @property
    def is_cut_short(self) -> bool:
        """True if the time limit or Ctrl-C came before the last answer."""
        return self.num_unsent > 0 or any(r.state is State.CANCELLED for r in self.records)


@dataclass(frozen=True, slots=True)
class RunBounds:
    """Limits of a run. When `stop` is set or the time limit is reached, open requests are cancelled and do not
    count.
    """

    stop: asyncio.Event
    time_limit_s: float
    max_concurrency: int | None = None


async def drive(
    target: Target,
    prompts: Sequence[Prompt],
    at_s: Sequence[float],
    bounds: RunBounds,
    advance: Callable[[], None] = lambda: None,
) -> Run:
    """Sends each prompt at its time. `advance` is called for each finished request."""
    began = time.perf_counter()
    slots: AbstractAsyncContextManager[object] = (
        nullcontext()
        if bounds.max_concurrency is None
        else asyncio.Semaphore(bounds.max_concurrency)
    )
    records: list[Record] = []
    open_requests: list[asyncio.Task[None]] = []

    async def send(prompt: Prompt) -> None:
        record = Record(arrived_at=time.perf_counter())
        async with slots:
            records.append(record)
            await _send(target, prompt, record)
        advance()

    async def send_all() -> None:
        for prompt, due_s in zip(prompts, at_s, strict=True):
            wait_s = began + due_s - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            open_requests.append(asyncio.create_task(send(prompt)))
        await asyncio.gather(*open_requests)

    sending = asyncio.create_task(send_all())
    stopping = asyncio.create_task(bounds.stop.wait())
    try:
        await asyncio.wait(
            (sending, stopping), timeout=bounds.time_limit_s, return_when=asyncio.FIRST_COMPLETED
        )
        duration_s = time.perf_counter() - began
    finally:
        for task in (stopping, sending, *open_requests):
            task.cancel()
        ended = await asyncio.gather(sending, *open_requests, return_exceptions=True)
        await asyncio.gather(stopping, return_exceptions=True)
    for result in ended:
        if isinstance(result, Exception):
            raise result
    return Run(
        sorted(records, key=lambda record: record.arrived_at),
        duration_s,
        len(prompts) - len(records),
    )


async def _send(target: Target, prompt: Prompt, record: Record) -> None:
    record.start()
    try:
        await target.send(prompt, record)
    except ConfigError:
        raise  # an error of the configuration: every other request would fail too
    except WeftError as error:
        record.state, record.error = State.FAILED, str(error)
    else:
        record.state = State.COMPLETED
