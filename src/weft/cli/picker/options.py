"""The options of `weft epp` and `weft up`: one dataclass per command, one field per flag.

Names and defaults of `weft epp` are those of llm-d's reference picker, with these exceptions: the picker listens on
loopback, polls endpoints for their load once a second while it is idle, and serves TLS only with a certificate.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from weft.cli.arguments.flags import LogFormatFlag, flags, pick
from weft.cli.commands import branch, call
from weft.cli.picker.reference_flags import ReferenceFlags
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.core.values.declare import Flag
from weft.epp.config.options import PickerOptions
from weft.epp.server.limits import PickerLimits
from weft.epp.server.options import ServerOptions

LogLevel = Literal["debug", "info", "warning", "error"]
AllowedHosts = Annotated[
    list[str] | None,
    Flag(
        "Allowed Host header of HTTP requests, in addition to IP addresses and localhost; * allows all; repeatable.",
        "Server",
    ),
]
ConfigFile = Annotated[
    Path | None, Flag("Configuration file with these settings: TOML, YAML or JSON.", "Server")
]


@flags(PickerOptions, ServerOptions, PickerLimits)
class EppOptions(ReferenceFlags):
    """Flags of `weft epp`.

    A flag that sets a field of `PickerOptions`, `ServerOptions` or `PickerLimits` is declared in that class.
    """

    allowed_hosts: AllowedHosts = None
    metrics_port: Annotated[
        int, Flag("Port of the metrics server (/metrics, /debug); 0 takes a free one.", "Server")
    ] = 9090
    drain_timeout: Annotated[
        float,
        Flag("Maximum time for open requests to finish after SIGTERM.", "Server", is_duration=True),
    ] = 30.0
    secure_serving: Annotated[
        bool | None,
        Flag(
            "Use TLS for ext_proc, with the certificate of --cert-path or a self-signed one. --cert-path enables it.",
            "Server",
        ),
    ] = None
    metrics_endpoint_auth: Annotated[
        bool | None,
        Flag(
            "Require a bearer token on the metrics port: the token of --metrics-token-file or, in Kubernetes, one "
            "that may get these paths. Enabled by default where either is available.",
            "Server",
        ),
    ] = None
    metrics_token_file: Annotated[
        Path | None, Flag("File with the bearer token for the metrics port, on one line.", "Server")
    ] = None
    explain_header: Annotated[
        bool,
        Flag(
            "Send the reason for each routing decision in the response header x-weft-decision and in dynamic "
            "metadata. Implies --track-responses.",
            "Server",
        ),
    ] = False
    log_level: Annotated[LogLevel, Flag("Minimum level of events to log.", "Server")] = "info"
    log_format: LogFormatFlag = "text"
    tracing: Annotated[
        bool,
        Flag(
            "Send traces to OTEL_EXPORTER_OTLP_ENDPOINT, or to http://localhost:4317 if that is unset (needs the "
            "extra weft-serve[otel]).",
            "Server",
        ),
    ] = False
    config: ConfigFile = None

    def metrics_token(self) -> str | None:
        """Bearer token that the pages of the metrics port require; None if none is set."""
        if self.metrics_token_file is None or self.metrics_endpoint_auth is False:
            return None
        return read_token(self.metrics_token_file)

    def picker_options(self) -> PickerOptions:
        """Returns the options for routing decisions."""
        return pick(self, PickerOptions, ext_proc_port=self.grpc_port)  # type: ignore[attr-defined]  # a flag of ServerOptions

    def server_options(self) -> ServerOptions:
        """Returns the options of the picker's servers: ports, TLS and limits."""
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

    host: Annotated[str, Flag("Host of the picker.", "Connection")] = "127.0.0.1"
    metrics_port: Annotated[int, Flag("Metrics port of the picker.", "Connection")] = 9090
    metrics_token_file: Annotated[
        Path | None,
        Flag("File with the bearer token of the metrics port, if it requires one.", "Connection"),
    ] = None
    raw: Annotated[
        bool, Flag("Deprecated name of --json.", "Output", negatable=False, is_hidden=True)
    ] = False
    json: Annotated[bool, Flag("Print JSON.", "Output", negatable=False)] = False


@flags()
class UpOptions:
    """Flags of `weft up`."""

    workers: Annotated[int, Flag("Number of workers to start.", "Workers")] = 2
    prefill: Annotated[
        int,
        Flag(
            "Number of prefill workers, which compute long prompts for the decode workers; needs --decode.",
            "Workers",
        ),
    ] = 0
    decode: Annotated[
        int,
        Flag(
            "Number of decode workers, which generate answers; replaces --workers and needs --prefill.",
            "Workers",
        ),
    ] = 0
    worker_args: Annotated[
        str, Flag("Extra arguments of each `weft serve`, as one string.", "Workers")
    ] = ""
    config_file: Annotated[
        Path | None, Flag("File with an EndpointPickerConfig for the picker.", "Configuration")
    ] = None
    host: Annotated[str, Flag("Address to listen on.", "Server")] = "127.0.0.1"
    allowed_hosts: AllowedHosts = None
    port: Annotated[
        int, Flag("Port for clients, which takes HTTP/1.1, HTTP/2 and gRPC.", "Server")
    ] = 8080
    metrics_port: Annotated[
        int, Flag("Metrics port of the picker (/metrics, /debug).", "Server")
    ] = 9090
    fail_open: Annotated[
        bool,
        Flag(
            "Route round-robin while the picker is unavailable; otherwise requests fail.", "Server"
        ),
    ] = True
    buffered_body_bytes: Annotated[
        int | None,
        Flag(
            "Envoy buffers request bodies up to this size until the picker has answered, so that no request is "
            "lost if the picker dies. Larger bodies get 413. If unset, the picker buffers bodies.",
            "Server",
            is_size=True,
        ),
    ] = None
    explain_header: Annotated[
        bool,
        Flag(
            "Send the reason for each routing decision in the response header x-weft-decision.",
            "Server",
        ),
    ] = False
    envoy: Annotated[
        Path | None,
        Flag("Path of the Envoy binary. Default: next to Python, then on the PATH.", "Server"),
    ] = None
    start_timeout: Annotated[
        float,
        Flag("Maximum time until everything is ready.", "Server", is_duration=True),
    ] = 120.0
    log_level: Annotated[LogLevel, Flag("Minimum level of events to log.", "Server")] = "warning"
    log_format: LogFormatFlag = "text"
    otlp_traces_endpoint: Annotated[
        str | None,
        Flag(
            "OTLP endpoint for traces of workers and picker, such as http://localhost:4317.",
            "Server",
        ),
    ] = None
    config: ConfigFile = None


def read_token(path: Path) -> str:
    """Returns the token in the file `path`. Raises `ConfigError` if the token cannot be sent in an HTTP header."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--metrics-token-file {path}: cannot be read: {error}") from error
    if not token or any(char.isspace() or not char.isprintable() for char in token):
        raise ConfigError(f"--metrics-token-file {path}: must hold one word")
    return token


def epp(*, options: EppOptions = EppOptions()) -> int:
    """Run the Endpoint Picker: choose an endpoint for each request from Envoy, until SIGTERM or Ctrl-C."""
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


epp_app = branch("epp", epp)  # called by name, when the command runs
