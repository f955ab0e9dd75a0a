"""`PicturePreparer`: fetches and prepares the pictures of a prompt, without blocking the event loop."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from weft.core.aio.tasks import in_place
from weft.core.errors import BadRequest
from weft.core.values.media import FIELD, TENSORS, Media, MediaItem
from weft.core.values.pictures import PicturesConfig, PreparedItem
from weft.media.fetch import MediaFetcher
from weft.media.limits import MediaSources
from weft.media.pictures import WHAT, check_pictures
from weft.media.prepared_cache import PreparedCache
from weft.media.processors.picture_processor import PictureProcessor
from weft.media.processors.pieces import Encode

_MAX_DECODED_AT_ONCE = 2  # maximum number of prompts whose pictures are decoded at the same time
# Limit per prompt, because messages to an engine have a limit.
_MAX_PREPARED_BYTES = 128 << 20


class PicturePreparer:
    """Prepares pictures for one model. Used on one event loop."""

    def __init__(self, config: PicturesConfig, encode: Encode) -> None:
        sources = MediaSources.of(config.domains, config.directory)
        self._limits = sources.limits
        self._fetcher = MediaFetcher(sources)
        self._processor = PictureProcessor(config.settings, config.tokens, encode)
        self._cache = PreparedCache(config.prepared_bytes)
        self._slots = asyncio.Semaphore(sources.limits.max_prompts)
        self._threads = asyncio.Semaphore(_MAX_DECODED_AT_ONCE)

    async def prepare(self, media: Media, salt: str | None = None) -> list[PreparedItem]:
        """Returns the items in order; raises `BadRequest` for an item that cannot be fetched or decoded. Items of
        different salts have different hashes.
        """
        if media.tensors:
            raise BadRequest(
                TENSORS, f"{TENSORS}: this engine accepts pictures as files, not as tensors"
            )
        for item in media.items:
            if item.modality != WHAT:
                raise BadRequest(FIELD, f"{item.modality}: this engine accepts only pictures")
        processor = self._processor.salted(salt).changed(media.processor_kwargs)
        async with self._slots:
            fetched = await self._fetcher.fetch(media)
            return await in_place(self._threads, partial(self._prepare, processor, fetched))

    async def _prepare(self, processor: PictureProcessor, media: Media) -> list[PreparedItem]:
        hashes = await asyncio.to_thread(self._check, processor, media)
        digests = self._named(processor, media, hashes)
        found = {d: item for d in digests if (item := self._cache.get(d)) is not None}
        missing = {d: place for place, d in enumerate(digests) if d not in found}
        if missing:
            for item in await asyncio.to_thread(_process, processor, media.items, missing):
                self._cache.put(item)
                found[item.hash] = item
        items = [found[digest] for digest in digests]
        num_bytes = sum(item.num_bytes for item in items)
        if num_bytes > _MAX_PREPARED_BYTES:
            raise BadRequest(
                WHAT,
                f"image: the pictures of a prompt may take {_MAX_PREPARED_BYTES} bytes once they are resized for this "
                f"model, and they take {num_bytes}",
            )
        return items

    def _check(self, processor: PictureProcessor, media: Media) -> list[str | None]:
        """Checks the files by their headers; returns each item's hash, None for an item that has only a uuid."""
        check_pictures(media, self._limits.max_pixels)
        return [None if item.data is None else processor.digest(item.data) for item in media.items]

    def _named(
        self, processor: PictureProcessor, media: Media, hashes: Sequence[str | None]
    ) -> list[str]:
        """Returns the hash of every item.

        A uuid stands for the content that last came with it, and for no other content: a caller who sends a picture is
        always answered about this picture.
        """
        digests = []
        for number, (item, digest) in enumerate(zip(media.items, hashes, strict=True), 1):
            name = None if item.uuid is None else processor.name(item.uuid)
            if name is not None and digest is not None:
                self._cache.name(name, digest)
            elif name is not None:
                digest = self._cache.digest_of(name)
            if digest is None:
                raise _unknown(number)
            digests.append(digest)
        return digests

    def clear(self) -> None:
        """Drops every cached item."""
        self._cache.clear()

    async def aclose(self) -> None:
        """Closes the connections to media servers."""
        await self._fetcher.aclose()


def _process(
    processor: PictureProcessor, items: Sequence[MediaItem], missing: Mapping[str, int]
) -> list[PreparedItem]:
    """Prepares the missing items, given by hash and place."""
    prepared = []
    for digest, place in missing.items():
        data = items[place].data
        if data is None:
            raise _unknown(place + 1)
        prepared.append(processor.prepare(data, digest))
    return prepared


def _unknown(number: int) -> BadRequest:
    return BadRequest(
        "uuid",
        f"uuid of image {number}: this server does not have the picture any more; send the picture again",
    )
