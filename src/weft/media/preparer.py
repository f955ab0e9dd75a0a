"""`MediaPreparer`: fetches and prepares the media of a prompt, without blocking the event loop."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from weft.core.aio.tasks import in_place
from weft.core.errors import BadRequest
from weft.core.values.media import FIELD, WORDS, Media, MediaItem, Modality
from weft.core.values.pictures import ItemsConfig, PreparedItem, Spectrograms
from weft.media.fetch import MediaFetcher
from weft.media.limits import MediaSources, check_prepared
from weft.media.picture_tensors import read_tensors
from weft.media.prepared_cache import PreparedCache
from weft.media.processors.item_processor import ItemProcessor
from weft.media.processors.picture_processor import PictureProcessor
from weft.media.processors.pieces import Encode
from weft.media.processors.sound_processor import SoundProcessor
from weft.media.processors.video_processor import VideoProcessor

_MAX_DECODED_AT_ONCE = 2  # maximum number of prompts whose media are decoded at the same time

Processors = Mapping[Modality, ItemProcessor[Any]]


class MediaPreparer:
    """Prepares media for one model. Used on one event loop."""

    def __init__(self, config: ItemsConfig, encode: Encode) -> None:
        sources = MediaSources.of(config.domains, config.directory)
        self._config, self._limits = config, sources.limits
        self._fetcher = MediaFetcher(sources)
        self._processors = _processors(config, encode)
        self._cache = PreparedCache(config.prepared_bytes)
        self._slots = asyncio.Semaphore(sources.limits.max_prompts)
        self._threads = asyncio.Semaphore(_MAX_DECODED_AT_ONCE)

    async def prepare(self, media: Media, salt: str | None = None) -> list[PreparedItem]:
        """Returns the items in order; raises `BadRequest` for an item that cannot be fetched or decoded. Items of
        different salts have different hashes.
        """
        if media.tensors:
            return await asyncio.to_thread(read_tensors, media.tensors, self._config, salt)
        for item in media.items:
            if item.modality not in self._processors:
                accepted = ", ".join(self._processors)
                raise BadRequest(FIELD, f"{item.modality}: this engine accepts only {accepted}")
        given = {item.modality for item in media.items}
        processors: Processors = {
            modality: processor.salted(salt)
            for modality, processor in self._processors.items()
            if modality in given
        }
        processors = _changed(processors, media.processor_kwargs or {})
        if not media.items:
            return []
        async with self._slots:
            fetched = await self._fetcher.fetch(media)
            return await in_place(self._threads, partial(self._prepare, processors, fetched))

    async def _prepare(self, processors: Processors, media: Media) -> list[PreparedItem]:
        hashes = await asyncio.to_thread(self._check, processors, media)
        digests = self._named(processors, media, hashes)
        found = {d: item for d in digests if (item := self._cache.get(d)) is not None}
        missing = {d: place for place, d in enumerate(digests) if d not in found}
        if missing:
            for item in await asyncio.to_thread(_process, processors, media.items, missing):
                self._cache.put(item)
                found[item.hash] = item
        items = [found[digest] for digest in digests]
        check_prepared(media.items[0].modality, sum(item.num_bytes for item in items))
        return items

    def _check(self, processors: Processors, media: Media) -> list[str | None]:
        """Checks the files by their headers; returns each item's hash, None for an item that has only a uuid."""
        for processor in processors.values():
            processor.check(media, self._limits)
        return [
            None if item.data is None else processors[item.modality].digest(item.data)
            for item in media.items
        ]

    def _named(
        self, processors: Processors, media: Media, hashes: Sequence[str | None]
    ) -> list[str]:
        """Returns the hash of every item.

        A uuid stands for the content that last came with it, and for no other content: a caller who sends a picture is
        always answered about this picture.
        """
        digests = []
        for number, (item, digest) in enumerate(zip(media.items, hashes, strict=True), 1):
            name = None if item.uuid is None else processors[item.modality].name(item.uuid)
            if name is not None and digest is not None:
                self._cache.name(name, digest)
            elif name is not None:
                digest = self._cache.digest_of(name)
            if digest is None:
                raise _unknown(number, item.modality)
            digests.append(digest)
        return digests

    def clear(self) -> None:
        """Drops every cached item."""
        self._cache.clear()

    async def aclose(self) -> None:
        """Closes the connections to media servers."""
        await self._fetcher.aclose()


def _processors(config: ItemsConfig, encode: Encode) -> Processors:
    match config.settings:
        case Spectrograms():
            return {"audio": SoundProcessor(config.settings, config.tokens, encode)}
        case _:
            pictures = PictureProcessor(config.settings, config.tokens, encode)
            if config.videos is None:
                return {"image": pictures}
            videos = VideoProcessor(config.videos, config.videos.tokens, encode)
            return {"image": pictures, "video": videos}


def _changed(processors: Processors, kwargs: Mapping[str, Any]) -> Processors:
    """Returns the processors with a request's arguments: each goes to all processors that have it.

    Raises `BadRequest` for an argument that none has.
    """
    for name, value in kwargs.items():
        takers = [one for one, processor in processors.items() if name in processor.arguments]
        changed = {one: processors[one].changed(name, value) for one in takers or processors}
        processors = {**processors, **changed}
    return processors


def _process(
    processors: Processors, items: Sequence[MediaItem], missing: Mapping[str, int]
) -> list[PreparedItem]:
    """Prepares the missing items, given by hash and place."""
    prepared = []
    for digest, place in missing.items():
        item = items[place]
        if item.data is None:
            raise _unknown(place + 1, item.modality)
        prepared.append(processors[item.modality].prepare(item.data, digest))
    return prepared


def _unknown(number: int, modality: Modality) -> BadRequest:
    return BadRequest(
        "uuid",
        f"uuid of {modality} {number}: this server does not have the {WORDS[modality]} any more; send the "
        f"{WORDS[modality]} again",
    )
