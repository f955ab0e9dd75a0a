"""Sets of endpoints as ints with one bit for each endpoint's slot."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from weft.epp.pool.endpoint import Endpoint

_Amount = TypeVar("_Amount", int, float)


def by_endpoint(
    amounts: Mapping[int, _Amount], endpoints: Iterable[Endpoint]
) -> dict[Endpoint, _Amount]:
    """Converts amounts per set of endpoints to amounts per endpoint. The cost grows with the sizes of the sets.

    A request may have a thousand prompts, and a pool a thousand endpoints: callers first sum the amounts of equal sets.
    """
    if not amounts:
        return {}
    by_slot = {endpoint.slot: endpoint for endpoint in endpoints}
    found: dict[Endpoint, _Amount] = {}
    for holders, amount in amounts.items():
        while holders:
            last = holders & -holders
            holders ^= last
            if (endpoint := by_slot.get(last.bit_length() - 1)) is not None:
                found[endpoint] = found.get(endpoint, 0) + amount
    return found
