"""`Pool`: the current endpoints, and listeners for changes."""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from weft.epp.pool.endpoint import Endpoint, EndpointSpec, split_host_port


class Pool:
    """All endpoints by source and namespace/name. One event loop owns the pool."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], Endpoint] = {}
        self._ready: list[Endpoint] = []
        self._on_joined: list[Callable[[Endpoint], None]] = []
        self._on_left: list[Callable[[Endpoint], None]] = []
        self._on_load: list[Callable[[], None]] = []
        self._joining_labels: set[str] = set()
        self.loads_wanted = False  # True if a request waits for the next load reports
        self.num_stirs = 0
        self.stirred = asyncio.Event()  # pulsed: wakes the tasks that wait at that moment
        self._free_slots: list[int] = []
        self._num_holds: dict[Endpoint, int] = {}  # holds on the slots of endpoints that have left
        self._num_slots = 0

    def on_joined(self, listener: Callable[[Endpoint], None]) -> None:
        """Registers `listener`, which is called for each present and each future endpoint."""
        self._on_joined.append(listener)
        for endpoint in self._ready:
            listener(endpoint)

    def join_by(self, *labels: str) -> None:
        """Registers labels that listeners read when an endpoint joins. If such a label changes, the endpoint leaves and
        joins again.
        """
        self._joining_labels.update(labels)

    def on_left(self, listener: Callable[[Endpoint], None]) -> None:
        """Registers `listener`, which is called for each endpoint that leaves."""
        self._on_left.append(listener)

    def on_load(self, listener: Callable[[], None]) -> None:
        """Registers `listener`, which is called whenever an endpoint reports its load."""
        self._on_load.append(listener)

    def stir(self) -> None:
        """Makes the next polls come soon, because the load is about to change."""
        self.num_stirs += 1
        self.stirred.set()
        self.stirred.clear()

    def _loaded(self) -> None:
        for listener in self._on_load:
            listener()

    def hold_slot(self, endpoint: Endpoint) -> None:
        """Reserves the slot number of an endpoint that is leaving, until `release_slot`."""
        self._num_holds[endpoint] = self._num_holds.get(endpoint, 0) + 1

    def release_slot(self, endpoint: Endpoint) -> None:
        """Releases a reserved slot number, which no index uses any more."""
        self._num_holds[endpoint] -= 1
        if not self._num_holds[endpoint]:
            del self._num_holds[endpoint]
            self._free_slots.append(endpoint.slot)

    @property
    def ready(self) -> Sequence[Endpoint]:
        """All endpoints whose address is resolved."""
        return self._ready

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._ready)

    def __len__(self) -> int:
        return len(self._ready)

    def replace(self, source: str, found: Iterable[tuple[EndpointSpec, str]]) -> None:
        """Replaces the endpoints of `source` by `found` (specs with IP addresses). Unchanged endpoints keep their
        state, also if their labels changed.
        """
        wanted = {f"{spec.namespace}/{spec.name}": (spec, host) for spec, host in found}
        for key, endpoint in list(self._by_key.items()):
            if key[0] != source:
                continue
            if (now := wanted.get(key[1])) is None or not self._is_same(endpoint, *now):
                self._remove(key)
            elif endpoint.labels != now[0].labels:
                endpoint.spec, endpoint.labels = now[0], now[0].labels
                # A new list, by which readers notice the change
                self._ready = list(self._by_key.values())
        for name, (spec, host) in wanted.items():
            if (source, name) not in self._by_key:
                self._add((source, name), spec, host)

    def select(self, subset: tuple[str, ...] | None) -> Sequence[Endpoint]:
        """Returns the endpoints that the gateway allows: all if `subset` is None, otherwise the endpoints that it names
        as "ip" or "ip:port".
        """
        if subset is None:
            return self._ready
        allowed = {split_host_port(entry) for entry in subset}
        return [
            endpoint
            for endpoint in self._ready
            if not allowed.isdisjoint(
                (endpoint.host, port) for port in (endpoint.spec.port, endpoint.grpc_port, None)
            )
        ]

    def _add(self, key: tuple[str, str], spec: EndpointSpec, host: str) -> None:
        slot = self._free_slots.pop() if self._free_slots else self._num_slots
        self._num_slots = max(self._num_slots, slot + 1)
        endpoint = Endpoint(spec, host=host, slot=slot, changed=self._loaded)
        # Ties go to the endpoint that was picked longest ago; the random start value makes several pickers choose
        # differently.
        endpoint.last_pick = -random.randrange(1, 1 << 30)
        self._by_key[key] = endpoint
        self._ready = list(self._by_key.values())
        for listener in self._on_joined:
            listener(endpoint)

    def _is_same(self, endpoint: Endpoint, spec: EndpointSpec, host: str) -> bool:
        """True if an endpoint differs at most in labels that nobody reads when it joins."""
        known = endpoint.spec
        is_one = replace(known, labels=spec.labels) == spec and endpoint.host == host
        return is_one and all(
            known.labels.get(label) == spec.labels.get(label) for label in self._joining_labels
        )

    def _remove(self, key: tuple[str, str]) -> None:
        endpoint = self._by_key.pop(key)
        self._ready = list(self._by_key.values())
        for listener in self._on_left:
            listener(endpoint)
        # Only after the listeners, which have cleared the slot's bits or hold the slot until they have.
        if endpoint not in self._num_holds:
            self._free_slots.append(endpoint.slot)


def reachable(endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
    """Returns the endpoints that accept connections; all of them if none does."""
    if not any(endpoint.is_refusing for endpoint in endpoints):
        return endpoints
    return [endpoint for endpoint in endpoints if not endpoint.is_refusing] or endpoints
