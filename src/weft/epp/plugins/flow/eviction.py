"""Which requests in flight may be ended for others, and which of them first."""

from typing import Final

from weft.epp.config.parameters import Kind, NoParameters
from weft.epp.decision.plugin import EVICTION_FILTER, EVICTION_ORDER, Surroundings, plugin_type
from weft.epp.flow.item import Lease


class Sheddable:
    """Those of negative priority."""

    def __init__(self, _: NoParameters, __: Surroundings) -> None:
        pass

    def accepts(self, lease: Lease) -> bool:
        return lease.priority < 0


class LowestThenNewest:
    """The lowest priority, and of that the newest, which loses the least work."""

    def __init__(self, _: NoParameters, __: Surroundings) -> None:
        pass

    def key(self, lease: Lease) -> tuple[float, ...]:
        return lease.priority, -lease.started


ROWS: Final = (
    plugin_type(EVICTION_FILTER, Kind.EVICTION_FILTER, Sheddable, is_alpha=True),
    plugin_type(EVICTION_ORDER, Kind.EVICTION_ORDER, LowestThenNewest, is_alpha=True),
)
