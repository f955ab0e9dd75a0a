"""`decode-filter`, `prefill-filter`, `encode-filter`: keep the endpoints whose role includes a stage."""

from collections.abc import Callable, Sequence

from weft.epp.config.parameters import Kind, NoParameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import Surroundings, plugin
from weft.epp.pool.endpoint import Endpoint
from weft.epp.pool.roles import decodes, encodes, prefills


class RoleFilter:
    """Keeps the endpoints whose role includes a stage."""

    def __init__(self, takes: Callable[[Endpoint], bool]) -> None:
        self._takes = takes

    def keep(self, _: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Returns the endpoints whose role includes the stage of this filter."""
        return [each for each in candidates if self._takes(each)]


@plugin("decode-filter", Kind.FILTER)
def decode_filter(_: NoParameters, __: Surroundings) -> RoleFilter:
    """Keeps the endpoints whose role includes decode."""
    return RoleFilter(decodes)


@plugin("prefill-filter", Kind.FILTER)
def prefill_filter(_: NoParameters, __: Surroundings) -> RoleFilter:
    """Keeps the endpoints whose role includes prefill."""
    return RoleFilter(prefills)


@plugin("encode-filter", Kind.FILTER)
def encode_filter(_: NoParameters, __: Surroundings) -> RoleFilter:
    """Keeps the endpoints whose role includes the encoding of media."""
    return RoleFilter(encodes)
