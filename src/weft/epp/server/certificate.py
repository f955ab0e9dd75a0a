"""The picker's TLS certificate: read from a directory and reloaded when it changes, or self-signed."""

import logging
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import grpc

from weft.core.errors import ConfigError
from weft.core.extras import how_to_install
from weft.wire.tls import Pem, server_credentials

log = logging.getLogger("weft.epp")

_NAMES: Final = ("tls.crt", "tls.key")
_VALID: Final = timedelta(days=3650)  # long, because a picker that runs on does not renew it


def from_directory(path: Path, *, reloads: bool) -> grpc.ServerCredentials:
    """Returns credentials with `tls.crt` and `tls.key`. Raises a `ConfigError` that names the flag if the two do not
    match.
    """
    cert, key = (Pem("--cert-path", path / name) for name in _NAMES)
    fixed = server_credentials(cert, key)
    if not reloads:
        return fixed
    reader = _Reader(cert, key)
    # The callback returns None if nothing has changed.
    changed: Any = reader.changed  # the type stubs lack this return value
    return grpc.dynamic_ssl_server_credentials(reader.read(), changed)


def self_signed(host: str) -> grpc.ServerCredentials:
    """Returns credentials with a self-signed certificate, for gateways that require TLS and do not verify names."""
    try:
        # Imported late: most pickers need no self-signed certificate, and the package is an extra.
        from cryptography import x509  # noqa: PLC0415
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            "--secure-serving without --cert-path makes a certificate, which needs a package: "
            f"{how_to_install('epp')}"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "weft-epp")])
    hosts = dict.fromkeys(("localhost", "weft-epp", host))
    now = datetime.now(UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # allows for clocks that differ
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(each) for each in hosts]), False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return grpc.ssl_server_credentials([(pem, cert.public_bytes(serialization.Encoding.PEM))])


class _Reader:
    """Reads certificate and key again when their files have changed. gRPC calls it on its own threads."""

    def __init__(self, cert: Pem, key: Pem) -> None:
        self._cert, self._key = cert, key
        self._lock = threading.Lock()
        self._seen = self._marks()

    def read(self) -> grpc.ServerCertificateConfiguration:
        """Reads certificate and key."""
        pair = (self._key.read(), self._cert.read())
        return grpc.ssl_server_certificate_configuration([pair])

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Returns the new certificate and key if the files have changed and are valid; otherwise None."""
        with self._lock:
            try:
                marks = self._marks()
                if marks == self._seen:
                    return None
                # While files are being replaced, certificate and key may not match.
                server_credentials(self._cert, self._key)
                found = self.read()
            except (ConfigError, OSError) as error:
                log.warning("the certificate is not read again yet: %s", error)
                return None
            self._seen = marks
            log.info("the certificate was read again")
            return found

    def _marks(self) -> tuple[tuple[int, int], ...]:
        stats = (pem.path.stat() for pem in (self._cert, self._key))
        return tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)
