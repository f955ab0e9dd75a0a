"""Protocols of flow-control policies, and the parts of flow control."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from weft.epp.flow.item import Item, ItemHeap, Lease


class FairnessPolicy(Protocol):
    """Shares a band among its flows."""

    def queue_of(self, fairness_id: str) -> str:
        """Name of the queue for requests of this flow."""

    def choose(self, queues: Mapping[str, ItemHeap], now: float) -> str:
        """Name of the queue whose first request is dispatched next. No queue is empty; the first one was served
        longest ago.
        """


class OrderingPolicy(Protocol):
    """Orders the requests of a queue."""

    def order(self, item: Item, ttl_s: float) -> float:
        """Rank of an item, smaller first; `ttl_s` is its longest wait, infinite if there is no limit."""


@runtime_checkable
class CostOrdering(OrderingPolicy, Protocol):
    """Orders first by the cost of a request's flow, which changes while the request waits."""

    def cost(self, fairness_id: str) -> float:
        """Cost of a flow, smaller first. A cost never falls: decay lowers all flows' costs alike, and is left out."""


class UsageLimitPolicy(Protocol):
    """Sets the saturation up to which each band may dispatch."""

    def ceilings(self, priorities: Sequence[int], saturation: float) -> Sequence[float]:
        """Returns a ceiling for each priority; priorities are in descending order."""


class EvictionFilter(Protocol):
    """Decides which running requests may be revoked."""

    def accepts(self, lease: Lease) -> bool:
        """True if this request may be evicted."""


class EvictionOrder(Protocol):
    """Orders the requests that may be revoked."""

    def key(self, lease: Lease) -> tuple[float, ...]:
        """Sort key, smaller first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on waiting requests and bytes."""

    max_requests: float = math.inf
    max_bytes: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class BandParts:
    """The plugins and limits of one band."""

    limits: Limits
    ttl_s: float  # time to live in the queue while the pool has endpoints
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
        """The longest possible wait of a request."""
        bands = (*self.bands.values(), self.default_band, self.default_negative_band)
        return max(self.no_endpoint_ttl_s, *(band.ttl_s for band in bands))
