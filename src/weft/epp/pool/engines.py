"""Load series of each kind of model server, and the conversion of a metrics page to a `Load`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from types import MappingProxyType
from typing import Any, Final

import msgspec

from weft.core.checks.object_ids import STORE_SERIES, is_store_name
from weft.epp.config.parameters import Name, Parameters, Part
from weft.epp.pool.endpoint import Adapters, Load, as_count, as_share
from weft.epp.pool.exposition import (
    Sample,
    SamplesBySeries,
    SeriesReader,
    SeriesSpec,
    finite,
    parse_series_spec,
    read_page,
    select,
)


class CustomMetric(Part, frozen=True, kw_only=True):
    """A metric series that is stored as an attribute of the endpoint."""

    attribute_key: Name
    metric_spec: str

    def __post_init__(self) -> None:
        parse_series_spec(self.metric_spec)


class EngineConfig(Part, frozen=True, kw_only=True):
    """Configured series names of one kind of model server. A series that is not given keeps its built-in name, if there
    is one.
    """

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
        for spec in self.given().values():
            if spec:  # empty if the server has no such series
                parse_series_spec(spec)

    def given(self) -> dict[str, str]:
        """Returns the configured series names, by field of `EngineSeries`."""
        specs = {
            "queued": self.queued_requests_spec,
            "running": self.running_requests_spec,
            "kv_usage": self.kv_usage_spec,
            "lora": self.lora_spec,
            "cache_info": self.cache_info_spec,
            "block_size": self.cache_block_size_spec,
            "num_blocks": self.cache_num_blocks_spec,
        }
        return {field: text for field, text in specs.items() if text is not None}


class ExtractorParameters(Parameters, frozen=True, kw_only=True):
    """The label with an endpoint's kind of model server, and the series names of each kind."""

    engine_label_key: str = "llm-d.ai/engine-type"
    default_engine: str = "vllm"
    engine_configs: list[EngineConfig] = []

    def __post_init__(self) -> None:
        names = [engine.name for engine in self.engine_configs]
        if len(set(names)) != len(names):
            raise ValueError("engineConfigs: two entries have the same name")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSeries:
    """The series names of one kind of model server. Each tuple has alternative names, the newest first."""

    queued: tuple[SeriesSpec, ...] = ()
    running: tuple[SeriesSpec, ...] = ()
    kv_usage: tuple[SeriesSpec, ...] = ()
    lora: tuple[SeriesSpec, ...] = ()
    # Series whose labels hold block size and number of blocks.
    cache_info: tuple[SeriesSpec, ...] = ()
    block_size_label: str = "block_size"
    num_blocks_label: str = "num_gpu_blocks"
    block_size: tuple[SeriesSpec, ...] = ()  # series whose value is the block size
    num_blocks: tuple[SeriesSpec, ...] = ()
    custom: tuple[tuple[str, SeriesSpec], ...] = ()
    store: tuple[SeriesSpec, ...] = ()  # series whose label has the name of the server's store
    path: str = "/metrics"


def _specs(*texts: str) -> tuple[SeriesSpec, ...]:
    return tuple(map(parse_series_spec, texts))


ENGINES: Final[Mapping[str, EngineSeries]] = MappingProxyType(
    {
        "vllm": EngineSeries(
            queued=_specs("vllm:num_requests_waiting"),
            running=_specs("vllm:num_requests_running"),
            kv_usage=_specs("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            lora=_specs("vllm:lora_requests_info"),
            cache_info=_specs("vllm:cache_config_info"),
            store=_specs(STORE_SERIES[0]),
        ),
        "sglang": EngineSeries(
            queued=_specs("sglang:num_queue_reqs"),
            running=_specs("sglang:num_running_reqs"),
            kv_usage=_specs("sglang:token_usage"),
            cache_info=_specs("sglang:cache_config_info"),
            block_size_label="page_size",
            num_blocks_label="num_pages",
            block_size=_specs("sglang:page_size"),  # replaces the labels from version 0.5.11 on
            num_blocks=_specs("sglang:num_pages"),
        ),
        "trtllm-serve": EngineSeries(
            queued=_specs("trtllm_num_requests_waiting"),
            running=_specs("trtllm_num_requests_running"),
            kv_usage=_specs("trtllm_kv_cache_utilization"),
            block_size=_specs("trtllm_kv_cache_tokens_per_block"),
            num_blocks=_specs("trtllm_kv_cache_max_blocks"),
            path="/prometheus/metrics",  # /metrics returns JSON
        ),
        "triton-tensorrt-llm": EngineSeries(
            queued=_specs("nv_trt_llm_request_metrics{request_type=waiting}"),
            running=_specs("nv_trt_llm_request_metrics{request_type=scheduled}"),
            kv_usage=_specs("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}"),
            block_size=_specs("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}"),
            num_blocks=_specs("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}"),
        ),
        "triton": EngineSeries(
            queued=_specs("nv_inference_pending_request_count"),
            running=_specs("nv_inference_exec_count"),
        ),
    }
)


def configured(config: EngineConfig) -> EngineSeries:
    """Returns a built-in kind of model server with the configured changes, or a new kind."""
    series = ENGINES.get(config.name, EngineSeries())
    changes: dict[str, Any] = {
        field: _specs(text) if text else () for field, text in config.given().items()
    }
    custom = tuple(
        (metric.attribute_key, parse_series_spec(metric.metric_spec))
        for metric in config.custom_metrics
    )
    return replace(
        series,
        **changes,
        custom=custom,
        block_size_label=config.cache_block_size_label_name or series.block_size_label,
        num_blocks_label=config.cache_num_blocks_label_name or series.num_blocks_label,
    )


class LoadReader:
    """Converts the metrics text of one server to its load."""

    def __init__(self, series: EngineSeries) -> None:
        self._series = series
        self.path = series.path
        groups = (
            series.queued, series.running, series.kv_usage, series.lora, series.cache_info,
            series.block_size, series.num_blocks, series.store, tuple(spec for _, spec in series.custom),
        )  # fmt: skip
        self._reader = SeriesReader({spec.name for group in groups for spec in group})

    async def read_page(self, page: bytes) -> Load | None:
        """Returns the load on a metrics page, which may be long; None if the page has none of the expected series, or
        too many.
        """
        return self._load(await read_page(self._reader, page))

    def read(self, text: str) -> Load | None:
        """Returns the load in a metrics text; None if the text has none of the expected series."""
        return self._load(self._reader.read(text))

    def _load(self, found: SamplesBySeries) -> Load | None:
        if not found:
            return None
        series = self._series
        info = _first(found, series.cache_info)
        return Load(
            num_waiting=_total(_first(found, series.queued)),
            num_running=_total(_first(found, series.running)),
            kv_usage=_mean(_first(found, series.kv_usage)),
            block_size=_label(info, series.block_size_label)
            or _largest(_first(found, series.block_size)),
            num_blocks=_label(info, series.num_blocks_label)
            or _total(_first(found, series.num_blocks)),
            adapters=_adapters(_first(found, series.lora)),
            attributes={
                key: values[0]
                for key, spec in series.custom
                if (values := finite(select(found, spec)))
            },
            store=_store(_first(found, series.store)),
        )


def _first(
    found: Mapping[str, Sequence[Sample]], alternatives: tuple[SeriesSpec, ...]
) -> list[Sample]:
    for spec in alternatives:
        if samples := select(found, spec):
            return samples
    return []


def _total(samples: Sequence[Sample]) -> int:
    """Returns the sum over the ranks of a server. A series without a priority label is the total of the series with
    one.
    """
    whole = [sample for sample in samples if not sample.labels.get("priority")]
    return as_count(sum(map(as_count, finite(whole or samples))))


def _largest(samples: Sequence[Sample]) -> int:
    """Returns the largest value of all ranks; used for values that all ranks share."""
    return as_count(max(finite(samples), default=0))


def _mean(samples: Sequence[Sample]) -> float:
    values = finite(samples)
    return as_share(fmean(values)) if values else 0.0


def _label(samples: Sequence[Sample], label: str) -> int:
    text = samples[0].labels.get(label, "") if samples else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


def _adapters(samples: Sequence[Sample]) -> Adapters:
    """Returns the adapters in the newest series: the value of each series is the time when it was written."""
    if not samples:
        return Adapters()
    labels = max(samples, key=lambda sample: sample.value).labels
    return Adapters(
        active=_names(labels.get("running_lora_adapters", "")),
        waiting=_names(labels.get("waiting_lora_adapters", "")),
        max_active=_label([Sample(labels, 0.0)], "max_lora"),
    )


def _store(samples: Sequence[Sample]) -> str:
    name = samples[0].labels.get(STORE_SERIES[1], "") if samples else ""
    return name if is_store_name(name) else ""


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())
