"""The approximate prefix index: the prompt blocks that were sent to each endpoint, as many as fit the endpoint's
cache.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from weft.epp.pool.endpoint import Endpoint

_MAX_REMOVED = 2048  # removed in one go


class ApproximateIndex:
    """Map of block hashes to endpoints, and a least-recently-used list of hashes per endpoint.

    A set of endpoints is an int with one bit per endpoint's slot: a long prompt then costs one dictionary look-up per
    block, whatever the number of endpoints.
    """

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._recent: dict[Endpoint, OrderedDict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, endpoint: Endpoint, hashes: Iterable[int], *, capacity: int) -> None:
        """Records that `endpoint` will compute these blocks; drops the endpoint's oldest blocks beyond `capacity`."""
        recent = self._recent.get(endpoint)
        if recent is None:
            recent = self._recent[endpoint] = OrderedDict()
        holders, bit = self._holders, 1 << endpoint.slot
        for block in hashes:
            if block in recent:
                recent.move_to_end(block)
            else:
                recent[block] = None
                holders[block] = holders.get(block, 0) | bit
        while len(recent) > capacity:
            block, _ = recent.popitem(last=False)
            self._clear(block, bit)

    def remove(self, endpoint: Endpoint) -> None:
        """Removes an endpoint and all its blocks."""
        while self.remove_some(endpoint):
            pass

    def remove_some(self, endpoint: Endpoint) -> bool:
        """Removes some blocks of an endpoint, within a few milliseconds; returns False if there were none."""
        recent = self._recent.get(endpoint)
        if recent is None:
            return False
        bit = 1 << endpoint.slot
        for _ in range(min(_MAX_REMOVED, len(recent))):
            block, _ = recent.popitem()
            self._clear(block, bit)
        if not recent:
            del self._recent[endpoint]
        return True

    def match(self, hashes: Sequence[int]) -> dict[int, int]:
        """Returns the number of leading blocks for each set of endpoints that have them, up to the first block that no
        endpoint has.
        """
        get = self._holders.get
        counts: dict[int, int] = {}
        for block in hashes:
            holders = get(block)
            if not holders:
                break
            counts[holders] = counts.get(holders, 0) + 1
        return counts

    def num_blocks(self, endpoint: Endpoint) -> int:
        """Returns the number of blocks that are recorded for an endpoint."""
        return len(self._recent.get(endpoint, ()))

    def check(self) -> None:
        """Asserts that the two maps of the index agree; for tests."""
        listed: dict[int, int] = {}
        for endpoint, recent in self._recent.items():
            for block in recent:
                listed[block] = listed.get(block, 0) | 1 << endpoint.slot
        assert listed == self._holders

    def _clear(self, block: int, bit: int) -> None:
        left = self._holders[block] & ~bit
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]
