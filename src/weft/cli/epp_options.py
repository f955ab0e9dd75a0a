"""The options of `weft epp` and `weft up`: one dataclass a command, one field a flag.

Names and defaults of `weft epp` are the reference picker's, except that it listens on loopback, polls
for load once a second, and serves TLS only with a certificate.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from weft.cli.epp_reference_flags import ReferenceFlags
from weft.cli.flags import GROUPS, as_flags, pick
from weft.cli.sizes import count_converter, duration_converter
from weft.core.errors import ConfigError
from weft.epp.config.options import PickerOptions
from weft.epp.server.limits import PickerLimits
from weft.epp.server.server import ServerOptions

CONFIGURATION = GROUPS["Configuration"]
SERVER = GROUPS["Server"]
WORKERS = GROUPS["Workers"]

Count = Annotated[int, Parameter(converter=count_converter, metavar="INT")]
Seconds = Annotated[float, Parameter(converter=duration_converter, metavar="DURATION")]
LogLevel = Literal["debug", "info", "warning", "error"]
AllowedHosts = Annotated[
    list[str] | None,
    Parameter(
        group=SERVER,
        negative=(),
        help="Name that clients may use (header Host) beside addresses and localhost, or *; repeatable.",
    ),
]
ConfigFile = Annotated[
    Path | None, Parameter(group=SERVER, help="File with these settings: TOML, YAML or JSON.")
]

if TYPE_CHECKING:  # code reads them where they are declared: see `pick`
    PickerFlags = object
else:
    PickerFlags = as_flags(PickerOptions, ServerOptions, PickerLimits)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EppOptions(ReferenceFlags, PickerFlags):
    """Flags of `weft epp`.

    Those that set one field of `PickerOptions`, `ServerOptions` or `PickerLimits` are declared there.
    """

    allowed_hosts: AllowedHosts = None
    metrics_port: Annotated[
        Count, Parameter(group=SERVER, help="Port of /metrics and /debug; 0 takes a free one.")
    ] = 9090
    drain_timeout: Annotated[
        Seconds, Parameter(group=SERVER, help="How long open requests get on SIGTERM.")
    ] = 30.0
    secure_serving: Annotated[
        bool | None,
        Parameter(
            group=SERVER,
            help="Serve TLS: with --cert-path, which turns it on, or a self-signed certificate.",
        ),
    ] = None
    metrics_endpoint_auth: Annotated[
        bool | None,
        Parameter(
            group=SERVER,
            help="Require a token for the pages of the metrics port; on if --metrics-token-file is given.",
        ),
    ] = None
    metrics_token_file: Annotated[
        Path | None, Parameter(group=SERVER, help="File with that token, on one line.")
    ] = None
    explain_header: Annotated[
        bool,
        Parameter(
            group=SERVER,
            help="Send clients the reason in x-weft-decision; also in dynamic metadata. Follows responses.",
        ),
    ] = False
    log_level: Annotated[LogLevel, Parameter(group=SERVER, help="Least serious events to log.")] = (
        "info"
    )
    config: ConfigFile = None

    def metrics_token(self) -> str | None:
        """What pages of the metrics port want to see; None: nothing."""
        if self.metrics_token_file is None:
            if self.metrics_endpoint_auth:
                raise ConfigError("--metrics-endpoint-auth needs --metrics-token-file")
            return None
        return None if self.metrics_endpoint_auth is False else read_token(self.metrics_token_file)

    def picker_options(self) -> PickerOptions:
        """The part that concerns decisions."""
        return pick(self, PickerOptions)

    def server_options(self) -> ServerOptions:
        """The part that concerns the wire."""
        limits = pick(self, PickerLimits)
        options = pick(self, ServerOptions, limits=limits)
        options = replace(options, is_self_signed=bool(self.secure_serving))
        for flag, port in (
            ("--grpc-port", options.grpc_port),
            ("--grpc-health-port", options.grpc_health_port),
        ):
            if not 0 <= port <= 65535:
                raise ConfigError(f"{flag} must be between 0 and 65535, not {port}")
        for flag, value in (
            ("--grpc-max-recv-msg-size", options.max_receive_bytes),
            ("--grpc-max-send-msg-size", options.max_send_bytes),
            ("--max-body-bytes", limits.max_body_bytes),
            ("--max-concurrent-requests", limits.max_streams),
        ):
            if not 0 < value < 2**31:
                raise ConfigError(f"{flag} must be between 1 and 2147483647, not {value}")
        return replace(options, cert_path=None) if self.secure_serving is False else options


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """Flags of `weft up`."""

    workers: Annotated[Count, Parameter(group=WORKERS, help="How many workers to start.")] = 2
    worker_args: Annotated[
        str,
        Parameter(group=WORKERS, help="More arguments of each `weft serve`, as one string."),
    ] = ""
    config_file: Annotated[
        Path | None, Parameter(group=CONFIGURATION, help="File with an EndpointPickerConfig.")
    ] = None
    host: Annotated[str, Parameter(group=SERVER, help="Address to listen on.")] = "127.0.0.1"
    allowed_hosts: AllowedHosts = None
    port: Annotated[
        Count, Parameter(group=SERVER, help="Port for clients: HTTP/1.1, HTTP/2 and gRPC.")
    ] = 8080
    metrics_port: Annotated[
        Count, Parameter(group=SERVER, help="Port of the picker's /metrics and /debug.")
    ] = 9090
    fail_open: Annotated[
        bool,
        Parameter(group=SERVER, help="Without the picker, go round robin; otherwise fail."),
    ] = True
    explain_header: Annotated[
        bool, Parameter(group=SERVER, help="Send clients the reason in x-weft-decision.")
    ] = False
    envoy: Annotated[
        Path | None,
        Parameter(
            group=SERVER, help="Envoy's binary; found beside Python or on the PATH if unset."
        ),
    ] = None
    start_timeout: Annotated[
        Seconds, Parameter(group=SERVER, help="How long all of it may take to become ready.")
    ] = 120.0
    log_level: Annotated[LogLevel, Parameter(group=SERVER, help="Least serious events to log.")] = (
        "warning"
    )
    config: ConfigFile = None


def read_token(path: Path) -> str:
    """The token in a file; `ConfigError` if there is none that a header could carry."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--metrics-token-file {path}: cannot be read: {error}") from error
    if not token or any(char.isspace() or not char.isprintable() for char in token):
        raise ConfigError(f"--metrics-token-file {path}: must hold one word")
    return token
