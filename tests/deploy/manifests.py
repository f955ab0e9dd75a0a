"""Manifests of `deploy/kubernetes` for tests, as a kustomization names them."""

import json
from pathlib import Path
from typing import Any

import yaml

from weft.cli.options import ServeOptions
from weft.cli.picker.options import EppOptions
from weft.engine.transfer.settings import read_kv_transfer

KUBERNETES = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"

Objects = dict[tuple[str, str], Any]


def objects(directory: Path) -> Objects:
    """What the kustomization of a directory names, by kind and name; other directories' too."""
    found: Objects = {}
    kustomization = yaml.safe_load((directory / "kustomization.yaml").read_text(encoding="utf-8"))
    for name in kustomization.get("resources", ()):
        path = directory / name
        if path.is_dir():
            found |= objects(path.resolve())
        else:
            found |= by_name(path.read_text(encoding="utf-8"))
    return found


def by_name(text: str) -> Objects:
    """The objects of a file, or of what helm writes, by kind and name."""
    documents = [one for one in yaml.safe_load_all(text) if one is not None]
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


def pods(found: Objects) -> list[Any]:
    """The templates of all pods that serve: of groups, the leader's."""
    made = []
    for one in found.values():
        spec = one.get("spec", {})
        made += [spec["template"]] if "template" in spec else []
        group = spec.get("leaderWorkerTemplate")
        made += [group["leaderTemplate"]] if group else []
    return made


def is_selected(selector: dict[str, str], pod: Any) -> bool:
    """Whether the labels of a selector are all a pod's."""
    return selector.items() <= pod["metadata"]["labels"].items()


def container_ports(pod: Any) -> dict[str, int]:
    """The numbers of a pod's ports by name."""
    (container,) = pod["spec"]["containers"]
    return {port["name"]: port["containerPort"] for port in container["ports"]}


def environment(container: Any) -> dict[str, str]:
    """The variables of a container that have a value in the manifest."""
    return {one["name"]: one["value"] for one in container.get("env", ()) if "value" in one}


def service_ports(service: Any) -> dict[str, int]:
    """The numbers of a Service's ports by name."""
    return {port["name"]: port["port"] for port in service["spec"]["ports"]}


def callers(policy: Any) -> list[str]:
    """By which labels a NetworkPolicy knows pods that may call."""
    sources = [source for rule in policy["ingress"] for source in rule["from"]]
    return [
        str(source["podSelector"]["matchLabels"]) for source in sources if "podSelector" in source
    ]


def transfer_of(pod: Any) -> tuple[Any, list[str]]:
    """The kv-transfer-config of a worker, which is one that a server takes, and its other arguments."""
    (container,) = pod["spec"]["containers"]
    flag, *rest = (word for word in container["args"] if word != "serve")
    text = flag.removeprefix("--kv-transfer-config=").replace("$(POD_IP)", "10.0.0.1")
    read = read_kv_transfer(text)
    assert read is not None
    assert container_ports(pod)["transfer"] == read.port
    config = json.loads(text)
    assert "POD_IP" in {one["name"] for one in container["env"]}
    mount = next(one for one in container["volumeMounts"] if one["name"] == "transfer")
    volume = next(one for one in pod["spec"]["volumes"] if one["name"] == "transfer")
    assert config["kv_connector_extra_config"]["secret_file"] == f"{mount['mountPath']}/secret"
    assert not volume["secret"]["defaultMode"] & 0o007
    return config, rest


def drain_seconds(pod: Any) -> float:
    """The longest time that a pod takes to end, by its preStop hook and the flags of its command."""
    (container,) = pod["spec"]["containers"]
    hook = container.get("lifecycle", {}).get("preStop", {})
    before = hook.get("sleep", {}).get("seconds", 0)
    if "exec" in hook:
        before = int(hook["exec"]["command"][-1])
    words = container.get("args", [])
    flag, usual = (
        ("--drain-timeout", EppOptions().drain_timeout)
        if words[:1] == ["epp"]
        else ("--shutdown-timeout", ServeOptions().shutdown_timeout)
    )
    if words[:1] not in (["epp"], ["serve"]):
        return before  # Envoy ends at once
    given = [word.partition("=")[2] for word in words if word.startswith(flag + "=")]
    return before + (float(given[0].removesuffix("s")) if given else usual)
