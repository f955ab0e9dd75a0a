"""`EngineThread`: the engine's loop on a thread, behind a mailbox that blocks when there is no command.

A script of commands gives the loop a turn whenever it asks for one. This one does not: what the loop
leaves for "the next turn" never happens here unless somebody sends something.
"""

import queue
import threading
from collections.abc import Callable

from tests.busy import PATIENCE_S
from tests.doubles.fake_runner import FakeRunner
from tests.doubles.state_runner import StateRunner
from tests.doubles.stepping import make_config
from weft.core.config.engine import EngineConfig
from weft.engine.clients.local_client import QueueMailbox
from weft.engine.ipc.messages import Command, Event, Stop
from weft.engine.loop import EngineLoop
from weft.engine.scheduling.scheduler import Scheduler
from weft.engine.weights.engine_model import EngineModel


class GatedRunner(FakeRunner):
    """A `FakeRunner` that takes no step before `allow`."""

    def __init__(self, vocab_size: int = 64) -> None:
        super().__init__(vocab_size)
        self.num_logit_rows: list[int] = []  # of each step that was computed
        self._gate = threading.Semaphore(0)

    def allow(self, num_steps: int) -> None:
        """Let so many more steps happen."""
        self._gate.release(num_steps)

    def forward(self, batch):
        assert self._gate.acquire(timeout=PATIENCE_S), "nobody allowed this step"
        logits = super().forward(batch)
        self.num_logit_rows.append(len(logits))
        return logits


class GatedStates(GatedRunner, StateRunner):
    """The same with states."""


class EngineThread:
    """Runs as a context; what the engine says comes from `until`."""

    def __init__(
        self, runner: FakeRunner | None = None, config: EngineConfig | None = None
    ) -> None:
        self._config = config or make_config()
        self._runner = runner or FakeRunner()
        self._mailbox = QueueMailbox()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def send(self, *commands: Command) -> None:
        """Leave commands."""
        for command in commands:
            self._mailbox.post(command)

    def until(self, is_last: Callable[[Event], bool]) -> list[Event]:
        """All events up to the one that is asked for; `queue.Empty` if it does not come."""
        events = [self._events.get(timeout=PATIENCE_S)]
        while not is_last(events[-1]):
            events.append(self._events.get(timeout=PATIENCE_S))
        return events

    @property
    def scheduler(self) -> Scheduler:
        """The engine's, to be looked at when it has ended."""
        assert not self._thread.is_alive()
        return self._loop._scheduler

    def __enter__(self) -> "EngineThread":
        model = EngineModel(self._config, self._runner)
        model.allocate_kv()
        self._loop = EngineLoop(self._config, model, self._mailbox, self._events.put, str)
        self._thread = threading.Thread(target=self._loop.run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.send(Stop(0.0))
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
