"""TLS credentials of gRPC servers, with clear errors for files that gRPC would refuse without a reason."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from weft.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Pem:
    """A PEM file, and the flag that named it."""

    flag: str
    path: Path

    def __str__(self) -> str:
        return f"{self.flag} {self.path}"

    def read(self) -> bytes:
        """Returns the file's content. Raises a `ConfigError` that names the flag."""
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{self.flag}: cannot read {self.path}: {error.strerror}") from error


def server_credentials(cert: Pem, key: Pem, client_ca: Pem | None = None) -> grpc.ServerCredentials:
    """Returns the credentials in PEM files. Raises a `ConfigError` that names the flag at fault.

    With `client_ca`, only clients with a certificate of that authority are served.
    """
    pair = (key.read(), cert.read())
    authority = None
    if client_ca is not None:
        authority = client_ca.read()
        _check_authority(client_ca)
    server_context(cert, key)
    return grpc.ssl_server_credentials(
        [pair], root_certificates=authority, require_client_auth=authority is not None
    )


def server_context(cert: Pem, key: Pem) -> ssl.SSLContext:
    """Returns the context of a server without grpc's own TLS. Raises a `ConfigError` that names the flag at fault."""
    cert.read()
    key.read()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert.path, key.path)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"{cert} and {key} are not a certificate and its key in PEM form"
        ) from error
    return context


def _check_authority(client_ca: Pem) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(client_ca.path)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"{client_ca.flag}: {client_ca.path} holds no certificate in PEM form"
        ) from error
