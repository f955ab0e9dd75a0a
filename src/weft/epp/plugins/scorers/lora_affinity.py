"""`lora-affinity-scorer`: prefers endpoints that have the request's adapter loaded, or room to load it."""

from collections.abc import Sequence

from weft.epp.config.parameters import Kind, NoParameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import Plugin, plugin
from weft.epp.pool.endpoint import Endpoint


@plugin("lora-affinity-scorer", Kind.SCORER)
class LoraAffinityScorer(Plugin[NoParameters]):
    """Prefers endpoints that have the request's adapter loaded, then endpoints with room to load it."""

    def score(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """Returns 1.0 if the adapter is active, 0.8 if the endpoint has room for it, 0.6 if the adapter waits to be
        loaded, otherwise 0.0.
        """
        return [_adapter_score(endpoint, cycle.model) for endpoint in candidates]


def _adapter_score(endpoint: Endpoint, model: str) -> float:
    adapters = endpoint.load.adapters
    if model in adapters.active:
        return 1.0
    if len(adapters.active) + len(adapters.waiting) < adapters.max_active:
        return 0.8
    return 0.6 if model in adapters.waiting else 0.0
