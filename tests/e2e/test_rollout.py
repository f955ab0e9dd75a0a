"""Streams whose responses are followed outlive a rollout of every part, and a picker that is killed."""

import os
from pathlib import Path

import pytest

from tests.doubles.api_server import ApiServerDouble
from tests.e2e.rolling import LEADER_ELECTION
from tests.e2e.rollout import NUM_STREAMS, Rollout, rollout_of
from tests.e2e.test_rolling_update import DoubledCluster
from tests.epp.kubernetes.cluster import point_at
from tests.ports import free_port

pytestmark = pytest.mark.slow
# The figures of docs/picker.md are from streams of 60 seconds.
STREAM_S = float(os.environ.get("WEFT_ROLLOUT_STREAM_S", "3"))


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    api = ApiServerDouble(port=free_port())
    await api.start()
    point_at(api, tmp_path, monkeypatch)
    yield DoubledCluster(api, tmp_path / "kubeconfig")
    await api.stop()


async def finish(rollout: Rollout) -> None:
    """Every stream that began has come whole, and all of the first ones have ended."""
    await rollout.end()
    print(f"{rollout.num_whole} streams of {STREAM_S:g} s, {len(rollout.cut)} cut")
    assert rollout.cut == []
    assert rollout.num_whole >= NUM_STREAMS


async def test_a_rollout_of_pickers_pods_and_gateway_cuts_no_followed_stream(
    cluster: DoubledCluster,
):
    """50 clients stream on while each picker, each pod and the gateway are replaced as Kubernetes does it."""
    async with rollout_of(cluster, LEADER_ELECTION, stream_s=STREAM_S) as rollout:
        await rollout.replace_pickers()
        await rollout.replace_pods()
        await rollout.replace_gateway()
        await finish(rollout)


async def test_a_killed_picker_cuts_no_stream_and_the_other_one_counts_all(cluster: DoubledCluster):
    """Two pickers serve, behind a gateway that buffers bodies of requests. The servers' reports tell the other picker
    of the streams that the killed one followed.
    """
    async with rollout_of(cluster, stream_s=STREAM_S, buffered_bytes=2**20) as rollout:
        killed, other = rollout.pickers
        assert await rollout.num_followed(killed) > 0
        rollout.hold()
        killed.kill()
        await rollout.begin()
        assert await rollout.counted(other) == rollout.num_running
        await finish(rollout)
        assert await rollout.counted(other) == dict.fromkeys(rollout.pods, 0)
        assert await rollout.num_followed(other) == 0
