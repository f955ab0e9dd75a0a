"""The fields of pods and InferencePools that the picker reads from the API server."""

import re
from typing import Annotated, Final

import msgspec

from weft.core.errors import ConfigError
from weft.epp.kubernetes.reflector import Object
from weft.epp.pool.discovery import is_ip_address
from weft.epp.pool.endpoint import EndpointSpec, is_port

MAX_PORTS: Final = 8
HTTP: Final = "http"
H2C: Final = "kubernetes.io/h2c"

# Syntax of label values, as the API server reads them; a value may also be empty.
_WORD: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY: Final = rf"(?:[a-z0-9](?:[-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_WORD}"
_VALUE: Final = rf"\s*(?:{_WORD})?\s*"
_REQUIREMENT: Final = re.compile(
    rf"!\s*{_KEY}|{_KEY}(?:\s*(?:==?|!=){_VALUE}|\s*[<>]\s*-?[0-9]+|\s+(?:not)?in\s*\({_VALUE}(?:,{_VALUE})*\))?",
    re.ASCII,
)
_BETWEEN_REQUIREMENTS: Final = re.compile(r",(?![^()]*\))")

_Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
_Pairs = Annotated[dict[str, str], msgspec.Meta(min_length=1, max_length=64)]


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    """Base class of the objects inside a manifest."""


class Condition(_Part, frozen=True):
    """A condition in a pod's status."""

    type: str
    status: str


class ContainerPort(_Part, frozen=True):
    """A port that a container declares."""

    container_port: int = 0


class Container(_Part, frozen=True):
    """A container of a pod."""

    name: str = ""
    ports: list[ContainerPort] | None = None


class PodSpec(_Part, frozen=True):
    """Containers of a pod."""

    containers: list[Container] | None = None


class ContainerStatus(_Part, frozen=True):
    """Number of restarts of a container."""

    name: str = ""
    restart_count: int = 0


class PodStatus(_Part, frozen=True):
    """Addresses and conditions of a pod."""

    pod_ip: str = msgspec.field(name="podIP", default="")
    host_ip: str = msgspec.field(name="hostIP", default="")
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None


class Pod(Object, frozen=True):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_ready(self) -> bool:
        """True if the pod reports ready and is not terminating."""
        if self.metadata.deletion_timestamp is not None or not is_ip_address(self.status.pod_ip):
            return False
        found = [each.status for each in self.status.conditions or () if each.type == "Ready"]
        return found == ["True"]

    def endpoints(self, ports: tuple[int, ...]) -> list[EndpointSpec]:
        """Returns an endpoint for each port, named by its rank. A restart of the port's container gives a new
        endpoint.
        """
        return [
            EndpointSpec(
                name=f"{self.metadata.name}-rank-{rank}",
                namespace=self.metadata.namespace,
                address=self.status.pod_ip,
                port=port,
                labels=self.metadata.labels or {},
                incarnation=f"{self.metadata.uid}/{self._num_restarts(port)}",
                pod=self.metadata.name,
                node_address=self.status.host_ip or None,
            )
            for rank, port in enumerate(ports)
        ]

    def _num_restarts(self, port: int) -> int:
        """Returns the number of restarts of the containers that declare the port; of all containers if none declares
        it.
        """
        servers = {
            container.name
            for container in self.spec.containers or ()
            if any(each.container_port == port for each in container.ports or ())
        }
        return sum(
            each.restart_count
            for each in self.status.container_statuses or ()
            if not servers or each.name in servers
        )


class TargetPort(_Part, frozen=True):
    """A port on which each pod serves."""

    number: _Port


class Selector(_Part, frozen=True):
    """Labels that a pod must have; all of them must match."""

    match_labels: _Pairs


class PoolSpec(_Part, frozen=True):
    """Specification of an InferencePool in v1."""

    selector: Selector
    target_ports: Annotated[list[TargetPort], msgspec.Meta(min_length=1, max_length=MAX_PORTS)]
    app_protocol: str = HTTP

    def __post_init__(self) -> None:
        if len({port.number for port in self.target_ports}) < len(self.target_ports):
            raise ValueError("targetPorts: duplicate number")
        if self.app_protocol not in {HTTP, H2C}:
            raise ValueError(f"appProtocol must be {HTTP} or {H2C}, got {self.app_protocol!r}")


class OlderPoolSpec(_Part, frozen=True):
    """Specification of an InferencePool in v1alpha2."""

    selector: _Pairs
    target_port_number: _Port


class Members(msgspec.Struct, frozen=True):
    """The selector of the pool's pods, and the ports of their servers."""

    selector: str
    ports: tuple[int, ...]
    app_protocol: str = HTTP


class PoolV1(Object, frozen=True):
    """An InferencePool of API version v1."""

    spec: PoolSpec

    def members(self) -> Members:
        """Returns the label selector and the ports of the pool's pods."""
        ports = tuple(port.number for port in self.spec.target_ports)
        return Members(_selector(self.spec.selector.match_labels), ports, self.spec.app_protocol)


class PoolV1Alpha2(Object, frozen=True):
    """An InferencePool of API version v1alpha2."""

    spec: OlderPoolSpec

    def members(self) -> Members:
        """Returns the label selector and the ports of the pool's pods."""
        return Members(_selector(self.spec.selector), (self.spec.target_port_number,))


InferencePool = PoolV1 | PoolV1Alpha2  # of any API version

# By API group: the API version to request, and the type of its objects.
POOL_TYPES: Final[dict[str, tuple[str, type[InferencePool]]]] = {
    "inference.networking.k8s.io": ("v1", PoolV1),
    "inference.networking.x-k8s.io": ("v1alpha2", PoolV1Alpha2),
}


def parse_ports(text: str) -> tuple[int, ...]:
    """Returns the ports of a flag's value such as "8000,8001". Raises `ConfigError`."""
    words = text.split(",")
    ports = [int(word) for word in words if is_port(word)]
    if not len(set(ports)) == len(words) <= MAX_PORTS:
        raise ConfigError(
            f"--endpoint-target-ports {text!r}: must be 1 to {MAX_PORTS} different ports, as in 8000,8001"
        )
    return tuple(ports)


def check_selector(text: str) -> None:
    """Raises `ConfigError` if the API server would reject the label selector."""
    for requirement in _BETWEEN_REQUIREMENTS.split(text):
        if not _REQUIREMENT.fullmatch(requirement.strip()):
            raise ConfigError(
                f"--endpoint-selector {text!r}: {requirement.strip()!r} is not a valid requirement; allowed, separated "
                "by commas, are KEY=VALUE, KEY==VALUE, KEY!=VALUE, KEY in (A,B), KEY notin (A,B), KEY, !KEY, KEY>N "
                "and KEY<N, with keys and values of Kubernetes labels"
            )


def _selector(labels: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
