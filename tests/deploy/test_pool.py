"""The manifests of pools, given to a picker as they say: it finds the workers, and may read what it asks for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import (
    KUBERNETES,
    Objects,
    callers,
    container_ports,
    environment,
    is_selected,
    objects,
    pods,
    service_ports,
)
from tests.doubles.api_server import PODS, POOLS, ApiServerDouble
from tests.epp.kubernetes.cluster import pod as running_pod
from tests.epp.kubernetes.cluster import point_at
from tests.epp.kubernetes.test_objectives import NEW, OBJECTIVES
from tests.epp.pools import until
from weft.epp.build import open_picker
from weft.epp.config.options import PickerOptions
from weft.epp.kubernetes.access_reviewer import AccessReviewer

POOL_DIRECTORIES = ("pool", "pool-vllm", "pool-lws")
VLLM_FLAGS = Path(__file__).resolve().parents[1] / "compat" / "vllm_flags_0_32.tsv"


@pytest.fixture(params=POOL_DIRECTORIES)
def pool(request: pytest.FixtureRequest) -> Objects:
    """All that stands in a directory with an InferencePool."""
    return objects(KUBERNETES / request.param)


def picker_container(found: Objects) -> Any:
    (container,) = found["Deployment", "weft-picker"]["spec"]["template"]["spec"]["containers"]
    return container


async def test_the_picker_finds_the_workers(
    pool: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The pool selects the workers' pods, and no other's, at the port where they serve HTTP."""
    api = ApiServerDouble()
    await api.start()
    point_at(api, tmp_path, monkeypatch)
    inference_pool = pool["InferencePool", "weft"]
    api.put(POOLS, {**inference_pool, "metadata": {"name": "weft", "namespace": "ns"}})
    for number, template in enumerate(pods(pool)):
        api.put(PODS, running_pod(number, labels=template["metadata"]["labels"]))
    picker = await open_picker(
        PickerOptions(pool_name=environment(picker_container(pool))["WEFT_POOL_NAME"])
    )
    (worker,) = (
        number
        for number, template in enumerate(pods(pool))
        if template["metadata"]["labels"].get("app.kubernetes.io/component") == "worker"
    )
    port = container_ports(pods(pool)[worker])["http"]
    try:
        await until(lambda: [one.host_port for one in picker.pool] == [f"10.0.0.{worker}:{port}"])
        leases = {("coordination.k8s.io", "leases", verb) for verb in ("get", "create", "update")}
        await until(lambda: {*_rights(pool)} - leases == {*_asked(api)})
        assert leases < {*_rights(pool)}
    finally:
        await picker.close()
        await api.stop()


async def test_the_picker_may_ask_who_sees_its_metrics(
    pool: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its right in the cluster is what that takes, and Prometheus may see them."""
    api = ApiServerDouble(users={"token": {"username": "other"}})
    await api.start()
    point_at(api, tmp_path, monkeypatch)
    reviewer = AccessReviewer(None)
    try:
        assert await reviewer.refusal(b"token", "/metrics") is not None
    finally:
        await reviewer.close()
        await api.stop()
    asked = {(group, resource, "create") for group, resource, _ in _asked(api)}
    assert {*_rights(pool, "ClusterRole")} == asked
    bindings = [one for (kind, _), one in pool.items() if kind == "ClusterRoleBinding"]
    assert {one["roleRef"]["name"]: one["subjects"][0]["name"] for one in bindings} == {
        "weft-picker": "weft-picker",
        "weft-metrics-reader": "prometheus-k8s",
    }
    reader = pool["ClusterRole", "weft-metrics-reader"]
    assert reader["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]


def _asked(api: ApiServerDouble) -> Iterator[tuple[str, str, str]]:
    """API group, resource and verb of each request; the paths are apis/GROUP/VERSION/... and api/VERSION/..."""
    for asked in api.asked:
        parts = asked.path.strip("/").split("/")
        group = parts[1] if parts[0] == "apis" else ""
        yield group, parts[-1], "watch" if asked.is_watch else "list"


def _rights(found: Objects, kind: str = "Role") -> Iterator[tuple[str, str, str]]:
    for rule in found[kind, "weft-picker"]["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                yield from ((group, resource, verb) for verb in rule["verbs"])


def test_the_pickers_rights_are_those_of_its_pod(pool: Objects):
    """A role that is bound to another account is no error for Kubernetes."""
    spec = pool["Deployment", "weft-picker"]["spec"]["template"]["spec"]
    binding = pool["RoleBinding", "weft-picker"]
    assert spec["automountServiceAccountToken"]
    assert ("ServiceAccount", spec["serviceAccountName"]) in pool
    assert [one["name"] for one in binding["subjects"]] == [spec["serviceAccountName"]]
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in pool


def test_a_route_leads_to_the_pool_and_the_pool_to_its_picker(pool: Objects):
    """And one picker alone: no leader is elected."""
    (rule,) = pool["HTTPRoute", "weft"]["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    inference_pool = pool[backend["kind"], backend["name"]]
    assert inference_pool["apiVersion"] == f"{backend['group']}/v1"
    picker = inference_pool["spec"]["endpointPickerRef"]
    assert service_ports(pool["Service", picker["name"]])["ext-proc"] == picker["port"]["number"]
    assert pool["Deployment", "weft-picker"]["spec"]["replicas"] == 1


def test_only_the_gateway_and_the_picker_reach_the_workers(pool: Objects):
    """The gateway by the name that the route has for it."""
    (parent,) = pool["HTTPRoute", "weft"]["spec"]["parentRefs"]
    gateway = str({"gateway.networking.k8s.io/gateway-name": parent["name"]})
    picker = pool["NetworkPolicy", "weft-picker"]["spec"]
    worker = pool["NetworkPolicy", "weft-worker"]["spec"]
    assert callers(picker) == [gateway]
    assert callers(worker) == [gateway, str(picker["podSelector"]["matchLabels"])]
    selector = pool["InferencePool", "weft"]["spec"]["selector"]
    assert worker["podSelector"] == selector


def test_machines_of_a_group_reach_each_other():
    """Leaders alone are in the pool, and the policy of its workers shuts out the rest of their group."""
    found = objects(KUBERNETES / "pool-lws")
    group = found["LeaderWorkerSet", "vllm-group"]["spec"]["leaderWorkerTemplate"]
    selector = found["InferencePool", "weft"]["spec"]["selector"]["matchLabels"]
    policy = found["NetworkPolicy", "vllm-group"]["spec"]
    labels = policy["podSelector"]["matchLabels"]
    templates = group["leaderTemplate"], group["workerTemplate"]
    assert [is_selected(selector, one) for one in templates] == [True, False]
    assert [is_selected(labels, one) for one in templates] == [True, True]
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": labels}}]}]
    sizes = [_flags(one["spec"]["containers"][0]) for one in templates]
    assert {"--headless"} == {*sizes[1]} - {*sizes[0]}


@pytest.mark.parametrize("directory", ["pool-vllm", "pool-lws"])
def test_vllms_workers_have_flags_that_vllm_has(directory: str):
    """As its own parser lists them."""
    rows = [
        line.split("\t")[0]
        for line in VLLM_FLAGS.read_text(encoding="utf-8").splitlines()
        if line.startswith("-")
    ]
    known = {spelling for row in rows for spelling in row.split()}
    text = (KUBERNETES / directory / "workers.yaml").read_text(encoding="utf-8")
    containers = [one for node in yaml.safe_load_all(text) for one in _vllm_containers(node)]
    assert containers
    assert {flag for one in containers for flag in _flags(one)} <= known


def _vllm_containers(node: Any) -> Iterator[Any]:
    if isinstance(node, list):
        for item in node:
            yield from _vllm_containers(item)
    elif isinstance(node, dict):
        if node.get("command") == ["vllm", "serve"]:
            yield node
        for value in node.values():
            yield from _vllm_containers(value)


def _flags(container: Any) -> list[str]:
    return [arg.partition("=")[0] for arg in container["args"] if arg.startswith("--")]


async def test_objectives_are_the_pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """They refer to it, so that its picker knows their priorities."""
    api = ApiServerDouble()
    await api.start()
    point_at(api, tmp_path, monkeypatch)
    found = objects(KUBERNETES / "objectives")
    for (_, name), one in found.items():
        api.put(NEW + OBJECTIVES, {**one, "metadata": {"name": name, "namespace": "ns"}})
    pool = objects(KUBERNETES / "pool")["InferencePool", "weft"]
    api.put(POOLS, {**pool, "metadata": {"name": "weft", "namespace": "ns"}})
    picker = await open_picker(PickerOptions(pool_name="weft"))
    wanted = {name: one["spec"]["priority"] for (_, name), one in found.items()}
    try:
        assert min(wanted.values()) < 0 < max(wanted.values())
        await until(
            lambda: wanted == {name: picker.director.objects.priority(name) for name in wanted}
        )
    finally:
        await picker.close()
        await api.stop()


def test_istio_speaks_tls_to_the_pickers_service():
    """The host of the rule is the Service."""
    (rule,) = objects(KUBERNETES / "istio").values()
    assert ("Service", rule["spec"]["host"]) in objects(KUBERNETES / "pool")
    assert "--secure-serving" in picker_container(objects(KUBERNETES / "pool"))["args"]
