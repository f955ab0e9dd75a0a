"""`header-based-testing-filter`: keeps the endpoints that a header names, for tests."""

from collections.abc import Sequence

from weft.core.headers import TESTED_ENDPOINTS
from weft.epp.config.parameters import Kind, NoParameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import Plugin, plugin
from weft.epp.pool.endpoint import Endpoint, split_host_port


@plugin("header-based-testing-filter", Kind.FILTER)
class HeaderTestingFilter(Plugin[NoParameters]):
    """Keeps the endpoints that a request header names, in the header's order; all candidates without the header."""

    def keep(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Returns the endpoints that the header names as "IP" or "IP:port"."""
        value = cycle.request.headers.get(TESTED_ENDPOINTS, "")
        if not value:
            return candidates
        passing: dict[Endpoint, None] = {}
        for entry in value.split(","):
            host, port = split_host_port(entry.strip())
            for each in candidates:
                if each.host == host and port in {None, each.spec.port}:
                    passing[each] = None
        return list(passing)
