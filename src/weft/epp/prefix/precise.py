"""The precise prefix index: the blocks that each endpoint's engine has reported as cached."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from weft.epp.pool.endpoint import Endpoint
from weft.epp.prefix.events import Cleared, Event, Removed, Stored
from weft.epp.prefix.keys import Extra, KeyAlgorithm

# Tier of blocks whose request was routed, and whose storage is not confirmed yet.
SPECULATIVE = "speculative"
_MAX_CLEARED = 2048  # cleared in one go
# Blocks are evicted in batches of this size, oldest first: finding the first key of a dictionary takes time for each
# key that was removed before it.
_MAX_EVICTED = 2048
_EVICTED_SHARE = 64
_MAX_ADAPTERS = 4096  # maximum number of adapter names, which engines choose
_Place = tuple[str, int | None]  # tier, KV-cache group


@dataclass(slots=True)
class _Block:
    """A block as an engine stores it: the key that the block completes, and the state of the key chain after the
    block.
    """

    key: int  # key of the last full block up to this block's end
    tail: bytes  # tokens after that full block
    keys: tuple[int, ...]
    num_tokens: int
    places: set[_Place] = field(default_factory=set)


@dataclass(slots=True)
class _Holding:
    """The blocks that one endpoint has."""

    blocks: dict[int, _Block] = field(default_factory=dict)  # by the engine's hash
    counts: dict[str, dict[int, int]] = field(default_factory=dict)  # by tier, then by key
    num_tokens: int = 0  # tokens of the blocks


class PreciseIndex:
    """Map of block keys to the endpoints that have the block, by cache tier. The engine's block size may differ from
    the index's.
    """

    def __init__(
        self, keys: KeyAlgorithm, *, block_size: int, weights: Mapping[str, float], max_keys: int
    ) -> None:
        self.keys = keys
        self.block_size = block_size
        self.num_orphans = 0  # blocks whose parent is unknown
        self.num_evictions = 0
        self.num_stored = 0  # keys stored by all endpoints since the start, counted per tier
        self.num_dropped = 0
        self.num_retained = 0  # removals without effect, since the key stands for other blocks too
        self.num_removed = 0
        self.adapters: dict[str, None] = {}  # adapter names from events, most recent last
        # Base model names, as reported by events or servers.
        self.base_models: dict[Endpoint, str] = {}
        self._max_keys = max_keys
        tiers = sorted({**weights, SPECULATIVE: 1.0}.items(), key=lambda item: -item[1])
        self._weights = tuple(tiers)
        # By tier, best first: key to the bits of the endpoints' slots.
        self._holders: dict[str, dict[int, int]] = {tier: {} for tier, _ in tiers}
        self._holdings: dict[Endpoint, _Holding] = {}
        self._by_slot: dict[int, _Holding] = {}

    def __len__(self) -> int:
        return sum(map(len, self._holders.values()))

    def apply(self, endpoint: Endpoint, event: Event, *, model: str) -> None:
        """Applies one event of an endpoint. `model` is the endpoint's base model."""
        match event:
            case Stored():
                if event.tier in self._holders:
                    self._store(endpoint, event, model)
            case Removed():
                self._drop(endpoint, event)
            case Cleared():
                self.clear(endpoint)

    def clear(self, endpoint: Endpoint) -> None:
        """Removes all blocks of an endpoint."""
        while self.clear_some(endpoint):
            pass

    def clear_some(self, endpoint: Endpoint) -> bool:
        """Removes some blocks of an endpoint, within a few milliseconds; returns False if there were none."""
        holding = self._holdings.get(endpoint)
        if holding is None:
            return False
        for _ in range(min(_MAX_CLEARED, len(holding.blocks))):
            _, block = holding.blocks.popitem()
            holding.num_tokens -= block.num_tokens
        bit = 1 << endpoint.slot
        for tier, counts in holding.counts.items():
            for _ in range(min(_MAX_CLEARED, len(counts))):
                self._unset(tier, counts.popitem()[0], bit)
        if not holding.blocks and not any(holding.counts.values()):
            del self._holdings[endpoint], self._by_slot[endpoint.slot]
        return True

    def add_speculative(self, endpoint: Endpoint, keys: Sequence[int]) -> None:
        """Adds blocks of a routed request before the engine's events confirm them."""
        self._add(endpoint, self._holding(endpoint), SPECULATIVE, keys)

    def remove_speculative(self, endpoint: Endpoint, keys: Sequence[int]) -> None:
        """Removes blocks that `add_speculative` has added."""
        holding = self._holdings.get(endpoint)
        if holding is not None:  # otherwise the endpoint was cleared meanwhile
            self._take_back(endpoint, holding, SPECULATIVE, keys)

    def match(self, keys: Sequence[int]) -> list[tuple[int, int, float]]:
        """Returns disjoint sets of endpoints (as bit masks), each with the number of unbroken leading blocks that its
        endpoints have, and the sum of the blocks' weights.
        """
        ended: list[tuple[int, int, float]] = []
        tiers = [(self._holders[tier].get, weight) for tier, weight in self._weights]
        alive: dict[float, int] = {0.0: -1}
        for count, key in enumerate(keys):
            still: dict[float, int] = {}
            for total, holders in alive.items():
                for get, weight in tiers:
                    if here := get(key, 0) & holders:
                        so_far = total + weight
                        still[so_far] = still.get(so_far, 0) | here
                        holders ^= here
                        if not holders:
                            break
                else:
                    if count:
                        ended.append((holders, count, total))
            alive = still
            if not alive:
                return ended
        return ended + [(holders, len(keys), total) for total, holders in alive.items() if keys]

    def num_blocks(self, endpoint: Endpoint) -> int:
        """Returns the number of keys of an endpoint, summed over all tiers."""
        holding = self._holdings.get(endpoint)
        return sum(map(len, holding.counts.values())) if holding else 0

    def check(self) -> None:
        """Asserts that the two maps of the index agree; for tests."""
        listed: dict[tuple[str, int], int] = {}
        for endpoint, holding in self._holdings.items():
            assert holding is self._by_slot[endpoint.slot]
            for tier, counts in holding.counts.items():
                for key, count in counts.items():
                    assert count > 0
                    listed[tier, key] = listed.get((tier, key), 0) | 1 << endpoint.slot
        held = {(t, key): bits for t, map_ in self._holders.items() for key, bits in map_.items()}
        assert listed == held

    # -- events -------------------------------------------------------------------------------

    def _holding(self, endpoint: Endpoint) -> _Holding:
        holding = self._holdings.get(endpoint)
        if holding is None:
            holding = self._holdings[endpoint] = self._by_slot[endpoint.slot] = _Holding()
        return holding

    def _store(self, endpoint: Endpoint, event: Stored, model: str) -> None:
        holding = self._holding(endpoint)
        if event.lora_name:
            self._note_adapter(event.lora_name)
        if event.parent is None:
            key, tail = self.keys.root(event.lora_name or model), b""
        else:
            parent = holding.blocks.get(event.parent)
            if parent is None:
                self.num_orphans += len(event.hashes)
                return
            key, tail = parent.key, parent.tail
        width = 4 * event.block_size
        place = (event.tier, event.group)
        for i, name in enumerate(event.hashes):
            extra = event.extras[i] if i < len(event.extras) else None
            block = holding.blocks.get(name)
            if block is None:
                tokens = tail + event.tokens[i * width : (i + 1) * width]
                block = self._chain(key, tokens, extra, event.block_size)
                holding.blocks[name] = block
                holding.num_tokens += block.num_tokens
            if place not in block.places:
                block.places.add(place)
                self._add(endpoint, holding, event.tier, block.keys)
            key, tail = block.key, block.tail
        if holding.num_tokens > self._max_keys * self.block_size:
            self._drop_oldest(endpoint, holding)

    def _note_adapter(self, name: str) -> None:
        self.adapters.pop(name, None)
        self.adapters[name] = None
        if len(self.adapters) > _MAX_ADAPTERS:
            del self.adapters[next(iter(self.adapters))]

    def _chain(self, key: int, tokens: bytes, extra: Extra | None, num_tokens: int) -> _Block:
        width = 4 * self.block_size
        keys, start = [], 0
        while start + width <= len(tokens):
            key = self.keys.block(key, tokens[start : start + width], extra)
            keys.append(key)
            extra, start = None, start + width
        return _Block(key, tokens[start:], tuple(keys), num_tokens)

    def _drop(self, endpoint: Endpoint, event: Removed) -> None:
        holding = self._holdings.get(endpoint)
        if holding is None:
            return
        for name in event.hashes:
            block = holding.blocks.get(name)
            if block is None:
                continue
            dropped = {
                place
                for place in block.places
                if place[0] == event.tier and event.group in {None, place[1]}
            }
            self._drop_from(endpoint, holding, name, block, dropped)

    def _drop_from(
        self, endpoint: Endpoint, holding: _Holding, name: int, block: _Block, places: set[_Place]
    ) -> None:
        for tier, _ in places:
            num_retained = self._take_back(endpoint, holding, tier, block.keys)
            self.num_retained += num_retained
            self.num_removed += len(block.keys) - num_retained
        block.places -= places
        if not block.places:
            del holding.blocks[name]
            holding.num_tokens -= block.num_tokens

    def _drop_oldest(self, endpoint: Endpoint, holding: _Holding) -> None:
        """Drops an endpoint's oldest blocks above the maximum number: an engine may report stored blocks without ever
        reporting removals.
        """
        limit = self._max_keys * self.block_size
        for name in list(islice(holding.blocks, _MAX_EVICTED)):
            if holding.num_tokens <= limit:
                break
            block = holding.blocks[name]
            self._drop_from(endpoint, holding, name, block, block.places.copy())

    def _add(self, endpoint: Endpoint, holding: _Holding, tier: str, keys: Sequence[int]) -> None:
        """Increments the counts of keys; a prompt may have sixteen thousand keys."""
        counts, holders = holding.counts.setdefault(tier, {}), self._holders[tier]
        bit, num_before = 1 << endpoint.slot, len(counts)
        for key in keys:
            if key in counts:
                counts[key] += 1
            else:
                counts[key] = 1
                holders[key] = holders.get(key, 0) | bit
        self.num_stored += len(counts) - num_before
        if len(holders) > self._max_keys:
            self._evict(tier)

    def _take_back(
        self, endpoint: Endpoint, holding: _Holding, tier: str, keys: Sequence[int]
    ) -> int:
        """Decrements the counts of the keys that are present; returns the number of keys whose count stays above
        zero.
        """
        counts, bit, num_left = holding.counts.get(tier, {}), 1 << endpoint.slot, 0
        for key in keys:
            count = counts.get(key, 0)
            if count > 1:
                counts[key] = count - 1
                num_left += 1
            elif count:
                del counts[key]
                self._unset(tier, key, bit)
        return num_left

    def _unset(self, tier: str, key: int, bit: int) -> None:
        self.num_dropped += 1
        holders = self._holders[tier]
        left = holders[key] & ~bit
        if left:
            holders[key] = left
        else:
            del holders[key]

    def _evict(self, tier: str) -> None:
        """Drops the keys of a tier that were stored first, for all endpoints."""
        holders = self._holders[tier]
        share = min(self._max_keys // _EVICTED_SHARE, _MAX_EVICTED)
        num_evicted = max(len(holders) - self._max_keys, share)
        for key in list(islice(holders, num_evicted)):
            bits = holders.pop(key)
            while bits:
                last = bits & -bits
                del self._by_slot[last.bit_length() - 1].counts[tier][key]
                self.num_dropped += 1
                bits ^= last
        self.num_evictions += num_evicted
