"""`MediaFetcher`: gets the bytes of a prompt's media from any source, within the limits of one prompt."""

import asyncio
import binascii
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import msgspec

from weft.core.errors import BadRequest
from weft.core.values.media import FIELD, Media, MediaItem
from weft.media.limits import LOCAL_PATH, MediaSources, shown, too_large

if TYPE_CHECKING:
    from weft.media.download import Downloader

# Decoding this many characters of base64 takes about 100 µs.
_MANY_CHARS = 100_000
_SCHEMES = "data:, http:, https: or file:"


class MediaFetcher:
    """Fetches the media of prompts. Used on one event loop."""

    def __init__(self, sources: MediaSources) -> None:
        self._sources = sources
        self._downloader: Downloader | None = None  # made at the first download

    async def fetch(self, media: Media) -> Media:
        """Returns the media with their bytes, except for items that have only a uuid.

        Raises `BadRequest` for an item that cannot be fetched.
        """
        limits = self._sources.limits
        try:
            async with asyncio.timeout(limits.timeout_s):
                return await self._fetch(media, limits.max_bytes)
        except TimeoutError:
            raise BadRequest(
                FIELD,
                f"media: fetching the media of this prompt takes longer than {limits.timeout_s:g} s",
            ) from None

    async def aclose(self) -> None:
        """Closes the connections to media servers."""
        if self._downloader is not None:
            await self._downloader.aclose()

    async def _fetch(self, media: Media, num_left: int) -> Media:
        items: list[MediaItem] = []
        # Sequentially: each item reduces the number of bytes that are left for the next one.
        for item in media.items:
            data = item.data if item.url is None else await self._read(item.url, item, num_left)
            num_left -= len(data or b"")
            if num_left < 0:
                raise too_large(item.modality, num_left + len(data or b""))
            items.append(msgspec.structs.replace(item, data=data, url=None))
        return msgspec.structs.replace(media, items=items)

    async def _read(self, url: str, item: MediaItem, max_bytes: int) -> bytes:
        what = item.modality
        scheme = url[:8].partition(":")[0].lower()
        match scheme:
            case "data":
                if len(url) > _MANY_CHARS:
                    return await asyncio.to_thread(read_data_url, url, what, max_bytes)
                return read_data_url(url, what, max_bytes)
            case "http" | "https":
                return await self._open_downloader().get(url, what, max_bytes)
            case "file":
                return await asyncio.to_thread(
                    read_file_url, url, what, max_bytes, self._sources.directory
                )
        raise BadRequest(what, f"{what}: a URL must begin with {_SCHEMES}, got {shown(url)}")

    def _open_downloader(self) -> "Downloader":
        if self._downloader is None:
            # Imported late: few servers download media, and the HTTP client would delay every start.
            from weft.media.download import Downloader  # noqa: PLC0415

            self._downloader = Downloader(self._sources)
        return self._downloader


def read_data_url(url: str, what: str, max_bytes: int) -> bytes:
    """Returns the bytes in a base64 `data:` URL; raises `BadRequest` for an invalid URL or more than `max_bytes`."""
    head, comma, text = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise BadRequest(
            what, f"{what}: a data: URL has the form data:TYPE;base64,DATA, got {url[:40]!a}"
        )
    if len(text) // 4 * 3 > max_bytes + 2:
        raise too_large(what, max_bytes)
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise BadRequest(what, f"{what}: the data: URL is not base64: {error}") from None
    if not data:
        raise BadRequest(what, f"{what}: the data: URL is empty")
    return data


def read_file_url(url: str, what: str, max_bytes: int, directory: Path | None) -> bytes:
    """Returns the bytes of a regular file below the allowed directory.

    Symbolic links are resolved before the check that the file is below the directory.
    """
    if directory is None:
        raise BadRequest(
            what, f"{what}: this server reads no local files; it was started without {LOCAL_PATH}"
        )
    try:
        handle = _open_below(directory, url)
        if handle is None:
            raise OSError("not below the directory")
        try:
            data = _read_regular(handle, max_bytes)
        finally:
            os.close(handle)
    except (OSError, ValueError):  # the path contains characters that no path may contain
        raise BadRequest(
            what, f"{what}: {shown(url)} is no file below the directory of {LOCAL_PATH}"
        ) from None
    if len(data) > max_bytes:
        raise too_large(what, max_bytes)
    return data


def _open_below(directory: Path, url: str) -> int | None:
    parts = urlsplit(url)
    name = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not name.startswith("/"):
        return None
    path = Path(os.path.realpath(name))
    if directory not in path.parents:
        return None
    # Refuses a link that has replaced the file since the check, and does not wait for the writer of a pipe.
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _read_regular(handle: int, max_bytes: int) -> bytes:
    """Returns the file's first `max_bytes` + 1 bytes: the extra byte shows the caller that the file is too long."""
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise OSError("not a regular file")
    with open(handle, "rb", closefd=False) as file:
        return file.read(max_bytes + 1)
