"""Fairness policies without memory: by order alone, and by turns."""

from collections.abc import Mapping
from typing import Final

from weft.epp.config.parameters import Kind, NoParameters
from weft.epp.decision.plugin import GLOBAL_STRICT, Surroundings, plugin_type
from weft.epp.flow.item import ItemHeap


class GlobalStrict:
    """All flows of a band wait in one queue."""

    def __init__(self, _: NoParameters, __: Surroundings) -> None:
        pass

    def queue_of(self, _: str) -> str:
        return ""

    def choose(self, _: Mapping[str, ItemHeap], __: float) -> str:
        return ""


class RoundRobin:
    """Flows that have requests take turns."""

    def __init__(self, _: NoParameters, __: Surroundings) -> None:
        pass

    def queue_of(self, fairness_id: str) -> str:
        return fairness_id

    def choose(self, queues: Mapping[str, ItemHeap], _: float) -> str:
        return next(iter(queues))


ROWS: Final = (
    plugin_type(GLOBAL_STRICT, Kind.FAIRNESS, GlobalStrict),
    plugin_type("round-robin-fairness-policy", Kind.FAIRNESS, RoundRobin),
)
