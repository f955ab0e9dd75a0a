"""`WeightUpdates`: the commands that send and activate new weights. Each succeeds completely or changes nothing."""

from collections.abc import Callable
from functools import partial
from typing import assert_never

from weft.core.config.engine import EngineConfig
from weft.core.errors import FailedPrecondition
from weft.engine.ipc.messages import (
    FinishWeightUpdate,
    InitWeightTransfer,
    Reply,
    StartWeightUpdate,
    Transfer,
    UpdateWeights,
)
from weft.engine.ipc.replies import attempt
from weft.engine.scheduling.queues import Admission
from weft.engine.scheduling.scheduler import Scheduler
from weft.engine.weights.engine_model import EngineModel
from weft.engine.weights.lora_loader import LoraLoader
from weft.engine.weights.weight_transfer import WeightTransfer


class WeightUpdates:
    """Weight updates of an engine, owned by its thread. `on_replaced` is called after the weights were replaced."""

    def __init__(
        self,
        config: EngineConfig,
        model: EngineModel,
        scheduler: Scheduler,
        loras: LoraLoader,
        on_replaced: Callable[[], None],
    ) -> None:
        self._transfer = WeightTransfer(config.weight_transfer_config, model.checkpoint)
        self._model = model
        self._scheduler = scheduler
        self._loras = loras
        self._on_replaced = on_replaced

    def close(self) -> None:
        """Drops an update in progress."""
        self._transfer.close()

    def handle(self, command: Transfer) -> Reply:
        """Executes a command. After a reply with a refusal no update is in progress, and nothing else has changed."""
        reply = attempt(command.call_id, partial(self._handle, command))
        if not reply.is_done and isinstance(command, UpdateWeights | FinishWeightUpdate):
            self._transfer.close()
        return reply

    def _handle(self, command: Transfer) -> None:
        match command:
            case InitWeightTransfer():
                self._transfer.init()
            case StartWeightUpdate():
                self._transfer.start()
            case UpdateWeights():
                self._transfer.update(command)
            case FinishWeightUpdate():
                self._finish(command)
            case _:
                assert_never(command)

    def _finish(self, command: FinishWeightUpdate) -> None:
        # Every engine knows the files of an update; only the engine that packs has the tensors from shared memory.
        is_sent = self._transfer.is_lasting or not command.is_elsewhere
        sent = self._transfer.complete() if is_sent else {}
        if not self._model.has_weights:
            raise FailedPrecondition("the engine sleeps; wake_up its weights first")
        is_frozen = self._scheduler.admission is Admission.CLOSED
        if self._scheduler.has_started_work and not is_frozen:
            raise FailedPrecondition(
                "requests are running with the present weights: call pause_generation first, with "
                "mode wait, abort or keep"
            )
        checkpoint = self._model.checkpoint
        assert checkpoint is not None, "refused when the transfer began"
        self._model.replace_weights(
            checkpoint.with_tensors(sent) if is_sent else checkpoint,
            is_lasting=self._transfer.is_lasting,
            restore=self._loras.restore,
            packed=command.packed,
        )
        self._transfer.close()
        self._on_replaced()
