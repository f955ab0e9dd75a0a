"""Flags of llm-d's reference picker, which its charts and guides pass and which Weft's picker has no setting of its own
for.

Each flag is translated, or refused with the reason, or has no effect, which the log says once.
"""

from collections.abc import Iterator
from typing import Annotated, Final

from weft.cli.arguments.flags import flags, flags_under
from weft.core.errors import ConfigError
from weft.core.values.declare import Flag, spelled

_METRICS_TLS: Final = "the metrics port serves no TLS; protect it with --metrics-token-file"
_SERIES: Final = "name the series in core-metrics-extractor of the configuration"

_NOT_OFFERED: Final = "Not offered"
_IDLE: Final = "Compatibility"
_NO_EFFECT: Final = "No effect"
_DEBUG_VERBOSITY: Final = 4  # from this level on, the reference logs debug messages


def _off(reason: str) -> Flag:
    return Flag(f"Refused: {reason}.", _NOT_OFFERED)


def _idle(help_: str) -> Flag:
    return Flag(help_, _IDLE)


@flags()
class ReferenceFlags:
    """Flags with the names that llm-d's reference picker uses."""

    v: Annotated[int | None, _idle("Verbosity; from 4 on, --log-level debug.")] = None
    zap_log_level: Annotated[
        str | None, _idle("As --log-level: debug, info or error, or a number as for --v.")
    ] = None
    zap_encoder: Annotated[
        str | None, _idle("As --log-format: json, or console, which is text.")
    ] = None
    zap_devel: Annotated[bool | None, _idle(_NO_EFFECT + ".")] = None
    zap_stacktrace_level: Annotated[str | None, _idle(_NO_EFFECT + ".")] = None
    zap_time_encoding: Annotated[str | None, _idle(_NO_EFFECT + ".")] = None
    health_checking: Annotated[bool | None, _idle(_NO_EFFECT + ": health is always served.")] = None
    tls_min_version: Annotated[
        str | None, _idle("VersionTLS12: TLS 1.2 and 1.3 are served; others are refused.")
    ] = None

    enable_pprof: Annotated[bool, _off("there is no Go runtime to profile; use py-spy")] = False
    refresh_prometheus_metrics_interval: Annotated[
        str | None, _off("gauges are updated whenever the metrics are read")
    ] = None
    tls_cipher_suites: Annotated[str | None, _off("OpenSSL chooses them")] = None
    metrics_cert_dir: Annotated[str | None, _off(_METRICS_TLS)] = None
    metrics_client_ca_file: Annotated[str | None, _off(_METRICS_TLS)] = None
    total_queued_requests_metric: Annotated[str | None, _off(_SERIES)] = None
    total_running_requests_metric: Annotated[str | None, _off(_SERIES)] = None
    kv_cache_usage_percentage_metric: Annotated[str | None, _off(_SERIES)] = None
    lora_info_metric: Annotated[str | None, _off(_SERIES)] = None
    cache_info_metric: Annotated[str | None, _off(_SERIES)] = None
    feature_gates: Annotated[str | None, _off("set featureGates in the configuration file")] = None

    plugin_state_staleness_threshold: Annotated[
        str | None,
        _off("plugins' state of a request is deleted when it ends, at the latest after an hour"),
    ] = None
    fairness_id_metric_label_limit: Annotated[
        str | None,
        _off(
            "the first thousand fairness ids have metric series of their own; all others share one"
        ),
    ] = None

    def refuse_what_is_not_offered(self) -> None:
        """Raises a `ConfigError` with the reason if a flag is given that Weft does not support: no such flag is
        silently ignored.
        """
        for name, flag in flags_under(ReferenceFlags, _NOT_OFFERED):
            if getattr(self, name) not in {False, None}:
                raise ConfigError(
                    f"{spelled(name)} {flag.help.replace('Refused', 'is refused')[:-1]}"
                )
        if self.tls_min_version not in {None, "1.2", "TLS1.2", "VersionTLS12"}:
            raise ConfigError(
                f"--tls-min-version {self.tls_min_version} is refused: TLS 1.2 and 1.3 are served"
            )

    def without_effect(self) -> Iterator[str]:
        """Yields the given flags that have no effect."""
        for name, flag in flags_under(ReferenceFlags, _IDLE):
            if flag.help.startswith(_NO_EFFECT) and getattr(self, name) is not None:
                yield spelled(name)

    def wants_json(self) -> bool:
        """True if a flag asks for JSON logs. Raises `ConfigError` for an unknown format."""
        if self.zap_encoder not in {None, "json", "console"}:
            raise ConfigError("--zap-encoder must be json or console")
        return self.zap_encoder == "json"

    def is_debugging(self) -> bool:
        """True if a flag enables debug logs. Raises `ConfigError` for an unknown level."""
        level = self.zap_log_level
        if level is not None and level.isdecimal():
            level = "debug" if int(level) >= _DEBUG_VERBOSITY else "info"
        if level not in {None, "debug", "info", "error", "panic"}:
            raise ConfigError("--zap-log-level must be debug, info, error, panic or a number")
        return level == "debug" or (self.v is not None and self.v >= _DEBUG_VERBOSITY)
