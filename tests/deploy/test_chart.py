"""What the chart makes of values, by helm itself, where it is on the PATH or `make check-deploy` has fetched it."""

import functools
import json
import os
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
    callers,
    container_ports,
    drain_seconds,
    is_selected,
    objects,
    pods,
    service_ports,
    transfer_of,
)
from tools.check_deploy import CACHE, CHART
from weft import __version__
from weft.epp.config.config import read_config
from weft.epp.kubernetes.leader_service import PORT_NAME
from weft.epp.pool.roles import ROLE_LABEL
from weft.epp.resolve import resolve

_FETCHED = CACHE / "venv" / "layer" / "helm" / "helm"
HELM = shutil.which("helm") or (str(_FETCHED) if os.access(_FETCHED, os.X_OK) else None)
VALUES = ("", *sorted(path.name for path in (CHART / "ci").glob("*-values.yaml")))
POOLS = ("pool-values.yaml", "pool-deployment-values.yaml")
WORKER = "app.kubernetes.io/component"

pytestmark = pytest.mark.skipif(
    HELM is None, reason="no helm on the PATH, nor fetched by make check-deploy"
)


@functools.cache
def template(*words: str) -> subprocess.CompletedProcess[str]:
    """What helm says to `helm template`."""
    command = [str(HELM), "template", "release", str(CHART), "--namespace", "ours", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def rendered(values: str) -> Objects:
    """All objects, by kind and name."""
    made = template("--values", str(CHART / "ci" / values)) if values else template()
    assert made.returncode == 0, made.stderr
    return by_name(made.stdout)


def of_kind(found: Objects, kind: str) -> list[Any]:
    return [one for (each, _), one in found.items() if each == kind]


def workers(found: Objects) -> Any:
    """The pods that serve, all of one role."""
    (pod,) = all_workers(found)
    return pod


def all_workers(found: Objects) -> list[Any]:
    return [one for one in pods(found) if one["metadata"]["labels"][WORKER] == "worker"]


@pytest.fixture(params=VALUES)
def release(request: pytest.FixtureRequest) -> Objects:
    """By each of the files of values, and by none."""
    return rendered(request.param)


@pytest.fixture(params=POOLS)
def pool_release(request: pytest.FixtureRequest) -> Objects:
    """Those that have an InferencePool."""
    return rendered(request.param)


def test_our_command_lines_are_taken(release: Objects):
    """Of every container with our image, first ones included."""
    specs = [one["spec"] for one in pods(release)]
    containers = [
        one
        for spec in specs
        for one in (*spec["containers"], *spec.get("initContainers", ()))
        if "weft" in one["image"]
    ]
    assert containers
    assert all(is_taken(shlex.join(one["args"])) for one in containers)


def test_services_and_policies_match_pods(release: Objects):
    """What matches nothing is no error for Kubernetes."""
    for service in of_kind(release, "Service"):
        if "selector" not in service["spec"]:
            continue  # the leader's
        selected = [one for one in pods(release) if is_selected(service["spec"]["selector"], one)]
        assert selected
        asked = {one["targetPort"] for one in service["spec"]["ports"]}
        assert all(asked <= {*container_ports(pod)} for pod in selected)
    for policy in of_kind(release, "NetworkPolicy"):
        selector = policy["spec"]["podSelector"]["matchLabels"]
        selected = [one for one in pods(release) if is_selected(selector, one)]
        assert selected
        asked = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        assert all(asked <= {*container_ports(pod)} for pod in selected)
    for budget in of_kind(release, "PodDisruptionBudget"):
        assert any(
            is_selected(budget["spec"]["selector"]["matchLabels"], pod) for pod in pods(release)
        )
    for monitor in of_kind(release, "ServiceMonitor"):
        (service,) = (
            one
            for one in of_kind(release, "Service")
            if monitor["spec"]["selector"]["matchLabels"].items()
            <= one["metadata"]["labels"].items()
        )
        ports = {one["port"] for one in monitor["spec"]["endpoints"]}
        assert ports <= {*service_ports(service)}


def test_envoy_has_the_names_of_the_release():
    """Its configuration is that of `weft up`, for these Services."""
    found = rendered("envoy-values.yaml")
    config = yaml.safe_load(found["ConfigMap", "release-weft-gateway"]["data"]["envoy.yaml"])
    addresses = {
        cluster["name"]: endpoint["endpoint"]["address"]["socket_address"]["address"]
        for cluster in config["static_resources"]["clusters"]
        for locality in cluster["load_assignment"]["endpoints"]
        for endpoint in locality["lb_endpoints"]
    }
    assert addresses.pop("admin") == "127.0.0.1"
    assert addresses == {
        "picker": "release-weft-picker",
        "workers_grpc": "release-weft-workers",
        "workers_http": "release-weft-workers",
    }
    assert {("Service", name) for name in addresses.values()} <= {*found}


def test_a_pod_is_not_killed_while_it_drains(release: Objects):
    """Its grace period covers what it does before SIGTERM, the time of open requests after it, and some seconds."""
    for pod in pods(release):
        assert pod["spec"]["terminationGracePeriodSeconds"] >= drain_seconds(pod) + 5


def test_times_of_draining_are_values():
    """The flag or the hook, and the grace period with it."""
    given = ("picker.drainSeconds=600", "gateway.drainSeconds=900", "gateway.concurrency=4")
    made = template(*(word for value in given for word in ("--set", value)))
    found = by_name(made.stdout)
    by_part = {pod["metadata"]["labels"][WORKER]: pod for pod in pods(found)}
    assert [drain_seconds(by_part[part]) for part in ("picker", "gateway")] == [600, 900]
    for part in ("picker", "gateway"):
        spec = by_part[part]["spec"]
        assert spec["terminationGracePeriodSeconds"] >= drain_seconds(by_part[part]) + 5
    assert by_part["gateway"]["spec"]["containers"][0]["args"][-2:] == ["--concurrency", "4"]


def test_values_for_pods_reach_all_of_them():
    """Secrets for images, priority, annotations and affinity of workers, picker and Envoy."""
    found = rendered("placed-values.yaml")
    for pod in pods(found):
        spec = pod["spec"]
        assert (spec["imagePullSecrets"], spec["priorityClassName"]) == (
            [{"name": "registry"}],
            "serving",
        )
        assert pod["metadata"]["annotations"]["team"] == "search"
        assert "podAntiAffinity" in spec["affinity"]
    assert workers(found)["spec"]["runtimeClassName"] == "gvisor"
    service = found["Service", "release-weft"]
    assert service["metadata"]["annotations"] == {"example.com/load-balancer": "internal"}


def test_the_picker_is_configured_by_a_value():
    """As a file of a ConfigMap; it starts anew when this changes."""
    found = rendered("placed-values.yaml")
    text = found["ConfigMap", "release-weft-picker"]["data"]["picker.yaml"]
    config = resolve(read_config(text, "picker.config"), allow_experimental=False)
    assert {"queue-scorer", "prefix-cache-scorer"} <= {plugin.name for plugin in config.plugins}
    pod = found["Deployment", "release-weft-picker"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert "--config-file=/etc/weft/picker.yaml" in container["args"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert mounts["config"] == "/etc/weft"
    assert volumes["config"]["configMap"] == {"name": "release-weft-picker"}
    assert "checksum/config" in pod["metadata"]["annotations"]


def test_an_image_has_the_version_of_the_chart_or_a_digest():
    """The chart's version of the program is that of this tree."""
    assert {one["spec"]["containers"][0]["image"] for one in pods(rendered(""))} == {
        f"weft:{__version__}",
        "envoyproxy/envoy:v1.40.0",
    }
    images = {
        one["spec"]["containers"][0]["image"] for one in pods(rendered("prefill-values.yaml"))
    }
    assert images == {f"registry.example.com/weft@sha256:{'0' * 64}"}


def test_prefill_workers_lend_what_decode_workers_fetch():
    """Their roles are labels that the picker's filters read; both have the secret, the port and the peers."""
    found = rendered("prefill-values.yaml")
    config = resolve(
        read_config(found["ConfigMap", "release-weft-picker"]["data"]["picker.yaml"], "picker"),
        allow_experimental=False,
    )
    assert {profile.name for profile in config.profiles} == {"prefill", "decode"}
    roles = {pod["metadata"]["labels"][ROLE_LABEL]: pod for pod in all_workers(found)}
    assert {*roles} == {"prefill", "decode"}
    for role, connector in (("prefill", "kv_producer"), ("decode", "kv_consumer")):
        kv, rest = transfer_of(roles[role])
        assert kv["kv_role"] == connector
        assert rest == (["--max-num-seqs=4"] if role == "prefill" else [])
    (policy,) = (
        one
        for one in of_kind(found, "NetworkPolicy")
        if is_selected(one["spec"]["podSelector"]["matchLabels"], roles["prefill"])
    )
    assert {"port": "transfer"} in [
        port for rule in policy["spec"]["ingress"] for port in rule["ports"]
    ]


def test_volumes_and_places_are_values():
    """Of workers and of the picker."""
    found = rendered("prefill-values.yaml")
    for pod in all_workers(found):
        assert {"name": "adapters", "mountPath": "/adapters", "readOnly": True} in pod["spec"][
            "containers"
        ][0]["volumeMounts"]
        assert pod["spec"]["topologySpreadConstraints"][0]["whenUnsatisfiable"] == "DoNotSchedule"
    picker = found["Deployment", "release-weft-picker"]["spec"]["template"]["spec"]
    assert picker["tolerations"] == [{"key": "dedicated", "operator": "Exists"}]
    assert {"name": "tokenizer", "configMap": {"name": "tokenizer"}} in picker["volumes"]


def test_a_grpc_pool_is_at_the_workers_grpc_port():
    """For gateways that speak HTTP/2 without TLS. The picker parses the protocol and polls over it."""
    found = rendered("grpc-values.yaml")
    pool = found["InferencePool", "release-weft"]["spec"]
    assert pool["appProtocol"] == "kubernetes.io/h2c"
    assert pool["targetPorts"] == [{"number": container_ports(workers(found))["grpc"]}]
    picker = found["Deployment", "release-weft-picker"]["spec"]["template"]["spec"]["containers"][0]
    assert "--default-engine=vllm-grpc" in picker["args"]
    config = read_config(found["ConfigMap", "release-weft-picker"]["data"]["picker.yaml"], "picker")
    assert resolve(config, allow_experimental=False).parsers == (
        "vllmgrpc-parser",
        "passthrough-parser",
    )
    first = found["NetworkPolicy", "release-weft-worker"]["spec"]["ingress"][0]
    assert first["ports"] == [{"port": "grpc"}]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ("prefill.replicas=1,prefill.existingSecret=a", "picker-prefill-grpc"),
        ("image.tag=v1", "picker-grpc"),
    ],
)
def test_the_pickers_files_are_those_of_the_manifests(values: str, name: str):
    """With the gRPC parser where the pool's protocol is gRPC."""
    made = template("--set", f"inferencePool.enabled=true,inferencePool.protocol=grpc,{values}")
    text = by_name(made.stdout)["ConfigMap", "release-weft-picker"]["data"]["picker.yaml"]
    assert yaml.safe_load(text) == yaml.safe_load(
        (CHART / "files" / f"{name}.yaml").read_text(encoding="utf-8")
    )
    assert (
        resolve(read_config(text, name), allow_experimental=False).parsers[0] == "vllmgrpc-parser"
    )


def test_workers_are_asked_at_their_own_pages(release: Objects):
    """Started once it listens, alive while it does, ready once it answers."""
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    for pod in all_workers(release):
        (container,) = pod["spec"]["containers"]
        paths = [container[probe]["httpGet"]["path"] for probe in probes]
        assert paths == ["/startupz", "/livez", "/readyz"]


def test_the_scaler_owns_the_number_of_workers():
    """Else every upgrade of the release would set it back."""
    for values in ("pool-values.yaml", "envoy-values.yaml"):
        found = rendered(values)
        (scaler,) = of_kind(found, "HorizontalPodAutoscaler")
        target = scaler["spec"]["scaleTargetRef"]
        assert "replicas" not in found[target["kind"], target["name"]]["spec"]


def test_one_picker_whose_rights_are_those_of_the_manifests(pool_release: Objects):
    """And no more than one, since none of two would lead."""
    (role,) = of_kind(pool_release, "Role")
    *rules, leases = objects(KUBERNETES / "pool")["Role", "weft-picker"]["rules"]
    assert (role["rules"], leases["resources"]) == (rules, ["leases"])
    (binding,) = of_kind(pool_release, "RoleBinding")
    picker = pool_release["Deployment", "release-weft-picker"]["spec"]
    account = picker["template"]["spec"]["serviceAccountName"]
    assert picker["replicas"] == 1
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "ours"}]
    assert ("ServiceAccount", account) in pool_release


def test_who_sees_the_pickers_metrics_is_asked_of_kubernetes():
    """The picker may ask, Prometheus may see them and sends its token; or nobody is asked."""
    found = rendered("pool-values.yaml")
    manifests = objects(KUBERNETES / "pool")
    roles = {one["metadata"]["name"]: one for one in of_kind(found, "ClusterRole")}
    for name, same in (("picker", "weft-picker"), ("metrics-reader", "weft-metrics-reader")):
        role = roles.pop(f"ours-release-weft-{name}")
        assert role["rules"] == manifests["ClusterRole", same]["rules"]
    assert not roles
    bindings = of_kind(found, "ClusterRoleBinding")
    subjects = {one["roleRef"]["name"]: one["subjects"][0] for one in bindings}
    assert {role: (one["namespace"], one["name"]) for role, one in subjects.items()} == {
        "ours-release-weft-picker": ("ours", "release-weft-picker"),
        "ours-release-weft-metrics-reader": ("monitoring", "prometheus-k8s"),
    }
    (endpoint,) = found["ServiceMonitor", "release-weft-picker"]["spec"]["endpoints"]
    assert endpoint["bearerTokenFile"].endswith("/serviceaccount/token")
    other = rendered("pool-deployment-values.yaml")
    assert not of_kind(other, "ClusterRole") + of_kind(other, "ClusterRoleBinding")
    picker = other["Deployment", "release-weft-picker"]["spec"]["template"]["spec"]
    assert "--metrics-endpoint-auth=false" in picker["containers"][0]["args"]


def test_of_several_pickers_one_leads():
    """By a Lease. A Service leads the gateway to it alone, so all are ready and are updated one by one."""
    found = rendered("elected-values.yaml")
    (role,) = of_kind(found, "Role")
    leases = [rule for rule in role["rules"] if "leases" in rule["resources"]]
    assert [rule["verbs"] for rule in leases] == [["get", "create", "update"]]
    picker = found["Deployment", "release-weft-picker"]["spec"]
    assert (picker["replicas"], picker["strategy"]) == (2, {"rollingUpdate": {"maxUnavailable": 0}})
    (container,) = picker["template"]["spec"]["containers"]
    assert "--ha-enable-leader-election" in container["args"]
    (flag,) = (word for word in container["args"] if word.startswith("--leader-service="))
    name = flag.partition("=")[2]
    service = found["Service", name]["spec"]
    assert "selector" not in service
    assert found["InferencePool", "release-weft"]["spec"]["endpointPickerRef"]["name"] == name
    (port,) = service["ports"]
    assert (port["name"], port["targetPort"]) == (
        PORT_NAME,
        container_ports(picker["template"])[PORT_NAME],
    )
    assert {one["name"] for one in container["env"]} >= {"POD_NAME", "POD_IP"}
    slices = [rule for rule in role["rules"] if "endpointslices" in rule["resources"]]
    assert [(rule["verbs"], rule.get("resourceNames")) for rule in slices] == [
        (["get", "update"], [name]),
        (["create"], None),
    ]
    refused = template("--set", "picker.replicas=2")
    assert "picker.replicas: more than 1 needs inferencePool.enabled" in refused.stderr


def test_the_picker_follows_the_pool_and_the_gateway_asks_it(pool_release: Objects):
    """In place of Envoy, of which nothing is left."""
    (pool,) = of_kind(pool_release, "InferencePool")
    (container,) = pool_release["Deployment", "release-weft-picker"]["spec"]["template"]["spec"][
        "containers"
    ]
    assert f"--pool-name={pool['metadata']['name']}" in container["args"]
    assert not [arg for arg in container["args"] if arg.startswith("--endpoint")]
    selector = pool["spec"]["selector"]["matchLabels"]
    assert [one for one in pods(pool_release) if is_selected(selector, one)] == [
        workers(pool_release)
    ]
    (port,) = pool["spec"]["targetPorts"]
    assert container_ports(workers(pool_release))["http"] == port["number"]
    picker = pool["spec"]["endpointPickerRef"]
    assert (
        service_ports(pool_release["Service", picker["name"]])["ext-proc"]
        == picker["port"]["number"]
    )
    ((backend,),) = (
        rule["backendRefs"]
        for route in of_kind(pool_release, "HTTPRoute")
        for rule in route["spec"]["rules"]
    )
    assert (backend["kind"], backend["name"]) == ("InferencePool", pool["metadata"]["name"])
    assert "envoy" not in json.dumps(sorted(map(str, pool_release))).lower()


def test_values_reach_the_objects_of_a_pool():
    """The Gateway's namespace and names, priorities, Istio's rule, and whose pods may call."""
    found, other = (rendered(values) for values in POOLS)
    route = found["HTTPRoute", "release-weft"]["spec"]
    assert route["parentRefs"] == [{"name": "inference-gateway", "namespace": "gateways"}]
    assert route["hostnames"] == ["llm.example.com"]
    objectives = {
        one["metadata"]["name"]: one["spec"] for one in of_kind(found, "InferenceObjective")
    }
    assert {name: spec["priority"] for name, spec in objectives.items()} == {
        "premium": 10,
        "batch": -1,
    }
    assert {spec["poolRef"]["name"] for spec in objectives.values()} == {"release-weft"}
    (rule,) = of_kind(found, "DestinationRule")
    assert ("Service", rule["spec"]["host"]) in found
    assert (
        other["InferencePool", "release-weft"]["spec"]["endpointPickerRef"]["failureMode"]
        == "FailClose"
    )
    gateways = [
        callers(each["NetworkPolicy", "release-weft-picker"]["spec"]) for each in (found, other)
    ]
    assert gateways == [
        [str({"gateway.networking.k8s.io/gateway-name": "inference-gateway"})],
        [str({"app": "our-gateway"})],
    ]


def test_a_model_is_fetched_where_the_server_looks_for_it():
    """By the name that it is served by, with the Hub's token, into the same volume."""
    spec = workers(rendered("pool-deployment-values.yaml"))["spec"]
    (pull,), (server,) = spec["initContainers"], spec["containers"]
    (model,) = (one["value"] for one in server["env"] if one["name"] == "WEFT_MODEL")
    assert pull["args"] == ["models", "pull", model]
    assert pull["volumeMounts"] == server["volumeMounts"]
    assert [one for one in server["env"] if one["name"] == "HF_TOKEN"] == pull["env"]
    assert {"name": "models", "emptyDir": {"sizeLimit": "10Gi"}} in spec["volumes"]


def test_without_a_secret_nobody_names_one():
    """A variable of a secret that is not there keeps a pod from starting."""
    text = json.dumps([*rendered("turns-values.yaml").values()])
    assert "secretKeyRef" not in text
    assert "secretKeyRef" in json.dumps([*rendered("").values()])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (("replica=2",), "replica"),
        (("replicas=0",), "replicas"),
        (("replicas=5",), "picker.maxWorkers"),
        (("args={serve}",), "/args"),
        (("storage.size=much",), "/storage/size"),
        (("kind=DaemonSet",), "/kind"),
        (("kind=Deployment",), "inferencePool.enabled"),
        (("inferencePool.enabled=true", "picker.enabled=false"), "picker.enabled"),
        (("inferencePool.failureMode=Open",), "/inferencePool/failureMode"),
        (("inferencePool.objectives[0].name=a",), "priority"),
        (("inferencePool.gateway.name=",), "/inferencePool/gateway/name"),
        (("picker.replicas=2",), "replicas"),
        (("prefill.replicas=1",), "inferencePool.enabled"),
        (("prefill.replicas=1", "inferencePool.enabled=true"), "prefill.existingSecret"),
        (("image.digest=latest",), "/image/digest"),
    ],
)
def test_values_that_make_no_sense_are_refused(values: tuple[str, ...], words: str):
    """With the name of the value."""
    made = template(*(word for value in values for word in ("--set", value)))
    assert made.returncode != 0
    assert words in made.stderr
