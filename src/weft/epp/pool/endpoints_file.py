"""`file-discovery`: endpoints from a YAML or JSON file. Invalid entries are reported; valid ones are used."""

import logging
from pathlib import Path
from typing import Annotated, Any

import msgspec

from weft.core.errors import ConfigError
from weft.epp.config.decode import MAX_DOCUMENT_BYTES, decode, parse_document
from weft.epp.config.parameters import Name, Parameters, Part
from weft.epp.pool.discovery import Resolver
from weft.epp.pool.endpoint import EndpointSpec, is_port
from weft.epp.pool.pool import Pool

_log = logging.getLogger(__name__)

_Label = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


class FileDiscoveryParameters(Parameters, frozen=True, kw_only=True):
    """Path of the endpoints file. With `watch_file`, the picker reads the file again when it changes."""

    path: Name
    watch_file: bool = False


class ClustersFileParameters(FileDiscoveryParameters, frozen=True, kw_only=True):
    """Path of the file of clusters. The labels `metricsAddress` and `metricsPort` of an entry name the picker of the
    cluster.
    """


class Entry(Part, frozen=True, kw_only=True):
    """An endpoint as it is written in the file. Ports may be strings, as in llm-d's reference picker, or numbers."""

    name: _Label
    address: _Label
    port: str | int
    namespace: _Label = "default"
    metrics_port: str | int | None = None
    grpc_port: str | int | None = None
    labels: dict[str, str] = {}

    def __post_init__(self) -> None:
        parse_port(self.port, "port")
        for port, key in ((self.metrics_port, "metricsPort"), (self.grpc_port, "grpcPort")):
            if port is not None:
                parse_port(port, key)
        check_address(self.address, "address")

    def metrics_at(self) -> tuple[str | None, str | int | None]:
        """Returns the address of the metrics if it differs from the endpoint's, and their port."""
        return None, self.metrics_port


class ClusterEntry(Entry, frozen=True, kw_only=True):
    """A cluster as it is written in the file. Its picker may have another address than its gateway."""

    def __post_init__(self) -> None:
        super().__post_init__()
        address, port = self.metrics_at()
        if address is not None:
            check_address(address, "labels.metricsAddress")
            parse_port(port or self.port, "labels.metricsPort")

    def metrics_at(self) -> tuple[str | None, str | int | None]:
        """Returns the address and the port of the cluster's picker from the labels; without labels, like any
        endpoint.
        """
        address = self.labels.get("metricsAddress")
        if not address:
            return super().metrics_at()
        return address, self.labels.get("metricsPort") or self.metrics_port


def check_address(address: str, key: str) -> None:
    """Raises `ValueError` unless the address is an IP address or a host name."""
    if any(character.isspace() or character in "/@,[]" for character in address):
        raise ValueError(f"{key} must be an IP address or a hostname, got {address!r}")


def parse_port(value: str | int, key: str) -> int:
    """Returns a port number. Raises `ValueError`."""
    if not is_port(str(value)):
        raise ValueError(f"{key} must be from 1 to 65535, got {value!r}")
    return int(value)


def read_endpoints(
    path: Path, *, are_clusters: bool = False
) -> tuple[list[EndpointSpec], list[str]]:
    """Returns the valid entries of the file, and the errors of the others. Raises `ConfigError` if no entry can be
    read.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(raw) > MAX_DOCUMENT_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_DOCUMENT_BYTES} bytes")
    try:
        document = parse_document(raw.decode(), str(path))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8") from error
    if not isinstance(document, dict) or set(document) - {"endpoints"}:
        raise ConfigError(f"{path}: must be a mapping with the one key `endpoints`")
    entries = document.get("endpoints") or []
    if not isinstance(entries, list):
        raise ConfigError(f"{path}: endpoints: must be a list")
    return _sort_out(entries, are_clusters)


class EndpointsFile:
    """Keeps the pool equal to the endpoints file."""

    def __init__(self, path: Path, pool: Pool, *, are_clusters: bool = False) -> None:
        self.path = path
        self._are_clusters = are_clusters
        self._pool = pool
        self._resolver = Resolver()
        self._specs: list[EndpointSpec] = []

    async def load(self) -> None:
        """Replaces the pool's endpoints by those of the file. Raises `ConfigError`, and then changes nothing."""
        self._specs, problems = read_endpoints(self.path, are_clusters=self._are_clusters)
        for problem in problems:
            _log.warning("%s: %s; the entry is skipped", self.path, problem)
        await self.resolve()

    async def reload(self) -> None:
        """Reads the file again. An invalid file leaves the pool unchanged."""
        try:
            await self.load()
        except ConfigError as error:
            _log.error("%s; the present %d endpoints are kept", error, len(self._pool))
        else:
            _log.info("%s: now %d endpoints", self.path, len(self._specs))

    async def resolve(self) -> None:
        """Resolves the host names again. The result is dropped if the file was read meanwhile."""
        specs = self._specs
        found = await self._resolver.resolve_all(specs)
        if specs is self._specs:
            self._pool.replace("file", found)


def _sort_out(entries: list[Any], are_clusters: bool) -> tuple[list[EndpointSpec], list[str]]:
    good: dict[str, EndpointSpec] = {}
    problems = []
    for i, value in enumerate(entries):
        try:
            entry = decode(value, ClusterEntry if are_clusters else Entry, f"endpoints[{i}]")
        except ConfigError as error:
            problems.append(str(error))
            continue
        key = f"{entry.namespace}/{entry.name}"
        if key in good:
            problems.append(f"endpoints[{i}].name: duplicate {key}")
            continue
        metrics_address, metrics_port = entry.metrics_at()
        grpc_port = entry.grpc_port
        good[key] = EndpointSpec(
            name=entry.name,
            namespace=entry.namespace,
            address=entry.address,
            port=parse_port(entry.port, "port"),
            metrics_address=metrics_address,
            metrics_port=None if metrics_port is None else parse_port(metrics_port, "metricsPort"),
            grpc_port=None if grpc_port is None else parse_port(grpc_port, "grpcPort"),
            labels=entry.labels,
        )
    return list(good.values()), problems
