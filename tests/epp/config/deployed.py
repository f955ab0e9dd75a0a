"""Configurations of the kinds that the reference's guides, charts and samples have, in our own words.

Each name says what it is for. A refusal has the words of its reason.
"""

_V1 = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n"
_ALPHA = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"

_LOADS = "- {type: queue-scorer}\n- {type: kv-cache-utilization-scorer}\n"
_PROFILE = """\
schedulingProfiles:
- name: default
  plugins:
"""
_SOURCES = """\
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors: [{pluginRef: core-metrics-extractor}]
"""
_FOLLOWED = (
    _SOURCES
    + """\
  - pluginRef: endpoint-notification-source
    extractors: [{pluginRef: precise-prefix-cache-producer}]
"""
)
_METRICS = "- {type: metrics-data-source}\n- {type: core-metrics-extractor}\n"
_RENDERED = """\
- type: token-producer
  parameters: {modelName: some/model, vllm: {url: "http://render:8000", timeout: 5s, mmTimeout: 30s}}
"""
_PRECISE = """\
- type: precise-prefix-cache-producer
  parameters:
    tokenProcessorConfig: {blockSize: 64, hashSeed: "42"}
    indexerConfig:
      kvBlockIndexConfig:
        enableMetrics: true
        metricsLoggingInterval: 60000000000
        inMemoryConfig: {size: 1000000, podCacheSize: 10}
    kvEventsConfig:
      topicFilter: kv@
      concurrency: 8
      discoverPods: true
      podDiscoveryConfig: {socketPort: 5557, replaySocketPort: 5558}
"""
_PREFIX = "- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: %s}}\n"
_BY_PRECISE = _PREFIX % "precise-prefix-cache-producer"
_STAGES = """\
- {type: prefill-filter}
- {type: decode-filter}
- {type: prefix-based-pd-decider, parameters: {nonCachedTokens: 16}}
- {type: queue-scorer}
- {type: prefix-cache-scorer}
- {type: max-score-picker}
"""
_STAGE_PROFILES = """\
schedulingProfiles:
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: queue-scorer, weight: 1}, {pluginRef: max-score-picker}]
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: prefix-cache-scorer, weight: 2}]
"""


def _profile(**weights: int | None) -> str:
    lines = []
    for name, weight in weights.items():
        named = name.replace("_", "-")
        lines.append(
            f"  - pluginRef: {named}\n" + ("" if weight is None else f"    weight: {weight}\n")
        )
    return _PROFILE + "".join(lines)


_BALANCED = _profile(queue_scorer=2, kv_cache_utilization_scorer=2, prefix_cache_scorer=3)
_PRECISE_PROFILE = _profile(
    decode_filter=None, prefix_cache_scorer=2, kv_cache_utilization_scorer=1, queue_scorer=1
)

STARTING = {
    "the chart's default": _ALPHA + "plugins:\n" + _LOADS + _PREFIX % "approx-prefix-cache-producer"
    + "- {type: approx-prefix-cache-producer}\n" + _METRICS + _BALANCED + _SOURCES,
    "the chart for payloads that are not read": _ALPHA + "plugins:\n" + _LOADS
    + "- {type: passthrough-parser}\n- {type: session-affinity-scorer}\n"
    + "requestHandler: {parsers: [{pluginRef: passthrough-parser}]}\n",
    "the chart for gRPC": _V1 + "plugins:\n" + _LOADS + "- {type: vllmgrpc-parser}\n"
    + "requestHandler: {parsers: [{pluginRef: vllmgrpc-parser}]}\n",
    "optimised for chat": _ALPHA + "plugins:\n- {type: prefix-cache-affinity-filter}\n"
    + "- {type: inflight-load-producer, parameters: {addEstimatedOutputTokens: true}}\n"
    + "- {type: active-request-scorer}\n- {type: token-load-scorer}\n"
    + "- {type: weighted-random-picker}\n",
    "optimised for chat, newer": _V1 + "plugins:\n- {type: prefix-cache-affinity-filter}\n"
    + "- {type: concurrency-detector, parameters: {inFlightLoadProducerName: counted}}\n"
    + "- {type: inflight-load-producer, name: counted}\n- {type: token-load-scorer}\n"
    + "flowControl:\n  saturationDetector: {pluginRef: concurrency-detector}\n"
    + "  priorityBands: [{priority: 1, maxRequests: 1k, defaultRequestTTL: 30s}]\n",
    "tiers of the prefix cache": _ALPHA + "plugins:\n" + _LOADS
    + "- {type: prefix-cache-scorer, name: gpu}\n- {type: no-hit-lru-scorer, parameters: {lruSize: 64,"
    + " prefixPluginName: gpu}}\n",
    "prefill and decode": _V1 + "plugins:\n" + _STAGES
    + "- type: disagg-profile-handler\n"
    + "  parameters: {deciders: {prefill: prefix-based-pd-decider}, stageOrder: decode-first}\n"
    + _STAGE_PROFILES,
    "prefill and decode, one decider": _ALPHA + "plugins:\n" + _STAGES
    + "- {type: disagg-headers-handler}\n- type: disagg-profile-handler\n"
    + "  parameters: {deciderPluginName: prefix-based-pd-decider}\n" + _STAGE_PROFILES,
    "prefill and decode, flat keys": _ALPHA + "plugins:\n" + _STAGES
    + "- {type: encode-filter}\n- {type: always-disagg-multimodal-decider}\n"
    + "- type: disagg-profile-handler\n"
    + "  parameters: {decodeProfile: decode, prefillProfile: prefill, encodeProfile: encode,\n"
    + "               prefillDeciderPluginName: prefix-based-pd-decider,\n"
    + "               encodeDeciderPluginName: always-disagg-multimodal-decider}\n"
    + _STAGE_PROFILES + "- name: encode\n  plugins: [{pluginRef: encode-filter}]\n",
    "prefill and decode, precise": _V1 + "plugins:\n- {type: endpoint-notification-source}\n" + _METRICS
    + _RENDERED + _PRECISE
    + _STAGES.replace(
        "nonCachedTokens: 16",
        "nonCachedTokens: 512, prefixMatchInfoProducerName: precise-prefix-cache-producer",
    )
    + "- type: disagg-profile-handler\n"
    + "  parameters: {deciders: {prefill: prefix-based-pd-decider}}\n" + _STAGE_PROFILES + _FOLLOWED,
    "a coordinator names the profile": _ALPHA + "plugins:\n- {type: header-profile-handler}\n"
    + _STAGES + _STAGE_PROFILES,
    "a large mixture of experts": _V1 + "plugins:\n" + _LOADS + "- {type: decode-filter}\n"
    + "- {type: active-request-scorer, parameters: {idleThreshold: 4}}\n",
    "all kinds of media, by their size": _V1 + "plugins:\n" + _LOADS
    + "- type: token-producer\n  parameters: {estimate: {image: {mode: dynamic,"
    + " defaultResolution: {width: 1024, height: 768}, dynamic: {factor: 1024}}}}\n",
    "no Kubernetes": _ALPHA + "plugins:\n" + _LOADS
    + "- {type: file-discovery, parameters: {path: /etc/endpoints.yaml, watchFile: true}}\n"
    + "dataLayer: {injectDefaults: true, discovery: {pluginRef: file-discovery}}\n",
    "no Kubernetes, newer": _V1 + "plugins:\n" + _LOADS
    + "- {type: file-discovery, parameters: {path: /etc/endpoints.yaml}}\n"
    + "dataLayer: {discovery: {endpoints: {pluginRef: file-discovery}}}\n",
    "precise prefixes": _ALPHA + "plugins:\n" + _RENDERED
    + "- {type: endpoint-notification-source}\n" + _METRICS + _PRECISE + _BY_PRECISE + _LOADS
    + "- {type: decode-filter}\n- {type: max-score-picker}\n- {type: single-profile-handler}\n"
    + _PRECISE_PROFILE + _FOLLOWED,
    "precise prefixes, newer": _V1 + "plugins:\n" + _RENDERED
    + "- {type: endpoint-notification-source}\n" + _METRICS + _PRECISE
    + "- {type: prefix-cache-affinity-filter, parameters: {prefixMatchInfoProducerName:"
    + " precise-prefix-cache-producer}}\n- {type: inflight-load-producer, parameters:"
    + " {prefixMatchInfoProducerName: precise-prefix-cache-producer}}\n- {type: token-load-scorer}\n"
    + _FOLLOWED,
    "precise prefixes, told its backend": _ALPHA + "plugins:\n"
    + "- {type: token-producer, parameters: {backend: vllm, modelName: some/model}}\n"
    + _PRECISE + _BY_PRECISE + "- {type: decode-filter}\n- {type: max-score-picker}\n"
    + _profile(decode_filter=None, max_score_picker=None, prefix_cache_scorer=10),
    "precise prefixes, events sent to the picker": _ALPHA + "plugins:\n" + _RENDERED
    + "- type: precise-prefix-cache-producer\n  parameters: {tokenProcessorConfig: {blockSize: 16},"
    + " kvEventsConfig: {zmqEndpoint: 'tcp://0.0.0.0:5557'}}\n" + _BY_PRECISE,
    "precise prefixes, one plugin": _ALPHA + "plugins:\n"
    + "- type: precise-prefix-cache-scorer\n  parameters: {tokenProcessorConfig: {blockSize: 64},"
    + " indexerConfig: {tokenizersPoolConfig: {modelName: some/model}}}\n"
    + "- {type: queue-scorer}\n",
    "shedding by chance": _V1 + "plugins:\n- {type: probabilistic-admitter}\n- {type: random-picker}\n"
    + "- {type: utilization-detector, parameters: {queueDepthThreshold: 999999999,"
    + " kvCacheUtilThreshold: 1.0}}\n"
    + "flowControl: {saturationDetector: {pluginRef: utilization-detector}}\n"
    + _profile(random_picker=None),
    "agents, without flow control": _V1 + "plugins:\n- {type: agent-identity, parameters:"
    + " {additionalSessionHeaders: [X-My-Session]}}\n" + _LOADS,
    "costs for the gateway": _ALPHA + "plugins:\n" + _LOADS
    + "- type: request-attribute-reporter\n  parameters: {attributes: [{key: {name: x-cost},\n"
    + "    expression: usage.prompt_tokens + 2 * usage.completion_tokens,\n"
    + "    condition: has(usage.completion_tokens)}]}\n",
    "simulated, data parallel": _ALPHA + "plugins:\n- {type: data-parallel-profile-handler,"
    + " parameters: {primaryPort: 8000}}\n- {type: random-picker}\n",
}  # fmt: skip

_FLOW = "featureGates: [flowControl]\nplugins:\n" + _LOADS
REFUSED = {
    "flow control": (_ALPHA + _FLOW, "flow control is not offered yet"),
    "flow control, fair by turns": (
        _V1 + "plugins:\n- {type: round-robin-fairness-policy}\nfeatureGates: [flowControl]\n",
        "flow control is not offered yet",
    ),
    "agents, fair by what they used": (
        _V1 + "plugins:\n- {type: agent-identity}\n- {type: program-aware-fairness}\n",
        "'program-aware-fairness' is refused: flow control",
    ),
    "batches with held back priorities": (
        _V1 + "plugins:\n- {type: priority-holdback-policy, parameters: {minCeiling: 0.5}}\n",
        "'priority-holdback-policy' is refused: flow control",
    ),
    "predicted latency": (
        _V1 + "plugins:\n- {type: predicted-latency-producer}\n- {type: latency-scorer}\n",
        "'predicted-latency-producer' is refused: latency prediction",
    ),
    "predicted latency, with objectives": (
        _V1 + "plugins:\n- {type: slo-headroom-tier-filter}\n- {type: latency-slo-admitter}\n",
        "'slo-headroom-tier-filter' is refused: latency prediction",
    ),
    "a predictor in the affinity filter": (
        _V1 + "plugins:\n- {type: prefix-cache-affinity-filter, parameters:"
        " {ttftSource: latencyPredictor}}\n",
        "ttftSource",
    ),
    "media caches": (
        _ALPHA + "plugins:\n" + _RENDERED + "- {type: mm-embeddings-cache-producer}\n",
        "'mm-embeddings-cache-producer' is refused: media caches",
    ),
    "bursts": (
        _ALPHA + "plugins:\n- {type: burst-prefix-cache-producer}\n",
        "'burst-prefix-cache-producer' is refused: holding requests back",
    ),
    "blocks from a peer": (
        _V1 + "plugins:\n" + _RENDERED + "- {type: p2p-source-producer}\n",
        "'p2p-source-producer' is refused: transfers of cached blocks",
    ),
    "several clusters": (
        _V1 + "plugins:\n- {type: multicluster-file-discovery}\n"
        "dataLayer: {discovery: {endpoints: {pluginRef: multicluster-file-discovery}}}\n",
        "'multicluster-file-discovery' is refused: routing over several clusters",
    ),
    "topology": (
        _ALPHA + "plugins:\n- {type: topology-affinity-filter}\n",
        "'topology-affinity-filter' is refused: topology-aware",
    ),
    "GPU telemetry": (
        _ALPHA + "plugins:\n- {type: dcgm-data-source}\n",
        "'dcgm-data-source' is refused: GPU telemetry",
    ),
    "any object of Kubernetes": (
        _V1 + "plugins:\n- {type: k8s-notification-source}\n",
        "'k8s-notification-source' is refused: Kubernetes",
    ),
    "pickers that know of each other": (
        _V1 + "plugins: [{type: file-discovery, name: f, parameters: {path: /e}}]\n"
        "dataLayer: {discovery: {endpoints: {pluginRef: f}, peers: {pluginRef: f}}}\n",
        "dataLayer.discovery.peers: state shared between pickers",
    ),
    "prefill first": (
        _ALPHA + "plugins:\n" + _STAGES + "- {type: disagg-profile-handler, parameters:"
        " {stageOrder: prefill-first}}\n" + _STAGE_PROFILES,
        "stageOrder: must be decode-first",
    ),
    "a tokenizer behind a socket": (
        _ALPHA + "plugins:\n- {type: token-producer, parameters:"
        " {udsTokenizerConfig: {socketFile: /tmp/tokenizer.socket}}}\n",
        "udsTokenizerConfig is refused: nothing is read from a socket",
    ),
}  # fmt: skip
