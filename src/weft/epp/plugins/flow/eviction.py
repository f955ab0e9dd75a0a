"""Eviction policies: which running requests may be revoked, and in which order."""

from weft.epp.config.parameters import Kind, NoParameters
from weft.epp.decision.plugin import EVICTION_FILTER, EVICTION_ORDER, Plugin, plugin
from weft.epp.flow.item import Lease


@plugin(EVICTION_FILTER, Kind.EVICTION_FILTER, is_alpha=True)
class Sheddable(Plugin[NoParameters]):
    """Allows eviction of requests with a negative priority."""

    def accepts(self, lease: Lease) -> bool:
        return lease.priority < 0


@plugin(EVICTION_ORDER, Kind.EVICTION_ORDER, is_alpha=True)
class LowestThenNewest(Plugin[NoParameters]):
    """The lowest priority, and of that the newest, which loses the least work."""

    def key(self, lease: Lease) -> tuple[float, ...]:
        return lease.priority, -lease.started
