"""`mm-embeddings-cache-producer`: finds the endpoints that got a request's images, videos and sounds before."""

from collections import Counter
from itertools import islice
from typing import Annotated

import msgspec
from xxhash import xxh64_intdigest

from weft.epp.config.parameters import Kind, Parameters
from weft.epp.decision.cycle import Cycle, Schedule
from weft.epp.decision.plugin import MEDIA_CACHE, Surroundings, plugin
from weft.epp.prefix.approximate import ApproximateIndex
from weft.epp.prefix.holders import by_endpoint
from weft.epp.prefix.leaving import Leaving

ENCODE_PROFILE = "encode"
_MIB_PER_ITEM = 2  # rough size of the embeddings of any image
_DEFAULT_MIB = 4096
_MAX_ITEMS = 1024  # per request; no encoder gets as many
_AtLeastOneItem = Annotated[int, msgspec.Meta(ge=_MIB_PER_ITEM)]


class MediaCacheParameters(Parameters, frozen=True, kw_only=True):
    """Assumed size of a server's encoder cache, in MiB."""

    cache_size: _AtLeastOneItem | None = msgspec.field(default=None, name="cacheSizeInMBPerServer")
    older_cache_size: _AtLeastOneItem | None = msgspec.field(default=None, name="cacheSizeInMB")

    def __post_init__(self) -> None:
        if self.cache_size is not None and self.older_cache_size is not None:
            raise ValueError("cacheSizeInMBPerServer and cacheSizeInMB mean the same; give one")


@plugin(MEDIA_CACHE, Kind.PRODUCER, MediaCacheParameters)
class MediaCacheProducer:
    """Records the media that were sent to each endpoint, as many as fit its encoder cache."""

    def __init__(self, parameters: MediaCacheParameters, around: Surroundings) -> None:
        size = parameters.cache_size or parameters.older_cache_size or _DEFAULT_MIB
        self._capacity = size // _MIB_PER_ITEM
        self._name = around.name
        self._index = ApproximateIndex()
        self.aclose = Leaving(around.pool, self._index.remove_some).aclose

    def produce(self, cycle: Cycle) -> None:
        """Stores in the cycle the share of the request's media that each candidate has cached."""
        items = _items(cycle)
        counts: Counter[int] = Counter()
        for item in items:
            counts.update(self._index.match([item]))
        if counts:
            held = by_endpoint(counts, cycle.candidates)
            cycle.held_media[self._name] = {
                endpoint: held.get(endpoint, 0) / len(items) for endpoint in cycle.candidates
            }

    def picked(self, cycle: Cycle, schedule: Schedule) -> None:
        """Records where the request's media will be encoded: at the encode endpoint, or at the destination."""
        encoders = schedule.picks.get(ENCODE_PROFILE) or (schedule.target,)
        items = _items(cycle)
        for endpoint in encoders if items else ():
            self._index.add(endpoint, items, capacity=self._capacity)


def _items(cycle: Cycle) -> list[int]:
    """Returns the hashes of a request's distinct media, up to a maximum number. Media without a hash are left out."""
    names = islice(dict.fromkeys(filter(None, cycle.request.media)), _MAX_ITEMS)
    return [xxh64_intdigest(f"{cycle.model}\0{name}".encode()) for name in names]
