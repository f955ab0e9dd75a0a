"""Pods and pools for tests, and discovery that follows them."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.api_server import POOLS, ApiServerDouble
from weft.epp.kubernetes.discovery import KubernetesDiscovery, Wanted
from weft.epp.kubernetes.reflector import Pace
from weft.epp.pool.pool import Pool

HURRY = Pace(first_pause_s=0.02, max_pause_s=0.2, steady_s=0.1, list_s=30.0, watch_s=20, idle_s=30)
NAMED = Wanted(pool_name="llm", namespace="ns")
LABELS = {"app": "vllm"}


def pod(number: int, *, ready: bool = True, ip: str = "", **metadata: Any) -> dict[str, Any]:
    """Pod p1 at 10.0.0.1, and so on."""
    restarts, sidecar = metadata.pop("restarts", 0), metadata.pop("sidecar", 0)
    return {
        "metadata": {
            "name": f"p{number}", "namespace": "ns", "uid": f"u{number}", "labels": LABELS, **metadata
        },
        "spec": {"containers": [
            {"name": "server", "ports": [{"containerPort": 8000}, {"containerPort": 9000}]}, {"name": "sidecar"}
        ]},
        "status": {
            "podIP": ip or f"10.0.0.{number}",
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [
                {"name": "server", "restartCount": restarts}, {"name": "sidecar", "restartCount": sidecar}
            ],
        },
    }  # fmt: skip


def inference_pool(*ports: int, **spec: Any) -> dict[str, Any]:
    """An InferencePool of v1 with the pods above."""
    return {
        "metadata": {"name": "llm", "namespace": "ns"},
        "spec": {
            "selector": {"matchLabels": LABELS},
            "targetPorts": [{"number": port} for port in ports or (8000,)],
            "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
            **spec,
        },
    }


def point_at(api: ApiServerDouble, directory: Path, patch: pytest.MonkeyPatch) -> None:
    """Have clients find the API server."""
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{api.port}"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
        "current-context": "x",
    }
    path = directory / "kubeconfig"
    path.write_text(json.dumps(config))
    patch.setenv("KUBECONFIG", str(path))
    patch.delenv("NAMESPACE", raising=False)


@asynccontextmanager
async def following(
    pool: Pool, wanted: Wanted = NAMED, pace: Pace = HURRY
) -> AsyncIterator[KubernetesDiscovery]:
    """Discovery at work."""
    discovery = KubernetesDiscovery(wanted, pool, pace)
    try:
        await discovery.start()
        yield discovery
    finally:
        await discovery.close()


def put_pods(api: ApiServerDouble, collection: str, *pods: dict[str, Any]) -> None:
    """Put several at once, and the pool that selects them if there is none."""
    if "llm" not in api.objects.get(POOLS, {}):
        api.put(POOLS, inference_pool())
    for each in pods:
        api.put(collection, each)


def where(pool: Pool) -> set[str]:
    """Addresses of the pool."""
    return {endpoint.host_port for endpoint in pool}
