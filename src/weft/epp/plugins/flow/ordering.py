"""Ordering policies: who is first in a queue."""

import math
from typing import Final

from weft.epp.config.parameters import Kind, NoParameters
from weft.epp.decision.plugin import FCFS, Surroundings, plugin_type
from weft.epp.flow.item import Item


class FirstCome:
    """Who came first."""

    def __init__(self, _: NoParameters, __: Surroundings) -> None:
        pass

    def order(self, item: Item, _: float) -> float:
        return item.arrived


class EarliestDeadline:
    """Whose wait ends first; those that would wait for ever come last."""

    def __init__(self, _: NoParameters, __: Surroundings) -> None:
        pass

    def order(self, item: Item, ttl_s: float) -> float:
        return item.arrived + ttl_s


class SloDeadline:
    """Whose first token is due first; those that do not say when come last."""

    def __init__(self, _: NoParameters, __: Surroundings) -> None:
        pass

    def order(self, item: Item, _: float) -> float:
        return math.inf if item.slo.ttft_s is None else item.arrived + item.slo.ttft_s


ROWS: Final = (
    plugin_type(FCFS, Kind.ORDERING, FirstCome),
    plugin_type("edf-ordering-policy", Kind.ORDERING, EarliestDeadline),
    plugin_type("slo-deadline-ordering-policy", Kind.ORDERING, SloDeadline),
)
