"""Random walks of requests, pauses, sleep and updates of the weights through the engine's loop.

Every token is the one that the weights which were served when it was said say after all before it, computed
alone from nothing: no key or value of other weights is ever looked at.
"""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.model.checkpoints import tensors_of, write_checkpoint
from tests.property.test_sleep_walk import Walk
from weft.compute.protocols.runner import Batch
from weft.core.config.engine_options import EngineOptions
from weft.core.values.controls import PauseMode
from weft.engine.ipc.messages import (
    FinishWeightUpdate,
    InitWeightTransfer,
    Reply,
    StartWeightUpdate,
    StepOutput,
    UpdateWeights,
)
from weft.engine.start.configure import resolve
from weft.engine.weights.engine_model import EngineModel
from weft.model.open import open_model

NUM_SETS = 3
MODES = st.sampled_from([mode.value for mode in PauseMode])
STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 14), st.integers(1, 10), st.integers(1, 2)),
    st.tuples(st.just("pause"), MODES, st.booleans()),
    st.tuples(st.just("sleep"), MODES, st.just(1)),
    st.tuples(st.just("wake"), st.lists(st.sampled_from(["weights", "kv_cache", "scheduling"]))),
    st.tuples(st.just("resume")),
    st.tuples(st.just("reset"), st.booleans()),
    st.tuples(st.just("update"), st.integers(0, NUM_SETS - 1), st.booleans()),
    st.tuples(st.just("run"), st.integers(1, 5)),
)


class Weights:
    """Sets of weights for one model, each in a file, and what each says."""

    def __init__(self, directory):
        self.directory = Path(directory).resolve()
        for number in range(NUM_SETS):
            # Large enough that what is attended to decides.
            tensors = {name: np.roll(10 * t, 5 * number) for name, t in tensors_of().items()}
            write_checkpoint(self.directory / str(number), tensors=tensors)
        self.checkpoints = [open_model(str(self.directory / str(n))) for n in range(NUM_SETS)]
        options = EngineOptions(
            model=str(self.directory / "0"),
            max_model_len=48,
            num_gpu_blocks_override=12,
            block_size=4,
            num_threads=1,
            weight_transfer_config={"backend": "safetensors", "directory": str(self.directory)},
        )
        self.config = resolve(options, self.checkpoints[0].card, 1 << 30)
        self.next = cache(self._next)
        self._models = [EngineModel.load(self.config, one) for one in self.checkpoints]
        for model in self._models:
            model.allocate_kv()

    def _next(self, number, token_ids):
        """The token that a set says after these."""
        count = len(token_ids)
        places = np.arange(count, dtype=np.int32)
        batch = Batch(
            token_ids=np.array(token_ids, np.int32),
            positions=places,
            slots=places,
            query_starts=np.array([0, count], np.int32),
            prompt_lens=np.array([count], np.int32),
            block_tables=np.arange(12, dtype=np.int32)[None, :],
            logit_rows=np.array([count - 1], np.int32),
        )
        return int(self._models[number].runner.forward(batch)[0].argmax())


class UpdatingWalk(Walk):
    """One that sends weights too; every other time some are missing, and nothing may come of it."""

    def __init__(self, weights, steps):
        self.weights, self.sent = weights, {}
        self.config, self.checkpoint = weights.config, weights.checkpoints[0]
        super().__init__(steps)

    def _commands(self, step):
        if step[0] != "update":
            return super()._commands(step)
        _, number, is_whole = step
        calls = [InitWeightTransfer(self._call()), StartWeightUpdate(self._call())]
        if is_whole:
            path = self.weights.directory / str(number)
            calls.append(UpdateWeights(self._call(), str(path)))
        self.sent[self._call()] = number if is_whole else None
        return [*calls, FinishWeightUpdate(self.calls[-1])]


def check(walk):
    """Every token, by the weights of its time; and that each request ended once."""
    current, said, num_endings = 0, {}, 0
    for event in walk.events:
        if isinstance(event, Reply) and event.is_done and event.call_id in walk.sent:
            current = walk.sent[event.call_id]
            assert current is not None, "an update of nothing was served"
        for output in event.outputs if isinstance(event, StepOutput) else ():
            num_prompt = walk.requests[output.engine_id][0]
            prompt = tuple(5 + i * 3 % 7 for i in range(num_prompt))
            before = said.setdefault((output.engine_id, output.index), [])
            for token in output.token_ids:
                assert token == walk.weights.next(current, (*prompt, *before))
                before.append(token)
            num_endings += output.finish_reason is not None
    assert num_endings == sum(n for _, _, n in walk.requests.values())
    assert sorted(e.call_id for e in walk.events if isinstance(e, Reply)) == walk.calls
    assert walk.loop._scheduler.cache.pool.num_held == 0


@pytest.mark.slow
def test_a_walk_through_updates_says_what_its_weights_say():
    """See the module."""
    with TemporaryDirectory() as directory:
        weights = Weights(directory)

        @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(STEPS, min_size=10, max_size=60))
        def walk(steps):
            check(UpdatingWalk(weights, steps).play())

        walk()
        said = {weights.next(number, (5, 8, 11)) for number in range(NUM_SETS)}
    assert len(said) == NUM_SETS, "sets that say the same would prove nothing"
