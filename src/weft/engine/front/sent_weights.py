"""Checks of the weights that a caller describes in `update_info`, before the engine gets them."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from weft.core.checks.allowed import explain
from weft.core.errors import BadRequest
from weft.core.values.weight_transfer import WeightTransferConfig, WeightTransferUpdateRequest
from weft.engine.ipc.messages import SentTensor
from weft.engine.weights.weight_transfer import SEGMENT
from weft.model.weights import BYTES_PER_ELEMENT

MAX_TENSORS = 50_000  # per call; the limit of a checkpoint is the same
MAX_DIMENSIONS = 8
_MAX_BYTES = 1 << 62

T = TypeVar("T")
_Size = Annotated[int, msgspec.Meta(ge=0, le=_MAX_BYTES)]
_Shape = Annotated[tuple[_Size, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]


class _Segment(msgspec.Struct, forbid_unknown_fields=True):
    """`update_info` for the backend shared_memory."""

    segment: str
    names: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_TENSORS)]
    dtype_names: list[str]
    shapes: list[_Shape]
    offsets: list[_Size] | None = None


class _Files(msgspec.Struct, forbid_unknown_fields=True):
    """`update_info` for the backend safetensors."""

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]


def to_update(
    config: WeightTransferConfig, request: WeightTransferUpdateRequest
) -> tuple[str, list[SentTensor]]:
    """Returns the fields of `UpdateWeights`. Raises `BadRequest` that names the wrong part of `update_info`."""
    if config.backend == "safetensors":
        path = _path_below(config, _read(request.update_info, _Files).path)
        return str(path), []
    given = _read(request.update_info, _Segment)
    if not SEGMENT.fullmatch(given.segment):
        message = "update_info.segment must be the name of a segment, without a path"
        raise BadRequest("update_info", message)
    return given.segment, _tensors(given)


def _read(info: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(info, kind)
    except msgspec.ValidationError as error:
        raise BadRequest("update_info", f"update_info: {explain(error, kind)}") from None


def _tensors(given: _Segment) -> list[SentTensor]:
    """Returns the tensors with their offsets; without `offsets` each tensor follows the one before it."""
    count = len(given.names)
    for name in ("dtype_names", "shapes", "offsets"):
        values = getattr(given, name)
        if values is not None and len(values) != count:
            message = f"update_info.{name} has {len(values)} entries, and names has {count}"
            raise BadRequest("update_info", message)
    tensors, end = [], 0
    for place, (name, dtype, shape) in enumerate(
        zip(given.names, given.dtype_names, given.shapes, strict=True)
    ):
        if dtype not in BYTES_PER_ELEMENT:
            known = ", ".join(BYTES_PER_ELEMENT)
            message = f"update_info.dtype_names must be of {known}, got {dtype[:40]!a}"
            raise BadRequest("update_info", message)
        start = end if given.offsets is None else given.offsets[place]
        end = start + BYTES_PER_ELEMENT[dtype]
        for size in shape:
            end = start + (end - start) * size
            if end > _MAX_BYTES:
                raise BadRequest("update_info", f"update_info.shapes is too large: {list(shape)}")
        tensors.append(SentTensor(name, dtype, shape, start))
    return tensors


def _path_below(config: WeightTransferConfig, given: str) -> Path:
    """Returns the path with links resolved. The path must not leave the allowed directory."""
    assert config.directory is not None
    with suppress(OSError, RuntimeError, ValueError):  # a missing file, a cycle of links, a NUL
        path = Path(config.directory, given).resolve(strict=True)
        if path.is_relative_to(config.directory):
            return path
    raise BadRequest(  # one message for all cases, so that it reveals nothing about paths outside
        "update_info",
        f"update_info.path must be a file or directory below {config.directory}, got {given[:200]!a}",
    )
