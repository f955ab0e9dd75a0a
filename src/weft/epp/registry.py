"""The table of plugin types: what a configuration may name, and what is refused with a reason."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from weft.epp.handlers.single import SingleProfileHandler
from weft.epp.pickers import MaxScorePicker, PickerParameters, RandomPicker, WeightedRandomPicker
from weft.epp.plugin import Kind, PluginType
from weft.epp.producers import approximate_prefix, inflight, tokens
from weft.epp.saturation import (
    ConcurrencyDetector,
    ConcurrencyParameters,
    UtilizationDetector,
    UtilizationParameters,
)
from weft.epp.scorers.load import (
    KvUsageScorer,
    LoadAwareParameters,
    LoadAwareScorer,
    QueueScorer,
    RunningScorer,
)
from weft.epp.scorers.prefix import PrefixScorer, PrefixScorerParameters


def _nothing(_: object, __: object) -> None:
    """For types whose parameters are read by whoever starts that part."""


_SCORERS: Final = (
    PluginType(type="queue-scorer", kinds=frozenset({Kind.SCORER}), build=QueueScorer),
    PluginType(
        type="running-requests-size-scorer", kinds=frozenset({Kind.SCORER}), build=RunningScorer
    ),
    PluginType(
        type="kv-cache-utilization-scorer", kinds=frozenset({Kind.SCORER}), build=KvUsageScorer
    ),
    PluginType(
        type="load-aware-scorer",
        kinds=frozenset({Kind.SCORER}),
        build=LoadAwareScorer,
        parameters=LoadAwareParameters,
    ),
    PluginType(
        type="prefix-cache-scorer",
        kinds=frozenset({Kind.SCORER}),
        build=PrefixScorer,
        parameters=PrefixScorerParameters,
    ),
)
_PICKERS: Final = tuple(
    PluginType(type=name, kinds=frozenset({Kind.PICKER}), build=build, parameters=PickerParameters)
    for name, build in (
        ("max-score-picker", MaxScorePicker),
        ("random-picker", RandomPicker),
        ("weighted-random-picker", WeightedRandomPicker),
    )
)
_PRODUCERS: Final = (
    PluginType(
        type=tokens.TYPE,
        kinds=frozenset({Kind.PRODUCER}),
        build=tokens.TokenProducer,
        parameters=tokens.TokenParameters,
        aliases=("tokenizer",),
    ),
    PluginType(
        type=approximate_prefix.TYPE,
        kinds=frozenset({Kind.PRODUCER}),
        build=approximate_prefix.ApproximatePrefixProducer,
        parameters=approximate_prefix.ApproximateParameters,
    ),
    PluginType(
        type=inflight.TYPE,
        kinds=frozenset({Kind.PRODUCER}),
        build=inflight.InflightLoad,
        parameters=inflight.InflightParameters,
    ),
)
_DETECTORS: Final = (
    PluginType(
        type="utilization-detector",
        kinds=frozenset({Kind.DETECTOR, Kind.FILTER}),
        build=UtilizationDetector,
        parameters=UtilizationParameters,
    ),
    PluginType(
        type="concurrency-detector",
        kinds=frozenset({Kind.DETECTOR, Kind.FILTER}),
        build=ConcurrencyDetector,
        parameters=ConcurrencyParameters,
    ),
)
_HANDLERS: Final = (
    PluginType(
        type="single-profile-handler", kinds=frozenset({Kind.HANDLER}), build=SingleProfileHandler
    ),
)
PARSER_TYPES: Final = (
    "openai-parser",
    "anthropic-parser",
    "vllmhttp-parser",
    "sglanghttp-parser",
    "vllmgrpc-parser",
    "vertexai-parser",
    "passthrough-parser",
)
_PARSERS: Final = tuple(
    PluginType(type=name, kinds=frozenset({Kind.PARSER}), build=_nothing) for name in PARSER_TYPES
)
_DATA: Final = (
    PluginType(type="metrics-data-source", kinds=frozenset({Kind.SOURCE}), build=_nothing),
    PluginType(type="core-metrics-extractor", kinds=frozenset({Kind.EXTRACTOR}), build=_nothing),
)

PLUGIN_TYPES: Final[Mapping[str, PluginType]] = MappingProxyType(
    {
        name: row
        for row in (*_SCORERS, *_PICKERS, *_PRODUCERS, *_DETECTORS, *_HANDLERS, *_PARSERS, *_DATA)
        for name in (row.type, *row.aliases)
    }
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
        "always-disagg-multimodal-decider": _MEDIA,
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
