"""`Band`: the waiting requests of one priority, in queues. The fairness policy chooses a queue, and the ordering policy
orders each queue.
"""

import heapq
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Final

from weft.epp.flow.item import Item, ItemHeap
from weft.epp.flow.policies import BandParts, CostOrdering, FlowParts, Limits

# A band that is not configured is removed this long after its last request has left.
IDLE_BAND_S: Final = 600.0


class Occupancy:
    """Numbers of waiting requests and of their bytes, with limits."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.num_requests = 0
        self.num_bytes = 0

    def can_have(self, num_bytes: int) -> bool:
        """True if a request of this size fits into an empty band."""
        return num_bytes <= self.limits.max_bytes

    def has_room(self, num_requests: int, num_bytes: int) -> bool:
        """True if this many more requests and bytes fit. Negative numbers stand for requests that leave."""
        return (
            self.num_requests + num_requests <= self.limits.max_requests
            and self.num_bytes + num_bytes <= self.limits.max_bytes
        )

    def add(self, num_requests: int, num_bytes: int) -> None:
        """Adds to the numbers of requests and bytes; negative arguments subtract."""
        self.num_requests += num_requests
        self.num_bytes += num_bytes


class Queue(ItemHeap):
    """A queue of a band, which also lists its requests by arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.items: dict[Item, None] = {}


class _CostQueue(Queue):
    """A queue that orders flows by cost, and the requests within each flow.

    Costs are read when a request may be dispatched. Because costs never fall, a stored cost is at most the present one.
    """

    def __init__(self, ordering: CostOrdering) -> None:
        super().__init__()
        self._ordering = ordering
        self._flows: dict[str, ItemHeap] = {}  # contains no empty queues
        # Includes the arrival of the flow's first request, since costs may be equal. Some entries belong to flows
        # that have left.
        self._costs: list[tuple[float, float, str]] = []

    def __len__(self) -> int:
        return len(self.items)

    def push(self, item: Item, order: float) -> None:
        name = item.fairness_id
        flow = self._flows.get(name)
        if flow is None:
            flow = self._flows[name] = ItemHeap()
            heapq.heappush(self._costs, (self._ordering.cost(name), item.arrived, name))
        flow.push(item, order)

    def head(self) -> Item | None:
        while self._costs:
            _, _, name = noted = self._costs[0]
            if (flow := self._flows.get(name)) is None or (item := flow.head()) is None:
                heapq.heappop(self._costs)
                continue
            known = (self._ordering.cost(name), item.arrived, name)
            if known <= noted:
                return item
            heapq.heapreplace(self._costs, known)
        return None

    def left(self, item: Item) -> None:
        flow = self._flows[item.fairness_id]
        flow.left(item)
        if not flow:
            del self._flows[item.fairness_id]
            if len(self._costs) > 2 * len(self._flows) + self._MIN_SWEPT:
                noted = {
                    name: (cost, at, name) for cost, at, name in sorted(self._costs, reverse=True)
                }
                self._costs = [noted[name] for name in self._flows]
                heapq.heapify(self._costs)


class _Lengths:
    """Queues by length, to find the newest request of the longest queue quickly among thousands."""

    def __init__(self) -> None:
        self._queues: dict[int, dict[Queue, None]] = {}
        self._longest = 0  # length of the longest queue, or more

    def moved(self, queue: Queue, before: int) -> None:
        """Records that a queue's length has changed; length 0 removes the queue."""
        if before:
            level = self._queues[before]
            del level[queue]
            if not level:
                del self._queues[before]
        if len(queue):
            self._queues.setdefault(len(queue), {})[queue] = None
        self._longest = max(self._longest, len(queue))
        while self._longest and self._longest not in self._queues:
            self._longest -= 1

    def newest(self, down_to: int) -> Iterator[Item]:
        """Yields the newest request of the longest queue, repeatedly, until no queue is longer than `down_to`. A
        yielded request no longer counts for the length of its queue.
        """
        begun: list[Iterator[Item]] = []
        for length in range(self._longest, down_to, -1):
            level = self._queues.get(length, ())
            for items in begun:
                yield next(items)
            for queue in level:
                begun.append(reversed(queue.items))
                yield next(begun[-1])


class Band:
    """The waiting requests of one priority."""

    def __init__(self, priority: int, parts: BandParts, now: float) -> None:
        self.priority = priority
        self.parts = parts
        self.used = Occupancy(parts.limits)
        self.last_used = now
        # Contains no empty queues; the flow that was served longest ago is first.
        self._queues: dict[str, Queue] = {}
        self._lengths = _Lengths()
        ordering = parts.ordering
        self._new_queue: Callable[[], Queue] = (
            partial(_CostQueue, ordering) if isinstance(ordering, CostOrdering) else Queue
        )

    def __len__(self) -> int:
        return self.used.num_requests

    def __iter__(self) -> Iterator[Item]:
        return chain.from_iterable(queue.items for queue in self._queues.values())

    def add(self, item: Item) -> None:
        """Adds a request to its queue."""
        name = self.parts.fairness.queue_of(item.fairness_id)
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = self._new_queue()
        ttl_s = min(self.parts.ttl_s, item.own_ttl_s)
        before = len(queue)
        queue.push(item, self.parts.ordering.order(item, ttl_s))
        item.is_waiting = True
        queue.items[item] = None
        self._lengths.moved(queue, before)
        self.used.add(1, item.num_bytes)

    def next(self, now: float) -> Item:
        """Returns the request to dispatch next. The band must not be empty."""
        name = self.parts.fairness.choose(self._queues, now)
        head = self._queues[name].head()
        assert head is not None
        return head

    def served(self, item: Item) -> None:
        """Moves the queue of a dispatched request behind all other queues."""
        name = self.parts.fairness.queue_of(item.fairness_id)
        self._queues[name] = self._queues.pop(name)

    def remove(self, item: Item, now: float) -> None:
        """Removes a request that no longer waits."""
        item.is_waiting = False
        self.used.add(-1, -item.num_bytes)
        self.last_used = now
        name = self.parts.fairness.queue_of(item.fairness_id)
        queue = self._queues[name]
        before = len(queue)
        queue.left(item)
        del queue.items[item]
        self._lengths.moved(queue, before)
        if not queue:
            del self._queues[name]

    def surplus(self, item: Item) -> Iterator[Item]:
        """Yields the requests to evict in favour of `item`: the newest requests of flows that have more waiting
        requests than the flow of `item`.
        """
        own = self._queues.get(self.parts.fairness.queue_of(item.fairness_id))
        return self._lengths.newest(1 + (0 if own is None else len(own)))

    def newest(self) -> Iterator[Item]:
        """Yields all requests of the band in the order of eviction: each time the newest request of the queue that is
        longest then.
        """
        return self._lengths.newest(0)


class Bands:
    """All bands, highest priority first."""

    def __init__(self, parts: FlowParts, now: float) -> None:
        self._parts = parts
        self._by_priority: dict[int, Band] = {}
        for priority in (0, *parts.bands):
            self._open(priority, now)

    def __iter__(self) -> Iterator[Band]:
        return iter(self._by_priority.values())

    def of(self, priority: int, now: float) -> Band:
        """Returns the band of a priority; creates the band if it does not exist."""
        found = self._by_priority.get(priority)
        return self._open(priority, now) if found is None else found

    def below(self, priority: int) -> Iterator[Item]:
        """Yields the requests of lower priorities in the order of eviction, the lowest priority first."""
        for band in reversed(self._by_priority.values()):
            if band.priority >= priority:
                return
            yield from band.newest()

    def sweep(self, now: float) -> None:
        """Removes bands that are not configured and were not used for `IDLE_BAND_S`."""
        for band in list(self):
            is_configured = band.priority == 0 or band.priority in self._parts.bands
            if not is_configured and not band and now - band.last_used > IDLE_BAND_S:
                del self._by_priority[band.priority]

    def _open(self, priority: int, now: float) -> Band:
        default = self._parts.default_negative_band if priority < 0 else self._parts.default_band
        band = Band(priority, self._parts.bands.get(priority, default), now)
        self._by_priority[priority] = band
        self._by_priority = dict(sorted(self._by_priority.items(), reverse=True))
        return band
