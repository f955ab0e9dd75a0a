"""Reads pictures that come as the tensors of a model's processor: patches and grids, in the form of Qwen's models."""

import hashlib
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from weft.core.checks.media_tensors import check_tensors
from weft.core.errors import BadRequest
from weft.core.values.media import TENSORS, MediaTensors, Tensor
from weft.core.values.pictures import Grid, ItemsConfig, NativeSize, PreparedItem

_PATCHES, _GRIDS = "pixel_values", "image_grid_thw"
_MAX_SIDE = 1 << 14  # of a grid, in patches


def read_tensors(
    batches: Sequence[MediaTensors], config: ItemsConfig, salt: str | None
) -> list[PreparedItem]:
    """Returns the pictures of a prompt in order; raises `BadRequest` for tensors that are not those of this model."""
    check_tensors(batches)
    [given] = batches
    settings = config.settings
    if not isinstance(settings, NativeSize) or given.modality != "image":
        raise _refused(f"this model takes {given.modality}s as files, not as tensors")
    sizes = {given.flat[_PATCHES]} if _PATCHES in given.flat else set()
    if spare := given.tensors.keys() - {_PATCHES, _GRIDS} - sizes:
        raise _refused(
            f"{min(spare)[:40]!a} is none of {_PATCHES} and {_GRIDS}, which this model takes"
        )
    patches, grids = _patches(given, settings), _grids(given, settings)
    counts = [frames * rows * columns for frames, rows, columns in grids]
    if sum(counts) != len(patches):
        raise _refused(
            f"{_PATCHES} has {len(patches)} patches, and the grids of {_GRIDS} have {sum(counts)}"
        )
    parts = np.split(patches, np.cumsum(counts)[:-1])
    return [
        _item(config, given, place, part, grid, salt)
        for place, (part, grid) in enumerate(zip(parts, grids, strict=True))
    ]


def _item(
    config: ItemsConfig,
    given: MediaTensors,
    place: int,
    patches: NDArray[np.float32],
    grid: Grid,
    salt: str | None,
) -> PreparedItem:
    data = patches.tobytes()
    facts = (TENSORS, given.hashes[place], grid, salt)
    digest = hashlib.sha256(msgspec.json.encode(facts))
    digest.update(data)
    start, length = given.placeholders[place]
    return PreparedItem(
        modality="image",
        hash=digest.hexdigest(),
        token_ids=[],
        runs=[(0, grid[1] * grid[2] // config.pixels("image").merge_size ** 2)],
        patches=data,
        grids=[grid],
        span=(start, length, _token_id(config, given)),
    )


def _token_id(config: ItemsConfig, given: MediaTensors) -> int:
    expected = config.tokens.placeholder
    if given.embed_token_id not in (None, expected):
        raise _refused(f"im_token_id must be {expected}, which stands for a row of this model")
    return expected


def _patches(given: MediaTensors, settings: NativeSize) -> NDArray[np.float32]:
    pixels = settings.pixels
    width = 3 * pixels.temporal_size * pixels.patch_size**2
    tensor = given.tensors.get(_PATCHES)
    if tensor is None or len(tensor.shape) != 2 or tensor.shape[1] != width:
        shape = "missing" if tensor is None else f"of the shape {list(tensor.shape)}"
        raise _refused(f"{_PATCHES} must have the shape [patches, {width}], and is {shape}")
    numbers = _floats(tensor).reshape(tensor.shape)
    if not np.isfinite(numbers).all():
        raise _refused(f"{_PATCHES} must have finite numbers alone")
    return numbers


def _floats(tensor: Tensor) -> NDArray[np.float32]:
    match tensor.dtype:
        case "float32":
            return np.frombuffer(tensor.data, "<f4").astype(np.float32)
        case "float16":
            return np.frombuffer(tensor.data, "<f2").astype(np.float32)
        case "bfloat16":
            bits = np.frombuffer(tensor.data, "<u2").astype(np.uint32) << 16
            return bits.view(np.float32)
    raise _refused(f"{_PATCHES} must be float32, float16 or bfloat16, got {tensor.dtype}")


def _grids(given: MediaTensors, settings: NativeSize) -> list[Grid]:
    tensor, num_items = given.tensors.get(_GRIDS), len(given.placeholders)
    kinds = {"int64": "<i8", "uint32": "<u4"}
    if tensor is None or tensor.dtype not in kinds or tensor.shape != (num_items, 3):
        raise _refused(f"{_GRIDS} must have the shape [{num_items}, 3] and be int64 or uint32")
    merge = settings.pixels.merge_size
    grids = []
    for frames, rows, columns in (
        np.frombuffer(tensor.data, kinds[tensor.dtype]).reshape(-1, 3).tolist()
    ):
        is_whole = rows % merge == columns % merge == 0
        if (
            frames != 1
            or not is_whole
            or not 0 < min(rows, columns) <= max(rows, columns) <= _MAX_SIDE
        ):
            raise _refused(
                f"{_GRIDS}: a picture has 1 frame, and rows and columns in multiples of {merge}, "
                f"got {[frames, rows, columns]}"
            )
        grids.append((frames, rows, columns))
    return grids


def _refused(words: str) -> BadRequest:
    return BadRequest(TENSORS, f"{TENSORS}: {words}")
