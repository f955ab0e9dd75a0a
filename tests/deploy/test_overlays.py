"""What kubectl makes of the kustomizations, where it is on the PATH or `make check-deploy` has fetched it."""

import functools
import os
import re
import shlex
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from tests.deploy.command_line import is_taken
from tests.deploy.manifests import (
    KUBERNETES,
    Objects,
    by_name,
    container_ports,
    environment,
    is_selected,
    pods,
    service_ports,
    transfer_of,
)
from tools.check_deploy import CACHE
from weft import __version__
from weft.epp.config.config import read_config
from weft.epp.pool.roles import ROLE_LABEL
from weft.epp.resolve import ResolvedConfig, resolve

_FETCHED = CACHE / "venv" / "layer" / "kubectl" / "kubectl"
KUBECTL = shutil.which("kubectl") or (str(_FETCHED) if os.access(_FETCHED, os.X_OK) else None)
SERVING = ("fleet", "own-image", "pool", "pool-grpc", "pool-lws", "pool-prefill", "pool-vllm", "server")  # fmt: skip

pytestmark = pytest.mark.skipif(
    KUBECTL is None, reason="no kubectl on the PATH, nor fetched by make check-deploy"
)


@functools.cache
def built(directory: str) -> Objects:
    """What kubectl makes of a directory, by kind and name."""
    command = [str(KUBECTL), "kustomize", str(KUBERNETES / directory)]
    return by_name(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def of_kind(found: Objects, kind: str) -> list[Any]:
    return [one for (each, _), one in found.items() if each == kind]


def container(pod: Any) -> Any:
    (one,) = pod["spec"]["containers"]
    return one


def picker_config(found: Objects, name: str) -> ResolvedConfig:
    """The configuration that the picker of this name reads, at the path where its volume has it."""
    spec = found["Deployment", name]["spec"]["template"]["spec"]
    (volume,) = (one for one in spec["volumes"] if "configMap" in one)
    mounts = {one["name"]: one["mountPath"] for one in container({"spec": spec})["volumeMounts"]}
    ((key, text),) = found["ConfigMap", volume["configMap"]["name"]]["data"].items()
    set_path = environment(container({"spec": spec}))["WEFT_CONFIG_FILE"]
    assert set_path == f"{mounts[volume['name']]}/{key}"
    return resolve(read_config(text, key), allow_experimental=False)


@pytest.mark.parametrize("directory", SERVING)
def test_every_image_has_a_version(directory: str):
    """By a tag or a digest; ours is the version of this tree."""
    images = {container(pod)["image"] for pod in pods(built(directory))}
    assert all(re.search(r":v?\d+\.\d+\.\d+$|@sha256:[0-9a-f]{64}$", image) for image in images)
    assert not [
        image for image in images if image.startswith("weft:") and image != f"weft:{__version__}"
    ]


@pytest.mark.parametrize("directory", SERVING)
def test_services_and_policies_match_pods(directory: str):
    """A selector or a port that matches nothing is no error for Kubernetes."""
    found = built(directory)
    for service in of_kind(found, "Service"):
        selected = [pod for pod in pods(found) if is_selected(service["spec"]["selector"], pod)]
        wanted = {port["targetPort"] for port in service["spec"]["ports"]}
        assert selected
        assert all(wanted <= {*container_ports(pod)} for pod in selected)
    for policy in of_kind(found, "NetworkPolicy"):
        labels = policy["spec"]["podSelector"]["matchLabels"]
        selected = [pod for pod in pods(found) if is_selected(labels, pod)]
        rules = policy["spec"]["ingress"]
        wanted = {port["port"] for rule in rules for port in rule.get("ports", ())}
        assert selected
        assert all(wanted <= {*container_ports(pod)} for pod in selected)
    words = [one["args"] for one in map(container, pods(found)) if "command" not in one]
    assert all(is_taken(shlex.join(each)) for each in words if each[0] != "envoy")


def test_an_overlay_renames_all_that_refer_to_each_other():
    """Its namespace and its suffix are those of the picker's rights in the cluster, and of the pool that it follows."""
    found = built("own-image")
    bindings = {
        one["roleRef"]["name"]: one["subjects"] for one in of_kind(found, "ClusterRoleBinding")
    }
    account = {"kind": "ServiceAccount", "name": "weft-picker-llm", "namespace": "llm"}
    assert bindings["weft-picker-llm"] == [account]
    assert {*bindings} == {one["metadata"]["name"] for one in of_kind(found, "ClusterRole")}
    (pool,) = of_kind(found, "InferencePool")
    (route,) = of_kind(found, "HTTPRoute")
    picker = container(found["Deployment", "weft-picker-llm"]["spec"]["template"])
    name = pool["metadata"]["name"]
    assert name == "weft-llm"
    assert environment(picker)["WEFT_POOL_NAME"] == name
    assert [one["name"] for rule in route["spec"]["rules"] for one in rule["backendRefs"]] == [name]
    service = found["Service", pool["spec"]["endpointPickerRef"]["name"]]
    assert service_ports(service)["ext-proc"] == pool["spec"]["endpointPickerRef"]["port"]["number"]
    assert {
        one["metadata"].get("namespace") for one in found.values() if "Cluster" not in one["kind"]
    } == {"llm"}


def test_prefill_workers_lend_what_decode_workers_fetch():
    """Both are in the pool, their roles are labels that the picker's filters read, and they reach each other."""
    found = built("pool-prefill")
    assert {profile.name for profile in picker_config(found, "weft-picker").profiles} == {
        "prefill",
        "decode",
    }
    (pool,) = of_kind(found, "InferencePool")
    selector = pool["spec"]["selector"]["matchLabels"]
    workers = [pod for pod in pods(found) if is_selected(selector, pod)]
    roles = {
        pod["metadata"]["labels"][ROLE_LABEL]: transfer_of(pod)[0]["kv_role"] for pod in workers
    }
    assert roles == {"prefill": "kv_producer", "decode": "kv_consumer"}
    policy = found["NetworkPolicy", "weft-transfer"]["spec"]
    allowed = policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    lending, fetching = (
        next(pod for pod in workers if pod["metadata"]["labels"][ROLE_LABEL] == role)
        for role in ("prefill", "decode")
    )
    assert is_selected(policy["podSelector"]["matchLabels"], lending)
    assert is_selected(allowed, fetching)


def test_a_grpc_pool_is_at_the_workers_grpc_port():
    """In HTTP/2 without TLS; the picker parses the protocol, polls over it, and may reach the port."""
    found = built("pool-grpc")
    (pool,) = of_kind(found, "InferencePool")
    selector = pool["spec"]["selector"]["matchLabels"]
    (worker,) = (pod for pod in pods(found) if is_selected(selector, pod))
    assert pool["spec"]["targetPorts"] == [{"number": container_ports(worker)["grpc"]}]
    assert pool["spec"]["appProtocol"] == "kubernetes.io/h2c"
    assert picker_config(found, "weft-picker").parsers[0] == "vllmgrpc-parser"
    picker = container(found["Deployment", "weft-picker"]["spec"]["template"])
    assert environment(picker)["WEFT_DEFAULT_ENGINE"] == "vllm-grpc"
    assert found["NetworkPolicy", "weft-worker"]["spec"]["ingress"][0]["ports"] == [
        {"port": "grpc"}
    ]


@pytest.mark.parametrize("name", ["picker-prefill", "picker-grpc"])
def test_the_chart_has_the_same_configurations_of_the_picker(name: str):
    """A chart may hold files of its own directory alone."""
    chart = KUBERNETES.parent / "helm" / "weft" / "files" / f"{name}.yaml"
    directory = KUBERNETES / name.replace("picker", "pool")
    assert chart.read_text(encoding="utf-8") == (directory / "picker.yaml").read_text(
        encoding="utf-8"
    )


def test_containers_of_compose_have_the_same_versions():
    """Where the environment names no others."""
    composed = [
        yaml.safe_load(path.read_text(encoding="utf-8"))
        for path in (KUBERNETES.parent / "docker").glob("*.yaml")
    ]
    images = {one["image"] for each in composed for one in each["services"].values()}
    assert images == {
        f"${{SERVER_IMAGE:-weft:{__version__}}}",
        "${ENVOY_IMAGE:-envoyproxy/envoy:v1.40.0}",
    }
