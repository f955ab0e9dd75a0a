"""Reads a request's media for vLLM, on threads: fetches, checks and decodes files for vLLM's processor; checks tensors
for vLLM's engine.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, Self

from weft.core.aio.tasks import in_place
from weft.core.errors import BadRequest
from weft.core.values.media import TENSORS, Media, MediaItem, Modality
from weft.core.values.types import Request
from weft.media.fetch import MediaFetcher
from weft.media.limits import MediaLimits, MediaSources
from weft.media.pictures import check_pictures
from weft.vllm.convert.errors import decoding, translated
from weft.vllm.convert.tensors import ItemForm, check_names
from weft.vllm.engine import (
    decode,
    io_kwargs,
    item_form,
    max_pixels,
    to_multi_modal_input,
)

_MAX_DECODED_AT_ONCE = 4  # maximum number of prompts whose media are decoded at the same time


class MediaReader:
    """Reader of media files for one model. `kwargs` are vLLM's decoding arguments of each modality."""

    def __init__(self, sources: MediaSources, kwargs: Mapping[str, Mapping[str, Any]]) -> None:
        self._limits = sources.limits
        self._fetcher = MediaFetcher(sources)
        self._kwargs = kwargs
        self._slots = asyncio.Semaphore(sources.limits.max_prompts)
        self._threads = asyncio.Semaphore(_MAX_DECODED_AT_ONCE)

    @classmethod
    def of(cls, model_config: Any) -> Self:
        """Creates a reader from vLLM's configuration of the model. Raises `ConfigError` for invalid media sources."""
        most = max_pixels()
        limits = MediaLimits() if most is None else MediaLimits(max_pixels=most)
        domains, directory = (
            model_config.allowed_media_domains,
            model_config.allowed_local_media_path,
        )
        return cls(MediaSources.of(domains, directory, limits), io_kwargs(model_config))

    async def read(self, media: Media) -> dict[str, Any]:
        """Returns the decoded media of a prompt in vLLM's form."""
        async with self._slots:
            fetched = await self._fetcher.fetch(media)
            return await in_place(self._threads, partial(asyncio.to_thread, self._decode, fetched))

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._fetcher.aclose()

    def _decode(self, media: Media) -> dict[str, Any]:
        check_pictures(media, self._limits.max_pixels)
        frames = FramePixels(self._limits.max_video_pixels)
        return to_multi_modal(media, [self._decoded(item, frames) for item in media.items])

    def _decoded(self, item: MediaItem, frames: "FramePixels") -> Any:
        if item.data is None:
            return None
        what = item.modality
        with decoding(what):
            return decode(what, item.data, self._kwargs.get(what, {}), frames.take)


class FramePixels:
    """Sum of the pixels of all frames in a prompt's videos, counted before each video is decoded."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._num_pixels = 0

    def take(self, num_frames: int, width: int, height: int) -> None:
        """Adds the frames of a video. Raises `BadRequest` if the sum exceeds the limit."""
        self._num_pixels += num_frames * width * height
        if self._num_pixels > self._most:
            raise BadRequest(
                "video",
                f"video: all frames of a prompt's videos together may have at most {self._most} pixels (4 times "
                f"VLLM_MAX_IMAGE_PIXELS); this video adds {num_frames} frames of {width} x {height} pixels",
            )


class TensorReader:
    """Reader of media tensors for an `AsyncLLM`."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._forms: dict[Modality, ItemForm] = {}
        self._lock = asyncio.Lock()
        self._threads = asyncio.Semaphore(_MAX_DECODED_AT_ONCE)

    async def read(self, request: Request) -> Any:
        """Returns vLLM's prompt. Raises `BadRequest` for tensors that the model's processor would not have made."""
        assert request.media is not None
        with translated(TENSORS):
            for given in request.media.tensors:
                check_names(given, await self._form(given.modality))
            work = partial(to_multi_modal_input, self._llm, request, self._forms)
            return await in_place(self._threads, partial(asyncio.to_thread, work))

    async def _form(self, modality: Modality) -> ItemForm:
        async with self._lock:
            if modality not in self._forms:
                self._forms[modality] = await item_form(self._llm, modality)
            return self._forms[modality]


def to_multi_modal(media: Media, decoded: list[Any]) -> dict[str, Any]:
    """Returns the media by modality, in vLLM's names and order. `decoded` has the decoded items; None for an item that
    only has a uuid.
    """
    data: dict[Modality, list[Any]] = {}
    uuids: dict[Modality, list[str | None]] = {}
    for item, value in zip(media.items, decoded, strict=True):
        data.setdefault(item.modality, []).append(value)
        uuids.setdefault(item.modality, []).append(item.uuid)
    named = {name: ids for name, ids in uuids.items() if any(ids)}
    return {
        "multi_modal_data": data,
        **({"multi_modal_uuids": named} if named else {}),
        **({"mm_processor_kwargs": media.processor_kwargs} if media.processor_kwargs else {}),
    }
