"""The picker and a real API server: what other tests' double claims of one. `make test-apiserver` runs these."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.apiserver.real_cluster import (
    COLLECTIONS,
    PICKER,
    PODS,
    POOLS,
    PROMETHEUS,
    RealCluster,
    real_cluster,
    token_of,
)
from tests.deploy.manifests import KUBERNETES, objects
from tests.e2e.rolling import leader_of, roll, update_of
from tests.epp.kubernetes.cluster import following, where
from tests.epp.pools import until
from weft.epp.build import Picker, open_picker
from weft.epp.config.options import PickerOptions
from weft.epp.kubernetes.access_reviewer import AccessReviewer
from weft.epp.kubernetes.discovery import Wanted
from weft.epp.kubernetes.leader_elector import LeaderElector, LeaseTimes
from weft.epp.pool.pool import Pool

pytestmark = pytest.mark.apiserver

LEASE = "apis/coordination.k8s.io/v1/namespaces/ns/leases/epp-ns-llm.llm-d.ai"
OBJECTIVES = COLLECTIONS["InferenceObjective"]
REWRITES = COLLECTIONS["InferenceModelRewrite"]
TOO_NEW = {"DestinationRule", "HTTPRoute", "LeaderWorkerSet", "PodDisruptionBudget"}
SOON = LeaseTimes(duration_s=12, renew_deadline_s=10, retry_s=0.2)


@pytest_asyncio.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RealCluster]:
    """A cluster with our rights of the picker, which clients find by their environment."""
    async with real_cluster(tmp_path) as made:
        monkeypatch.setenv("KUBECONFIG", made.environment["KUBECONFIG"])
        monkeypatch.delenv("NAMESPACE", raising=False)
        yield made


@pytest_asyncio.fixture
async def picker(cluster: RealCluster) -> AsyncIterator[Picker]:
    """One that follows the pool, of two pods at two ports."""
    await cluster.put_pool(8000, 8001)
    await cluster.put_pod("p1", "10.0.0.1")
    await cluster.put_pod("p2", "10.0.0.2")
    await cluster.put_pod("other", "10.0.0.9", app="other")
    made = await open_picker(PickerOptions(pool_name="llm"))
    yield made
    await made.close()


def at(*numbers: int, ports: tuple[int, ...] = (8000, 8001)) -> set[str]:
    return {f"10.0.0.{number}:{port}" for number in numbers for port in ports}


async def test_pods_and_the_pool_are_followed(cluster: RealCluster, picker: Picker):
    """Ready or not, moved, ending, deleted, relabelled; and what the pool selects, and where."""
    assert where(picker.pool) == at(1, 2)
    assert picker.may_serve()
    unready = [{"type": "Ready", "status": "False"}]
    await cluster.report("p1", conditions=unready)
    await until(lambda: where(picker.pool) == at(2))
    await cluster.report("p1", conditions=[{"type": "Ready", "status": "True"}])
    await until(lambda: where(picker.pool) == at(1, 2))
    former = {each.name: each for each in picker.pool}["ns/p1-rank-0"]
    await cluster.report("p1", podIP="10.0.0.3", podIPs=[{"ip": "10.0.0.3"}])
    await until(lambda: where(picker.pool) == at(2, 3))
    assert {each.name: each for each in picker.pool}["ns/p1-rank-0"] is not former
    await cluster.end_pod("p2")
    await until(lambda: where(picker.pool) == at(3))
    found = await cluster.get(f"{PODS}/p2")
    assert found["metadata"]["deletionTimestamp"]
    await cluster.delete_pod("p2")
    await cluster.patch(f"{PODS}/other", {"metadata": {"labels": {"app": "vllm"}}})
    await until(lambda: where(picker.pool) == at(3, 9))
    await cluster.patch(f"{POOLS}/llm", {"spec": {"targetPorts": [{"number": 9000}]}})
    await until(lambda: where(picker.pool) == at(3, 9, ports=(9000,)))
    await cluster.delete(f"{POOLS}/llm")
    await until(lambda: not len(picker.pool))


async def test_objectives_and_rewrites_are_followed(cluster: RealCluster, picker: Picker):
    """Of the pool alone; changed and deleted too."""
    group = {"apiVersion": "llm-d.ai/v1alpha2", "kind": "InferenceObjective"}
    for name, pool in (("premium", "llm"), ("foreign", "elsewhere")):
        spec = {"priority": 10, "poolRef": {"name": pool}}
        await cluster.put(OBJECTIVES, {**group, "metadata": {"name": name}, "spec": spec})
    await until(lambda: picker.director.objects.priority("premium") == 10)
    assert picker.director.objects.priority("foreign") == 0
    await cluster.patch(f"{OBJECTIVES}/premium", {"spec": {"priority": 20}})
    await until(lambda: picker.director.objects.priority("premium") == 20)
    await cluster.delete(f"{OBJECTIVES}/premium")
    await until(lambda: picker.director.objects.priority("premium") == 0)
    rule = {
        "matches": [{"model": {"type": "Exact", "value": "asked"}}],
        "targets": [{"modelRewrite": "served"}],
    }
    rewrite = {"apiVersion": group["apiVersion"], "kind": "InferenceModelRewrite"}
    spec = {"poolRef": {"name": "llm"}, "rules": [rule]}
    await cluster.put(REWRITES, {**rewrite, "metadata": {"name": "r"}, "spec": spec})
    await until(lambda: "asked" in picker.director.objects.model_names)


async def test_the_pool_outlives_the_api_server_twice(cluster: RealCluster, picker: Picker):
    """What is known stays while it is away; what changed since is there afterwards."""
    for number in (3, 4):
        known = where(picker.pool)
        await cluster.stop()
        await asyncio.sleep(1)
        assert where(picker.pool) == known
        await cluster.start()
        await cluster.delete_pod(f"p{number - 2}")
        await cluster.put_pod(f"p{number}", f"10.0.0.{number}")
        await until(lambda number=number: where(picker.pool) == at(number - 1, number))


async def test_a_version_that_etcd_forgot_makes_a_list(
    cluster: RealCluster, caplog: pytest.LogCaptureFixture
):
    """The watch is refused with 410, and what was deleted meanwhile does not stay."""
    await cluster.put_pool(8000)
    for number in (1, 2):
        await cluster.put_pod(f"p{number}", f"10.0.0.{number}")
    pool = Pool()
    async with following(pool, Wanted(pool_name="llm", namespace="ns")):
        await until(lambda: len(pool) == 2)
        await cluster.stop()
        await cluster.start()
        await cluster.delete_pod("p1")
        for number in (3, 4, 5):
            await cluster.put_pod(f"p{number}", f"10.0.0.{number}")
        await cluster.compact()
        await cluster.stop()
        await cluster.start()
        await until(lambda: where(pool) == at(2, 3, 4, 5, ports=(8000,)))


async def test_one_of_several_leads(cluster: RealCluster):
    """By the Lease, given back or left behind; and over a restart of the API server."""
    await cluster.allow_election()
    candidates = [LeaderElector("ns", "llm", SOON) for _ in range(3)]
    tasks = [asyncio.create_task(each.run()) for each in candidates]
    try:
        await until(lambda: any(each.is_leader for each in candidates))
        (first,) = (each for each in candidates if each.is_leader)
        await first.release()
        await until(lambda: any(each.is_leader for each in candidates))
        (second,) = (each for each in candidates if each.is_leader)
        assert second is not first
        tasks[candidates.index(second)].cancel()  # held up, without a word
        await until(lambda: any(each.is_leader for each in candidates if each is not second))
        assert not second.is_leader
        await cluster.stop()
        await until(lambda: not any(each.is_leader for each in candidates))
        await cluster.start()
        await until(lambda: sum(each.is_leader for each in candidates) == 1)
        spec = (await cluster.get(LEASE))["spec"]
        assert spec["leaseTransitions"] >= 3
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in candidates:
            await each.close()


async def test_metrics_are_for_those_who_may_get_them(cluster: RealCluster):
    """By TokenReview and SubjectAccessReview, with the rights that the manifests give picker and Prometheus."""
    reviewer = AccessReviewer("ns")
    try:

        async def status(token: str, path: str = "/metrics") -> int:
            refusal = await reviewer.refusal(token.encode(), path)
            return 200 if refusal is None else refusal[0]

        assert await status("stranger") == 401
        assert await status(token_of("other")) == 403
        assert await status(token_of(PICKER)) == 403
        assert await status(token_of(PROMETHEUS)) == 200
        assert await status(token_of(PROMETHEUS), "/debug/decisions") == 403
        assert await status(token_of("admin"), "/debug/decisions") == 200
        await cluster.stop()
        assert await status(token_of("other"), "/debug/decisions") == 503
        assert await status(token_of(PROMETHEUS)) == 200
    finally:
        await reviewer.close()


async def test_a_rolling_update_loses_no_request(cluster: RealCluster):
    """As with the double, tests/e2e/test_rolling_update.py; the API server and etcd are real."""
    await cluster.allow_election()
    async with update_of(cluster) as update:
        await roll(update)
        leader = await leader_of(update.pickers)
        assert await leader.get("/metrics", token_of(PROMETHEUS)) == 200
    assert update.wrong() == []


async def test_our_manifests_are_taken(cluster: RealCluster):
    """By what the server checks beyond schemas; but for gRPC probes, sleeps and kinds that it is too old for."""
    found = [
        (kind, name, json.dumps(one))
        for directory in sorted(KUBERNETES.iterdir())
        for (kind, name), one in objects(directory).items()
        if kind not in TOO_NEW
    ]
    for kind, name, text in found:
        older = re.sub(r'"(grpc|sleep)": \{[^}]*\}', '"tcpSocket": {"port": 1}', text)
        made = await cluster.try_out(kind, json.loads(older))
        assert made["metadata"]["name"] == name
