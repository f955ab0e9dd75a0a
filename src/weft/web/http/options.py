"""Settings of the HTTP server: options of users, and limits for all requests."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from weft.core.errors import ConfigError
from weft.core.values.declare import Flag
from weft.core.values.speech import MAX_FILE_BYTES
from weft.http.tls import TlsFiles
from weft.web.http.root_path import VALID

# Servers and proxies limit the head of a request: Envoy to 60 KiB.
MAX_RESUME_BYTES = 48 * 2**10
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\-\[\]:_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """If `port` is 0, the system chooses a port. Without `api_keys`, API keys are not checked; without
    `control_api_keys`, nobody may use the admin endpoints. Fields that exceed the API are ignored with a warning or, if
    `strict`, refused.
    After an answer, the server discards what the client still sends for `linger_s` seconds, so that the client can
    read the answer.
    A body may take `body_grace_s` to arrive, and one more second for every `min_body_rate` bytes. A body is decoded in
    one piece, which blocks all other requests: at most 20 ms, for `max_body_bytes` that are all escapes.
    `max_body_bytes` is enough for a prompt of two million tokens. `max_form_bytes` is enough for one file and other
    fields.
    `max_total_body_bytes` limits the memory of all large bodies together.
    With `shares_port`, other processes of this server listen on the same port.
    """

    host: Annotated[str, Flag("Address to listen on.", "Server")] = "127.0.0.1"
    port: Annotated[int, Flag("Port of the HTTP server; 0 takes a free one.", "Server")] = 8000
    uds: Annotated[
        Path | None,
        Flag(
            "Path of a Unix socket on which the HTTP server listens instead of --port. Users who may write to the file "
            "may send requests.",
            "Server",
        ),
    ] = None
    shares_port: bool = False
    root_path: Annotated[
        str | None,
        Flag(
            "Prefix that paths may have, such as /llm, behind a proxy that serves Weft under a path and keeps this "
            "path in requests.",
            "Server",
        ),
    ] = None
    api_keys: Annotated[
        tuple[str, ...],
        Flag(
            "API key that every request must send; repeatable. WEFT_API_KEY keeps it out of the process list.",
            "Server",
            name="api_key",
        ),
    ] = ()
    api_key_file: Annotated[
        Path | None,
        Flag(
            "JSON file of tenants: their API keys, and for each a name and limits: requests and tokens a minute, "
            "priority, LoRA adapters. Valid over HTTP and gRPC, beside --api-key.",
            "Server",
        ),
    ] = None
    salt_by_key: Annotated[
        bool,
        Flag(
            "Give each tenant of --api-key-file, and each --api-key, a prefix cache of its own, as cache_salt does: "
            "no answer is faster because of another's prompts.",
            "Server",
        ),
    ] = False
    hide_cached_tokens: Annotated[
        bool,
        Flag(
            "Report 0 cached prompt tokens in every answer, over HTTP and gRPC.",
            "Server",
        ),
    ] = False
    control_api_keys: Annotated[
        tuple[str, ...],
        Flag(
            "API key for admin endpoints, which affect requests of other callers: /pause, /abort_requests and "
            "others over HTTP; FlushCache, SubscribeKvEvents and Abort of any id over gRPC. Repeatable. If unset, "
            "they are disabled (over gRPC only if there is an --api-key).",
            "Server",
            name="control_api_key",
        ),
    ] = ()
    ssl_certfile: Annotated[
        Path | None, Flag("Certificate chain (PEM) of the HTTP server; enables TLS.", "Server")
    ] = None
    ssl_keyfile: Annotated[Path | None, Flag("Private key (PEM) of --ssl-certfile.", "Server")] = (
        None
    )
    ssl_ca_certs: Annotated[
        Path | None,
        Flag(
            "CA certificates (PEM) for client certificates, which clients must then present (mutual TLS) unless "
            "--ssl-cert-reqs says otherwise.",
            "Server",
        ),
    ] = None
    ssl_cert_reqs: Annotated[
        int | None,
        Flag(
            "Client certificates: 0 are not requested, 1 are checked if presented, 2 are required. Default: 2 with "
            "--ssl-ca-certs, 0 without.",
            "Server",
        ),
    ] = None
    ssl_ciphers: Annotated[
        str | None,
        Flag("Ciphers of TLS 1.2 and older, as a list of OpenSSL's; default: Python's.", "Server"),
    ] = None
    enable_ssl_refresh: Annotated[
        bool,
        Flag(
            "Load the files of --ssl-certfile, --ssl-keyfile and --ssl-ca-certs again when they change; new "
            "connections use the new certificate.",
            "Server",
        ),
    ] = False
    allowed_origins: Annotated[
        tuple[str, ...],
        Flag("Allowed CORS origin, or *; repeatable.", "Server"),
    ] = ()
    strict: Annotated[
        bool,
        Flag(
            "Refuse request bodies with unknown fields, beyond OpenAI's limits (4 stop strings, logit_bias of 100), "
            "with fields that change nothing here (store), or with numbers and booleans of another type. Without "
            "it, such requests are served, the first three with a Warning header.",
            "API",
        ),
    ] = False
    allowed_hosts: Annotated[
        tuple[str, ...],
        Flag(
            "Allowed Host header of HTTP requests, in addition to IP addresses, localhost and "
            "*.internal; * allows all; "
            "repeatable. On addresses other than loopback, every name is allowed unless some are given.",
            "Server",
        ),
    ] = ()
    resume_secret_file: Annotated[
        Path | None,
        Flag(
            "File with a secret that equal servers share: a stream that breaks can be continued at any of them, with "
            "the header x-weft-resume.",
            "API",
        ),
    ] = None
    ui: Annotated[bool, Flag("Serve the web page at / of the HTTP server.", "Server")] = True
    max_body_bytes: int = 12 * 2**20
    max_form_bytes: int = MAX_FILE_BYTES + 2**20
    max_total_body_bytes: int = 256 * 2**20
    max_head_bytes: int = 32 * 2**10
    max_connections: int = 8192
    tls_handshake_timeout_s: float = 10.0
    head_timeout_s: float = 20.0
    body_grace_s: float = 20.0
    min_body_rate: int = 64 * 2**10
    linger_s: float = 10.0
    keep_alive_s: float = 75.0
    write_timeout_s: float = 60.0
    ping_interval_s: float = 15.0

    @property
    def tls_files(self) -> TlsFiles:
        """The files and rules of TLS."""
        return TlsFiles(
            cert=self.ssl_certfile,
            key=self.ssl_keyfile,
            client_ca=self.ssl_ca_certs,
            client_certificates=self.ssl_cert_reqs,
            ciphers=self.ssl_ciphers,
        )

    def with_room_for_resume(self) -> "HttpOptions":
        """Returns options whose requests may have the header x-weft-resume, which is longer than all others."""
        if self.resume_secret_file is None:
            return self
        return replace(self, max_head_bytes=self.max_head_bytes + MAX_RESUME_BYTES)

    @property
    def has_api_keys(self) -> bool:
        """Whether requests need a key."""
        return bool(self.api_keys) or self.api_key_file is not None

    def check(self) -> None:
        """Raises `ConfigError` with the flag's name for settings that would leave the server open or useless."""
        if not all(key.strip() for key in (*self.api_keys, *self.control_api_keys)):
            raise ConfigError("--api-key and --control-api-key must not be empty")
        if self.root_path is not None and not VALID.fullmatch(self.root_path):
            raise ConfigError(
                f"--root-path {self.root_path!r} must begin with / and have no / at its end, such as /llm"
            )
        if self.ssl_cert_reqs not in (None, 0, 1, 2):
            raise ConfigError(f"--ssl-cert-reqs must be 0, 1 or 2, not {self.ssl_cert_reqs}")
        for origin in self.allowed_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"--allowed-origins {origin!r}: must be * or scheme://host[:port], as browsers send it"
                )
