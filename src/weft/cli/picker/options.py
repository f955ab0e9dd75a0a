"""The options of `weft epp` and `weft up`: one dataclass a command, one field a flag.

Names and defaults of `weft epp` are the reference picker's, except that it listens on loopback, polls
for load once a second while nothing happens, and serves TLS only with a certificate.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from weft.cli.commands import branch, call
from weft.cli.flags import LogFormatFlag, flags, pick
from weft.cli.picker.reference_flags import ReferenceFlags
from weft.core.config import EngineOptions
from weft.core.declare import Flag
from weft.core.errors import ConfigError
from weft.epp.config.options import PickerOptions
from weft.epp.server.limits import PickerLimits
from weft.epp.server.options import ServerOptions

LogLevel = Literal["debug", "info", "warning", "error"]
AllowedHosts = Annotated[
    list[str] | None,
    Flag(
        "Name that clients may use (header Host) beside addresses and localhost, or *; repeatable.",
        "Server",
    ),
]
ConfigFile = Annotated[Path | None, Flag("File with these settings: TOML, YAML or JSON.", "Server")]


@flags(PickerOptions, ServerOptions, PickerLimits)
class EppOptions(ReferenceFlags):
    """Flags of `weft epp`.

    Those that set one field of `PickerOptions`, `ServerOptions` or `PickerLimits` are declared there.
    """

    allowed_hosts: AllowedHosts = None
    metrics_port: Annotated[
        int, Flag("Port of /metrics and /debug; 0 takes a free one.", "Server")
    ] = 9090
    drain_timeout: Annotated[
        float, Flag("How long open requests get on SIGTERM.", "Server", is_duration=True)
    ] = 30.0
    secure_serving: Annotated[
        bool | None,
        Flag(
            "Serve TLS: with --cert-path, which turns it on, or a self-signed certificate.",
            "Server",
        ),
    ] = None
    metrics_endpoint_auth: Annotated[
        bool | None,
        Flag(
            "Require a token for the pages of the metrics port: that of --metrics-token-file, or, in Kubernetes, "
            "one whose bearer may get them there. On if there is either.",
            "Server",
        ),
    ] = None
    metrics_token_file: Annotated[
        Path | None, Flag("File with that token, on one line.", "Server")
    ] = None
    explain_header: Annotated[
        bool,
        Flag(
            "Send clients the reason in x-weft-decision; also in dynamic metadata. Follows responses.",
            "Server",
        ),
    ] = False
    log_level: Annotated[LogLevel, Flag("Least serious events to log.", "Server")] = "info"
    log_format: LogFormatFlag = "text"
    tracing: Annotated[
        bool,
        Flag(
            "Send traces where OTEL_EXPORTER_OTLP_ENDPOINT says, or to http://localhost:4317 (needs weft[otel]).",
            "Server",
        ),
    ] = False
    config: ConfigFile = None

    def metrics_token(self) -> str | None:
        """The one token that pages of the metrics port want to see; None: there is none."""
        if self.metrics_token_file is None or self.metrics_endpoint_auth is False:
            return None
        return read_token(self.metrics_token_file)

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


@flags()
class ExplainOptions:
    """Flags of `weft epp explain`."""

    host: Annotated[str, Flag("Where the picker listens.", "Connection")] = "127.0.0.1"
    metrics_port: Annotated[int, Flag("Its metrics port.", "Connection")] = 9090
    metrics_token_file: Annotated[
        Path | None, Flag("File with the token that its pages want, if they do.", "Connection")
    ] = None
    raw: Annotated[
        bool, Flag("What --json was called.", "Output", negatable=False, is_hidden=True)
    ] = False
    json: Annotated[bool, Flag("Print JSON, for scripts.", "Output", negatable=False)] = False


@flags()
class UpOptions:
    """Flags of `weft up`."""

    workers: Annotated[int, Flag("How many workers to start.", "Workers")] = 2
    prefill: Annotated[
        int, Flag("With --decode: so many workers that compute long prompts for those.", "Workers")
    ] = 0
    decode: Annotated[
        int, Flag("With --prefill: so many workers that answer, in place of --workers.", "Workers")
    ] = 0
    worker_args: Annotated[
        str, Flag("More arguments of each `weft serve`, as one string.", "Workers")
    ] = ""
    config_file: Annotated[
        Path | None, Flag("File with an EndpointPickerConfig.", "Configuration")
    ] = None
    host: Annotated[str, Flag("Address to listen on.", "Server")] = "127.0.0.1"
    allowed_hosts: AllowedHosts = None
    port: Annotated[int, Flag("Port for clients: HTTP/1.1, HTTP/2 and gRPC.", "Server")] = 8080
    metrics_port: Annotated[int, Flag("Port of the picker's /metrics and /debug.", "Server")] = 9090
    fail_open: Annotated[
        bool, Flag("Without the picker, go round robin; otherwise fail.", "Server")
    ] = True
    buffered_body_bytes: Annotated[
        int | None,
        Flag(
            "Largest body that Envoy holds until the picker has answered, so that a picker that dies takes "
            "no request along; larger ones get 413. Unset: the picker holds bodies.",
            "Server",
            is_size=True,
        ),
    ] = None
    explain_header: Annotated[
        bool, Flag("Send clients the reason in x-weft-decision.", "Server")
    ] = False
    envoy: Annotated[
        Path | None,
        Flag("Envoy's binary; found beside Python or on the PATH if unset.", "Server"),
    ] = None
    start_timeout: Annotated[
        float,
        Flag("How long all of it may take to become ready.", "Server", is_duration=True),
    ] = 120.0
    log_level: Annotated[LogLevel, Flag("Least serious events to log.", "Server")] = "warning"
    log_format: LogFormatFlag = "text"
    otlp_traces_endpoint: Annotated[
        str | None,
        Flag("Where workers and picker send traces, such as http://localhost:4317.", "Server"),
    ] = None
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


def epp(*, options: EppOptions = EppOptions()) -> int:
    """Pick an endpoint for each request that Envoy shows, until SIGTERM or Ctrl-C."""
    return call("weft.cli.picker.epp:epp", options)


def explain(request_id: str, *, options: ExplainOptions = ExplainOptions()) -> int:
    """Say why a request went where it went: candidates, filters, scores, runner-up.

    Parameters
    ----------
    request_id
        The request's x-request-id. The picker keeps the last thousand.
    """
    return call("weft.cli.picker.epp:explain", request_id, options)


def up(model: str = EngineOptions().model, *, options: UpOptions = UpOptions()) -> int:
    """Start workers, an endpoint picker and Envoy on this machine, until Ctrl-C.

    Parameters
    ----------
    model
        What each worker serves; see weft serve --help.
    """
    return call("weft.cli.up.up:up", model, options)


epp_app = branch("epp", epp)  # loaded by name, when it is called
