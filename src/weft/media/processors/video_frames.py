"""Frames of Qwen's videos: which ones are taken, and in which size, as transformers' processors choose them."""

import math

import numpy as np

from weft.core.errors import BadRequest
from weft.core.values.pictures import Videos
from weft.media.processors.native_size import check_ratio, whole_windows, within
from weft.media.videos import WHAT, VideoFacts

_LEAST_EXCESS = 1.05  # of the minimum, which a bound by `max_tokens` never falls below


def frame_indexes(facts: VideoFacts, settings: Videos) -> list[int]:
    """Returns the indexes of the frames that are taken, in ascending order."""
    if settings.is_timed:
        count = int(_count(facts, settings, facts.num_frames))
        spread = np.linspace(0, facts.num_frames - 1, count).round()
        return [int(index) for index in spread]
    times = settings.pixels.temporal_size
    most = min(facts.num_frames, 2**31) // times * times
    count = int(_count(facts, settings, most) // times * times)
    if not count:
        raise BadRequest(
            WHAT,
            f"video: a video must have at least {times} frames, and this one has {facts.num_frames}",
        )
    # In float32, as in transformers: a product that is close to an integer may fall to either side of it.
    step = np.float32(facts.num_frames / count)
    return [int(np.float32(place) * step) for place in range(count)]


def frame_size(height: int, width: int, num_frames: int, settings: Videos) -> tuple[int, int]:
    """Returns height and width of the resized frames in pixels."""
    side = settings.pixels.patch_size * settings.pixels.merge_size
    if not settings.is_timed:
        check_ratio(height, width, WHAT)
        sizes = whole_windows(height, width, side)
        most = _most_of_frame(num_frames, side, settings)
        return within(sizes, (height, width), side, settings.min_pixels, most)
    if height < side or width < side:
        scale = max(side / height, side / width)
        height, width = int(height * scale), int(width * scale)
    check_ratio(height, width, WHAT)
    return _sized_together(height, width, num_frames, settings)


def patch_times(indexes: list[int], facts: VideoFacts, settings: Videos) -> list[float]:
    """Returns the time of each patch of frames in seconds: the middle between its first and its last frame."""
    times = settings.pixels.temporal_size
    whole = [*indexes, *indexes[-1:] * (-len(indexes) % times)]
    starts = range(0, len(whole), times)
    return [(whole[s] / facts.rate + whole[s + times - 1] / facts.rate) / 2 for s in starts]


def _count(facts: VideoFacts, settings: Videos, most: int) -> float:
    if settings.num_frames is not None:
        times = 1 if settings.is_timed else settings.pixels.temporal_size
        return min(round(settings.num_frames / times) * times, most)
    wanted = facts.num_frames / facts.rate * settings.fps
    if settings.is_timed:
        wanted = int(wanted)
    return min(max(wanted, settings.min_frames), settings.max_frames, most)


def _sized_together(height: int, width: int, num_frames: int, settings: Videos) -> tuple[int, int]:
    """Returns height and width for which all frames have an allowed number of pixels together."""
    side = settings.pixels.patch_size * settings.pixels.merge_size
    times = settings.pixels.temporal_size
    most = settings.max_pixels
    if settings.max_tokens is not None:
        of_frame = min(settings.max_tokens * side**2, most // num_frames)
        most = max(of_frame, int(settings.min_pixels * _LEAST_EXCESS)) * num_frames
    rows, columns = whole_windows(height, width, side)
    whole = round(num_frames / times) * times * rows * columns
    if whole > most:
        shrink = math.sqrt(num_frames * height * width / most)
        rows = max(side, math.floor(height / shrink / side) * side)
        columns = max(side, math.floor(width / shrink / side) * side)
    elif whole < settings.min_pixels:
        grow = math.sqrt(settings.min_pixels / (num_frames * height * width))
        rows = math.ceil(height * grow / side) * side
        columns = math.ceil(width * grow / side) * side
    return rows, columns


def _most_of_frame(num_frames: int, side: int, settings: Videos) -> int:
    if settings.max_tokens is None:
        return settings.max_pixels
    together = int(settings.max_tokens * side**2 * 0.9)  # the rest is for text
    share = together * settings.pixels.temporal_size // num_frames
    return max(min(settings.max_pixels, share), int(settings.min_pixels * _LEAST_EXCESS))
