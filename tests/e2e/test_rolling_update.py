"""A rolling update through real Envoy and pickers as processes: nothing is lost, whatever fails meanwhile."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.api_server import PODS, POOLS, ApiServerDouble
from tests.e2e.rolling import leader_of, roll, update_of
from tests.epp.kubernetes.cluster import inference_pool, pod, point_at
from tests.ports import free_port

PROMETHEUS = "system:serviceaccount:monitoring:prometheus"


class DoubledCluster:
    """`ApiServerDouble`, as an update needs it."""

    def __init__(self, api: ApiServerDouble, kubeconfig: Path) -> None:
        self.environment = {"KUBECONFIG": str(kubeconfig)}
        self._api = api
        self._pods: dict[str, dict[str, Any]] = {}

    async def put_pool(self, port: int) -> None:
        self._api.put(POOLS, inference_pool(port))

    async def put_pod(self, name: str, ip: str) -> None:
        self._pods[name] = pod(0, ip=ip, name=name, uid=name)
        self._api.put(PODS, self._pods[name])

    async def end_pod(self, name: str) -> None:
        former = self._pods[name]
        ending = {**former["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
        self._api.put(PODS, {**former, "metadata": ending})

    async def delete_pod(self, name: str) -> None:
        self._api.delete(PODS, name)

    async def stop(self) -> None:
        await self._api.stop()

    async def start(self) -> None:
        await self._api.start()


@pytest.mark.slow
async def test_a_rolling_update_loses_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """20 pods, 50 requests a second; the API server is killed twice and the leading picker once.

    None is sent to a pod that has gone, and in the end the picker sends all of them to the new ones. Its
    metrics are meanwhile for those alone who may get them.
    """
    api = ApiServerDouble(port=free_port())
    api.users = {"prometheus": {"username": PROMETHEUS}, "other": {"username": "other"}}
    api.readers = {(PROMETHEUS, "/metrics")}
    await api.start()
    point_at(api, tmp_path, monkeypatch)
    try:
        async with update_of(DoubledCluster(api, tmp_path / "kubeconfig")) as update:
            await roll(update)
            leader = await leader_of(update.pickers)
            tokens = ("", "stranger", "other", "prometheus")
            shown = [await leader.get("/metrics", token) for token in tokens]
            await asyncio.sleep(1)
            num_before = len(update.clients.sent)
            await asyncio.sleep(1)
    finally:
        await api.stop()
    assert update.wrong() == []
    routed = update.routed()
    picked = [number for number, (_, picked) in routed.items() if picked]
    assert len(picked) > len(routed) / 4
    last = [routed[number] for number in range(num_before, len(update.clients.sent))]
    assert last
    assert all(one.name.startswith("new") and one.worker.address == picked for one, picked in last)
    assert shown == [401, 401, 403, 200]
