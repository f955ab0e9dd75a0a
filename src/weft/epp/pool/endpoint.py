"""`Endpoint`: a server that requests can be routed to, with its labels, its last reported load, and the requests sent
since.
"""

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from weft.core.address import join_host_port
from weft.core.errors import ConfigError

# Time from a decision until the request shows in the server's own counters.
TRAVEL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSpec:
    """An endpoint as discovery found it. `address` is an IP address or a host name."""

    name: str
    address: str
    port: int
    namespace: str = "default"
    metrics_port: int | None = None  # None: the serving port
    metrics_address: str | None = None  # None: the serving address
    # Port of gRPC if the server has a separate one; None: the serving port
    grpc_port: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    incarnation: str = ""  # a new value means a new server, whose caches are empty
    pod: str | None = None  # name of the pod in Kubernetes; None: the endpoint's own name
    node_address: str | None = None  # address of the pod's node; None if unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """LoRA adapters of a server: the loaded ones, those that wait to be loaded, and the maximum number."""

    active: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    max_active: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load that a server reported at one moment."""

    num_waiting: int = 0
    num_running: int = 0
    kv_usage: float = 0.0  # 0 to 1
    block_size: int = 0  # in tokens; 0 if unknown
    num_blocks: int = 0
    adapters: Adapters = Adapters()
    attributes: Mapping[str, float] = field(default_factory=dict)  # custom metrics by key
    store: str = ""  # name of the store of the server's objects; empty if unknown


UNKNOWN_LOAD = Load()
# More requests than any server has. Reported values are summed and divided, so they are bounded to keep sums finite.
_MAX_REPORTED = 2**31


def as_share(reported: float) -> float:
    """Converts a reported share to a number from 0 to 1; NaN becomes 0, because no comparison with NaN is true."""
    return min(1.0, max(0.0, reported))


def as_count(reported: float) -> int:
    """Converts a reported number of requests or blocks to a finite whole number."""
    return int(min(max(0, reported), _MAX_REPORTED))


_MAX_DIGITS = 9  # maximum digits of a port; Python refuses to parse thousands of digits


def split_host_port(text: str) -> tuple[str, int | None]:
    """Returns the host and the port of "host", "host:port", "[v6]", "[v6]:port" or a bare IPv6 address."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") > 1:
        host, port = text, ""
    else:
        host, _, port = text.partition(":")
    is_number = port.isascii() and port.isdigit()
    return canonical_host(host), int(port[:_MAX_DIGITS]) if is_number else None


def canonical_host(host: str) -> str:
    """Returns the canonical spelling of an address, so that equal addresses are equal strings."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower()


def parse_endpoint(text: str) -> EndpointSpec:
    """Returns the endpoint of a command-line argument: "HOST:PORT", then ",name=", ",metricsPort=", ",grpcPort=" and
    ",LABEL=VALUE".
    """
    address, *pairs = text.split(",")
    host, port = split_host_port(address.strip())
    if not host or port is None or not 1 <= port <= 65535:
        raise ConfigError(f"endpoint {text!r}: must begin with HOST:PORT, IPv6 as [HOST]:PORT")
    labels: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"endpoint {text!r}: {pair!r} is not KEY=VALUE")
        labels[key.strip()] = value.strip()
    metrics_port, grpc_port = labels.pop("metricsPort", None), labels.pop("grpcPort", None)
    for key, port_text in (("metricsPort", metrics_port), ("grpcPort", grpc_port)):
        if port_text is not None and not is_port(port_text):
            raise ConfigError(f"endpoint {text!r}: {key} must be from 1 to 65535")
    return EndpointSpec(
        name=labels.pop("name", "") or address.strip(),
        address=host,
        port=port,
        metrics_port=int(metrics_port) if metrics_port else None,
        grpc_port=int(grpc_port) if grpc_port else None,
        labels=labels,
    )


def is_port(text: str) -> bool:
    """True if the text is a valid port number."""
    return text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class Endpoint:
    """A server that requests can be routed to. Only the pool creates endpoints; the director changes their counts."""

    spec: EndpointSpec
    host: str
    slot: int  # a small number, unique among live endpoints: its bit in the prefix indexes
    changed: Callable[[], None] = lambda: None  # called when the endpoint's load was reported
    name: str = field(init=False)
    labels: Mapping[str, str] = field(init=False)
    host_port: str = field(init=False)  # identity of the endpoint, and address of HTTP requests
    grpc_host_port: str = field(init=False)
    load: Load = UNKNOWN_LOAD
    loaded_at: float | None = None
    rest_s: float = 0.0  # by how much the pause between its polls may exceed the interval
    num_poll_failures: int = 0  # consecutive failures
    is_refusing: bool = False  # the serving port refused the last connection
    last_pick: int = 0
    # Picks that the server's counters do not show yet: ticket id to time of the pick, oldest first.
    unseen: dict[int, float] = field(default_factory=dict)
    # Requests that failed there since the last report: a dead server has no running requests.
    failed: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name = f"{self.spec.namespace}/{self.spec.name}"
        self.labels = self.spec.labels
        self.host = canonical_host(self.host)
        self.host_port = join_host_port(self.host, self.spec.port)
        self.grpc_host_port = join_host_port(self.host, self.grpc_port)

    @property
    def expected_waiting(self) -> int:
        """Number of waiting requests for the comparison of endpoints: the reported number plus the requests sent since,
        so that a burst between two polls does not go to one endpoint.

        Saturation is decided by `load` alone: an idle endpoint starts new requests at once.
        """
        return self.load.num_waiting + len(self.unseen)

    @property
    def expected_running(self) -> int:
        """Number of running requests for the comparison of endpoints: the reported number plus the requests sent
        since.
        """
        return self.load.num_running + len(self.unseen)

    @property
    def metrics_port(self) -> int:
        """Port of the metrics server."""
        return self.spec.port if self.spec.metrics_port is None else self.spec.metrics_port

    @property
    def grpc_port(self) -> int:
        """Port of the gRPC server."""
        return self.spec.port if self.spec.grpc_port is None else self.spec.grpc_port

    def address(self, *, is_grpc: bool) -> str:
        """Returns the host:port to which a request is sent."""
        return self.grpc_host_port if is_grpc else self.host_port

    def observe(self, load: Load, *, polled_at: float) -> None:
        """Stores the load of a poll that began at `polled_at`."""
        self.load = load
        self.loaded_at = polled_at
        self.num_poll_failures = 0
        self.is_refusing = False
        # Older picks are already in the server's counters, or have ended.
        _forget(self.unseen, polled_at - TRAVEL_S)
        _forget(self.failed, polled_at)
        self.changed()

    def observe_part(self, load: Load, *, polled_at: float) -> None:
        """Stores the counts of a load that consists of counts only."""
        counts = replace(
            self.load,
            num_waiting=load.num_waiting,
            num_running=load.num_running,
            kv_usage=load.kv_usage,
        )
        self.observe(counts, polled_at=polled_at)

    def forget(self, before: float) -> None:
        """Drops the sent requests and failures from before a moment; used for endpoints that no longer report."""
        _forget(self.unseen, before)
        _forget(self.failed, before)

    def is_stale(self, now: float, max_age_s: float) -> bool:
        """True if the load is unknown or older than `max_age_s` seconds, apart from longer pauses between polls."""
        return self.loaded_at is None or now - self.loaded_at > max_age_s + self.rest_s

    def __repr__(self) -> str:
        return f"Endpoint({self.name} {self.host_port})"


def _forget(times: dict[int, float], before: float) -> None:
    while times:
        ticket_id, at = next(iter(times.items()))
        if at >= before:
            break
        del times[ticket_id]
