"""Ordering policies: the order of requests within a queue."""

import math

from weft.epp.config.parameters import Kind, NoParameters
from weft.epp.decision.plugin import FCFS, Plugin, plugin
from weft.epp.flow.item import Item


@plugin(FCFS, Kind.ORDERING)
class FirstCome(Plugin[NoParameters]):
    """Orders requests by arrival, earliest first."""

    def order(self, item: Item, _: float) -> float:
        return item.arrived


@plugin("edf-ordering-policy", Kind.ORDERING)
class EarliestDeadline(Plugin[NoParameters]):
    """Orders requests by deadline, earliest first; requests without a deadline come last."""

    def order(self, item: Item, ttl_s: float) -> float:
        return item.arrived + ttl_s


@plugin("slo-deadline-ordering-policy", Kind.ORDERING)
class SloDeadline(Plugin[NoParameters]):
    """Orders requests by the deadline of their first token, earliest first; requests without a deadline come last."""

    def order(self, item: Item, _: float) -> float:
        return math.inf if item.slo.ttft_s is None else item.arrived + item.slo.ttft_s
