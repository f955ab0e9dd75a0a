"""What `weft epp` and `weft up` can be told: one dataclass a command, one field a flag.

Names and defaults of `weft epp` are the reference picker's, except that it listens on loopback, asks
for load once a second, and serves TLS only with a certificate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter, Token

from weft.cli.sizes import count_converter, size_converter
from weft.core.errors import ConfigError
from weft.epp.config.options import DEFAULT_POOL_GROUP, PickerOptions
from weft.epp.config.quantity import parse_duration_s
from weft.epp.server.limits import Limits
from weft.epp.server.server import ServerOptions

CONFIGURATION = Group("Configuration", sort_key=1)
POOL = Group("Pool", sort_key=2)
SERVER = Group("Server", sort_key=3)
WORKERS = Group("Workers", sort_key=1)
ABSENT = Group("Not offered", sort_key=4)

_TRACING = "no traces are sent"
_PPROF = "there is no Go runtime to profile; py-spy can, from outside"
_LEADER = "pickers do not elect a leader; each serves"
_KUBERNETES = "Kubernetes discovery is not offered yet; use --endpoint or file-discovery"
_GAUGES = "gauges are brought up to date whenever somebody reads them"


def duration_converter(type_: Any, tokens: Sequence[Token]) -> float:
    """300ms, 5s, 1m30s, or a plain number of seconds."""
    del type_
    text = tokens[0].value.strip()
    try:
        return parse_duration_s(text) if text[-1:].isalpha() else float(text)
    except ValueError as err:
        raise ValueError(f"must be a duration such as 300ms, 5s or 1m30s, not {text!r}") from err


# The same as in `weft.cli.options`, which knows the engine; a picker does without one.
Count = Annotated[int, Parameter(converter=count_converter, metavar="INT")]
Size = Annotated[int | None, Parameter(converter=size_converter, metavar="SIZE")]
Seconds = Annotated[float, Parameter(converter=duration_converter, metavar="DURATION")]
LogLevel = Literal["debug", "info", "warning", "error"]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class EppOptions:
    """Flags of `weft epp`."""

    config_file: Annotated[
        Path | None, Parameter(group=CONFIGURATION, help="File with an EndpointPickerConfig.")
    ] = None
    config_text: Annotated[
        str | None, Parameter(group=CONFIGURATION, help="The EndpointPickerConfig itself.")
    ] = None
    allow_experimental_plugins: Annotated[
        bool, Parameter(group=CONFIGURATION, help="Allow plugins that are marked alpha.")
    ] = False
    objects: Annotated[
        list[Path] | None,
        Parameter(
            group=CONFIGURATION,
            negative=(),
            help="File or directory of InferenceObjective and InferenceModelRewrite; repeatable.",
        ),
    ] = None

    endpoint: Annotated[
        list[str] | None,
        Parameter(
            group=POOL,
            negative=(),
            help="HOST:PORT of a model server, then ,metricsPort= ,grpcPort= ,LABEL=VALUE; repeatable.",
        ),
    ] = None
    default_engine: Annotated[
        str | None,
        Parameter(
            group=POOL,
            help="Engine of endpoints without a label that says so; vllm-grpc asks over gRPC.",
        ),
    ] = None
    engine_api_key: Annotated[
        str | None,
        Parameter(group=POOL, help="Key that endpoints want which are asked over gRPC."),
    ] = None
    engine_control_api_key: Annotated[
        str | None,
        Parameter(
            group=POOL, help="Control key of the same, for the events of their prefix caches."
        ),
    ] = None
    default_model: Annotated[
        str | None,
        Parameter(
            group=POOL, help="Model of requests that name none; without it they are refused."
        ),
    ] = None
    pool_name: Annotated[str, Parameter(group=POOL, help="Name of the pool in metrics.")] = (
        "default"
    )
    pool_namespace: Annotated[str, Parameter(group=POOL, help="Namespace of the pool.")] = "default"
    pool_group: Annotated[
        str, Parameter(group=POOL, help="API group by which objects refer to the pool.")
    ] = DEFAULT_POOL_GROUP
    refresh_metrics_interval: Annotated[
        Seconds, Parameter(group=POOL, help="How often each endpoint is asked for its load.")
    ] = 1.0
    metrics_staleness_threshold: Annotated[
        Seconds, Parameter(group=POOL, help="Older load counts as unknown.")
    ] = 2.0
    disable_endpoint_subset_filter: Annotated[
        bool, Parameter(group=POOL, help="Ignore the gateway's subset hint.")
    ] = False

    host: Annotated[str, Parameter(group=SERVER, help="Address to listen on.")] = "127.0.0.1"
    allowed_hosts: Annotated[
        list[str] | None,
        Parameter(
            group=SERVER,
            negative=(),
            help="Name that pages may be asked by (header Host) beside addresses and localhost, or *; repeatable.",
        ),
    ] = None
    grpc_port: Annotated[
        Count, Parameter(group=SERVER, help="Port for Envoy's ext_proc; 0 takes a free one.")
    ] = 9002
    grpc_health_port: Annotated[
        Count, Parameter(group=SERVER, help="Port with grpc.health.v1 alone; 0 takes a free one.")
    ] = 9003
    metrics_port: Annotated[
        Count,
        Parameter(group=SERVER, help="Port of /metrics and /debug; 0 takes a free one."),
    ] = 9090
    drain_timeout: Annotated[
        Seconds, Parameter(group=SERVER, help="How long open requests get on SIGTERM.")
    ] = 30.0
    grpc_max_recv_msg_size: Annotated[
        Size, Parameter(group=SERVER, help="Largest message from the gateway.")
    ] = 4 * 2**20
    grpc_max_send_msg_size: Annotated[
        Size, Parameter(group=SERVER, help="Largest message to the gateway.")
    ] = 4 * 2**20
    max_body_bytes: Annotated[
        Size, Parameter(group=SERVER, help="Largest request body; larger ones get 413.")
    ] = 64 * 2**20
    max_concurrent_requests: Annotated[
        Count, Parameter(group=SERVER, help="Requests in hand at once; more get 503.")
    ] = 8192
    secure_serving: Annotated[
        bool | None,
        Parameter(group=SERVER, help="Serve TLS; needs --cert-path, and is on if that is given."),
    ] = None
    cert_path: Annotated[
        Path | None,
        Parameter(group=SERVER, help="Directory with tls.crt and tls.key."),
    ] = None
    metrics_endpoint_auth: Annotated[
        bool | None,
        Parameter(
            group=SERVER,
            help="Want a token for the pages of the metrics port; on if --metrics-token-file is given.",
        ),
    ] = None
    metrics_token_file: Annotated[
        Path | None, Parameter(group=SERVER, help="File with that token, on one line.")
    ] = None
    track_responses: Annotated[
        bool,
        Parameter(group=SERVER, help="Follow every response, for the metrics of tokens and times."),
    ] = False
    enable_grpc_stream_metrics: Annotated[
        bool,
        Parameter(group=SERVER, negative=(), help="Measure ext_proc streams: extproc_ series."),
    ] = False
    emit_endpoint_scores: Annotated[
        bool, Parameter(group=SERVER, help="Send each endpoint's score in dynamic metadata.")
    ] = False
    explain_header: Annotated[
        bool,
        Parameter(
            group=SERVER,
            help="Tell clients why in x-weft-decision; also in dynamic metadata. Follows responses.",
        ),
    ] = False
    log_level: Annotated[LogLevel, Parameter(group=SERVER, help="Least serious events to log.")] = (
        "info"
    )
    config: Annotated[
        Path | None,
        Parameter(group=SERVER, help="File with these settings: TOML, YAML or JSON."),
    ] = None

    # Flags of the reference picker that a deployment may still carry. Switched off is what they are.
    tracing: Annotated[bool, Parameter(group=ABSENT, help=f"Refused: {_TRACING}.")] = False
    enable_pprof: Annotated[bool, Parameter(group=ABSENT, help=f"Refused: {_PPROF}.")] = False
    ha_enable_leader_election: Annotated[
        bool, Parameter(group=ABSENT, help=f"Refused: {_LEADER}.")
    ] = False
    endpoint_selector: Annotated[
        str | None, Parameter(group=ABSENT, help=f"Refused: {_KUBERNETES}.")
    ] = None
    endpoint_target_ports: Annotated[
        str | None, Parameter(group=ABSENT, help=f"Refused: {_KUBERNETES}.")
    ] = None
    refresh_prometheus_metrics_interval: Annotated[
        str | None, Parameter(group=ABSENT, help=f"Refused: {_GAUGES}.")
    ] = None

    def refuse_what_is_not_offered(self) -> None:
        """No flag is taken and ignored; `ConfigError` says why there is no such thing."""
        for flag, value, reason in (
            ("--tracing", self.tracing, _TRACING),
            ("--enable-pprof", self.enable_pprof, _PPROF),
            ("--ha-enable-leader-election", self.ha_enable_leader_election, _LEADER),
            ("--endpoint-selector", self.endpoint_selector, _KUBERNETES),
            ("--endpoint-target-ports", self.endpoint_target_ports, _KUBERNETES),
            (
                "--refresh-prometheus-metrics-interval",
                self.refresh_prometheus_metrics_interval,
                _GAUGES,
            ),
        ):
            if value not in {False, None}:
                raise ConfigError(f"{flag} is refused: {reason}")

    def metrics_token(self) -> str | None:
        """What pages of the metrics port want to see; None: nothing."""
        if self.metrics_token_file is None:
            if self.metrics_endpoint_auth:
                raise ConfigError("--metrics-endpoint-auth needs --metrics-token-file")
            return None
        return None if self.metrics_endpoint_auth is False else read_token(self.metrics_token_file)

    def picker_options(self) -> PickerOptions:
        """The part that concerns decisions."""
        return PickerOptions(
            config_file=self.config_file,
            config_text=self.config_text,
            endpoints=tuple(self.endpoint or ()),
            objects=tuple(self.objects or ()),
            pool_name=self.pool_name,
            pool_namespace=self.pool_namespace,
            pool_group=self.pool_group,
            refresh_metrics_interval_s=self.refresh_metrics_interval,
            metrics_staleness_threshold_s=self.metrics_staleness_threshold,
            default_engine=self.default_engine,
            allow_experimental_plugins=self.allow_experimental_plugins,
            disable_endpoint_subset_filter=self.disable_endpoint_subset_filter,
            emit_endpoint_scores=self.emit_endpoint_scores,
            track_responses=self.track_responses,
            engine_api_key=self.engine_api_key,
            engine_control_api_key=self.engine_control_api_key,
            default_model=self.default_model or "",
        )

    def server_options(self) -> ServerOptions:
        """The part that concerns the wire."""
        if self.secure_serving and self.cert_path is None:
            raise ConfigError("--secure-serving needs --cert-path, a directory with a certificate")
        is_secure = self.cert_path is not None and self.secure_serving is not False
        return ServerOptions(
            host=self.host,
            grpc_port=_port("--grpc-port", self.grpc_port),
            grpc_health_port=_port("--grpc-health-port", self.grpc_health_port),
            cert_path=self.cert_path if is_secure else None,
            measures_streams=self.enable_grpc_stream_metrics,
            max_receive_bytes=_positive("--grpc-max-recv-msg-size", self.grpc_max_recv_msg_size),
            max_send_bytes=_positive("--grpc-max-send-msg-size", self.grpc_max_send_msg_size),
            limits=Limits(
                max_body_bytes=_positive("--max-body-bytes", self.max_body_bytes),
                max_streams=_positive("--max-concurrent-requests", self.max_concurrent_requests),
            ),
        )


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
    allowed_hosts: Annotated[
        list[str] | None,
        Parameter(
            group=SERVER,
            negative=(),
            help="Name that clients may ask by (header Host) beside addresses and localhost, or *; repeatable.",
        ),
    ] = None
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
        bool, Parameter(group=SERVER, help="Tell clients why in x-weft-decision.")
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
    config: Annotated[
        Path | None,
        Parameter(group=SERVER, help="File with these settings: TOML, YAML or JSON."),
    ] = None


def read_token(path: Path) -> str:
    """The token in a file; `ConfigError` if there is none that a header could carry."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--metrics-token-file {path}: cannot be read: {error}") from error
    if not token or any(char.isspace() or not char.isprintable() for char in token):
        raise ConfigError(f"--metrics-token-file {path}: must hold one word")
    return token


def _port(flag: str, port: int) -> int:
    if not 0 <= port <= 65535:
        raise ConfigError(f"{flag} must be between 0 and 65535, not {port}")
    return port


def _positive(flag: str, value: int | None) -> int:
    if value is None or not 0 < value < 2**31:
        raise ConfigError(f"{flag} must be between 1 and 2147483647, not {value}")
    return value
