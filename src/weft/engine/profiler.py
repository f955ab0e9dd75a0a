"""`Profiler`: records a trace of steps on request; Perfetto and chrome://tracing can open the trace.

In the trace a step is a slice with its contents as arguments, above slices of the loop's phases in order. A second
track has the parts of the forward pass, summed over layers. Events are written to the file at once, so that the trace
takes little memory, and an engine that dies leaves the trace up to that moment.
"""

import gzip
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from weft.core.config.profiling import ProfilerConfig
from weft.core.errors import FailedPrecondition
from weft.engine.ipc.messages import StartProfile
from weft.engine.scheduling.plan import Plan
from weft.engine.scheduling.scheduler import Scheduler

MAX_TRACE_BYTES = 256 << 20  # bytes of JSON; a step takes about 1,500 bytes
MAX_TRACE_S = 900.0  # a trace that is never stopped ends after this time
_STEPS, _PARTS = 1, 2  # thread ids in the trace
_PROCESS = os.getpid()

log = logging.getLogger("weft.engine")


class Profiler:
    """Profiler of one engine, owned by the engine's thread. The loop calls `lap` only between `start` and `stop`.

    `part_seconds` returns the runner's accumulated time for each part of its steps.
    """

    def __init__(
        self,
        config: ProfilerConfig | None,
        scheduler: Scheduler,
        part_seconds: Callable[[], Mapping[str, float]],
    ) -> None:
        self._config = config
        self._scheduler = scheduler
        self._part_seconds = part_seconds
        self._encode = msgspec.json.Encoder().encode
        self._file: IO[bytes] | None = None  # open while recording
        self._path = Path()
        self._failure: str | None = None  # error of a trace that has not been stopped yet
        self._num_bytes = 0
        self._ends_at = 0.0
        self._num_skipped = self._num_left = 0
        self._laps: list[tuple[str, int]] = []  # phases of this turn: name and end time in ns
        self._since = 0
        self._held: dict[str, int] | None = None  # contents of this turn's step
        self._before: Mapping[str, float] = {}

    def start(self, command: StartProfile) -> None:
        """Begins a trace with the next step; raises `FailedPrecondition` if a trace cannot begin."""
        config = self._config
        assert config is not None, "refused where it was called"
        if self._file is not None:
            raise FailedPrecondition("a profile is being recorded already; stop_profile ends it")
        self._path = _new_path(config, command.profile_prefix)
        try:
            file = _open(self._path)
            file.write(b"[\n" + b",\n".join(map(self._encode, _names())))
        except OSError as error:
            raise FailedPrecondition(f"{self._path}: {error.strerror or error}") from error
        self._file, self._failure, self._num_bytes = file, None, 0
        self._ends_at = time.monotonic() + MAX_TRACE_S
        self._num_skipped = _chosen(command.delay_iterations, config.delay_iterations)
        self._num_left = _chosen(command.max_iterations, config.max_iterations)
        self._begin()

    def stop(self) -> None:
        """Ends the trace, if one is recorded; raises `FailedPrecondition` if the trace could not be written."""
        self.close()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise FailedPrecondition(failure)

    def close(self) -> None:
        """Ends the trace; idempotent."""
        if self._file is None:
            return
        try:
            self._file.write(b"\n]\n")
            self._file.close()
        except OSError as error:
            self._fail(error)
        else:
            self._file = None
            log.info("profile written, path=%s", self._path)

    def timeout_s(self) -> float | None:
        """Returns the seconds until the trace must end; None if no trace is recorded."""
        return None if self._file is None else max(0.0, self._ends_at - time.monotonic())

    # -- a turn of the loop -------------------------------------------------------------------

    def lap(self, name: str, plan: Plan | None = None) -> None:
        """Records the phase `name`, which began at the previous lap. A turn of the loop ends with the phase "send".

        A turn begins after the phase "receive". It contains a step if one of its laps has a `plan`.
        """
        if self._file is None:
            return
        if name == "receive":
            self._begin()
            self._end_if_full()
            return
        self._laps.append((name, time.perf_counter_ns()))
        if plan is not None:
            self._held = _held(plan, self._scheduler)
            self._before = self._part_seconds()
        if name == "send":
            self._end()

    def _begin(self) -> None:
        self._laps.clear()
        self._held = None
        self._since = time.perf_counter_ns()

    def _end_if_full(self) -> None:
        if self._num_bytes >= MAX_TRACE_BYTES or time.monotonic() >= self._ends_at:
            log.warning("the profile has reached its maximum size or duration: recording has ended")
            self.close()

    def _end(self) -> None:
        """Writes the step of the ended turn; a turn without a step is not recorded."""
        if self._held is None:
            return
        if self._num_skipped:
            self._num_skipped -= 1
            return
        try:
            self._write(self._events(self._held))
        except OSError as error:
            self._fail(error)
            return
        self._num_left -= 1  # 0 means no limit: the number then becomes negative
        if self._num_left == 0:
            self.close()
        else:
            self._end_if_full()

    def _events(self, held: dict[str, int]) -> Iterator[dict[str, Any]]:
        end = self._laps[-1][1]
        yield _slice("step", self._since, end, args=held)
        start = forward = self._since
        for name, until in self._laps:
            yield _slice(name, start, until)
            forward = start if name == "forward" else forward
            start = until
        for name, seconds in self._part_seconds().items():
            until = forward + int((seconds - self._before.get(name, 0.0)) * 1e9)
            if until > forward:
                yield _slice(name, forward, until, thread=_PARTS)
            forward = until
        for name, series in (
            ("KV blocks", ("held_blocks", "free_blocks")),
            ("sequences", ("running", "waiting")),
        ):
            counts = {field: held[field] for field in series}
            yield _event("C", name, ts=self._since / 1e3, args=counts)

    def _write(self, events: Iterable[dict[str, Any]]) -> None:
        assert self._file is not None
        data = b"".join(b",\n" + self._encode(event) for event in events)
        self._num_bytes += len(data)
        self._file.write(data)

    def _fail(self, error: OSError) -> None:
        assert self._file is not None
        with suppress(OSError):  # closing the file writes buffered data, which may fail again
            self._file.close()
        self._file = None
        self._failure = f"{self._path}: the profile could not be written ({error.strerror})"
        log.error("%s", self._failure)


def _held(plan: Plan, scheduler: Scheduler) -> dict[str, int]:
    """Returns the contents of a step and the state of scheduler and pool, as arguments of the step's slice."""
    entries, pool = plan.entries, scheduler.cache.pool
    prompt = (min(e.num_tokens, e.sequence.num_prompt_tokens - e.start) for e in entries)
    return {
        "rows": plan.num_tokens,
        "prompt_tokens": sum(max(0, n) for n in prompt),
        "draft_tokens": sum(len(e.draft_token_ids) for e in entries),
        "sampled_rows": sum(e.samples for e in entries),
        "step_sequences": len(entries),
        "context_tokens": sum(e.start + e.num_rows for e in entries),
        "running": len(scheduler.queues.running),
        "waiting": scheduler.queues.num_waiting,
        "held_blocks": pool.num_held,
        "free_blocks": pool.num_free,
        "preemptions": scheduler.planner.num_preemptions,
    }


def _slice(
    name: str, start: int, end: int, *, thread: int = _STEPS, args: dict[str, int] | None = None
) -> dict[str, Any]:
    return _event(
        "X",
        name,
        thread,
        ts=start / 1e3,
        dur=(end - start) / 1e3,
        **({"args": args} if args else {}),
    )


def _event(phase: str, name: str, thread: int = _STEPS, **fields: Any) -> dict[str, Any]:
    return {"ph": phase, "name": name, "pid": _PROCESS, "tid": thread, **fields}


def _names() -> Iterator[dict[str, Any]]:
    yield _event("M", "process_name", args={"name": "weft engine"})
    yield _event("M", "thread_name", _STEPS, args={"name": "steps"})
    yield _event("M", "thread_name", _PARTS, args={"name": "forward, parts summed over layers"})


def _chosen(given: int | None, configured: int) -> int:
    return configured if given is None else given


def _new_path(config: ProfilerConfig, prefix: str | None) -> Path:
    now = time.time_ns()
    when = time.strftime("%Y%m%d-%H%M%S", time.localtime(now // 10**9))
    name = f"{prefix or 'weft'}-{when}-{now // 10**6 % 1000:03}-{_PROCESS}.trace.json"
    return Path(config.torch_profiler_dir) / (
        f"{name}.gz" if config.torch_profiler_use_gzip else name
    )


def _open(path: Path) -> IO[bytes]:
    """Creates a file for writing; raises `OSError` if the file exists."""
    if path.suffix == ".gz":
        return cast("IO[bytes]", gzip.open(path, "xb", compresslevel=1))
    return path.open("xb")
