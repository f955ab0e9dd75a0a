"""Flags of the reference picker that charts and guides pass, and that set nothing else here.

Each is mapped, or has no effect and the log says so once, or is refused with the reason.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import Parameter

from weft.cli.flags import GROUPS
from weft.core.errors import ConfigError

_GROUP: Final = GROUPS["Compatibility"]
_ABSENT: Final = GROUPS["Not offered"]

_TRACING: Final = "no traces are sent"
_PPROF: Final = "there is no Go runtime to profile; py-spy can, from outside"
_LEADER: Final = "pickers do not elect a leader; each serves"
_KUBERNETES: Final = "Kubernetes discovery is not offered yet; use --endpoint or file-discovery"
_GAUGES: Final = "gauges are brought up to date whenever somebody reads them"
_CIPHERS: Final = "gRPC chooses; set GRPC_SSL_CIPHER_SUITES in the environment"
_METRICS_TLS: Final = "the metrics port serves no TLS; protect it with --metrics-token-file"
_SERIES: Final = "name the series in core-metrics-extractor of the configuration"
_GATES: Final = "gates stand in featureGates of the configuration"

_DEBUG_VERBOSITY: Final = 4  # from here on the reference logs what it calls debug


def _off(reason: str) -> Parameter:
    return Parameter(group=_ABSENT, help=f"Refused: {reason}.")


def _idle(help_: str) -> Parameter:
    return Parameter(group=_GROUP, help=help_)


@dataclass(frozen=True, kw_only=True)
class ReferenceFlags:
    """As the reference names them."""

    v: Annotated[
        int | None,
        Parameter(
            name=["--v", "-v"], group=_GROUP, help="Verbosity; from 4 on, --log-level debug."
        ),
    ] = None
    zap_log_level: Annotated[
        str | None, _idle("As --log-level: debug, info or error, or a number as for --v.")
    ] = None
    zap_encoder: Annotated[str | None, _idle("No effect: logs are lines of text.")] = None
    zap_devel: Annotated[bool | None, _idle("No effect.")] = None
    zap_stacktrace_level: Annotated[str | None, _idle("No effect.")] = None
    zap_time_encoding: Annotated[str | None, _idle("No effect.")] = None
    health_checking: Annotated[bool | None, _idle("No effect: health is always served.")] = None
    tls_min_version: Annotated[
        str | None, _idle("VersionTLS12, which is what gRPC serves; others are refused.")
    ] = None

    tracing: Annotated[bool, _off(_TRACING)] = False
    enable_pprof: Annotated[bool, _off(_PPROF)] = False
    ha_enable_leader_election: Annotated[bool, _off(_LEADER)] = False
    endpoint_selector: Annotated[str | None, _off(_KUBERNETES)] = None
    endpoint_target_ports: Annotated[str | None, _off(_KUBERNETES)] = None
    refresh_prometheus_metrics_interval: Annotated[str | None, _off(_GAUGES)] = None
    tls_cipher_suites: Annotated[str | None, _off(_CIPHERS)] = None
    metrics_cert_dir: Annotated[str | None, _off(_METRICS_TLS)] = None
    metrics_client_ca_file: Annotated[str | None, _off(_METRICS_TLS)] = None
    total_queued_requests_metric: Annotated[str | None, _off(_SERIES)] = None
    total_running_requests_metric: Annotated[str | None, _off(_SERIES)] = None
    kv_cache_usage_percentage_metric: Annotated[str | None, _off(_SERIES)] = None
    lora_info_metric: Annotated[str | None, _off(_SERIES)] = None
    cache_info_metric: Annotated[str | None, _off(_SERIES)] = None
    feature_gates: Annotated[str | None, _off(_GATES)] = None

    def refuse_what_is_not_offered(self) -> None:
        """No flag is taken and ignored; `ConfigError` says why there is no such thing."""
        for name, reason in _REFUSED.items():
            if getattr(self, name) not in {False, None}:
                raise ConfigError(f"--{name.replace('_', '-')} is refused: {reason}")
        if self.tls_min_version not in {None, "1.2", "TLS1.2", "VersionTLS12"}:
            raise ConfigError(
                f"--tls-min-version {self.tls_min_version} is refused: gRPC serves 1.2 and 1.3"
            )

    def without_effect(self) -> Iterator[str]:
        """The flags that were given and set nothing."""
        for name in (
            "zap_encoder", "zap_devel", "zap_stacktrace_level", "zap_time_encoding",
            "health_checking",
        ):  # fmt: skip
            if getattr(self, name) is not None:
                yield f"--{name.replace('_', '-')}"

    def is_debugging(self) -> bool:
        """Whether one of them turns on the debug log; `ConfigError` for a level that does not exist."""
        level = self.zap_log_level
        if level is not None and level.isdecimal():
            level = "debug" if int(level) >= _DEBUG_VERBOSITY else "info"
        if level not in {None, "debug", "info", "error", "panic"}:
            raise ConfigError("--zap-log-level must be debug, info, error, panic or a number")
        return level == "debug" or (self.v is not None and self.v >= _DEBUG_VERBOSITY)


_REFUSED: Final = {
    "tracing": _TRACING,
    "enable_pprof": _PPROF,
    "ha_enable_leader_election": _LEADER,
    "endpoint_selector": _KUBERNETES,
    "endpoint_target_ports": _KUBERNETES,
    "refresh_prometheus_metrics_interval": _GAUGES,
    "tls_cipher_suites": _CIPHERS,
    "metrics_cert_dir": _METRICS_TLS,
    "metrics_client_ca_file": _METRICS_TLS,
    "total_queued_requests_metric": _SERIES,
    "total_running_requests_metric": _SERIES,
    "kv_cache_usage_percentage_metric": _SERIES,
    "lora_info_metric": _SERIES,
    "cache_info_metric": _SERIES,
    "feature_gates": _GATES,
}
