"""What llm-d's picker has, by name: each is here too, or is refused or left out with the reason."""

import dataclasses

import msgspec
import pytest

from tools.picker_reference import make_flow_series
from weft.cli.picker.options import EppOptions
from weft.core.errors import ConfigError
from weft.epp.config.decode import decode
from weft.epp.metrics.absent import ABSENT_SERIES
from weft.epp.metrics.series import PREFIX, PickerMetrics
from weft.epp.plugins.registry import PLUGIN_TYPES, REFUSED_TYPES

TYPES = """
label-selector-filter by-label-selector by-label decode-filter prefill-filter encode-filter
prefix-cache-affinity-filter session-affinity-filter utilization-filter endpoint-attribute-filter
topology-affinity-filter topology-affinity-scorer topology-extractor slo-headroom-tier-filter
header-based-testing-filter multicluster-session-affinity-filter queue-scorer running-requests-size-scorer
kv-cache-utilization-scorer load-aware-scorer active-request-scorer token-load-scorer prefix-cache-scorer
precise-prefix-cache-scorer lora-affinity-scorer session-affinity-scorer no-hit-lru-scorer context-length-aware
header-label-affinity-scorer endpoint-attribute-scorer latency-scorer mm-embeddings-cache-scorer
multicluster-queue-scorer multicluster-kv-cache-utilization-scorer multicluster-prefix-cache-scorer max-score-picker
random-picker weighted-random-picker single-profile-handler disagg-profile-handler pd-profile-handler
disagg-headers-handler prefill-header-handler always-disagg-pd-decider prefix-based-pd-decider
always-disagg-multimodal-decider header-profile-handler data-parallel-profile-handler token-producer tokenizer
approx-prefix-cache-producer precise-prefix-cache-producer inflight-load-producer predicted-latency-producer
mm-embeddings-cache-producer session-id-producer burst-prefix-cache-producer p2p-source-producer
multicluster-approx-prefix-cache-producer latency-slo-admitter probabilistic-admitter agent-identity
request-attribute-reporter destination-endpoint-served-verifier disaggregatedset-rollout-screener openai-parser
anthropic-parser vllmhttp-parser sglanghttp-parser vllmgrpc-parser vertexai-parser passthrough-parser
metrics-data-source core-metrics-extractor models-data-source models-data-extractor dcgm-data-source dcgm-extractor
endpoint-notification-source k8s-notification-source multicluster-metrics-data-source multicluster-metrics-extractor
multicluster-file-discovery file-discovery utilization-detector concurrency-detector scraped-concurrency-detector
max-saturation-detector global-strict-fairness-policy round-robin-fairness-policy program-aware-fairness
vtc-fairness-policy fcfs-ordering-policy edf-ordering-policy slo-deadline-ordering-policy
program-score-ordering-policy static-usage-limit-policy priority-holdback-policy soft-reflective-ceiling-policy
sheddable-eviction-filter priority-then-time-eviction-order-policy
""".split()
KEYS = """
active-request-scorer: idleThreshold maxBusyScore inFlightLoadProducerName requestTimeout
agent-identity: additionalSessionHeaders
approx-prefix-cache-producer: autoTune blockSizeTokens maxPrefixTokensToMatch maxPrefixBlocksToMatch
  lruCapacityPerServer blockSize
burst-prefix-cache-producer: windowDurationMs maxPerReplica blockSizeTokens minColocateBlocks maxBatchSize balanceBy
concurrency-detector: concurrencyMode maxConcurrency maxTokenConcurrency headroom inFlightLoadProducerName
context-length-aware: label enableFiltering
core-metrics-extractor: engineLabelKey defaultEngine engineConfigs
data-parallel-profile-handler: primaryPort
disagg-profile-handler: profiles deciders stageOrder decodeProfile prefillProfile encodeProfile
  prefillDeciderPluginName encodeDeciderPluginName deciderPluginName
endpoint-attribute-filter: attribute producer onMissing fallbackOnEmpty algorithm
endpoint-attribute-scorer: attributeKey producer algorithm
file-discovery: path watchFile
header-label-affinity-scorer: headerName labelKey
header-profile-handler: headerName defaultProfile
inflight-load-producer: addEstimatedOutputTokens outputRatio maxEstimatedOutputTokens prefixMatchInfoProducerName
  syncCrossReplicaState
label-selector-filter: matchLabels matchExpressions
latency-scorer: ttftWeight tpotWeight headroomSelectionStrategy compositeKVWeight compositeQueueWeight
  compositePrefixWeight
load-aware-scorer: threshold
max-saturation-detector: detectors stages
max-score-picker: maxNumOfEndpoints
metrics-data-source: scheme path port interval insecureSkipVerify caCertPath clientCertPath clientKeyPath
mm-embeddings-cache-producer: cacheSizeInMBPerServer
no-hit-lru-scorer: prefixPluginType prefixPluginName lruSize prefixMatchInfoProducerName
p2p-source-producer: minCachedTokenDelta prefillProfileName prefixMatchInfoProducerName
pd-profile-handler: prefixPluginType prefixPluginName primaryPort prefixMatchInfoProducerName deciderPluginName
  decodeProfile prefillProfile
precise-prefix-cache-producer: tokenProcessorConfig indexerConfig kvEventsConfig speculativeIndexing speculativeTTL
predicted-latency-producer: sloBufferFactor contextTTL streamingMode endpointRoleLabel predictInProduce
  useEncoderCacheFeatures samplingMean
prefix-based-pd-decider: nonCachedTokens promptTokens
prefix-cache-affinity-filter: affinityThreshold explorationProbability maxTTFTPenaltyMs ttftSource
  peakPrefillThroughput latencyPredictionInfoProducerName inFlightLoadProducerName prefixMatchInfoProducerName
prefix-cache-scorer: prefixMatchInfoProducerName matchLengthWeight matchLengthScaleTokens
priority-holdback-policy: shape domain minCeiling maxCeiling
probabilistic-admitter: queueDepthThreshold kvCacheUtilThreshold power k
program-aware-fairness: strategy lasWeightService lasWeightHeadWait lasHalfLifeSeconds evictionTtlSeconds
  evictionSweepSeconds turnPriorityTimeWeight turnPriorityInactivitySeconds
program-score-ordering-policy: weightTurns weightTokens halfLifeSeconds rescoreIntervalSeconds evictionTtlSeconds
  evictionSweepSeconds
random-picker: maxNumOfEndpoints
request-attribute-reporter: attributes
scraped-concurrency-detector: maxConcurrency metricsStalenessThreshold ownDispatchWindow
session-affinity-scorer: strategy profileName encodedEndpointHeaderConfig sessionIdConfig
session-id-producer: headerName cookieName
slo-headroom-tier-filter: epsilonExploreNeg
token-load-scorer: queueThresholdTokens inFlightLoadProducerName
token-producer: modelName vllm estimate udsTokenizerConfig
topology-affinity-filter: minAffinity topologyProducerName
topology-affinity-scorer: topologyProducerName
utilization-detector: queueDepthThreshold kvCacheUtilThreshold metricsStalenessThreshold headroom
utilization-filter: conditions fallbackOnEmpty inFlightLoadProducerName
vtc-fairness-policy: inputTokenWeight outputTokenWeight
weighted-random-picker: maxNumOfEndpoints
"""
FLAGS = """
grpc-port grpc-health-port metrics-port config-file config-text allow-experimental-plugins pool-name pool-namespace
pool-group endpoint-selector endpoint-target-ports drain-timeout grpc-max-recv-msg-size grpc-max-send-msg-size
refresh-metrics-interval refresh-prometheus-metrics-interval metrics-staleness-threshold
disable-endpoint-subset-filter emit-endpoint-scores enable-grpc-stream-metrics cert-path secure-serving
enable-cert-reload metrics-endpoint-auth tracing enable-pprof ha-enable-leader-election v zap-encoder zap-log-level
zap-devel zap-stacktrace-level zap-time-encoding tls-min-version tls-cipher-suites metrics-cert-dir
metrics-client-ca-file health-checking total-queued-requests-metric total-running-requests-metric
kv-cache-usage-percentage-metric lora-info-metric cache-info-metric feature-gates plugin-state-staleness-threshold
fairness-id-metric-label-limit
""".split()
SERIES = """
request_total request_error_total request_duration_seconds request_size_bytes response_size_bytes request_input_tokens
request_output_tokens request_cached_tokens request_ntpot_seconds request_streaming_tpot_seconds
request_streaming_itl_seconds request_ttft_seconds request_running average_kv_cache_utilization average_queue_size
average_running_requests std_dev_kv_cache_utilization std_dev_queue_size std_dev_running_requests ready_endpoints
per_endpoint_queue_size scheduler_e2e_duration_seconds scheduler_attempts_total request_processing_duration_seconds
response_processing_duration_seconds plugin_duration_seconds info model_rewrite_decisions_total
datalayer_poll_errors_total datalayer_extract_errors_total plugin_data_scope_violations_total prefix_indexer_size
prefix_indexer_hit_ratio prefix_indexer_hit_bytes flow_control_request_queue_duration_seconds
flow_control_request_enqueue_duration_seconds flow_control_dispatch_cycle_duration_seconds flow_control_queue_size
flow_control_queue_bytes flow_control_pool_saturation flow_control_stale_endpoints
flow_control_capacity_utilization_requests flow_control_capacity_utilization_bytes
flow_control_global_capacity_utilization_requests flow_control_global_capacity_utilization_bytes
flow_control_requests_total flow_control_revocations_issued_total flow_control_revocations_total
flow_control_revocation_confirmation_seconds flow_control_reclaim_target flow_control_pending_reclaim
flow_control_detector_saturation inflight_requests inflight_tokens extproc_streams_inflight
extproc_stream_duration_seconds extproc_streams_total disagg_decision_total pd_decision_total
disaggregatedset_strict_revision_no_match_total disaggregatedset_revision_gating_share encoder_cache_queries_total
encoder_cache_hits_total encoder_cache_hit_ratio request_predicted_ttft_seconds request_predicted_tpot_seconds
request_ttft_prediction_duration_seconds request_tpot_prediction_duration_seconds request_slo_violation_total
inference_request_metric kv_cache_index_admissions_total kv_cache_index_evictions_total
kv_cache_index_lookup_requests_total kv_cache_index_lookup_hits_total kv_cache_index_max_pod_hit_count_total
kv_cache_index_lookup_latency_seconds kv_cache_events_dedup_removed_hashes_suppressed_total
kv_cache_events_dedup_removed_hashes_forwarded_total kv_cache_events_messages_received_total
kv_cache_events_stores_skipped_total kv_cache_events_removals_skipped_total kv_cache_events_active_subscribers
kv_cache_events_subscriber_reconnections_total kv_cache_events_zmq_errors_total kv_cache_events_pool_queue_depth
kv_cache_events_pool_capacity program_aware_jains_fairness_index program_aware_avg_wait_time_milliseconds
program_aware_attained_service_tokens program_score_decayed_turns program_score_decayed_tokens
""".split()


def test_every_plugin_type_is_known_or_refused():
    """By name; the refusal says why."""
    assert [
        name for name in TYPES if name not in PLUGIN_TYPES and not REFUSED_TYPES.get(name)
    ] == []


def test_every_key_of_a_type_is_known():
    """What is known may still be refused, or have no effect: then with the reason, which its own test holds."""
    for line in KEYS.replace("\n  ", " ").strip().splitlines():
        name, _, keys = line.partition(": ")
        fields = msgspec.structs.fields(PLUGIN_TYPES[name].parameters)
        assert set(keys.split()) <= {field.encode_name for field in fields}, name


@pytest.mark.parametrize(
    ("name", "key", "value", "words"),
    [
        ("inflight-load-producer", "syncCrossReplicaState", True, "pickers share no state"),
        ("pd-profile-handler", "primaryPort", 8000, "it belongs to data-parallel-profile-handler"),
    ],
)
def test_a_key_that_is_refused_says_why(name: str, key: str, value: object, words: str):
    """By its name."""
    with pytest.raises(ConfigError, match=f"{key} is refused: {words}"):
        decode({key: value}, PLUGIN_TYPES[name].parameters, "p")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("active-request-scorer", {"requestTimeout": "2m"}),
        ("program-score-ordering-policy", {"rescoreIntervalSeconds": 1}),
        ("pd-profile-handler", {"prefixPluginType": "x", "prefixPluginName": "y"}),
    ],
)
def test_a_key_without_effect_is_reported(name: str, given: dict[str, object]):
    """Each of them."""
    found = decode(given, PLUGIN_TYPES[name].parameters, "p")
    assert {key for key, _ in found.without_effect()} == set(given)


def test_every_flag_is_known_or_refused():
    """None is an unknown option; `tests/cli/test_epp.py` holds that each is used or refused with the reason."""
    fields = {field.name for field in dataclasses.fields(EppOptions)}
    assert [name for name in FLAGS if name.replace("-", "_") not in fields] == []


def test_every_series_is_written_or_left_out_with_the_reason():
    """A dashboard's series is there, or the reference says why not; and nothing is both."""
    metrics = PickerMetrics()
    metrics.make_stream_series()
    metrics.make_index_series()
    metrics.make_latency_series()
    make_flow_series(metrics)
    written = {each.name.removeprefix(PREFIX) for each in metrics.declared}
    written |= {f"{name}_total" for name in written}
    assert [name for name in SERIES if name not in written and name not in ABSENT_SERIES] == []
    assert written.isdisjoint(ABSENT_SERIES)
