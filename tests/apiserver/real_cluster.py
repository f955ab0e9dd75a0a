"""A real API server on loopback: etcd and kube-apiserver as `make test-apiserver` has them, with our own manifests."""

import asyncio
import base64
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.busy import PATIENCE_S
from tests.deploy.manifests import KUBERNETES, objects
from tests.epp.kubernetes.cluster import LABELS, inference_pool
from tests.ports import free_port
from tools.build_apiserver import APISERVER, ETCD

PICKER = "system:serviceaccount:ns:weft-picker"
PROMETHEUS = "system:serviceaccount:monitoring:prometheus-k8s"
# Tokens, by whose they are; with what the manifests allow them.
USERS = {"admin": '"system:masters"', PICKER: "", PROMETHEUS: "", "other": ""}
POOLS = "apis/inference.networking.k8s.io/v1/namespaces/ns/inferencepools"
PODS = "api/v1/namespaces/ns/pods"
COLLECTIONS = {
    "ConfigMap": "api/v1/namespaces/ns/configmaps",
    "Deployment": "apis/apps/v1/namespaces/ns/deployments",
    "InferenceModelRewrite": "apis/llm-d.ai/v1alpha2/namespaces/ns/inferencemodelrewrites",
    "InferenceObjective": "apis/llm-d.ai/v1alpha2/namespaces/ns/inferenceobjectives",
    "InferencePool": POOLS,
    "NetworkPolicy": "apis/networking.k8s.io/v1/namespaces/ns/networkpolicies",
    "PersistentVolumeClaim": "api/v1/namespaces/ns/persistentvolumeclaims",
    "Service": "api/v1/namespaces/ns/services",
    "StatefulSet": "apis/apps/v1/namespaces/ns/statefulsets",
}
RIGHTS = {
    "ServiceAccount": "api/v1/namespaces/ns/serviceaccounts",
    "Role": "apis/rbac.authorization.k8s.io/v1/namespaces/ns/roles",
    "RoleBinding": "apis/rbac.authorization.k8s.io/v1/namespaces/ns/rolebindings",
    "ClusterRole": "apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}
_READY = [{"type": "Ready", "status": "True"}]


class RealCluster:
    """etcd, which stays, and an API server, which comes and goes. Nobody runs the pods it knows."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._port, self._etcd_port = free_port(), free_port()
        self._etcd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self.environment = {"KUBECONFIG": str(scratch / "kubeconfig")}
        self.client = httpx2.AsyncClient(
            base_url=f"https://127.0.0.1:{self._port}",
            verify=False,  # of its own making, on loopback
            headers={"authorization": f"Bearer {token_of('admin')}"},
            timeout=PATIENCE_S,
        )

    async def open(self) -> None:
        """Start both, and put there what a cluster has: kinds, the namespace, the picker's rights."""
        self._write_files()
        self._start_etcd()
        await self.start()
        await self.put("api/v1/namespaces", {"metadata": {"name": "ns"}})
        for group, plural, kind, version in (
            ("inference.networking.k8s.io", "inferencepools", "InferencePool", "v1"),
            ("llm-d.ai", "inferenceobjectives", "InferenceObjective", "v1alpha2"),
            ("llm-d.ai", "inferencemodelrewrites", "InferenceModelRewrite", "v1alpha2"),
        ):
            await self._put_kind(group, plural, kind, version)
        for (kind, _), one in objects(KUBERNETES / "picker-of-pool").items():
            if kind in RIGHTS:
                await self.put(RIGHTS[kind], _in_namespace(one))

    async def close(self) -> None:
        await self.client.aclose()
        for process in (self._server, self._etcd):
            if process is not None:
                process.kill()
                process.wait(PATIENCE_S)

    async def start(self) -> None:
        """The API server, at its port; returns when it is ready."""
        log = self._scratch / "apiserver.log"
        server = self._server = _started(log, str(APISERVER), *self._flags())
        async with asyncio.timeout(PATIENCE_S):
            while not await self._is_ready():
                assert server.poll() is None, log.read_text()
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """Be lost, without a word."""
        self._server.kill()
        self._server.wait(PATIENCE_S)

    async def allow_election(self) -> None:
        """What pickers that elect a leader may do besides."""
        rule = {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "verbs": ["get", "create", "update"],
        }
        role = f"{RIGHTS['Role']}/weft-picker"
        rules = (await self.get(role))["rules"]
        await self.patch(role, {"rules": [*rules, rule]})

    async def compact(self) -> None:
        """Have etcd forget how it came to be as it is."""
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{self._etcd_port}") as etcd:
            key = base64.b64encode(b"x").decode()
            found = (await etcd.post("/v3/kv/range", json={"key": key})).json()
            revision = found["header"]["revision"]
            answer = await etcd.post(
                "/v3/kv/compaction", json={"revision": revision, "physical": True}
            )
            assert answer.status_code == 200, answer.text

    async def put(self, collection: str, made: dict[str, Any]) -> dict[str, Any]:
        """Create an object."""
        return await self._ask("POST", f"/{collection}", made)

    async def try_out(self, kind: str, made: dict[str, Any]) -> dict[str, Any]:
        """Have an object checked, and not stored; rights are there already."""
        if kind in RIGHTS:
            return await self.get(f"{RIGHTS[kind]}/{made['metadata']['name']}")
        return await self._ask("POST", f"/{COLLECTIONS[kind]}?dryRun=All", _in_namespace(made))

    async def patch(self, path: str, change: dict[str, Any]) -> dict[str, Any]:
        """Merge a change into an object."""
        return await self._ask("PATCH", f"/{path}", change)

    async def get(self, path: str) -> dict[str, Any]:
        return await self._ask("GET", f"/{path}")

    async def put_pool(self, *ports: int) -> None:
        made = inference_pool(*ports)
        kind = {"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool"}
        await self.put(POOLS, {**kind, **made})

    async def put_pod(self, name: str, ip: str, **labels: str) -> None:
        """One on a node, as a kubelet would report it once it is ready."""
        container = {"name": "server", "image": "none"}
        spec = {"containers": [container], "nodeName": "node", "restartPolicy": "Always"}
        metadata = {"name": name, "namespace": "ns", "labels": labels or LABELS}
        await self.put(PODS, {"metadata": metadata, "spec": spec})
        await self.report(name, podIP=ip, conditions=_READY)

    async def report(self, name: str, **status: Any) -> None:
        """What a kubelet says of a pod."""
        await self.patch(f"{PODS}/{name}/status", {"status": status})

    async def end_pod(self, name: str) -> None:
        await self._delete_pod(name, 30)

    async def delete_pod(self, name: str) -> None:
        await self._delete_pod(name, 0)

    async def delete(self, path: str) -> None:
        await self._ask("DELETE", f"/{path}")

    async def _delete_pod(self, name: str, grace_s: int) -> None:
        await self._ask("DELETE", f"/{PODS}/{name}", {"gracePeriodSeconds": grace_s})

    async def _put_kind(self, group: str, plural: str, kind: str, version: str) -> None:
        any_more = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        # llm-d's kinds have a group for those that name none: their own.
        group_of_pool = {"type": "string", "default": "llm-d.ai"}
        reference = {**any_more, "properties": {"group": group_of_pool}}
        spec = (
            {**any_more, "properties": {"poolRef": reference}} if group == "llm-d.ai" else any_more
        )
        schema = {**any_more, "properties": {"spec": spec}}
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": f"{plural}.{group}",
                "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
            },
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
                "versions": [
                    {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
                ],
            },
        }  # fmt: skip
        await self.put("apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        async with asyncio.timeout(PATIENCE_S):
            url = f"/apis/{group}/{version}/namespaces/ns/{plural}"
            while (await self.client.get(url)).status_code != 200:  # noqa: ASYNC110 - nobody is notified
                await asyncio.sleep(0.05)

    async def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        merge = "application/merge-patch+json" if method == "PATCH" else "application/json"
        content = None if body is None else json.dumps(body)
        answer = await self.client.request(
            method, path, content=content, headers={"content-type": merge}
        )
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        found: dict[str, Any] = answer.json()
        return found

    async def _is_ready(self) -> bool:
        try:
            return (await self.client.get("/readyz")).status_code == 200
        except httpx2.TransportError:
            return False

    def _start_etcd(self) -> None:
        url, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, free_port()))
        self._etcd = _started(
            self._scratch / "etcd.log", str(ETCD), "--unsafe-no-fsync",
            "--data-dir", str(self._scratch / "etcd"),
            "--listen-client-urls", url, "--advertise-client-urls", url,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}",
        )  # fmt: skip

    def _flags(self) -> list[str]:
        key = self._scratch / "sa.key"
        return [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--secure-port={self._port}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={self._scratch / 'certificates'}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--token-auth-file={self._scratch / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
        ]

    def _write_files(self) -> None:
        lines = [
            f"{token_of(name)},{name},{number},{groups}"
            for number, (name, groups) in enumerate(USERS.items())
        ]
        (self._scratch / "tokens.csv").write_text("\n".join(line.rstrip(",") for line in lines))
        subprocess.run(
            ["openssl", "genrsa", "-out", str(self._scratch / "sa.key"), "2048"],
            check=True, capture_output=True,
        )  # fmt: skip
        cluster = {
            "server": f"https://127.0.0.1:{self._port}",
            "certificate-authority": str(self._scratch / "certificates" / "apiserver.crt"),
        }
        config = {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token_of(PICKER)}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
            "current-context": "x",
        }  # fmt: skip
        (self._scratch / "kubeconfig").write_text(json.dumps(config))


def _started(log: Path, *command: str) -> "subprocess.Popen[bytes]":
    with log.open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=file)


def token_of(name: str) -> str:
    """Anybody's token."""
    return "token-" + name.replace(":", "-")


def _in_namespace(one: dict[str, Any]) -> dict[str, Any]:
    """As kustomize would write it for the namespace `ns`."""
    one = json.loads(json.dumps(one))
    if not one["kind"].startswith("Cluster"):
        one["metadata"]["namespace"] = "ns"
    for subject in one.get("subjects", ()):
        if subject["name"] == "weft-picker":
            subject["namespace"] = "ns"
    return one


@asynccontextmanager
async def real_cluster(scratch: Path) -> AsyncIterator[RealCluster]:
    """A cluster of its own."""
    cluster = RealCluster(scratch)
    try:
        await cluster.open()
        yield cluster
    finally:
        await cluster.close()
