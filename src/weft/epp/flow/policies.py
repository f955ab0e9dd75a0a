"""Protocols of the flow-control policies, and the policies and limits of one configuration."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from weft.epp.flow.item import Item, ItemHeap, Lease


class FairnessPolicy(Protocol):
    """Policy that shares a band among its flows."""

    def queue_of(self, fairness_id: str) -> str:
        """Returns the name of the queue for requests of the flow `fairness_id`."""

    def choose(self, queues: Mapping[str, ItemHeap], now: float) -> str:
        """Returns the name of the queue whose first request is dispatched next. No queue is empty; the queue that was
        served longest ago is first.
        """


class OrderingPolicy(Protocol):
    """Policy that orders the requests of a queue."""

    def order(self, item: Item, ttl_s: float) -> float:
        """Returns the sort key of a request, smaller first. `ttl_s` is its maximum wait in seconds, infinite without a
        limit.
        """


@runtime_checkable
class CostOrdering(OrderingPolicy, Protocol):
    """Ordering policy that first compares the costs of the requests' flows. Costs change while requests wait."""

    def cost(self, fairness_id: str) -> float:
        """Returns the cost of a flow; flows with smaller costs come first. A cost never falls: decay would lower all
        costs alike, so it is left out.
        """


class UsageLimitPolicy(Protocol):
    """Policy that sets the saturation up to which each band may dispatch."""

    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:
        """Returns the maximum saturation for each priority. `priorities` are in descending order."""


class EvictionFilter(Protocol):
    """Policy that decides which running requests may be evicted."""

    def accepts(self, lease: Lease) -> bool:
        """True if this request may be evicted."""


class EvictionOrder(Protocol):
    """Policy that orders the running requests that may be evicted."""

    def key(self, lease: Lease) -> tuple[float, ...]:
        """Returns the sort key of a running request; the request with the smallest key is evicted first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Maximum numbers of waiting requests and of their bytes."""

    max_requests: float = math.inf
    max_bytes: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class BandParts:
    """The policies and limits of one band."""

    limits: Limits
    ttl_s: float  # time to live in the queue while the pool has endpoints
    fairness: FairnessPolicy
    ordering: OrderingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionParts:
    """The policies that decide which running requests are evicted for others."""

    filter: EvictionFilter
    order: EvictionOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowParts:
    """The policies and limits of flow control, created from a configuration."""

    limits: Limits  # of all bands together
    no_endpoint_ttl_s: float
    bands: Mapping[int, BandParts]
    default_band: BandParts
    default_negative_band: BandParts
    usage_limit: UsageLimitPolicy
    eviction: EvictionParts | None = None

    @property
    def max_wait_s(self) -> float:
        """Maximum seconds that a request may wait."""
        bands = (*self.bands.values(), self.default_band, self.default_negative_band)
        return max(self.no_endpoint_ttl_s, *(band.ttl_s for band in bands))
