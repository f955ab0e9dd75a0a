"""`StepForward`: computes the rows of a plan. The engine chooses its implementation at the start."""

from collections.abc import Mapping
from typing import Any, Protocol

from weft.compute.protocols.asynchronous import AsyncRunner
from weft.compute.protocols.runner import Rows
from weft.core.values.pictures import TowerConfig
from weft.engine.scheduling.plan import Plan
from weft.engine.scheduling.sequence import Sequence
from weft.engine.step.tower_step import compute_outputs
from weft.engine.weights.engine_model import EngineModel


class StepForward(Protocol):
    """Computes steps: the model alone, or a drafter that wraps the model."""

    def forward(self, plan: Plan) -> Rows:
        """Computes the rows of a plan, or launches the computation; `Runner` describes both."""


class ModelForward:
    """Forward pass of the model and its vision tower, without a drafter.

    The model's runner is replaced after a sleep.
    """

    def __init__(
        self,
        model: EngineModel,
        block_size: int,
        tower: TowerConfig | None = None,
    ) -> None:
        self._model = model
        self._tower = tower
        self._block_size = block_size

    def forward(self, plan: Plan) -> Rows:
        runner = self._model.runner
        assert runner is not None, "no sequence is scheduled while weights are absent"
        if plan.outputs and self._tower is not None:
            compute_outputs(runner, plan.outputs, self._tower)
        return runner.forward(plan.to_batch(self._block_size))

    def forward_after(
        self, plan: Plan, sampled_places: Mapping[Sequence, int], device_token_ids: Any
    ) -> Rows:
        """Launches a plan whose pending tokens are the previous step's sampled tokens at `sampled_places`."""
        runner: object = self._model.runner
        assert isinstance(runner, AsyncRunner), "the runner must implement AsyncRunner"
        batch = plan.to_batch(self._block_size, sampled_places)
        if batch.token_sources is None:
            return runner.forward(batch)
        return runner.forward_after(batch, device_token_ids)

    def wait(self, rows: Rows) -> None:
        """Waits until the step that returned these rows has been computed."""
        runner: object = self._model.runner
        assert isinstance(runner, AsyncRunner), "the runner must implement AsyncRunner"
        runner.wait(rows)
