"""Protocols of flow-control policies, and the parts of flow control."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from weft.epp.flow.item import Item, ItemHeap, Lease


class FairnessPolicy(Protocol):
    """Shares a band among its flows."""

    def queue_of(self, fairness_id: str) -> str:
        """The queue that requests of this flow wait in."""

    def choose(self, queues: Mapping[str, ItemHeap], now: float) -> str:
        """The queue whose head is next. None is empty; the one served longest ago comes first."""


class OrderingPolicy(Protocol):
    """Orders the requests of a queue."""

    def order(self, item: Item, ttl_s: float) -> float:
        """Smaller is earlier; `ttl_s` is what it may wait, infinite if that has no end."""


@runtime_checkable
class CostOrdering(OrderingPolicy, Protocol):
    """Orders first by what the flow of a request costs, which changes while the request waits."""

    def cost(self, fairness_id: str) -> float:
        """Smaller is earlier. It never falls: what time takes away, it takes from all flows alike."""


class UsageLimitPolicy(Protocol):
    """Says up to which saturation each band may send."""

    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:
        """Returns a ceiling for each priority; priorities are in descending order."""


class EvictionFilter(Protocol):
    """Says which requests in flight may be ended."""

    def accepts(self, lease: Lease) -> bool:
        """True if this request may be evicted."""


class EvictionOrder(Protocol):
    """Says which of them goes first."""

    def key(self, lease: Lease) -> tuple[float, ...]:
        """Smaller goes earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on waiting requests and bytes."""

    max_requests: float = math.inf
    max_bytes: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class BandParts:
    """A band of one priority."""

    limits: Limits
    ttl_s: float  # while there are endpoints
    fairness: FairnessPolicy
    ordering: OrderingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionParts:
    """The plugins that decide which running requests are revoked for others."""

    filter: EvictionFilter
    order: EvictionOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowParts:
    """Flow control, built from a configuration."""

    limits: Limits  # of all bands together
    no_endpoint_ttl_s: float
    bands: Mapping[int, BandParts]
    default_band: BandParts
    default_negative_band: BandParts
    usage_limit: UsageLimitPolicy
    eviction: EvictionParts | None = None

    @property
    def max_wait_s(self) -> float:
        """The longest that anybody waits."""
        bands = (*self.bands.values(), self.default_band, self.default_negative_band)
        return max(self.no_endpoint_ttl_s, *(band.ttl_s for band in bands))
