"""The walk through pauses, sleep and a second tier, on a device on which steps are launched ahead."""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.doubles.async_device import AsyncBackend
from tests.property.test_sleep_walk import CONFIG, STEPS, TIERED, TieredWalk, Walk, check
from weft.compute.backends import BACKENDS
from weft.core.config.engine import EngineConfig


def on_device(config: EngineConfig) -> EngineConfig:
    """The same, computed by the backend `device`."""
    compute = msgspec.structs.replace(config.compute_config, compute="device")
    return msgspec.structs.replace(config, compute_config=compute)


class AheadWalk(Walk):
    """As in the plain order, whose answers are what is expected."""

    config, in_turn = on_device(CONFIG), Walk

    def play(self):
        self.backend = BACKENDS["device"] = AsyncBackend("device")
        try:
            return super().play()
        finally:
            del BACKENDS["device"]


class AheadTieredWalk(AheadWalk, TieredWalk):
    """With a second tier."""

    config, in_turn = on_device(TIERED), TieredWalk


def test_a_walk_on_a_device_launches_steps_ahead():
    """Else it would prove nothing."""
    walk = AheadWalk([("add", 5, 8, 1), ("run", 3)]).play()
    assert sum(runner.num_followed for runner in walk.backend.runners) > 4
    check(walk, Walk)


@pytest.mark.parametrize("kind", [AheadWalk, AheadTieredWalk])
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEPS, min_size=10, max_size=60))
def test_a_walk_ahead_changes_no_answer(kind, steps):
    """A random walk gives the same answers whether steps are launched ahead or run in turn."""
    check(kind(steps).play(), kind.in_turn)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AheadWalk, AheadTieredWalk])
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEPS, min_size=10, max_size=60))
def test_many_walks_ahead_change_no_answer(kind, steps):
    """A random walk gives the same answers whether steps are launched ahead or run in turn."""
    check(kind(steps).play(), kind.in_turn)
