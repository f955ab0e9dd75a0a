"""The picker's TLS certificate: read from a directory and reloaded when it changes, or self-signed."""

import logging
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from weft.core.errors import ConfigError
from weft.core.extras import how_to_install
from weft.wire.tls import Pem, server_context

log = logging.getLogger("weft.epp")

_NAMES: Final = ("tls.crt", "tls.key")
_VALID: Final = timedelta(days=3650)  # long, because a picker that runs on does not renew it


def from_directory(path: Path, *, reloads: bool) -> ssl.SSLContext:
    """Returns the TLS context with `tls.crt` and `tls.key`. Raises a `ConfigError` that names the flag if the two do
    not match.
    """
    cert, key = (Pem("--cert-path", path / name) for name in _NAMES)
    if reloads:
        return _Reader(cert, key).first
    return _for_grpc(server_context(cert, key))


def self_signed(host: str) -> ssl.SSLContext:
    """Returns a TLS context with a self-signed certificate, for gateways that require TLS and do not verify names."""
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
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with (
        tempfile.TemporaryDirectory() as private
    ):  # readable by this user alone; a context reads files only
        file = Path(private) / "pair.pem"
        file.write_bytes(pem + cert.public_bytes(serialization.Encoding.PEM))
        context.load_cert_chain(file)
    return _for_grpc(context)


def _for_grpc(context: ssl.SSLContext) -> ssl.SSLContext:
    context.set_alpn_protocols(["h2"])
    return context


class _Reader:
    """Reads certificate and key again, at a handshake, if their files have changed."""

    def __init__(self, cert: Pem, key: Pem) -> None:
        self._cert, self._key = cert, key
        self.first = self._latest = _for_grpc(server_context(cert, key))
        self._seen = self._marks()
        self.first.sni_callback = self._choose

    def _choose(
        self, handshake: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext
    ) -> None:
        try:
            marks = self._marks()
            if marks != self._seen:
                # While files are being replaced, certificate and key may not match.
                self._latest = _for_grpc(server_context(self._cert, self._key))
                self._seen = marks
                log.info("the certificate was read again")
        except (ConfigError, OSError) as error:
            log.warning("the certificate is not read again yet: %s", error)
        if self._latest is not self.first:
            handshake.context = self._latest

    def _marks(self) -> tuple[tuple[int, int], ...]:
        stats = (pem.path.stat() for pem in (self._cert, self._key))
        return tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)
