"""Videos give the frames, sizes, patches and texts of transformers' processors, of which torchvision is no part here.

Frames and sizes are equal; pixels to two levels of 255, because transformers resizes with torch.
"""

import sys
from importlib import import_module
from itertools import product
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import Qwen3VLProcessor
from transformers.image_utils import SizeDict
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.video_processing_utils import BaseVideoProcessor
from transformers.video_utils import VideoMetadata

from tests.doubles.videos import decoded, video
from tests.media.processors.test_against_transformers import as_text
from weft.core.errors import BadRequest
from weft.core.values.media import PROCESSOR_KWARGS, Media, MediaItem
from weft.core.values.pictures import ItemsConfig, ItemTokens, NativeSize, Pixels, Videos
from weft.media.preparer import MediaPreparer
from weft.media.processors.patches import to_patches
from weft.media.processors.video_frames import frame_indexes, frame_size
from weft.media.processors.video_processor import VideoProcessor
from weft.media.videos import VideoFacts

PAD, START, END = 1002, 1003, 1004
TOKENS = ItemTokens(anchor=PAD, placeholder=PAD, begin=START, end=END)
_FUNCTIONAL = ".transforms.v2.functional"
MEAN, STD = (0.5, 0.4, 0.3), (0.3, 0.25, 0.2)


def settings(is_timed: bool, **changes) -> Videos:
    """Settings for patches of few pixels."""
    given = {"min_pixels": 256, "max_pixels": 9000 if is_timed else 1500, **changes}
    return Videos(
        pixels=Pixels(patch_size=4, merge_size=2, temporal_size=2, mean=MEAN, std=STD),
        tokens=TOKENS,
        is_timed=is_timed,
        positions_per_second=0 if is_timed else 2,
        **given,
    )


class _Torch(BaseVideoProcessor):
    """What transformers' processors need of torchvision, made of torch's own operators, as torchvision's are."""

    def resize(self, image, size, resample=None, **_):
        self.size = (size.height, size.width)
        resized = torch.nn.functional.interpolate(
            image.flatten(0, 1), size=self.size, mode="bicubic", antialias=True
        )
        return resized.unflatten(0, image.shape[:2])

    def normalize(self, image, mean, std, **_):
        means, stds = (torch.as_tensor(numbers).view(-1, 1, 1) for numbers in (mean, std))
        return (image - means) / stds


def _plain() -> type:
    """Transformers' processor for Qwen2.5-VL, whose module imports torchvision, and needs it for nothing here."""
    names = [f"torchvision{part}" for part in ("", ".transforms", ".transforms.v2", _FUNCTIONAL)]
    sys.modules.update({name: ModuleType(name) for name in names})
    try:
        module = import_module("transformers.models.qwen2_vl.video_processing_qwen2_vl")
    finally:
        for name in names:
            del sys.modules[name]
    return module.Qwen2VLVideoProcessor


class _Plain(_plain(), _Torch):
    pass


class _Timed(Qwen3VLVideoProcessor, _Torch):
    pass


class Theirs:
    """Transformers' processor with the settings of ours."""

    def __init__(self, given: Videos) -> None:
        kind = _Timed if given.is_timed else _Plain
        self._given, self._own = given, object.__new__(kind)
        vars(self._own).update(
            fps=None if given.num_frames else given.fps,
            num_frames=None,
            min_frames=given.min_frames,
            max_frames=given.max_frames,
            temporal_patch_size=2,
            max_video_tokens=given.max_tokens,
        )

    def indexes(self, facts: VideoFacts) -> list[int]:
        """The frames that are sampled."""
        metadata = VideoMetadata(total_num_frames=facts.num_frames, fps=facts.rate)
        found = self._own.sample_frames(metadata, num_frames=self._given.num_frames)
        return [int(index) for index in found]

    def size(self, height: int, width: int, num_frames: int) -> tuple[int, int]:
        """Height and width of the resized frames."""
        self._own.resize(
            torch.zeros((1, num_frames, 1, height, width), dtype=torch.uint8),
            size=self._bounds,
            resample=None,
            factor=8,
            temporal_factor=2,
            cap_pixels_per_frame=self._given.max_tokens is not None,
        )
        return self._own.size

    def patches(self, frames: np.ndarray) -> tuple[np.ndarray, list[list[int]]]:
        """The patches of sampled frames, and their grids."""
        found = self._own._preprocess(
            [torch.from_numpy(frames).permute(0, 3, 1, 2)],
            do_resize=True,
            size=self._bounds,
            resample=None,
            do_rescale=True,
            rescale_factor=1 / 255,
            do_normalize=True,
            image_mean=MEAN,
            image_std=STD,
            patch_size=4,
            temporal_patch_size=2,
            merge_size=2,
            cap_pixels_per_frame=self._given.max_tokens is not None,
            return_tensors="np",
        )
        return found["pixel_values_videos"], found["video_grid_thw"].tolist()

    @property
    def _bounds(self) -> SizeDict:
        return SizeDict(shortest_edge=self._given.min_pixels, longest_edge=self._given.max_pixels)


@pytest.mark.parametrize("is_timed", [False, True])
def test_frames_are_those_of_transformers(is_timed):
    """Indexes are equal for lengths and rates of all kinds, whether a number of frames or a rate is wanted."""
    wanted = [{"fps": fps, "max_frames": 40} for fps in (0.3, 1.0, 2.0, 7.7)]
    for changes in (*wanted, {"num_frames": 6}):
        given = settings(is_timed, **changes)
        whole = Theirs(given)
        lengths = (*range(6, 60), 97, 300, 1001, 30_000)
        for number, rate in product(lengths, (2.0, 9.99, 24000 / 1001, 30.0)):
            facts = VideoFacts(number, rate, 64, 48)
            assert frame_indexes(facts, given) == whole.indexes(facts), (number, rate, changes)


@pytest.mark.parametrize("max_tokens", [None, 40])
@pytest.mark.parametrize("is_timed", [False, True])
def test_sizes_are_those_of_transformers(is_timed, max_tokens):
    """Height and width are equal, whether the bounds are for a frame or for all frames together."""
    given = settings(is_timed, max_tokens=max_tokens)
    whole = Theirs(given)
    sides = (5, 8, 13, 40, 57, 90)
    for height, width, number in product(sides, sides, (2, 3, 5, 12)):
        size = frame_size(height, width, number, given)
        assert size == whole.size(height, width, number), (height, width, number)


@pytest.mark.parametrize("size", [(64, 48), (30, 70)])
@pytest.mark.parametrize("is_timed", [False, True])
def test_patches_are_those_of_transformers(is_timed, size):
    """From a file to patches: an odd number of frames repeats the last one."""
    given = settings(is_timed, min_frames=5, max_frames=5 if is_timed else 6, fps=1.0)
    data = video(17, *size, rate=10)
    item = VideoProcessor(given, TOKENS, as_text).prepare(data, "hash")
    patches, grids = to_patches(item.tiles, given.pixels)
    whole = Theirs(given)
    sampled = decoded(data)[whole.indexes(VideoFacts(17, 10.0, *size))]
    expected, [grid] = whole.patches(sampled)
    assert [sum(grid[0] for grid in grids), *grids[0][1:]] == grid
    step = np.array(STD).min() * 255
    np.testing.assert_allclose(patches, expected, atol=2.001 / step)
    assert np.abs(patches - expected).mean() < 0.1 / step


def test_texts_say_the_times_of_transformers():
    """Each patch of frames has its time before it; the tokens around the anchor are replaced by those of the frames."""
    given = settings(True, min_frames=5, max_frames=5)
    item = VideoProcessor(given, TOKENS, as_text).prepare(video(17, rate=10), "hash")
    frames = Theirs(given).indexes(VideoFacts(17, 10.0, 64, 48))
    times = Qwen3VLProcessor._calculate_timestamps(SimpleNamespace(), frames, 10.0, 2)
    windows = item.tiles[0].height * item.tiles[0].width // 64
    expected = []
    for time in times:
        expected += [*as_text(f"<{time:.1f} seconds>"), START, *[PAD] * windows, END]
    assert item.token_ids == expected
    assert [length for _, length in item.runs] == [windows] * 3
    assert item.frame == (START, END)


def test_the_position_of_a_frame_grows_with_time():
    """Two patches of frames of a plain model are as far apart as the sampled rate and the model's positions say."""
    given = settings(False, fps=1.0, min_frames=2)
    item = VideoProcessor(given, TOKENS, as_text).prepare(video(60, rate=10), "hash")
    [tile] = item.tiles
    assert tile.num_frames == 6
    assert tile.time_step == pytest.approx(2 * 2 / 1.0)
    assert item.token_ids == [PAD] * (3 * tile.height * tile.width // 64)
    assert item.frame is None


def preparer(**changes) -> MediaPreparer:
    """A preparer of a model that takes pictures and videos."""
    pixels = Pixels(patch_size=4, merge_size=2, temporal_size=2)
    config = ItemsConfig(
        settings=NativeSize(pixels=pixels, min_pixels=64, max_pixels=1024),
        tokens=ItemTokens(anchor=1, placeholder=1),
        videos=settings(True, **changes),
        prepared_bytes=1 << 20,
        hidden_size=8,
        row_size=8,
    )
    return MediaPreparer(config, as_text)


async def prepared(data: bytes, kwargs: dict | None = None, **changes):
    """The prepared video."""
    items = [MediaItem(modality="video", data=data)]
    [item] = await preparer(**changes).prepare(Media(items=items, processor_kwargs=kwargs))
    return item


async def test_arguments_of_a_request_change_frames_and_sizes():
    """`fps`, `num_frames` and bounds of pixels take effect, and make other items."""
    data = video(24, rate=12)
    plain = await prepared(data)
    more = await prepared(data, {"fps": 6})
    exact = await prepared(data, {"num_frames": 8})
    small = await prepared(data, {"max_pixels": 1000})
    assert [len(one.tiles) for one in (plain, more, exact, small)] == [2, 6, 4, 2]
    assert small.tiles[0].height < plain.tiles[0].height
    assert len({one.hash for one in (plain, more, exact, small)}) == 4


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"fps": 0}, "fps must be above 0 and at most 240"),
        ({"num_frames": 1}, "num_frames must be a number from 2 to 768, got 1"),
        ({"max_pixels": 10**9}, "max_pixels must be a number from 1 to 9000"),
        (
            {"frames": 3},
            "'frames' is not supported; this model allows fps, num_frames, min_pixels and max_pixels",
        ),
    ],
)
async def test_arguments_that_a_model_lacks_are_refused(kwargs, says):
    """The sentence names the argument and what is allowed."""
    with pytest.raises(BadRequest, match=f"{PROCESSOR_KWARGS}: {says}"):
        await prepared(video(), kwargs)


async def test_frames_that_take_too_much_memory_are_refused_before_they_are_decoded():
    """The bound is that of all prepared media of a prompt."""
    with pytest.raises(BadRequest, match="may take 134217728 bytes once they are prepared"):
        await prepared(video(), max_pixels=1 << 31, min_pixels=1 << 27)
