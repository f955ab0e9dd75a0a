"""Settings of the HTTP server: what users choose, and limits that hold for everybody."""

import re
import ssl
from dataclasses import dataclass
from pathlib import Path

from weft.core.errors import ConfigError

_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\-\[\]:_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """`port` 0 lets the system choose; no `api_keys` means no check, no `control_api_keys` no control.

    A body may take `body_grace_s` and a second more for every `min_body_rate` bytes of it.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    control_api_keys: tuple[str, ...] = ()
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = 64 * 2**20
    max_head_bytes: int = 32 * 2**10
    max_connections: int = 8192
    head_timeout_s: float = 20.0
    body_grace_s: float = 20.0
    min_body_rate: int = 64 * 2**10
    keep_alive_s: float = 75.0
    write_timeout_s: float = 60.0
    ping_interval_s: float = 15.0

    def check(self) -> None:
        """Raise `ConfigError`, naming the flag, for what would leave the server open or useless."""
        if not all(key.strip() for key in (*self.api_keys, *self.control_api_keys)):
            raise ConfigError("--api-key and --control-api-key must not be empty")
        for origin in self.allowed_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"--allowed-origins {origin!r}: must be * or scheme://host[:port], as browsers send it"
                )

    def ssl_context(self) -> ssl.SSLContext | None:
        """TLS as the files say; None without files. `ConfigError` names the flag at fault."""
        cert, key = self.ssl_certfile, self.ssl_keyfile
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
