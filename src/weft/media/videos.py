"""Decodes videos with PyAV. Container, codec, duration and number of pixels are checked before frames are decoded."""

import io
import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from weft.core.errors import BadRequest
from weft.core.extras import how_to_install
from weft.core.values.media import Media, Modality
from weft.media.pictures import Picture

WHAT: Modality = "video"
MAX_SECONDS = 3600
# About 20 seconds of a core: a minute of 1920 x 1080 pixels at 30 frames a second.
MAX_DECODED_PIXELS = 1 << 32
_MAX_FRAME_PIXELS = 1 << 24  # a decoder keeps up to 17 frames
_FORMATS = "MP4, MOV, WebM, Matroska or AVI"
_CODECS = ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "mjpeg", "ffv1")
_DECODERS = ",".join((*_CODECS, "libdav1d", "libaom-av1", "libvpx", "libvpx-vp9"))
_MP4_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip")
# A file names no other files: protocols are for these, and playlists are no container here.
_OPTIONS = {"protocol_whitelist": "none", "codec_whitelist": _DECODERS}


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """What the headers of a video say: frames, frames a second, and pixels of a frame."""

    num_frames: int
    rate: float
    width: int
    height: int

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.num_frames / self.rate

    @property
    def num_pixels(self) -> int:
        """Number of pixels of all frames."""
        return self.num_frames * self.width * self.height


class _RefusedError(Exception):
    """A video that is not decoded; the message says why."""


def check_videos(media: Media) -> None:
    """Raises `BadRequest` for files that are no videos, and for videos of a prompt beyond the limits together."""
    files = [item.data for item in media.items if item.modality == WHAT]
    facts = [read_facts(data) for data in files if data is not None]
    seconds, num_pixels = sum(one.seconds for one in facts), sum(one.num_pixels for one in facts)
    if seconds > MAX_SECONDS:
        shown = math.ceil(seconds * 10) / 10  # never rounded down to the limit
        raise BadRequest(
            WHAT,
            f"video: the videos of a prompt may last {MAX_SECONDS} seconds together, and last {shown:g}",
        )
    if num_pixels > MAX_DECODED_PIXELS:
        raise BadRequest(
            WHAT,
            f"video: all frames of a prompt's videos may have {MAX_DECODED_PIXELS} pixels together, and have "
            f"{num_pixels}: send fewer or smaller frames",
        )


def read_facts(data: bytes) -> VideoFacts:
    """Returns the facts of a file without decoding it; raises `BadRequest` for a file that is no video."""
    with _refusing(), _opened(data) as (container, stream):
        return _facts(container, stream)


def decode_frames(data: bytes, indexes: Sequence[int]) -> Generator[Picture]:
    """Yields the frames of these indexes, in ascending order, as pictures in RGB, turned as the file says.

    Raises `BadRequest` for a damaged file. The caller has checked the facts.
    """
    with _refusing(), _opened(data) as (container, stream):
        yield from _chosen(container.decode(stream), indexes)


def _chosen(frames: Iterator[Any], indexes: Sequence[int]) -> Iterator[Picture]:
    wanted, num_pixels = iter(indexes), 0
    following = next(wanted, None)
    for index, frame in enumerate(frames):
        if following is None:
            return
        num_pixels += frame.width * frame.height
        if frame.is_corrupt or num_pixels > MAX_DECODED_PIXELS:
            raise _RefusedError(f"frame {index} of the video is damaged")
        if index == following:
            following = next(wanted, None)
            yield _to_picture(frame)
    if following is not None:
        raise _RefusedError(f"the video ends before its frame {following}")


def _to_picture(frame: Any) -> Picture:
    picture = import_module("PIL.Image").fromarray(frame.to_ndarray(format="rgb24"))
    turn = round(frame.rotation / 90) % 4
    return picture.rotate(90 * turn, expand=True) if turn else picture


def _facts(container: Any, stream: Any) -> VideoFacts:
    """Counts frames by reading the packets, which are not decoded."""
    width, height = stream.codec_context.width, stream.codec_context.height
    if not 0 < width * height <= _MAX_FRAME_PIXELS:
        raise _RefusedError(
            f"a frame may have {_MAX_FRAME_PIXELS} pixels, and it is {width} x {height}"
        )
    rate = float(stream.average_rate or stream.guessed_rate or 0)
    if not 0 < rate < math.inf:
        raise _RefusedError("the video has no number of frames a second")
    packets = [packet for packet in container.demux(stream) if packet.size]
    if len(packets) < stream.frames or any(packet.is_corrupt for packet in packets):
        raise _RefusedError(
            f"the video is cut off: it has {len(packets)} of {stream.frames} frames"
        )
    num_frames = sum(not packet.is_discard for packet in packets)
    if num_frames < 2:
        raise _RefusedError(f"a video must have at least 2 frames, and this one has {num_frames}")
    return VideoFacts(num_frames, rate, width, height)


@contextmanager
def _opened(data: bytes) -> Iterator[tuple[Any, Any]]:
    """Opens a file; yields the container and its first stream of pictures."""
    form = _format_of(data)
    if form is None:
        raise _RefusedError(f"the bytes are not a video in one of the formats {_FORMATS}")
    if find_spec("av") is None:
        raise _RefusedError(f"videos need PyAV on the server: {how_to_install('media')}")
    library: Any = import_module("av")
    with library.open(
        io.BytesIO(data), format=form, options=_OPTIONS, metadata_errors="replace"
    ) as container:
        if not container.streams.video:
            raise _RefusedError("the file has no pictures")
        stream = container.streams.video[0]
        context = stream.codec_context
        if context is None or context.codec.canonical_name not in _CODECS:
            raise _RefusedError(f"the codec of a video must be one of {', '.join(_CODECS)}")
        context.thread_count = 1  # the other cores are for the engine
        context.options = {"max_pixels": str(_MAX_FRAME_PIXELS), "err_detect": "explode"}
        yield container, stream


def _format_of(data: bytes) -> str | None:
    """Returns FFmpeg's name of a file's container by its first bytes; None for any other file."""
    if data[4:8] in _MP4_BOXES:
        return "mov"
    if data[:4] == b"\x1aE\xdf\xa3":
        return "matroska"
    return "avi" if data[:4] == b"RIFF" and data[8:12] == b"AVI " else None


@contextmanager
def _refusing() -> Iterator[None]:
    """Turns every error of a damaged file into a `BadRequest`."""
    try:
        yield
    except _RefusedError as error:
        raise BadRequest(WHAT, f"video: {error}") from None
    except BadRequest:
        raise
    except MemoryError:
        raise BadRequest(WHAT, "video: decoding the video needs more memory than is free") from None
    # PyAV raises errors of many types for damaged files.
    except Exception as error:
        raise BadRequest(
            WHAT, f"video: the video cannot be decoded: {type(error).__name__}: {_line(error)}"
        ) from error


def _line(error: Exception) -> str:
    return ascii(" ".join(str(error).split())[:200]).strip("'\"")
