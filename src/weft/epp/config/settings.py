"""Parameters of the plugins that watch the pool: where load is read, and where endpoints are listed."""

import re
from typing import Annotated

import msgspec

from weft.epp.config.quantity import parse_duration_s
from weft.epp.decision.plugin import Parameters

_SPEC = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>[^{}]*)\})?", re.ASCII)
_PATH = re.compile(r"/[^\s\x00-\x1f\x7f]*")
_PORT = Annotated[int, msgspec.Meta(ge=1, le=65535)]
_BASE_TICK_S = 0.05


class MetricsSourceParameters(Parameters, frozen=True, kw_only=True):
    """How endpoints' metrics are fetched."""

    scheme: str = "http"
    path: str | None = None  # None: where the engine has them, mostly /metrics
    port: _PORT | None = None  # None: the endpoint's metrics port
    interval: str | None = None  # None: the picker's
    insecure_skip_verify: bool = True
    ca_cert_path: str | None = None
    client_cert_path: str | None = None
    client_key_path: str | None = None

    def __post_init__(self) -> None:
        if self.scheme not in {"http", "https"}:
            raise ValueError(f"scheme must be http or https, got {self.scheme!r}")
        if self.path is not None and not _PATH.fullmatch(self.path):
            raise ValueError(f"path must begin with / and hold no blanks, got {self.path!r}")
        if (self.client_cert_path is None) != (self.client_key_path is None):
            raise ValueError("clientCertPath and clientKeyPath go together")
        if self.interval is not None:
            ticks = parse_duration_s(self.interval) / _BASE_TICK_S
            if ticks < 1 or abs(ticks - round(ticks)) > 1e-6:
                raise ValueError(f"interval must be a multiple of 50ms, got {self.interval!r}")


class SeriesSpec(msgspec.Struct, frozen=True):
    """A series and the labels it must have."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()


def parse_series_spec(text: str) -> SeriesSpec:
    """`name` or `name{label=value,...}`; raises `ValueError`."""
    match = _SPEC.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"must be name or name{{label=value,...}}, got {text!r}")
    labels = []
    for pair in filter(None, (part.strip() for part in (match["labels"] or "").split(","))):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{pair!r} is not label=value in {text!r}")
        labels.append((key.strip(), value.strip().strip('"')))
    return SeriesSpec(match["name"], tuple(labels))


class CustomMetric(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """A series kept under a key of its own."""

    attribute_key: Annotated[str, msgspec.Meta(min_length=1)]
    metric_spec: str

    def __post_init__(self) -> None:
        parse_series_spec(self.metric_spec)


class EngineConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """The series of one kind of model server; what is left out keeps its built-in name, if it has one."""

    name: str
    queued_requests_spec: str | None = None
    running_requests_spec: str | None = None
    kv_usage_spec: str | None = msgspec.field(default=None, name="kvUsageSpec")
    lora_spec: str | None = None
    cache_info_spec: str | None = None
    cache_block_size_label_name: str | None = None
    cache_num_blocks_label_name: str | None = None
    cache_block_size_spec: str | None = None
    cache_num_blocks_spec: str | None = None
    custom_metrics: list[CustomMetric] = []

    def __post_init__(self) -> None:
        for spec in (
            self.queued_requests_spec, self.running_requests_spec, self.kv_usage_spec,
            self.lora_spec, self.cache_info_spec, self.cache_block_size_spec,
            self.cache_num_blocks_spec,
        ):  # fmt: skip
            if spec:  # empty: the server has no such series
                parse_series_spec(spec)


class ExtractorParameters(Parameters, frozen=True, kw_only=True):
    """Which server an endpoint is, and what its series are called."""

    engine_label_key: str = "llm-d.ai/engine-type"
    default_engine: str = "vllm"
    engine_configs: list[EngineConfig] = []

    def __post_init__(self) -> None:
        names = [engine.name for engine in self.engine_configs]
        if len(set(names)) != len(names):
            raise ValueError("engineConfigs: two entries have the same name")


class FileDiscoveryParameters(Parameters, frozen=True, kw_only=True):
    """The endpoints file."""

    path: Annotated[str, msgspec.Meta(min_length=1)]
    watch_file: bool = False
