"""`EnginePauses`: pauses and resumes the engine, puts it to sleep and wakes it."""

from collections.abc import Callable
from functools import partial

from weft.core.values.controls import PauseMode, SleepTag
from weft.core.values.types import SequenceOutput
from weft.engine.ipc.messages import Event, Pause, Reply, Resume, Wake
from weft.engine.ipc.replies import attempt
from weft.engine.scheduling.queues import Admission
from weft.engine.scheduling.scheduler import Scheduler
from weft.engine.step.steps import Steps
from weft.engine.weights.engine_model import EngineModel


class EnginePauses:
    """Pause state of an engine, owned by the engine's thread.

    `restore_weights` is called when weights are needed but absent.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        model: EngineModel,
        steps: Steps,
        emit: Callable[[Event], None],
        report: Callable[[list[SequenceOutput]], None],
        restore_weights: Callable[[], None],
    ) -> None:
        self._scheduler = scheduler
        self._model = model
        self._steps = steps
        self._emit = emit
        self._report = report
        self._restore_weights = restore_weights
        self._pending: list[Pause] = []

    def pause(self, command: Pause) -> list[SequenceOutput]:
        """Restricts scheduling as the command says; returns the final outputs of requests that the pause ends.

        `complete` sends the reply later.
        """
        refusal = self._refusal(command)
        if refusal is not None:
            self._emit(Reply(command.call_id, is_done=False, refusal=refusal))
            return []
        self._pending.append(command)
        match PauseMode(command.mode):
            case PauseMode.ABORT:
                self._admit(Admission.STARTED)
                return self._scheduler.abort_all()
            case PauseMode.WAIT:
                self._admit(Admission.STARTED)
            case PauseMode.KEEP:
                self._admit(Admission.CLOSED)
        return []

    def _refusal(self, command: Pause) -> str | None:
        if command.sleep_level:
            refusal = self._model.sleep_refusal(command.sleep_level)
            if refusal is not None:
                return refusal
        is_frozen = not self._model.is_resident and self._scheduler.has_started_work
        if command.mode == PauseMode.WAIT and is_frozen:
            return "requests that were frozen by mode keep cannot end while the engine sleeps"
        return None

    def _admit(self, admission: Admission) -> None:
        """Sets which requests are scheduled: no requests while weights or KV pool are absent."""
        self._scheduler.admission = admission if self._model.is_resident else Admission.CLOSED

    def complete(self) -> None:
        """Replies to pending pause commands once the condition of the last one holds."""
        if not self._pending:
            return
        if self._scheduler.admission is Admission.STARTED and self._scheduler.has_started_work:
            return
        self._report(self._steps.drain())  # all sequences of these in-flight steps have ended
        level = max(pause.sleep_level for pause in self._pending)
        if level or any(pause.clear_cache for pause in self._pending):
            self._scheduler.reset_cache(preempt_running=True)
            self._report([])
        if level:
            self._model.release(level)
            self._admit(Admission.CLOSED)
        self._answer()

    def answer_resume(self, command: Resume) -> Reply:
        """Resumes scheduling, unless the engine sleeps; returns the reply."""
        if self._model.is_resident:
            self.resume()
            return Reply(command.call_id)
        return Reply(command.call_id, is_done=False, refusal="the engine sleeps; wake_up first")

    def resume(self) -> None:
        """Schedules all requests if weights and KV pool are present; ends pending pauses."""
        self._admit(Admission.OPEN)
        self._answer(is_done=False)

    def _answer(self, *, is_done: bool = True) -> None:
        for pause in self._pending:
            self._emit(Reply(pause.call_id, is_done))
        self._pending.clear()

    def wake(self, command: Wake) -> Reply:
        """Restores the parts that the tags name; resumes scheduling once all parts are present."""
        was_resident = self._model.is_resident
        restored = attempt(command.call_id, partial(self._restore, command.tags))
        if not restored.is_done:
            return restored
        if self._model.is_resident and (SleepTag.SCHEDULING in command.tags or not was_resident):
            self.resume()
        return Reply(command.call_id, is_done=self._scheduler.admission is Admission.OPEN)

    def _restore(self, tags: list[str]) -> None:
        if SleepTag.KV_CACHE in tags:
            self._model.is_kv_wanted = True
        if SleepTag.WEIGHTS in tags and not self._model.has_weights:
            self._restore_weights()
        self._model.restore_kv()
