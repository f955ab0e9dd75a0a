"""`kv-cache-utilization-scorer`: prefers endpoints with more free KV cache."""

from collections.abc import Sequence

from weft.epp.config.parameters import Kind, NoParameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import Plugin, plugin
from weft.epp.pool.endpoint import Endpoint


@plugin("kv-cache-utilization-scorer", Kind.SCORER)
class KvUsageScorer(Plugin[NoParameters]):
    """Prefers endpoints with more free KV cache."""

    def score(self, _: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """Returns the free share of each endpoint's KV cache."""
        return [1.0 - endpoint.load.kv_usage for endpoint in candidates]
