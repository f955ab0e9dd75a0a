"""The manifests of a fleet fit together: Envoy, the picker and the workers find each other by names that are there."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from weft.cli.up.envoy import EnvoyPlan, envoy_config
from weft.epp.pool.endpoint import parse_endpoint

KUBERNETES = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
ENVOY = KUBERNETES / "fleet" / "envoy.yaml"


def objects(directory: Path) -> dict[tuple[str, str], Any]:
    """What the kustomization of a directory names, by kind and name."""
    resources = yaml.safe_load((directory / "kustomization.yaml").read_text(encoding="utf-8"))
    texts = [(directory / name).read_text(encoding="utf-8") for name in resources["resources"]]
    documents = [one for text in texts for one in yaml.safe_load_all(text)]
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


def ports(service: Any) -> dict[str, int]:
    return {port["name"]: port["port"] for port in service["spec"]["ports"]}


def test_envoy_finds_picker_and_workers_by_their_services():
    """The file is what `weft up` would make for the names and ports of these Services."""
    fleet = objects(ENVOY.parent)
    workers, picker = fleet["Service", "weft-workers"], fleet["Service", "weft-picker"]
    plan = EnvoyPlan(
        listen=("0.0.0.0", ports(fleet["Service", "weft"])["http"]),
        picker=("weft-picker", ports(picker)["ext-proc"]),
        grpc_workers=(("weft-workers", ports(workers)["grpc"]),),
        http_workers=(("weft-workers", ports(workers)["http"]),),
        admin=("127.0.0.1", 9901),
    )
    assert yaml.safe_load(ENVOY.read_text(encoding="utf-8")) == envoy_config(plan)


def test_the_picker_names_pods_that_the_workers_can_be():
    """A StatefulSet numbers its pods, and its Service gives each a name."""
    fleet = objects(ENVOY.parent)
    workers = fleet["StatefulSet", "weft-worker"]
    service = workers["spec"]["serviceName"]
    port = ports(fleet["Service", service])
    (container,) = fleet["Deployment", "weft-picker"]["spec"]["template"]["spec"]["containers"]
    flags = [arg.partition("=") for arg in container["args"]]
    specs = [parse_endpoint(value) for name, _, value in flags if name == "--endpoint"]
    assert [spec.address for spec in specs] == [
        f"weft-worker-{number}.{service}" for number in range(len(specs))
    ]
    assert {(spec.port, spec.grpc_port) for spec in specs} == {(port["http"], port["grpc"])}
    assert len(specs) >= workers["spec"]["replicas"]


@pytest.mark.parametrize("directory", ["server", "fleet"])
def test_services_lead_to_ports_of_pods_that_are_there(directory: str):
    """A selector or a port that matches nothing is no error for Kubernetes."""
    found = objects(KUBERNETES / directory)
    pods = [one["spec"]["template"] for one in found.values() if "template" in one["spec"]]
    services = [one["spec"] for (kind, _), one in found.items() if kind == "Service"]
    assert services
    for service in services:
        (pod,) = (one for one in pods if one["metadata"]["labels"] == service["selector"])
        named = {
            port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]
        }
        assert {one["targetPort"]: one["port"] for one in service["ports"]}.items() <= named.items()


def test_only_envoy_reaches_the_picker_and_with_that_the_workers():
    """The picker wants no key of who calls it. A policy with a name or a port that is not there lets nobody in."""
    fleet = objects(ENVOY.parent)
    pods = [one["spec"]["template"] for one in fleet.values() if "template" in one["spec"]]
    ports_by_labels = {
        str(pod["metadata"]["labels"]): {
            port["name"] for port in pod["spec"]["containers"][0]["ports"]
        }
        for pod in pods
    }
    policies = [one["spec"] for (kind, _), one in fleet.items() if kind == "NetworkPolicy"]
    callers = {}
    for policy in policies:
        labels = str(policy["podSelector"]["matchLabels"])
        pods_in, monitoring = policy["ingress"]
        assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} <= (
            ports_by_labels[labels]
        )
        assert [*monitoring["from"][0]] == ["namespaceSelector"]
        callers[labels] = [str(one["podSelector"]["matchLabels"]) for one in pods_in["from"]]
    worker, picker, gateway = (
        str({"app.kubernetes.io/name": f"weft-{part}"}) for part in ("worker", "picker", "gateway")
    )
    assert callers == {worker: [gateway, picker], picker: [gateway]}
    assert set(callers) | {gateway} == set(ports_by_labels)
