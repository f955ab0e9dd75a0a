"""Eviction policies: which running requests may be evicted, and in which order."""

from weft.epp.config.parameters import Kind, NoParameters
from weft.epp.decision.plugin import EVICTION_FILTER, EVICTION_ORDER, Plugin, plugin
from weft.epp.flow.item import Lease


@plugin(EVICTION_FILTER, Kind.EVICTION_FILTER, is_alpha=True)
class Sheddable(Plugin[NoParameters]):
    """Allows the eviction of requests with a negative priority."""

    def accepts(self, lease: Lease) -> bool:
        return lease.priority < 0


@plugin(EVICTION_ORDER, Kind.EVICTION_ORDER, is_alpha=True)
class LowestThenNewest(Plugin[NoParameters]):
    """Evicts requests of the lowest priority first, and among these the newest, because the least work is lost."""

    def key(self, lease: Lease) -> tuple[float, ...]:
        return lease.priority, -lease.started
