"""Streams outlast the ends of processes: short runs of `tests.soak.failover`, and rolling updates."""

import pytest

from tests.soak.api_servers import soak_api_servers
from tests.soak.kills import Plan, soak
from tests.soak.workers import roll


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_mixed_streams_are_whole_whatever_engine_ends():
    """Killed, stopped and drained, at moments of chance: each answer is that of an undisturbed run, and nothing is
    left.
    """
    print(await soak(Plan(streams=100, ends=4)))


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_mixed_streams_are_whole_although_api_servers_are_killed():
    """The clients continue them, over HTTP and gRPC, and an engine is killed too."""
    ways = ("kill API server", "kill engine")
    print(await soak_api_servers(Plan(streams=60, ends=2, ways=ways, nodes=0)))


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_rolling_update_of_nodes_loses_nothing():
    """Each node gets SIGTERM and is started again, under load."""
    print(await soak(Plan(streams=45, ends=3, ways=("stop node",), local=0, nodes=3, in_turn=True)))


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_rolling_update_of_workers_behind_a_gateway_loses_nothing():
    """Each worker gets SIGTERM and is started again; the gateway moves its streams. At last the gateway is killed, and
    the clients continue their streams at the next one.
    """
    ways = (*["stop worker"] * 3, "kill gateway")
    print(await roll(Plan(streams=60, ends=4, ways=ways, local=0, nodes=3, in_turn=True)))
