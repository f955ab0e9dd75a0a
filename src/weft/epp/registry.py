"""The table of plugin types: what a configuration may name, and what is refused with a reason."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from weft.epp.config.settings import (
    ExtractorParameters,
    FileDiscoveryParameters,
    MetricsSourceParameters,
)
from weft.epp.decision import pickers, saturation, session
from weft.epp.decision.plugin import Kind, NoParameters, Parameters, PluginType
from weft.epp.filters import header_testing, labels, limits, prefix_affinity
from weft.epp.handlers import disagg, others
from weft.epp.handlers.single import SingleProfileHandler
from weft.epp.producers import approximate_prefix, inflight, precise_prefix, tokens
from weft.epp.scorers import affinity, attribute, context_length, load, prefix
from weft.epp.scorers import inflight as inflight_scorers

_HEADERS_NOTE = "nothing: the profile handler sets the headers itself"


def _nothing(_: object, __: object) -> None:
    """For types whose parameters are read by whoever starts that part."""


def _row(
    type_name: str,
    kinds: Kind | tuple[Kind, ...],
    build: Callable[[Any, Any], Any] = _nothing,
    parameters: type[Parameters] = NoParameters,
    **more: Any,
) -> PluginType:
    wanted = frozenset(kinds if isinstance(kinds, tuple) else (kinds,))
    return PluginType(type_name=type_name, kinds=wanted, build=build, parameters=parameters, **more)


_FILTERS: Final = (
    _row("label-selector-filter", Kind.FILTER, labels.LabelSelectorFilter,
         labels.SelectorParameters, aliases=("by-label-selector",)),
    _row("by-label", Kind.FILTER, labels.LabelFilter, labels.LabelParameters,
         replacement="label-selector-filter"),
    _row("decode-filter", Kind.FILTER, labels.decode_filter),
    _row("prefill-filter", Kind.FILTER, labels.prefill_filter),
    _row("encode-filter", Kind.FILTER, labels.encode_filter),
    _row("prefix-cache-affinity-filter", Kind.FILTER, prefix_affinity.PrefixAffinityFilter,
         prefix_affinity.PrefixAffinityParameters),
    _row("session-affinity-filter", Kind.FILTER, session.SessionAffinity,
         session.SessionParameters, is_alpha=True),
    _row("utilization-filter", Kind.FILTER, limits.UtilizationFilter,
         limits.UtilizationFilterParameters, is_alpha=True),
    _row("endpoint-attribute-filter", Kind.FILTER, limits.AttributeFilter,
         limits.AttributeFilterParameters, is_alpha=True),
    _row("header-based-testing-filter", Kind.FILTER, header_testing.HeaderTestingFilter),
)  # fmt: skip
_SCORERS: Final = (
    _row("queue-scorer", Kind.SCORER, load.QueueScorer),
    _row("running-requests-size-scorer", Kind.SCORER, load.RunningScorer),
    _row("kv-cache-utilization-scorer", Kind.SCORER, load.KvUsageScorer),
    _row("load-aware-scorer", Kind.SCORER, load.LoadAwareScorer, load.LoadAwareParameters),
    _row("active-request-scorer", Kind.SCORER, inflight_scorers.ActiveRequestScorer,
         inflight_scorers.ActiveRequestParameters),
    _row("token-load-scorer", Kind.SCORER, inflight_scorers.TokenLoadScorer,
         inflight_scorers.TokenLoadParameters),
    _row("prefix-cache-scorer", Kind.SCORER, prefix.PrefixScorer, prefix.PrefixScorerParameters),
    _row("precise-prefix-cache-scorer", (Kind.SCORER, Kind.PRODUCER),
         precise_prefix.PrecisePrefixScorer, precise_prefix.PreciseParameters,
         replacement="precise-prefix-cache-producer with prefix-cache-scorer"),
    _row("lora-affinity-scorer", Kind.SCORER, affinity.LoraAffinityScorer),
    _row("session-affinity-scorer", Kind.SCORER, session.SessionAffinity,
         session.SessionParameters, is_alpha=True),
    _row("no-hit-lru-scorer", Kind.SCORER, affinity.NoHitLruScorer, affinity.NoHitLruParameters),
    _row("context-length-aware", (Kind.SCORER, Kind.FILTER), context_length.ContextLengthAware,
         context_length.ContextLengthParameters),
    _row("header-label-affinity-scorer", Kind.SCORER, affinity.HeaderLabelScorer,
         affinity.HeaderLabelParameters, is_alpha=True),
    _row("endpoint-attribute-scorer", Kind.SCORER, attribute.AttributeScorer,
         attribute.AttributeScorerParameters, is_alpha=True),
)  # fmt: skip
_PICKERS: Final = (
    _row("max-score-picker", Kind.PICKER, pickers.MaxScorePicker, pickers.PickerParameters),
    _row("random-picker", Kind.PICKER, pickers.RandomPicker, pickers.PickerParameters),
    _row("weighted-random-picker", Kind.PICKER, pickers.WeightedRandomPicker,
         pickers.PickerParameters),
)  # fmt: skip
_PRODUCERS: Final = (
    _row(tokens.TYPE, Kind.PRODUCER, tokens.TokenProducer, tokens.TokenParameters,
         aliases=("tokenizer",)),
    _row(approximate_prefix.TYPE, Kind.PRODUCER, approximate_prefix.ApproximatePrefixProducer,
         approximate_prefix.ApproximateParameters),
    _row(precise_prefix.TYPE, Kind.PRODUCER, precise_prefix.PrecisePrefixProducer,
         precise_prefix.PreciseParameters),
    _row(inflight.TYPE, Kind.PRODUCER, inflight.InflightLoad, inflight.InflightParameters),
    _row("session-id-producer", Kind.PRODUCER, session.SessionIdProducer,
         session.SessionIdParameters),
)  # fmt: skip
_DETECTORS: Final = (
    _row("utilization-detector", (Kind.DETECTOR, Kind.FILTER), saturation.UtilizationDetector,
         saturation.UtilizationParameters),
    _row("concurrency-detector", (Kind.DETECTOR, Kind.FILTER), saturation.ConcurrencyDetector,
         saturation.ConcurrencyParameters),
)  # fmt: skip
_HANDLERS: Final = (
    _row("single-profile-handler", Kind.HANDLER, SingleProfileHandler),
    _row("disagg-profile-handler", Kind.HANDLER, disagg.DisaggHandler, disagg.DisaggParameters),
    _row("pd-profile-handler", Kind.HANDLER, disagg.pd_handler, disagg.PdParameters,
         replacement="disagg-profile-handler"),
    _row("disagg-headers-handler", (), parameters=disagg.HeadersParameters,
         aliases=("prefill-header-handler",), replacement=_HEADERS_NOTE),
    _row("header-profile-handler", Kind.HANDLER, others.HeaderHandler,
         others.HeaderHandlerParameters, is_alpha=True),
    _row("data-parallel-profile-handler", Kind.HANDLER, others.DataParallelHandler,
         others.DataParallelParameters, replacement="one endpoint per rank"),
    _row("prefix-based-pd-decider", Kind.DECIDER, disagg.PrefixDecider,
         disagg.PrefixDeciderParameters),
    _row("always-disagg-pd-decider", Kind.DECIDER, disagg.AlwaysDecider),
    _row("always-disagg-multimodal-decider", Kind.DECIDER, disagg.MediaDecider),
)  # fmt: skip
PARSER_TYPES: Final = (
    "openai-parser",
    "anthropic-parser",
    "vllmhttp-parser",
    "sglanghttp-parser",
    "vllmgrpc-parser",
    "vertexai-parser",
    "passthrough-parser",
)
_PARSERS: Final = tuple(_row(name, Kind.PARSER) for name in PARSER_TYPES)
_DATA: Final = (
    _row("metrics-data-source", Kind.SOURCE, parameters=MetricsSourceParameters),
    _row("core-metrics-extractor", Kind.EXTRACTOR, parameters=ExtractorParameters),
    _row("file-discovery", Kind.DISCOVERY, parameters=FileDiscoveryParameters),
)

_ROWS: Final = (
    *_FILTERS, *_SCORERS, *_PICKERS, *_PRODUCERS, *_DETECTORS, *_HANDLERS, *_PARSERS, *_DATA,
)  # fmt: skip
PLUGIN_TYPES: Final[Mapping[str, PluginType]] = MappingProxyType(
    {name: row for row in _ROWS for name in (row.type_name, *row.aliases)}
)

_LATENCY = "latency prediction and SLO routing are not offered yet"
_FLOW = "flow control is not offered yet"
_KUBERNETES = "Kubernetes discovery is not offered yet; use file-discovery or static endpoints"
_MEDIA = "media caches are not followed yet"
_TOPOLOGY = "topology-aware routing is not offered yet"

REFUSED_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "predicted-latency-producer": _LATENCY,
        "latency-scorer": _LATENCY,
        "latency-slo-admitter": _LATENCY,
        "slo-headroom-tier-filter": _LATENCY,
        "slo-deadline-ordering-policy": _FLOW,
        "fcfs-ordering-policy": _FLOW,
        "edf-ordering-policy": _FLOW,
        "global-strict-fairness-policy": _FLOW,
        "round-robin-fairness-policy": _FLOW,
        "program-aware-fairness": _FLOW,
        "static-usage-limit-policy": _FLOW,
        "priority-holdback-policy": _FLOW,
        "soft-reflective-ceiling-policy": _FLOW,
        "eviction-sheddable-filter": _FLOW,
        "eviction-priority-then-time-ordering": _FLOW,
        "probabilistic-admitter": _FLOW,
        "k8s-notification-source": _KUBERNETES,
        "endpoint-notification-source": _KUBERNETES,
        "multicluster-data-source": _KUBERNETES,
        "disaggregatedset-rollout-screener": _KUBERNETES,
        "topology-affinity-scorer": _TOPOLOGY,
        "topology-affinity-filter": _TOPOLOGY,
        "topology-extractor": _TOPOLOGY,
        "mm-embeddings-cache-producer": _MEDIA,
        "mm-embeddings-cache-scorer": _MEDIA,
        "burst-prefix-cache-producer": "holding requests back for a window is not offered",
        "p2p-source-producer": "transfers of cached blocks between endpoints are not offered yet",
        "agent-identity": "fairness between flows belongs to flow control, which is not offered yet",
        "request-attribute-reporter": "reporting expressions are not offered yet",
        "models-data-source": "lists of served models are not read yet",
        "models-data-extractor": "lists of served models are not read yet",
        "dcgm-data-source": "GPU telemetry is not read yet",
        "dcgm-extractor": "GPU telemetry is not read yet",
    }
)
