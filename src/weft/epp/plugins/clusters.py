"""Plugins for a picker of clusters. Its endpoints are gateways of clusters, which have their own pickers."""

from collections.abc import Sequence
from typing import Final

from weft.epp.config.parameters import Kind, NoParameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import Plugin, plugin, plugin_type
from weft.epp.plugins.producers.approximate_prefix import (
    ApproximateParameters,
    ApproximatePrefixProducer,
)
from weft.epp.plugins.scorers.prefix_cache import PrefixScorer, PrefixScorerParameters
from weft.epp.plugins.scorers.queue_scorer import fewest_is_best
from weft.epp.plugins.scorers.session_affinity import SessionAffinity, SessionParameters
from weft.epp.pool.clusters import (
    CLUSTER_EXTRACTOR,
    CLUSTER_SOURCE,
    KV_ATTRIBUTE,
    QUEUE_ATTRIBUTE,
    ClusterExtractorParameters,
    ClusterSourceParameters,
)
from weft.epp.pool.endpoint import Endpoint
from weft.epp.pool.endpoints_file import ClustersFileParameters


@plugin("multicluster-queue-scorer", Kind.SCORER, is_alpha=True, extractor=CLUSTER_EXTRACTOR)
class ClusterQueueScorer(Plugin[NoParameters]):
    """Prefers clusters with a shorter average queue. A cluster that reports no queue length scores 0.0."""

    def score(self, _: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """Returns 1.0 for the shortest average queue, 0.0 for the longest."""
        queues = [endpoint.load.attributes.get(QUEUE_ATTRIBUTE) for endpoint in candidates]
        known = [each for each in queues if each is not None]
        scores = iter(fewest_is_best(known) if known else ())
        return [0.0 if each is None else next(scores) for each in queues]


@plugin(
    "multicluster-kv-cache-utilization-scorer",
    Kind.SCORER,
    is_alpha=True,
    extractor=CLUSTER_EXTRACTOR,
)
class ClusterKvUsageScorer(Plugin[NoParameters]):
    """Prefers clusters with more free KV cache on average. A cluster that reports no KV usage scores 0.0."""

    def score(self, _: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """Returns the average free share of each cluster's KV cache."""
        return [1.0 - each.load.attributes.get(KV_ATTRIBUTE, 1.0) for each in candidates]


ROWS: Final = (
    plugin_type(
        "multicluster-file-discovery",
        Kind.DISCOVERY,
        parameters=ClustersFileParameters,
        is_alpha=True,
    ),
    plugin_type(CLUSTER_SOURCE, Kind.SOURCE, parameters=ClusterSourceParameters, is_alpha=True),
    plugin_type(
        CLUSTER_EXTRACTOR,
        (Kind.EXTRACTOR, Kind.ATTRIBUTES),
        parameters=ClusterExtractorParameters,
        is_alpha=True,
    ),
    plugin_type(
        "multicluster-prefix-cache-scorer",
        Kind.SCORER,
        PrefixScorer,
        PrefixScorerParameters,
        is_alpha=True,
    ),
    plugin_type(
        "multicluster-approx-prefix-cache-producer",
        Kind.PRODUCER,
        ApproximatePrefixProducer,
        ApproximateParameters,
        is_alpha=True,
    ),
    plugin_type(
        "multicluster-session-affinity-filter",
        Kind.FILTER,
        SessionAffinity,
        SessionParameters,
        is_alpha=True,
    ),
)
