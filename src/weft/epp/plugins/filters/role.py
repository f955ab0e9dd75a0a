"""`decode-filter`, `prefill-filter`, `encode-filter`: who takes which part of the work."""

from collections.abc import Sequence
from typing import Final

from weft.epp.config.parameters import Kind, NoParameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import Surroundings, plugin_type
from weft.epp.pool.endpoint import Endpoint

ROLE_LABEL = "llm-d.ai/role"
DECODE_ROLES = frozenset({"decode", "prefill-decode", "both", "encode-prefill-decode"})
PREFILL_ROLES = frozenset(
    {"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"}
)
ENCODE_ROLES = frozenset({"encode", "encode-prefill", "encode-prefill-decode"})


class RoleFilter:
    """Keeps the endpoints of some roles; without a role an endpoint decodes."""

    def __init__(self, roles: frozenset[str], *, keeps_unlabelled: bool) -> None:
        self._roles = roles
        self._keeps_unlabelled = keeps_unlabelled

    def keep(self, _: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Those that take this part of the work."""
        return [each for each in candidates if self._accepts(each.labels.get(ROLE_LABEL))]

    def _accepts(self, role: str | None) -> bool:
        return self._keeps_unlabelled if role is None else role in self._roles


def decode_filter(_: NoParameters, __: Surroundings) -> RoleFilter:
    """Endpoints that decode."""
    return RoleFilter(DECODE_ROLES, keeps_unlabelled=True)


def prefill_filter(_: NoParameters, __: Surroundings) -> RoleFilter:
    """Endpoints that prefill."""
    return RoleFilter(PREFILL_ROLES, keeps_unlabelled=False)


def encode_filter(_: NoParameters, __: Surroundings) -> RoleFilter:
    """Endpoints that encode media."""
    return RoleFilter(ENCODE_ROLES, keeps_unlabelled=False)


ROWS: Final = (
    plugin_type("decode-filter", Kind.FILTER, decode_filter),
    plugin_type("prefill-filter", Kind.FILTER, prefill_filter),
    plugin_type("encode-filter", Kind.FILTER, encode_filter),
)
