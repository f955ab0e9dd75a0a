"""Media of a request, from the wire: by address, or as tensors."""

from collections.abc import Iterator, Mapping

from weft.core.checks.media_tensors import num_bytes
from weft.core.errors import BadRequest, Unsupported
from weft.core.values.media import (
    MAX_BYTES,
    TENSORS,
    Media,
    MediaItem,
    MediaTensors,
    Modality,
    Tensor,
)
from weft.pb import common_pb2
from weft.pb import vllm_engine_pb2 as pb

MEDIA_REFS = "media_refs"
EXTRA_TENSORS = "extra_mm_inputs"
# Payloads in memory of this machine or of another are refused: the server would have to trust the sender.
REFUSED_PAYLOADS = frozenset({"shm", "remote"})
_MODALITIES: Mapping[int, Modality] = {
    common_pb2.IMAGE: "image",
    common_pb2.AUDIO: "audio",
    common_pb2.VIDEO: "video",
}
# Name of the tensor in `pixel_values`, unless `encoder_input_key` sets another.
_PIXELS = "pixel_values"
_PIXELS_OF_VIDEOS = "pixel_values_videos"


def media_field(request: pb.GenerateRequest) -> str | None:
    """The field in which a request has media."""
    if request.HasField(TENSORS):
        return TENSORS
    if request.extra_mm_inputs:
        return EXTRA_TENSORS
    return MEDIA_REFS if request.HasField(MEDIA_REFS) else None


def to_media(request: pb.GenerateRequest) -> Media | None:
    """Converts the media; returns None if there are none. A later check compares the items with each other and with
    the prompt.
    """
    if media_field(request) is None:
        return None
    return Media(items=_to_items(request.media_refs), tensors=_to_tensors(request))


def _to_items(refs: pb.MediaRefs) -> list[MediaItem]:
    """By address alone, in the order of their anchors."""
    items: list[MediaItem] = []
    for position, ref in enumerate(refs.items):
        modality = _MODALITIES.get(ref.modality)
        if modality is None:
            raise BadRequest(
                MEDIA_REFS,
                f"{MEDIA_REFS}.items[{position}].modality must be IMAGE, AUDIO or VIDEO",
            )
        if not ref.url:
            raise BadRequest(MEDIA_REFS, f"{MEDIA_REFS}.items[{position}].url is missing")
        items.append(MediaItem(modality=modality, url=ref.url))
    return items


def _to_tensors(request: pb.GenerateRequest) -> list[MediaTensors]:
    batches = [request.mm_inputs] if request.HasField(TENSORS) else []
    batches.extend(request.extra_mm_inputs)
    # The total size is checked before any tensor is copied.
    total = sum(
        num_bytes(name, data.dtype, data.shape)
        for batch in batches
        for name, data in _tensors_of(batch)
    )
    if total > MAX_BYTES:
        raise BadRequest(
            TENSORS,
            f"{TENSORS}: the tensors of a prompt may have {MAX_BYTES} bytes together, got {total}",
        )
    return [_to_batch(batch) for batch in batches]


def _tensors_of(batch: pb.MultimodalInputs) -> Iterator[tuple[str, pb.TensorData]]:
    """By their names on the wire."""
    if batch.HasField(_PIXELS):
        yield _PIXELS, batch.pixel_values
    yield from batch.model_specific_tensors.items()


def _to_batch(batch: pb.MultimodalInputs) -> MediaTensors:
    modality = _MODALITIES.get(batch.modality or common_pb2.IMAGE)
    if modality is None:
        raise BadRequest(TENSORS, f"{TENSORS}.modality must be IMAGE, AUDIO or VIDEO")
    # A batch without pixels, for example of a prompt that another server has computed.
    if not batch.HasField(_PIXELS):
        raise Unsupported(f"{TENSORS} without {_PIXELS} is not supported yet")

    def named(name: str) -> str:
        return _PIXELS_OF_VIDEOS if modality == "video" and name == _PIXELS else name

    tensors = {named(batch.encoder_input_key or _PIXELS): _to_tensor(_PIXELS, batch.pixel_values)}
    for key, data in batch.model_specific_tensors.items():
        if (name := named(key)) in tensors:
            raise BadRequest(TENSORS, f"{TENSORS}: duplicate key {key}")
        tensors[name] = _to_tensor(key, data)
    return MediaTensors(
        modality=modality,
        tensors=tensors,
        placeholders=[(place.offset, place.length) for place in batch.mm_placeholders],
        hashes=list(batch.mm_hashes),
        embed_token_id=batch.im_token_id if batch.HasField("im_token_id") else None,
        batched=frozenset(map(named, batch.batched_keys)),
        flat={named(key): named(sizes) for key, sizes in batch.flat_keys.items()},
        on_cpu=frozenset(map(named, batch.keep_on_cpu_keys)),
    )


def _to_tensor(name: str, data: pb.TensorData) -> Tensor:
    if (way := data.WhichOneof("payload")) in REFUSED_PAYLOADS:
        raise Unsupported(f"{TENSORS}: {name}: {way} is not supported: send the bytes inline")
    return Tensor(dtype=data.dtype, shape=tuple(data.shape), data=data.inline)
