"""Converts the media of a request from the wire and to it: files, their addresses, or tensors."""

from collections.abc import Iterator, Mapping

from weft.core.checks.media_tensors import num_bytes
from weft.core.errors import BadRequest, Unsupported
from weft.core.values.media import (
    MAX_BYTES,
    PROCESSOR_KWARGS,
    TENSORS,
    Media,
    MediaConfig,
    MediaItem,
    MediaTensors,
    Modality,
    Tensor,
)
from weft.core.values.types import Request
from weft.pb import common_pb2
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.convert.json_objects import from_json, to_json

MEDIA_REFS = "media_refs"
EXTRA_TENSORS = "extra_mm_inputs"
_NOT_SENT = (
    "this server gets no media over gRPC; use the HTTP port of the server that runs the model"
)
# Payloads in memory of this machine or of another are refused: the server would have to trust the sender.
REFUSED_PAYLOADS = frozenset({"shm", "remote"})
_MODALITIES: Mapping[common_pb2.Modality, Modality] = {
    common_pb2.IMAGE: "image",
    common_pb2.AUDIO: "audio",
    common_pb2.VIDEO: "video",
}
_NUMBERS: Mapping[Modality, common_pb2.Modality] = {
    name: number for number, name in _MODALITIES.items()
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
    refs = request.media_refs
    kwargs = refs.weft_processor_kwargs_json
    return Media(
        items=_to_items(refs),
        processor_kwargs=from_json(PROCESSOR_KWARGS, kwargs) if kwargs else None,
        tensors=_to_tensors(request),
    )


def has_files(request: Request) -> bool:
    """True if the prompt has media that were given as files, whose tokens its caller does not know."""
    return bool(request.items) or (request.media is not None and bool(request.media.items))


def to_media_refs(media: Media) -> pb.MediaRefs:
    """Returns the message for media as files, for a Weft server. The files are fetched by that server."""
    kwargs = media.processor_kwargs
    return pb.MediaRefs(
        items=[
            pb.MediaRef(
                modality=_NUMBERS[item.modality],
                url=item.url or "",
                weft_uuid=item.uuid or "",
                weft_file=item.data or b"",
            )
            for item in media.items
        ],
        weft_processor_kwargs_json=b"" if kwargs is None else to_json(PROCESSOR_KWARGS, kwargs),
    )


def to_media_config(max_items: Mapping[str, int]) -> MediaConfig:
    """Returns the media that a server takes, from the maximum number for each modality."""
    known = {name: max_items[name] for name in _NUMBERS if max_items.get(name)}
    return MediaConfig(max_items=known, refusal=None if known else _NOT_SENT)


def _to_items(refs: pb.MediaRefs) -> list[MediaItem]:
    """The items in the order of their anchors."""
    items: list[MediaItem] = []
    for position, ref in enumerate(refs.items):
        modality = _MODALITIES.get(ref.modality)
        if modality is None:
            raise BadRequest(
                MEDIA_REFS,
                f"{MEDIA_REFS}.items[{position}].modality must be IMAGE, AUDIO or VIDEO",
            )
        data = ref.weft_file  # each access copies it
        if not (ref.url or data or ref.weft_uuid):
            raise BadRequest(MEDIA_REFS, f"{MEDIA_REFS}.items[{position}].url is missing")
        items.append(
            MediaItem(
                modality=modality,
                url=ref.url or None,
                data=data or None,
                uuid=ref.weft_uuid or None,
            )
        )
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
