"""Media of prompts in Python programs: `multi_modal_data`, `multi_modal_uuids` and `mm_processor_kwargs`."""

import base64
import io
import struct
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from weft.core.errors import BadRequest
from weft.core.values.media import MODALITIES, Media, MediaItem, Modality

DATA, UUIDS, KWARGS = "multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs"
_PICTURE = "image_pil"  # type and field of a content part
# Modes that PNG files keep as they are; any other mode becomes RGB.
_MODES = ("1", "L", "LA", "I;16", "P", "RGB", "RGBA")
_MAX_RATE = 1_000_000  # samples a second; the engine's own limit is lower
_OTHER_FORMS: Mapping[Modality, str] = {
    "image": ", a picture of Pillow or an array [height, width, 3] of uint8",
    "audio": ", or a pair of an array [samples] of floats and the number of samples a second",
}


def read_media(given: Mapping[Any, Any]) -> Media | None:
    """Returns the media of a prompt's dict; None if it has none. Raises `BadRequest` for values of other types."""
    data, uuids = _by_modality(given, DATA), _by_modality(given, UUIDS)
    items = [
        MediaItem(modality=modality, data=_to_bytes(modality, value), uuid=uuid)
        for modality in MODALITIES
        for value, uuid in _pairs(modality, data, uuids)
    ]
    kwargs = given.get(KWARGS)
    if kwargs is not None and not isinstance(kwargs, dict):
        raise BadRequest(KWARGS, f"{KWARGS} must be a dict")
    if not items and not kwargs:
        return None
    return Media(items=items, processor_kwargs=kwargs or None)


def with_picture_urls(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns chat messages with `data:` URLs instead of pictures of Pillow, which only Python programs can give."""
    return [_with_urls(message) for message in messages]


def _with_urls(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return message
    return {**message, "content": [_with_url(part) for part in content]}


def _with_url(part: Any) -> Any:
    if not isinstance(part, Mapping) or part.get("type") != _PICTURE:
        return part
    file = _to_bytes("image", part.get(_PICTURE))
    if file is None:
        raise BadRequest(_PICTURE, f"{_PICTURE} must be a picture of Pillow")
    url = f"data:image/png;base64,{base64.b64encode(file).decode()}"
    return {"type": "image_url", "image_url": {"url": url}, "uuid": part.get("uuid")}


def _by_modality(given: Mapping[Any, Any], key: str) -> dict[str, list[Any]]:
    values = given.get(key)
    if values is None:
        return {}
    if not isinstance(values, Mapping) or not set(values) <= set(MODALITIES):
        raise BadRequest(key, f"{key} must be a dict with keys among {', '.join(MODALITIES)}")
    return {name: _listed(value) for name, value in values.items()}


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) and not _is_wave(value) else [value]


def _is_wave(value: object) -> bool:
    """True for a pair of samples and their number a second, which is one sound."""
    match value:
        case (np.ndarray(), int() | float() | np.number()) if isinstance(value, tuple):
            return True
    return False


def _wav(samples: Any, rate: Any) -> bytes:
    """Returns the WAV file of samples from -1 to 1."""
    data: bytes = samples.astype("<f4").tobytes()
    rate = int(rate)
    form = (b"fmt ", 16, 3, 1, rate, 4 * rate, 4, 32)
    head = (b"RIFF", 36 + len(data), b"WAVE", *form, b"data", len(data))
    return struct.pack("<4sI4s4sIHHIIHH4sI", *head) + data


def _pairs(
    modality: Modality, data: dict[str, list[Any]], uuids: dict[str, list[Any]]
) -> list[tuple[Any, str | None]]:
    values, ids = data.get(modality, []), uuids.get(modality, [])
    if values and ids and len(values) != len(ids):
        raise BadRequest(UUIDS, f"{UUIDS}: {len(ids)} are given for {len(values)} items")
    num = max(len(values), len(ids))
    return list(zip(values or [None] * num, ids or [None] * num, strict=True))


def _to_bytes(modality: Modality, value: Any) -> bytes | None:
    """Returns a file: the bytes of one, a picture of Pillow or numpy as PNG, or samples as WAV."""
    if value is None or isinstance(value, bytes):
        return value
    if modality == "image":
        if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.shape[2:] == (3,):
            value = import_module("PIL.Image").fromarray(value)
        if hasattr(value, "save") and hasattr(value, "getbands"):
            file = io.BytesIO()
            picture = value if value.mode in _MODES else value.convert("RGB")
            picture.save(file, "PNG", compress_level=1)
            return file.getvalue()
    if modality == "audio" and _is_wave(value):
        samples, rate = value
        if samples.ndim == 1 and samples.dtype.kind == "f" and 1 <= rate <= _MAX_RATE:
            return _wav(samples, rate)
    raise BadRequest(
        DATA,
        f"{DATA}: {modality} must be the bytes of a file{_OTHER_FORMS.get(modality, '')}, got a "
        f"value of type {type(value).__name__}",
    )
