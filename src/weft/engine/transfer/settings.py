"""`--kv-transfer-config`: converts the user's value, with vLLM's fields, to the engine's role in KV transfer."""

import ipaddress
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import msgspec

from weft.core.errors import ConfigError
from weft.core.values.kv_transfer import KvConnector, KvPeer, KvRole, KvTransferConfig
from weft.engine.settings.given import check_between, read_json

FLAG = "--kv-transfer-config"
DEFAULT_PORT = 14579
DEFAULT_LEASE_S = 480
DEFAULT_FETCH_S = 300  # long, because the other engine may still be computing the prompt
MAX_TIME_S = 86_400
MIN_SECRET_BYTES = 16
MAX_SECRET_BYTES = 4096
MAX_PEERS = 256
LOOPBACK = (KvPeer("127.0.0.0/8"), KvPeer("::1/128"))
_CONNECTORS = MappingProxyType(
    {**{each.value: each for each in KvConnector}, "NixlConnector": KvConnector.TCP}
)
_REFUSED = MappingProxyType(
    {
        "P2pNcclConnector": "it pushes from GPU to GPU, to addresses in request ids",
        "LMCacheConnectorV1": "LMCache is not supported; --kv-offloading-size adds a second tier",
        "OffloadingConnector": "use --kv-offloading-size",
    }
)


class _Extra(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    secret_file: str | None = None
    peers: list[str] | None = None
    lease_s: int = DEFAULT_LEASE_S
    fetch_timeout_s: int = DEFAULT_FETCH_S


class _Named(msgspec.Struct, frozen=True):
    kv_connector: str


class _Given(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of `--kv-transfer-config`; defaults are vLLM's, except `kv_load_failure_policy`."""

    kv_connector: str
    kv_role: KvRole
    engine_id: str | None = None
    kv_ip: str = "127.0.0.1"
    kv_port: int = DEFAULT_PORT
    kv_load_failure_policy: str = "recompute"
    kv_connector_extra_config: _Extra = _Extra()


def read_kv_transfer(value: str | dict[str, Any] | None) -> KvTransferConfig | None:
    """Reads the setting; None disables transfers.

    Raises a `ConfigError` that names the flag, the field and the allowed values.
    """
    if value is None:
        return None
    named = read_json(FLAG, value, _Named).kv_connector
    connector = _connector(named)  # checked before fields that only other connectors have
    given = read_json(FLAG, value, _Given)
    extra = given.kv_connector_extra_config
    if given.kv_load_failure_policy not in ("recompute", "fail"):
        raise ConfigError(
            f"{FLAG}: kv_load_failure_policy must be recompute or fail, "
            f"not {given.kv_load_failure_policy[:80]!a}"
        )
    check_between(f"{FLAG}: kv_port", given.kv_port, 0, 2**16 - 1)
    for name in ("lease_s", "fetch_timeout_s"):
        check_between(f"{FLAG}: {name}", getattr(extra, name), 1, MAX_TIME_S)
    engine_id = secrets.token_hex(8) if given.engine_id is None else given.engine_id
    if not (engine_id.isprintable() and 1 <= len(engine_id) <= 128):
        raise ConfigError(f"{FLAG}: engine_id must have 1 to 128 printable characters")
    config = KvTransferConfig(
        connector=connector,
        role=given.kv_role,
        engine_id=engine_id,
        host=given.kv_ip,
        port=given.kv_port,
        peers=read_peers(extra.peers),
        secret_path=None if extra.secret_file is None else _secret_path(extra.secret_file),
        lease_s=extra.lease_s,
        fetch_timeout_s=extra.fetch_timeout_s,
        fails_requests=given.kv_load_failure_policy == "fail",
    )
    _check_reach(config)
    return config


def _connector(name: str) -> KvConnector:
    found = _CONNECTORS.get(name)
    if found is None:
        allowed = f"take {', '.join(_CONNECTORS)}"
        reason = "; ".join(filter(None, (_REFUSED.get(name), allowed)))
        raise ConfigError(f"{FLAG}: kv_connector {name[:80]!a} is not supported: {reason}")
    if found is KvConnector.SHM and not hasattr(os, "memfd_create"):
        raise ConfigError(f"{FLAG}: kv_connector {name} needs Linux; take {KvConnector.TCP}")
    return found


def read_secret(config: KvTransferConfig) -> bytes:
    """Returns the secret that both sides share; empty if no file is given.

    Raises a `ConfigError` with the reason for a file that cannot be used.
    """
    if config.secret_path is None:
        return b""
    return read_secret_file(f"{FLAG}: secret_file", config.secret_path)


def read_secret_file(name: str, given: str) -> bytes:
    """Returns the secret in a file; `name` is the setting that names the file, for errors."""
    path = Path(given)
    try:
        with path.open("rb") as file:
            secret = file.read(MAX_SECRET_BYTES + 1).strip()
            mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise ConfigError(f"{name} {path}: {error.strerror or error}") from error
    if mode & 0o007:
        raise ConfigError(f"{name} {path} must not be open to others (mode {mode:o})")
    if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
        raise ConfigError(
            f"{name} {path} must hold {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes, "
            f"and has {len(secret)}"
        )
    return secret


def _secret_path(given: str) -> str:
    return str(Path(given).expanduser().absolute())


def read_peers(peers: list[str] | None) -> tuple[KvPeer, ...]:
    """Returns the engines that blocks may be fetched from.

    Raises a `ConfigError` that names an entry that is not an address or network.
    """
    if peers is None:
        return LOOPBACK
    check_between(f"{FLAG}: the number of peers", len(peers), 1, MAX_PEERS)
    try:
        return tuple(map(_read_peer, peers))
    except ValueError as error:
        raise ConfigError(
            f"{FLAG}: peers must be networks or addresses, such as 10.0.0.0/8, 10.0.0.7 or 10.0.0.7:14579: {error}"
        ) from None


def _read_peer(given: str) -> KvPeer:
    """Parses an address, a network, or an address with a port; an IPv6 address with a port is in brackets."""
    with suppress(ValueError):
        return KvPeer(str(ipaddress.ip_network(given)))
    parts = urlsplit(f"//{given}")
    if parts.netloc != given or not parts.port or "@" in given:
        raise ValueError(f"{given[:80]!a} is none of these")
    return KvPeer(str(ipaddress.ip_network(parts.hostname or "")), parts.port)


def _check_reach(config: KvTransferConfig) -> None:
    """Raises `ConfigError` unless an engine that fetches has a secret, or only peers of this machine with exact
    ports.
    """
    try:
        host = ipaddress.ip_address(config.host)
    except ValueError:
        raise ConfigError(f"{FLAG}: kv_ip must be an address, not {config.host[:80]!a}") from None
    if host.is_unspecified:
        raise ConfigError(f"{FLAG}: kv_ip must be the address that others reach, not {host}")
    is_local = host.is_loopback and all(
        ipaddress.ip_network(network).is_loopback for network in config.networks
    )
    if not is_local and config.connector is KvConnector.SHM:
        raise ConfigError(
            f"{FLAG}: kv_ip and peers must be loopback: {KvConnector.SHM} shares the memory of one "
            f"machine; take {KvConnector.TCP} between machines"
        )
    if not is_local and config.secret_path is None:
        raise ConfigError(
            f"{FLAG}: kv_connector_extra_config needs a secret_file when kv_ip or peers are not loopback"
        )
    believes_ports = config.role.fetches and any(peer.port is None for peer in config.peers)
    if config.connector is KvConnector.TCP and config.secret_path is None and believes_ports:
        raise ConfigError(
            f"{FLAG}: kv_connector_extra_config needs a secret_file, or peers that are addresses with ports, such "
            "as 127.0.0.1:14579: without either, a request could name any process of this machine as the one that "
            "has computed its prompt"
        )
