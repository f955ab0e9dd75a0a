"""`LeaderService`: leads a Service without a selector to the picker that leads its pool, by an EndpointSlice.

So the standby pickers are ready too: rolling updates end, and a disruption budget counts every picker.
"""

import os
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from weft.core.errors import ConfigError
from weft.epp.kubernetes.api import NOT_FOUND, ApiFailure, ApiServer

_MAX_BYTES: Final = 256 * 2**10
_VERSION: Final = "discovery.k8s.io/v1"
# The name of the Service's one port.
PORT_NAME: Final = "ext-proc"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPod:
    """The pod of this picker."""

    name: str
    address: str


def own_pod() -> OwnPod:
    """Returns the pod that the environment names. Raises `ConfigError`."""
    name, address = os.environ.get("POD_NAME"), os.environ.get("POD_IP")
    if not name or not address:
        raise ConfigError(
            "--leader-service needs POD_NAME and POD_IP in the environment: metadata.name and status.podIP of the pod"
        )
    return OwnPod(name=name, address=address)


class _Slice(msgspec.Struct, frozen=True, rename={"address_type": "addressType"}):
    """An EndpointSlice. Its metadata is written back unchanged."""

    metadata: dict[str, Any]
    address_type: str = "IPv4"
    endpoints: list[dict[str, Any]] | None = None
    ports: list[dict[str, Any]] | None = None


class LeaderService:
    """The EndpointSlice with the name of the Service. Only the leader writes it."""

    def __init__(self, api: ApiServer, name: str, pod: OwnPod, port: int) -> None:
        self._api = api
        self._path = f"apis/{_VERSION}/namespaces/{api.namespace}/endpointslices"
        target = {"kind": "Pod", "name": pod.name, "namespace": api.namespace}
        self._endpoints = [
            {"addresses": [pod.address], "conditions": {"ready": True}, "targetRef": target}
        ]
        self._ports = [{"name": PORT_NAME, "port": port, "protocol": "TCP"}]
        self._address_type = "IPv6" if ":" in pod.address else "IPv4"
        self._name = name
        self._metadata = {
            "name": name,
            "labels": {
                "kubernetes.io/service-name": name,
                "endpointslice.kubernetes.io/managed-by": "weft-epp",
            },
        }

    async def lead_here(self) -> None:
        """Makes this picker the only endpoint of the Service. Raises `ApiFailure`, also if another picker writes at the
        same time; the caller tries again.
        """
        try:
            found = await self._api.get(f"{self._path}/{self._name}", {}, _MAX_BYTES)
            stored = msgspec.json.decode(found, type=_Slice)
        except ApiFailure as error:
            if error.status != NOT_FOUND:
                raise
            await self._write("POST", self._path, self._metadata)
            return
        if stored.endpoints != self._endpoints or stored.ports != self._ports:
            await self._write("PUT", f"{self._path}/{self._name}", stored.metadata)

    async def _write(self, method: str, path: str, metadata: dict[str, Any]) -> None:
        made = _Slice(metadata, self._address_type, self._endpoints, self._ports)
        body = {"apiVersion": _VERSION, "kind": "EndpointSlice", **msgspec.to_builtins(made)}
        await self._api.write(method, path, msgspec.json.encode(body), _MAX_BYTES)
