"""`kv-cache-utilization-scorer`: room in the KV cache."""

from collections.abc import Sequence
from typing import Final

from weft.epp.config.parameters import Kind, NoParameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import Surroundings, plugin_type
from weft.epp.pool.endpoint import Endpoint


class KvUsageScorer:
    """More free KV cache is better."""

    def __init__(self, _: NoParameters, __: Surroundings) -> None:
        pass

    def score(self, _: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """The free share."""
        return [1.0 - endpoint.load.kv_usage for endpoint in candidates]


ROWS: Final = (plugin_type("kv-cache-utilization-scorer", Kind.SCORER, KvUsageScorer),)
