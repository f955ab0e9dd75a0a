"""The server's TLS credentials, refused with a sentence where grpc would refuse without saying why."""

import ssl
from pathlib import Path

import grpc

from weft.core.errors import ConfigError


def server_credentials(
    cert: Path | None, key: Path | None, client_ca: Path | None
) -> grpc.ServerCredentials | None:
    """Credentials from PEM files; None when no file is given. `ConfigError` names the flag at fault.

    With `client_ca` only clients with a certificate of that authority are served.
    """
    if cert is None or key is None:
        if cert or key or client_ca:
            raise ConfigError("TLS needs both --grpc-tls-cert and --grpc-tls-key")
        return None
    pair = (_read("--grpc-tls-key", key), _read("--grpc-tls-cert", cert))
    authority = None
    if client_ca is not None:
        authority = _read("--grpc-tls-client-ca", client_ca)
        _check_authority(client_ca)
    _check_pair(cert, key)
    return grpc.ssl_server_credentials(
        [pair], root_certificates=authority, require_client_auth=authority is not None
    )


def _read(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{flag}: cannot read {path}: {error.strerror}") from error


def _check_pair(cert: Path, key: Path) -> None:
    """Refuse here what grpc would refuse without saying why."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"--grpc-tls-cert {cert} and --grpc-tls-key {key} are not a certificate and its key "
            "in PEM form"
        ) from error


def _check_authority(path: Path) -> None:
    """The same for the authority of client certificates."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"--grpc-tls-client-ca: {path} holds no certificate in PEM form"
        ) from error
