"""The manifests of a fleet fit together: Envoy, the picker and the workers find each other by names that are there."""

import pytest
import yaml

from tests.deploy.manifests import (
    KUBERNETES,
    callers,
    container_ports,
    drain_seconds,
    is_selected,
    objects,
    pods,
    service_ports,
)
from weft.cli.up.envoy import EnvoyPlan, envoy_config
from weft.epp.pool.endpoint import parse_endpoint

ENVOY = KUBERNETES / "fleet" / "envoy.yaml"


def test_envoy_finds_picker_and_workers_by_their_services():
    """The file is what `weft up` would make for the names and ports of these Services."""
    fleet = objects(ENVOY.parent)
    workers, picker = fleet["Service", "weft-workers"], fleet["Service", "weft-picker"]
    plan = EnvoyPlan(
        listen=("0.0.0.0", service_ports(fleet["Service", "weft"])["http"]),
        picker=("weft-picker", service_ports(picker)["ext-proc"]),
        grpc_workers=(("weft-workers", service_ports(workers)["grpc"]),),
        http_workers=(("weft-workers", service_ports(workers)["http"]),),
        admin=("127.0.0.1", 9901),
        probes=("0.0.0.0", 8081),
    )
    assert yaml.safe_load(ENVOY.read_text(encoding="utf-8")) == envoy_config(plan)


@pytest.mark.parametrize("name", ["envoy.yaml", "drain.sh"])
def test_the_chart_has_the_same_envoy(name: str):
    """A chart may hold files of its own directory alone, and a link does not live everywhere."""
    chart = KUBERNETES.parent / "helm" / "weft" / "files" / name
    assert chart.read_text(encoding="utf-8") == ENVOY.with_name(name).read_text(encoding="utf-8")


@pytest.mark.parametrize("directory", ["server", "fleet", "pool"])
def test_a_pod_is_not_killed_while_it_drains(directory: str):
    """Its grace period covers what it does before SIGTERM, the time of open requests after it, and some seconds."""
    for pod in pods(objects(KUBERNETES / directory)):
        assert pod["spec"].get("terminationGracePeriodSeconds", 30) >= drain_seconds(pod) + 5


def test_the_picker_names_pods_that_the_workers_can_be():
    """A StatefulSet numbers its pods, and its Service gives each a name."""
    fleet = objects(ENVOY.parent)
    workers = fleet["StatefulSet", "weft-worker"]
    service = workers["spec"]["serviceName"]
    port = service_ports(fleet["Service", service])
    (container,) = fleet["Deployment", "weft-picker"]["spec"]["template"]["spec"]["containers"]
    flags = [arg.partition("=") for arg in container["args"]]
    specs = [parse_endpoint(value) for name, _, value in flags if name == "--endpoint"]
    assert [spec.address for spec in specs] == [
        f"weft-worker-{number}.{service}" for number in range(len(specs))
    ]
    assert {(spec.port, spec.grpc_port) for spec in specs} == {(port["http"], port["grpc"])}
    assert len(specs) >= workers["spec"]["replicas"]


@pytest.mark.parametrize("directory", ["server", "fleet", "pool", "pool-vllm", "pool-lws"])
def test_services_lead_to_ports_of_pods_that_are_there(directory: str):
    """A selector or a port that matches nothing is no error for Kubernetes."""
    found = objects(KUBERNETES / directory)
    services = [one["spec"] for (kind, _), one in found.items() if kind == "Service"]
    assert services
    for service in services:
        (pod,) = (one for one in pods(found) if is_selected(service["selector"], one))
        wanted = {port["targetPort"]: port["port"] for port in service["ports"]}
        assert wanted.items() <= container_ports(pod).items()


@pytest.mark.parametrize("directory", ["fleet", "pool", "pool-vllm", "pool-lws"])
def test_policies_name_ports_of_pods_that_are_there(directory: str):
    """One with a label or a port that is not there lets nobody in."""
    found = objects(KUBERNETES / directory)
    policies = [one["spec"] for (kind, _), one in found.items() if kind == "NetworkPolicy"]
    assert policies
    for policy in policies:
        (pod,) = (one for one in pods(found) if is_selected(_selector(policy), one))
        asked = {port["port"] for rule in policy["ingress"] for port in rule.get("ports", ())}
        assert asked <= {*container_ports(pod)}


def test_only_envoy_reaches_the_picker_and_with_that_the_workers():
    """The picker wants no key of who calls it."""
    fleet = objects(ENVOY.parent)
    worker, picker, gateway = (
        str({"app.kubernetes.io/name": f"weft-{part}"}) for part in ("worker", "picker", "gateway")
    )
    policies = [one["spec"] for (kind, _), one in fleet.items() if kind == "NetworkPolicy"]
    assert {str(_selector(one)): callers(one) for one in policies} == {
        worker: [gateway, picker],
        picker: [gateway],
    }


def _selector(policy: dict[str, dict[str, dict[str, str]]]) -> dict[str, str]:
    return policy["podSelector"]["matchLabels"]
