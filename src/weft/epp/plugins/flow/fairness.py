"""Fairness policies that store nothing about flows: one shared queue, and round robin."""

from collections.abc import Mapping

from weft.epp.config.parameters import Kind, NoParameters
from weft.epp.decision.plugin import GLOBAL_STRICT, Plugin, plugin
from weft.epp.flow.item import ItemHeap


@plugin(GLOBAL_STRICT, Kind.FAIRNESS)
class GlobalStrict(Plugin[NoParameters]):
    """All flows of a band share one queue, so the ordering policy alone decides."""

    def queue_of(self, _: str) -> str:
        return ""

    def choose(self, _: Mapping[str, ItemHeap], __: float) -> str:
        return ""


@plugin("round-robin-fairness-policy", Kind.FAIRNESS)
class RoundRobin(Plugin[NoParameters]):
    """Dispatches from the flows with waiting requests in turn."""

    def queue_of(self, fairness_id: str) -> str:
        return fairness_id

    def choose(self, queues: Mapping[str, ItemHeap], _: float) -> str:
        return next(iter(queues))
