"""TLS of HTTP servers and clients."""

import ssl
from pathlib import Path

from weft.core.errors import ConfigError


def client_tls(ca_file: str | None = None, *, is_insecure: bool = False) -> ssl.SSLContext:
    """Returns the context of a client, which checks the server's certificate if secure; raises `OSError`."""
    context = ssl.create_default_context(cafile=ca_file)
    if is_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def server_tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """The TLS context of the certificate files; None without files. Raises `ConfigError` that names the flag."""
    if cert is None or key is None:
        if cert or key:
            raise ConfigError("TLS needs both --ssl-certfile and --ssl-keyfile")
        return None
    for flag, path in (("--ssl-certfile", cert), ("--ssl-keyfile", key)):
        try:
            path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{flag}: cannot read {path}: {error.strerror}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"--ssl-certfile {cert} and --ssl-keyfile {key} are not a certificate and its key "
            "in PEM form"
        ) from error
    return context
