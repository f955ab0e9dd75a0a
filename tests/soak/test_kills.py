"""Streams outlast the ends of engines: a short run of `tests.soak.kills`, and a rolling update of four nodes."""

import pytest

from tests.soak.kills import Plan, soak
from tests.soak.workers import roll


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_mixed_streams_are_whole_whatever_engine_ends():
    """Killed, stopped and drained, at moments of chance: each answer is that of an undisturbed run, and nothing is
    left.
    """
    print(await soak(Plan(streams=200, ends=4)))


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_rolling_update_of_four_nodes_loses_nothing():
    """Each node gets SIGTERM and is started again, under load."""
    print(
        await soak(Plan(streams=100, ends=4, ways=("stop node",), local=0, nodes=4, in_turn=True))
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_rolling_update_of_four_workers_behind_a_gateway_loses_nothing():
    """Each worker gets SIGTERM and is started again; the gateway moves its streams."""
    print(
        await roll(Plan(streams=100, ends=4, ways=("stop node",), local=0, nodes=4, in_turn=True))
    )
