"""The configurations that the reference's charts, guides and samples deploy, in our own words.

Each has the name that it has there, and the plugins, keys and profiles that it is made of.
"""

from typing import Any

from tests.epp.config.written import Plugin, config

_LOADS: tuple[Plugin, ...] = ("queue-scorer", "kv-cache-utilization-scorer")
_METRICS: tuple[Plugin, ...] = ("metrics-data-source", "core-metrics-extractor")
_STAGES: tuple[Plugin, ...] = ("prefill-filter", "decode-filter")
_AFFINE: tuple[Plugin, ...] = (
    "approx-prefix-cache-producer",
    "inflight-load-producer",
    ("prefix-cache-affinity-filter", {"peakPrefillThroughput": 15751, "affinityThreshold": 0.6}),
    "token-load-scorer",
)
_RENDERED: Plugin = (
    "token-producer",
    {"modelName": "some/model", "vllm": {"url": "http://render:8000", "timeout": "5s"}},
)
_FOLLOWING = {"pluginRef": "endpoint-notification-source"}
_POLLING = {
    "pluginRef": "metrics-data-source",
    "extractors": [{"pluginRef": "core-metrics-extractor"}],
}
_BY_PRECISE = {"prefixMatchInfoProducerName": "precise-prefix-cache-producer"}
_BALANCED = "queue-scorer:2 kv-cache-utilization-scorer:2 prefix-cache-scorer:3"
_IMAGES = {
    "mode": "dynamic", "defaultResolution": {"width": 1280, "height": 720}, "dynamic": {"factor": 1024},
}  # fmt: skip


def precise(**more: Any) -> Plugin:
    """The producer of precise matches, with the older keys too."""
    events = {
        "topicFilter": "kv@",
        "discoverPods": True,
        "podDiscoveryConfig": {"socketPort": 5557},
    }
    return (
        "precise-prefix-cache-producer",
        {
            "tokenProcessorConfig": {"blockSize": 64},
            "kvEventsConfig": {"concurrency": 8, **events},
            **more,
        },
    )


def followed(*extractors: str, polls: bool = True) -> dict[str, Any]:
    """A data layer that tells these of endpoints."""
    following = {**_FOLLOWING, "extractors": [{"pluginRef": each} for each in extractors]}
    return {"sources": [_POLLING, following] if polls else [following]}


def in_stages(
    *plugins: Plugin, decider: str = "always-disagg-pd-decider", **parameters: Any
) -> tuple[Plugin, ...]:
    """Plugins of a configuration whose prefill runs apart."""
    wanted = parameters or {"deciders": {"prefill": decider}}
    decides: Plugin = decider if "always" in decider else (decider, {"nonCachedTokens": 16})
    return (*_STAGES, decides, ("disagg-profile-handler", wanted), *plugins)


_PRECISE_POOLS = {"indexerConfig": {"kvBlockIndexConfig": {"inMemoryConfig": {"podCacheSize": 32}}}}
_BY_PREFIX = "prefix-based-pd-decider"
_BOTH = {
    "prefill": "prefill-filter prefix-cache-scorer:2 queue-scorer:1 max-score-picker",
    "decode": "decode-filter prefix-cache-scorer:2 max-score-picker",
}
_TOKEN_LOAD = {
    "prefill": "prefill-filter token-load-scorer prefix-cache-affinity-filter",
    "decode": "decode-filter active-request-scorer",
}
_WIDE = in_stages(
    _RENDERED, "endpoint-notification-source", precise(**_PRECISE_POOLS), "disagg-headers-handler",
    ("inflight-load-producer", _BY_PRECISE), "active-request-scorer", "token-load-scorer",
    ("prefix-cache-affinity-filter", {**_BY_PRECISE, "inFlightLoadProducerName": "inflight-load-producer"}),
    deciderPluginName="always-disagg-pd-decider",
)  # fmt: skip
_SIMULATED_STAGES = {
    "encode": "encode-filter max-score-picker",
    "decode": "decode-filter prefix-cache-scorer:2 max-score-picker",
}


def _predicted(name: str, threshold: float) -> Plugin:
    """An affinity filter that goes by predictions."""
    parameters = {
        "affinityThreshold": threshold,
        "ttftSource": "latencyPredictor",
        "maxTTFTPenaltyMs": 5000,
    }
    return ("prefix-cache-affinity-filter", parameters, f"{name}-affinity-filter")


_BY_SLO: tuple[Plugin, ...] = (
    _predicted("strict", 0.99), _predicted("loose", 0.8),
    "latency-scorer", "weighted-random-picker", "slo-headroom-tier-filter", "latency-slo-admitter",
)  # fmt: skip
_SLO_PROFILE = (
    "strict-affinity-filter slo-headroom-tier-filter loose-affinity-filter latency-scorer "
    "weighted-random-picker"
)
_GATE = ["flowControl"]
_DETECTED: Plugin = ("concurrency-detector", {"maxConcurrency": 132})
_BY_PROGRAM = {"defaultPriorityBand": {"fairnessPolicyRef": "program-aware-fairness"}}


def flow(**more: Any) -> dict[str, Any]:
    """Flow control that is on."""
    return {"featureGates": _GATE, "flowControl": more}


def _source(source: str, extractor: str) -> dict[str, Any]:
    return {"pluginRef": source, "extractors": [{"pluginRef": extractor}]}


def _gpu(attribute: str, **more: Any) -> tuple[Plugin, ...]:
    """Plugins that go by how busy GPUs are."""
    threshold = {"operator": "LessThanOrEqual", "value": 0.9}
    return (
        ("dcgm-data-source", {"port": 9400, "interval": "1s"}), "dcgm-extractor",
        ("endpoint-attribute-filter", {
            "attribute": attribute, "onMissing": "Pass", "fallbackOnEmpty": True, **more,
            "algorithm": {"type": "threshold", "threshold": threshold}}),
        ("endpoint-attribute-scorer", {
            "attributeKey": attribute, **more,
            "algorithm": {"type": "linear_lower_is_better",
                          "normalization": {"fixedRange": {"min": 0.0, "max": 1.0}}}}),
    )  # fmt: skip


_GPU_SOURCE = _source("dcgm-data-source", "dcgm-extractor")
_BY_GPU = {
    "default": "decode-filter endpoint-attribute-filter endpoint-attribute-scorer:2 "
    "kv-cache-utilization-scorer:1 max-score-picker"
}

STARTING = {
    "charts/default": config(
        *_LOADS, "approx-prefix-cache-producer", *_METRICS,
        ("prefix-cache-scorer", {"prefixMatchInfoProducerName": "approx-prefix-cache-producer"}),
        profiles={"default": _BALANCED}, dataLayer={"sources": [_POLLING]},
    ),
    "charts/latency-predictor": config(
        *_LOADS, "prefix-cache-scorer", *_METRICS, "predicted-latency-producer", *_BY_SLO,
        profiles={"default": f"predicted-latency-producer {_SLO_PROFILE}"},
    ),
    "charts/payload-agnostic": config(
        *_LOADS, "passthrough-parser", "session-affinity-scorer",
        requestHandler={"parsers": [{"pluginRef": "passthrough-parser"}]},
    ),
    "guides/optimized-baseline": config(
        *_AFFINE, "active-request-scorer", "weighted-random-picker",
        profiles={"default": "prefix-cache-affinity-filter token-load-scorer weighted-random-picker"},
    ),
    "guides/tiered-prefix-cache": config(
        *_LOADS, "prefix-cache-scorer",
        ("no-hit-lru-scorer", {"lruSize": 64, "prefixPluginName": "prefix-cache-scorer"}),
    ),
    "guides/coord-disaggregation": config(
        "header-profile-handler", *_STAGES, "encode-filter", *_LOADS, "prefix-cache-scorer",
        profiles={"prefill": "prefill-filter queue-scorer:1", "decode": "decode-filter prefix-cache-scorer:2",
                  "encode": "encode-filter"},
    ),
    "guides/pd-disaggregation": config(
        *in_stages("queue-scorer", "prefix-cache-scorer", "max-score-picker", decider=_BY_PREFIX,
                   deciders={"prefill": _BY_PREFIX}, stageOrder="decode-first"),
        version="v1", profiles=_BOTH,
    ),
    "guides/models/nemotron-3-ultra": config(
        *in_stages(*_AFFINE, "active-request-scorer"), version="v1", profiles=_TOKEN_LOAD
    ),
    "guides/omni-serving": config(
        "queue-scorer", "max-score-picker", version="v1",
        profiles={"default": "queue-scorer max-score-picker"},
    ),
    "guides/no-kubernetes": config(
        *_LOADS, ("file-discovery", {"path": "/etc/endpoints.yaml", "watchFile": True}),
        dataLayer={"injectDefaults": True, "discovery": {"endpoints": {"pluginRef": "file-discovery"}}},
    ),
    "guides/precise-prefix-cache-routing": config(
        _RENDERED, "endpoint-notification-source", *_METRICS, "single-profile-handler", "decode-filter",
        precise(speculativeIndexing=True), ("prefix-cache-scorer", _BY_PRECISE), *_LOADS,
        "no-hit-lru-scorer", "max-score-picker", dataLayer=followed("precise-prefix-cache-producer"),
        profiles={"default": f"decode-filter {_BALANCED} no-hit-lru-scorer:2 max-score-picker"},
    ),
    "guides/p2p-kv-cache-sharing": config(
        _RENDERED, "endpoint-notification-source", precise(**_PRECISE_POOLS),
        ("p2p-source-producer", {**_BY_PRECISE, "prefillProfileName": "default", "minCachedTokenDelta": 2048}),
        ("prefix-cache-scorer", _BY_PRECISE), ("no-hit-lru-scorer", _BY_PRECISE), *_LOADS,
        dataLayer=followed("precise-prefix-cache-producer", polls=False),
        profiles={"default": f"{_BALANCED} no-hit-lru-scorer:2"},
    ),
    "guides/multimodal-serving/precise-affinity": config(
        _RENDERED, ("mm-embeddings-cache-producer", {"cacheSizeInMBPerServer": 2048}),
        "mm-embeddings-cache-scorer", *_LOADS, "decode-filter", "max-score-picker",
        profiles={"default": "decode-filter mm-embeddings-cache-scorer:10 queue-scorer:2 max-score-picker"},
    ),
    "guides/multimodal-serving/e-disaggregation": config(
        *in_stages("always-disagg-multimodal-decider", "encode-filter",
                   ("token-producer", {"estimate": {"image": _IMAGES}}), *_AFFINE,
                   "mm-embeddings-cache-producer", "mm-embeddings-cache-scorer", "queue-scorer",
                   "active-request-scorer",
                   deciders={"encode": "always-disagg-multimodal-decider", "prefill": "always-disagg-pd-decider"}),
        profiles={**_TOKEN_LOAD, "encode": "encode-filter mm-embeddings-cache-scorer:4 queue-scorer:2"},
    ),
    "guides/multimodal-serving/aggregation": config(
        ("token-producer", {"estimate": {"image": _IMAGES}}), *_AFFINE, version="v1",
        profiles={"default": "prefix-cache-affinity-filter token-load-scorer"},
    ),
    "guides/wide-ep-lws": config(
        *in_stages("prefix-cache-scorer", "queue-scorer", "active-request-scorer",
                   deciderPluginName="always-disagg-pd-decider"),
        profiles={"prefill": "prefill-filter prefix-cache-scorer:3 active-request-scorer:2",
                  "decode": "decode-filter active-request-scorer"},
    ),
    "guides/wide-ep-lws/precise-routing": config(
        *_WIDE, profiles=_TOKEN_LOAD, dataLayer=followed("precise-prefix-cache-producer", polls=False)
    ),
    "guides/models/glm-5-2/precise-routing": config(
        *_WIDE, profiles=_TOKEN_LOAD, version="v1",
        dataLayer=followed("precise-prefix-cache-producer", polls=False),
    ),
    "guides/flow-control": config(
        *_LOADS, "fcfs-ordering-policy", "round-robin-fairness-policy", _DETECTED, version="v1",
        **flow(
            saturationDetector={"pluginRef": "concurrency-detector"}, maxBytes="4Gi", maxRequests="10k",
            defaultRequestTTL="30s", noEndpointRequestTTL="5m",
            priorityBands=[{
                "priority": 100, "maxRequests": "1k", "defaultRequestTTL": "1m",
                "fairnessPolicyRef": "round-robin-fairness-policy", "orderingPolicyRef": "fcfs-ordering-policy",
            }],
        ),
    ),
    "guides/agentic-serving/program-aware": config(
        "agent-identity", *_LOADS, _DETECTED, ("program-aware-fairness", {"strategy": "las"}),
        **flow(saturationDetector={"pluginRef": "concurrency-detector"}, **_BY_PROGRAM),
    ),
    "guides/turn-priority-fairness": config(
        "agent-identity", *_LOADS,
        ("program-aware-fairness", {"strategy": "turn-priority", "turnPriorityTimeWeight": 0.5}),
        **flow(**_BY_PROGRAM),
    ),
    "samples/program-aware-fairness": config("program-aware-fairness", *_LOADS, **flow(**_BY_PROGRAM)),
    "samples/soft-reflective-ceiling": config(
        "soft-reflective-ceiling-policy", *_LOADS,
        **flow(usageLimitPolicyPluginRef="soft-reflective-ceiling-policy"),
    ),
    "samples/epp-config": config(
        "prefix-cache-scorer", "decode-filter", "max-score-picker", "single-profile-handler",
        profiles={"default": "decode-filter max-score-picker prefix-cache-scorer:50"},
    ),
    "samples/epp-prefix-cache-tracking": config(
        ("precise-prefix-cache-scorer", {
            "kvEventsConfig": {"zmqEndpoint": "tcp://0.0.0.0:5557"},
            "indexerConfig": {"tokenizersPoolConfig": {"modelName": "some/model"}}}),
        "queue-scorer", "max-score-picker",
    ),
    "samples/dp-epp": config(
        ("data-parallel-profile-handler", {"primaryPort": 8000}), "load-aware-scorer", "decode-filter"
    ),
    "samples/pd-epp": config(
        *in_stages("prefix-cache-scorer", "queue-scorer", "max-score-picker", decider=_BY_PREFIX), profiles=_BOTH
    ),
    "samples/pd-topology": config(
        *in_stages("prefix-cache-scorer", "queue-scorer", "max-score-picker", "topology-extractor",
                   "topology-affinity-filter", "topology-affinity-scorer", decider=_BY_PREFIX),
        version="v1",
        profiles=_BOTH | {"prefill": "prefill-filter topology-affinity-filter topology-affinity-scorer:1"},
    ),
    "samples/sim-epp": config("prefix-cache-scorer", "decode-filter", "random-picker"),
    "samples/sim-pd-epp": config(
        *in_stages("prefix-cache-scorer", "queue-scorer", "max-score-picker", decider=_BY_PREFIX,
                   profiles={"prefill": "prefill", "decode": "decode"}, deciders={"prefill": _BY_PREFIX}),
        profiles=_BOTH,
    ),
    "samples/sim-e-p-d-epp": config(
        *in_stages("encode-filter", "always-disagg-multimodal-decider", "prefix-cache-scorer", "queue-scorer",
                   "max-score-picker", decider=_BY_PREFIX, decodeProfile="decode", prefillProfile="prefill",
                   encodeProfile="encode", prefillDeciderPluginName=_BY_PREFIX,
                   encodeDeciderPluginName="always-disagg-multimodal-decider"),
        profiles=_SIMULATED_STAGES | _BOTH,
    ),
    "samples/sim-e-pd-epp": config(
        "encode-filter", "decode-filter", "always-disagg-multimodal-decider", "prefix-cache-scorer",
        "max-score-picker",
        ("disagg-profile-handler", {"deciders": {"encode": "always-disagg-multimodal-decider"}}),
        profiles=_SIMULATED_STAGES,
    ),
    "samples/sim-epp-no-hit-lru": config(
        "prefix-cache-scorer", ("no-hit-lru-scorer", {"prefixPluginType": "prefix-cache-scorer"}),
        "decode-filter", profiles={"default": "decode-filter prefix-cache-scorer:2 no-hit-lru-scorer:1"},
    ),
    "samples/sim-epp-kvcache": config(
        ("token-producer", {"backend": "vllm", "modelName": "some/model"}),
        precise(indexerConfig={"kvBlockIndexConfig": {
            "enableMetrics": True, "metricsLoggingInterval": 60000000000,
            "inMemoryConfig": {"size": 1000000, "podCacheSize": 10}}}),
        ("prefix-cache-scorer", _BY_PRECISE), "decode-filter",
        profiles={"default": "decode-filter prefix-cache-scorer:10"},
    ),
    "samples/sim-epp-tokenizer-vllm-http": config(
        _RENDERED, "approx-prefix-cache-producer", "prefix-cache-scorer", "decode-filter"
    ),
    "samples/epp-precise-prefix-cache": config(
        _RENDERED, "endpoint-notification-source", *_METRICS, precise(), "decode-filter",
        ("prefix-cache-scorer", _BY_PRECISE), *_LOADS, dataLayer=followed("precise-prefix-cache-producer"),
    ),
    "samples/epp-mm-embeddings-cache": config(
        _RENDERED, "endpoint-notification-source", *_METRICS, precise(),
        ("mm-embeddings-cache-producer", {"cacheSizeInMB": 2048}), "mm-embeddings-cache-scorer",
        ("prefix-cache-scorer", _BY_PRECISE), "queue-scorer", "decode-filter",
        dataLayer=followed("mm-embeddings-cache-producer", "precise-prefix-cache-producer"),
        profiles={"default": "decode-filter prefix-cache-scorer:10 mm-embeddings-cache-scorer:4 queue-scorer:1"},
    ),
    "samples/epp-burst-prefix-cache": config(
        _RENDERED, "decode-filter", "load-aware-scorer",
        ("burst-prefix-cache-producer", {"windowDurationMs": 100, "maxPerReplica": -1, "minColocateBlocks": 0}),
        ("prefix-cache-scorer", {"prefixMatchInfoProducerName": "burst-prefix-cache-producer"}),
        profiles={"default": "decode-filter prefix-cache-scorer:2 load-aware-scorer:1"},
    ),
    "guides/multi-cluster-routing": config(
        ("multicluster-file-discovery", {"path": "/etc/endpoints.yaml", "watchFile": True}),
        ("multicluster-metrics-data-source", {"scheme": "http"}), "multicluster-metrics-extractor",
        "multicluster-kv-cache-utilization-scorer", "multicluster-queue-scorer", "max-score-picker",
        version="v1", profiles={"default": "multicluster-kv-cache-utilization-scorer:1 "
                                           "multicluster-queue-scorer:1 max-score-picker"},
        dataLayer={
            "discovery": {"endpoints": {"pluginRef": "multicluster-file-discovery"}},
            "sources": [_source("multicluster-metrics-data-source", "multicluster-metrics-extractor")]},
    ),
    "samples/sim-epp-gpu": config(
        "models-data-source", "models-data-extractor", *_gpu("GPUUtilization/dcgm-extractor"),
        "kv-cache-utilization-scorer", "decode-filter", "max-score-picker", profiles=_BY_GPU,
        dataLayer={"sources": [_source("models-data-source", "models-data-extractor"), _GPU_SOURCE]},
    ),
    "samples/probabilistic-admitter": config(
        "probabilistic-admitter", "random-picker", *_LOADS,
        ("utilization-detector", {"queueDepthThreshold": 999999999, "kvCacheUtilThreshold": 1.0}),
        flowControl={"saturationDetector": {"pluginRef": "utilization-detector"}},
        profiles={"default": "random-picker"},
    ),
    "guides/predicted-latency": config(
        ("approx-prefix-cache-producer", {"maxPrefixTokensToMatch": 262144}), "predicted-latency-producer",
        _predicted("loose", 0.8), "latency-scorer", "weighted-random-picker",
        profiles={"default": "loose-affinity-filter latency-scorer weighted-random-picker"},
    ),
    "guides/predicted-latency-slo": config(
        ("approx-prefix-cache-producer", {"maxPrefixTokensToMatch": 262144}),
        ("predicted-latency-producer", {"streamingMode": True}), *_BY_SLO,
        profiles={"default": _SLO_PROFILE},
    ),
}  # fmt: skip

# Keys and plugins that newer or older files have, and none of the above.
ALSO_STARTING = {
    "GPU telemetry by producer": config(
        *_gpu("GPUUtilization", producer="dcgm-extractor"), *_LOADS, *_METRICS, "decode-filter", "max-score-picker",
        version="v1", profiles=_BY_GPU, dataLayer={"sources": [_POLLING, _GPU_SOURCE]},
    ),
    "clusters by session and prefix": config(
        ("multicluster-file-discovery", {"path": "/etc/endpoints.yaml"}),
        "multicluster-metrics-data-source", "multicluster-metrics-extractor",
        "multicluster-session-affinity-filter", "multicluster-approx-prefix-cache-producer",
        ("multicluster-prefix-cache-scorer", {
            "prefixMatchInfoProducerName": "multicluster-approx-prefix-cache-producer"}),
        ("endpoint-attribute-filter", {
            "attribute": "llm-d.ai/multicluster-queue-size", "producer": "",
            "algorithm": {"threshold": {"operator": "LessThan", "value": 10}}}),
        version="v1",
        dataLayer={
            "discovery": {"endpoints": {"pluginRef": "multicluster-file-discovery"}},
            "sources": [_source("multicluster-metrics-data-source", "multicluster-metrics-extractor")]},
    ),
    "gRPC": config(
        *_LOADS, "vllmgrpc-parser", version="v1",
        requestHandler={"parsers": [{"pluginRef": "vllmgrpc-parser"}]},
    ),
    "flowControl with its gate off": config(
        ("concurrency-detector", {"inFlightLoadProducerName": "inflight-load-producer"}), *_AFFINE, version="v1",
        flowControl={
            "saturationDetector": {"pluginRef": "concurrency-detector"},
            "priorityBands": [{"priority": 1, "maxRequests": "1k", "defaultRequestTTL": "30s"}],
        },
    ),
    "max-saturation-detector": config(
        *_LOADS, *_STAGES, "inflight-load-producer", ("concurrency-detector", {"maxConcurrency": 32}),
        ("utilization-detector", {"queueDepthThreshold": 5, "kvCacheUtilThreshold": 1.0}),
        ("max-saturation-detector", {
            "detectors": ["concurrency-detector", "utilization-detector"],
            "stages": {"utilization-detector": ["decode"]}}),
        **flow(saturationDetector={"pluginRef": "max-saturation-detector"}),
    ),
    "enableEviction": config(
        *_LOADS, ("priority-holdback-policy", {"minCeiling": 0.5}), "edf-ordering-policy",
        "slo-deadline-ordering-policy", "sheddable-eviction-filter", "priority-then-time-eviction-order-policy",
        **flow(
            usageLimitPolicyPluginRef="priority-holdback-policy", enableEviction=True,
            defaultPriorityBand={"orderingPolicyRef": "slo-deadline-ordering-policy"},
            defaultNegativePriorityBand={"maxRequests": 100, "orderingPolicyRef": "edf-ordering-policy"},
        ),
    ),
    "prefill-header-handler": config(
        *in_stages("prefill-header-handler", ("load-aware-scorer", {"threshold": 10}), "max-score-picker"),
        profiles={"prefill": "prefill-filter load-aware-scorer", "decode": "decode-filter"},
    ),
    "idleThreshold": config(*_LOADS, ("active-request-scorer", {"idleThreshold": 4}), version="v1"),
    "discovery.pluginRef": config(
        *_LOADS, ("file-discovery", {"path": "/etc/endpoints.yaml"}),
        dataLayer={"discovery": {"pluginRef": "file-discovery"}},
    ),
    "agent-identity": config(("agent-identity", {"additionalSessionHeaders": ["X-My-Session"]}), *_LOADS),
    "request-attribute-reporter": config(
        *_LOADS,
        ("request-attribute-reporter", {"attributes": [{
            "key": {"name": "x-cost"}, "expression": "usage.prompt_tokens + 2 * usage.completion_tokens",
            "condition": "has(usage.completion_tokens)"}]}),
    ),
}  # fmt: skip

ALSO_REFUSED = {
    "clusters whose load nobody reads": (
        config("multicluster-queue-scorer"),
        "'multicluster-queue-scorer' needs the data of a multicluster-metrics-extractor",
    ),
    "GPU telemetry read as load": (
        config(
            "dcgm-data-source", "core-metrics-extractor",
            dataLayer={"sources": [_source("dcgm-data-source", "core-metrics-extractor")]},
        ),
        r"extractors\[0\]\.pluginRef: .*not a telemetry extractor",
    ),
    "max-saturation-detector without one": (
        config(("max-saturation-detector", {"detectors": []})), "detectors",
    ),
    "max-saturation-detector of another": (
        config(("max-saturation-detector", {"detectors": ["pool-queue"]})),
        "no plugin is named 'pool-queue'",
    ),
    "max-saturation-detector of a scorer": (
        config(*_LOADS, ("max-saturation-detector", {"detectors": ["queue-scorer"]})),
        "'queue-scorer' is a queue-scorer, not a saturation detector",
    ),
    "max-saturation-detector twice of one": (
        config(_DETECTED, ("max-saturation-detector", {"detectors": ["concurrency-detector"] * 2})),
        "each may be named once",
    ),
    "max-saturation-detector with a stage of another": (
        config(_DETECTED, ("max-saturation-detector", {
            "detectors": ["concurrency-detector"], "stages": {"pool-queue": ["decode"]}})),
        "stages: 'pool-queue' is not among the detectors",
    ),
    "max-saturation-detector with another stage": (
        config(_DETECTED, ("max-saturation-detector", {
            "detectors": ["concurrency-detector"], "stages": {"concurrency-detector": ["encode"]}})),
        "encode",
    ),
    "k8s-notification-source": (
        config("k8s-notification-source"), "'k8s-notification-source' is refused: --pool-name watches",
    ),
    "discovery.peers": (
        config(
            ("file-discovery", {"path": "/e"}),
            dataLayer={"discovery": {
                "endpoints": {"pluginRef": "file-discovery"}, "peers": {"pluginRef": "file-discovery"}}},
        ),
        "dataLayer.discovery.peers: state shared between pickers",
    ),
    "stageOrder": (
        config(*in_stages(stageOrder="prefill-first"), profiles=_BOTH), "stageOrder: must be decode-first",
    ),
    "udsTokenizerConfig": (
        config(("token-producer", {"udsTokenizerConfig": {"socketFile": "/tmp/tokenizer.socket"}})),
        "udsTokenizerConfig is refused: tokenizers behind a socket are not supported",
    ),
}  # fmt: skip
