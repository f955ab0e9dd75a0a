"""Where a decode step of the whole engine goes: kernels, sampling, Python, waiting. `step.py` prints it.

A real `EngineLoop` schedules, computes, samples, commits and encodes its news for the front's process,
as `weft.engine.process_main` does. Only steps that decode every row count.
"""

import itertools
import statistics
import time
from dataclasses import dataclass, field

import msgspec
import numpy as np
import zmq

from benchmarks.steps.timing import BLOCK_SIZE, timed
from weft.compute.native import NativeRunner, NativeSampler
from weft.compute.protocols.runner import Batch, FloatArray, Runner
from weft.compute.protocols.sampler import Choice, Choices
from weft.core.config.engine import EngineConfig
from weft.core.config.engine_options import EngineOptions
from weft.core.values.types import Request, SamplingParams
from weft.engine.ipc.messages import Add, Command, Event, Stop
from weft.engine.loop import EngineLoop
from weft.engine.process_main import SocketMailbox
from weft.engine.start.configure import resolve
from weft.engine.weights.engine_model import EngineModel
from weft.model.card import ModelCard

_COMMANDS, _EVENTS = "inproc://commands", "inproc://events"
_NUM_COLD = 2  # steps that still meet cold code
_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Budget:
    """Milliseconds of a step, and of its parts.

    "sampling" and "Python" are processor time of the loop's thread, at best; the other parts are time
    that passed, on average.
    """

    num_rows: int
    context: int
    num_steps: int
    step_ms: float
    parts_ms: dict[str, float]


@dataclass(slots=True)
class _Stamp:
    """One step: when `forward` began and ended, in time that passed and in this thread's own."""

    began: float
    began_cpu: float
    ended: float = 0.0
    ended_cpu: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)


class _WatchedRunner:
    """A runner that notes when it was at work on steps that decode `num_rows` rows."""

    adapters = None

    def __init__(self, runner: NativeRunner, num_rows: int) -> None:
        self.vocab_size = runner.vocab_size
        self.stamps: list[_Stamp] = []
        self._runner = runner
        self._num_rows = num_rows

    def allocate_kv(self, *, num_blocks: int, block_size: int, num_state_slots: int = 0) -> None:
        self._runner.allocate_kv(
            num_blocks=num_blocks, block_size=block_size, num_state_slots=num_state_slots
        )

    def forward(self, batch: Batch) -> FloatArray:
        if not len(batch.token_ids) == len(batch.query_starts) - 1 == self._num_rows:
            return self._runner.forward(batch)
        before = self._runner.seconds()
        stamp = _Stamp(time.perf_counter(), time.thread_time())
        logits = self._runner.forward(batch)
        stamp.ended, stamp.ended_cpu = time.perf_counter(), time.thread_time()
        after = self._runner.seconds()
        stamp.seconds = {part: after[part] - before[part] for part in after}
        self.stamps.append(stamp)
        return logits


def measure_budget(
    runner: NativeRunner, card: ModelCard, *, num_rows: int, context: int, num_steps: int
) -> Budget:
    """Decode `num_steps` tokens for each of `num_rows` requests, which begin with `context`."""
    watched = _WatchedRunner(runner, num_rows)
    length = context + num_steps + 1
    options = EngineOptions(
        model="benchmark",
        max_model_len=length,
        max_num_seqs=num_rows,
        block_size=BLOCK_SIZE,
        num_gpu_blocks_override=num_rows * -(-length // BLOCK_SIZE),
    )
    requests = [_request(number, card.vocab_size, context, num_steps) for number in range(num_rows)]
    _run(watched, resolve(options, card, 1 << 40), requests)
    steps = watched.stamps[_NUM_COLD:]
    between = list(itertools.pairwise(steps))
    own = [after.began_cpu - before.ended_cpu for before, after in between]
    passed = [after.began - before.ended for before, after in between]
    sampling = _sampling_ms(num_rows, watched.vocab_size)
    parts = {
        part: 1e3 * statistics.fmean(step.seconds[part] for step in steps)
        for part in steps[0].seconds
    }
    forward = 1e3 * statistics.fmean(step.ended - step.began for step in steps)
    return Budget(
        num_rows,
        context,
        len(steps),
        step_ms=1e3 * statistics.fmean(passed) + forward,
        parts_ms={
            "GEMM": parts["linear"],
            "attention": parts["attention"] + parts["cache"],
            "head": parts["head"],
            "rest of kernels": forward - parts["linear"] - parts["attention"] - parts["cache"] - parts["head"],
            "sampling": sampling,
            "Python": _best_ms(own) - sampling,
            "idle": 1e3 * statistics.fmean(passed) - _best_ms(own),
        },
    )  # fmt: skip


def print_budget(budget: Budget) -> None:
    """One row a part."""
    print(
        f"whole engine, {budget.num_rows} rows from {budget.context} tokens on: "
        f"{budget.step_ms:.2f} ms a step ({budget.num_steps} steps)"
    )
    for part, value in budget.parts_ms.items():
        print(f"  {part:<18}{value:>9.3f} ms{value / budget.step_ms:>8.1%}")


def _request(number: int, vocab_size: int, context: int, num_steps: int) -> Request:
    return Request(
        request_id=f"r{number}",
        engine_id=f"r{number}",
        prompt_token_ids=np.random.default_rng(number).integers(0, vocab_size, context).tolist(),
        params=SamplingParams(temperature=0.0, max_tokens=num_steps, ignore_eos=True),
        eos_token_ids=(),
        seed=number,
        arrival_time=0.0,
    )


def _run(runner: Runner, config: EngineConfig, requests: list[Request]) -> None:
    """Run the loop in this thread until every request is answered; nobody reads its news."""
    model = EngineModel(config, runner)
    model.allocate_kv()
    context = zmq.Context()
    kinds = (zmq.PUSH, zmq.PULL, zmq.PUSH, zmq.PULL)
    sender, commands, events, reader = (context.socket(kind) for kind in kinds)
    for socket in (sender, commands, events, reader):
        socket.set_hwm(0)
    sender.bind(_COMMANDS)
    commands.connect(_COMMANDS)
    reader.bind(_EVENTS)
    events.connect(_EVENTS)
    encoder = msgspec.msgpack.Encoder()
    orders: list[Command] = [*(Add(request) for request in requests), Stop(_TIMEOUT_S)]
    for order in orders:
        sender.send(encoder.encode(order))

    def emit(event: Event) -> None:
        events.send(encoder.encode(event))

    mailbox = SocketMailbox(commands)
    EngineLoop(config, model, mailbox, emit, str).run()
    mailbox.close()
    for socket in (sender, events, reader):
        socket.close(0)
    context.term()


def _best_ms(seconds: list[float]) -> float:
    """The best mean of a tenth of them: other work on the machine only ever adds."""
    size = max(1, len(seconds) // 10)
    starts = range(0, len(seconds) - size + 1, size)
    return 1e3 * min(statistics.fmean(seconds[start : start + size]) for start in starts)


def _sampling_ms(num_rows: int, vocab_size: int) -> float:
    logits = np.random.default_rng(0).standard_normal((num_rows, vocab_size)).astype(np.float32)
    choices = Choices.of(range(num_rows), [Choice()] * num_rows)

    def draw() -> None:
        NativeSampler.sample(logits, choices)

    return 1e3 * min(timed(draw, time.thread_time) for _ in range(10))
