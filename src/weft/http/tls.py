"""TLS contexts of HTTP servers and clients."""

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weft.core.errors import ConfigError


def client_tls(ca_file: str | None = None, *, is_insecure: bool = False) -> ssl.SSLContext:
    """Returns the TLS context of a client, which verifies the server's certificate unless `is_insecure`. Raises
    `OSError`.
    """
    context = ssl.create_default_context(cafile=ca_file)
    if is_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Files and settings of a server's TLS. `client_certificates` is 0 (no client certificates), 1 (verified if the
    client presents one) or 2 (required); None means 2 with `client_ca` and 0 without.
    """

    cert: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    client_certificates: int | None = None
    ciphers: str | None = None

    def paths(self) -> Iterator[tuple[str, Path]]:
        """Yields the flag of each given file and its path."""
        flags = ("--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certs")
        for flag, path in zip(flags, (self.cert, self.key, self.client_ca), strict=True):
            if path is not None:
                yield flag, path

    def verify_mode(self) -> ssl.VerifyMode:
        """Returns how the server asks for client certificates."""
        if self.client_certificates is None:
            return ssl.CERT_NONE if self.client_ca is None else ssl.CERT_REQUIRED
        return ssl.VerifyMode(self.client_certificates)


def server_tls(files: TlsFiles) -> ssl.SSLContext | None:
    """Returns the TLS context of the files; None without a certificate. Raises `ConfigError` that names the flag."""
    if files.cert is None or files.key is None:
        given = [flag for flag, _ in files.paths()] + ["--ssl-ciphers"] * bool(files.ciphers)
        if given or files.client_certificates:
            raise ConfigError("TLS needs both --ssl-certfile and --ssl-keyfile")
        return None
    for flag, path in files.paths():
        try:
            path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{flag}: cannot read {path}: {error.strerror}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = files.verify_mode()
    if files.client_ca is None and context.verify_mode is not ssl.CERT_NONE:
        raise ConfigError("--ssl-cert-reqs 1 and 2 need --ssl-ca-certs")
    if files.ciphers is not None:
        try:
            context.set_ciphers(files.ciphers)
        except ssl.SSLError as error:
            raise ConfigError(
                f"--ssl-ciphers {files.ciphers!r}: OpenSSL knows none of these ciphers"
            ) from error
    _load(context, files)
    return context


class TlsRefresh:
    """Reads changed certificate files again while a server uses their context.

    New connections use the new certificate. Certificates of clients that a new `client_ca` file no longer contains
    stay accepted until the server restarts.
    """

    def __init__(self, context: ssl.SSLContext, files: TlsFiles) -> None:
        self._context = context
        self._files = files
        self._stamps = self._read_stamps()

    def look(self) -> bool:
        """Loads the files if one has changed since the last call, and returns whether it has. Raises `ConfigError` if
        the files do not fit together: the context keeps the certificate that it had.
        """
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        # Tried first with a context that nobody uses: a failed load may leave a context half changed.
        _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._files)
        _load(self._context, self._files)
        return True

    def _read_stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for _, path in self._files.paths()]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Returns values that differ when a file was changed or replaced; None if it cannot be read."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _load(context: ssl.SSLContext, files: TlsFiles) -> None:
    assert files.cert is not None, "checked by the caller"
    try:
        context.load_cert_chain(files.cert, files.key)
    except (ssl.SSLError, ValueError, OSError) as error:
        raise ConfigError(
            f"--ssl-certfile {files.cert} and --ssl-keyfile {files.key} are not a certificate and its key "
            "in PEM form"
        ) from error
    try:
        if files.client_ca is not None:
            context.load_verify_locations(files.client_ca)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"--ssl-ca-certs {files.client_ca} is not a file of certificates in PEM form"
        ) from error
