"""Media of a request of `vllm.Inference`, from the wire."""

from collections.abc import Iterable, Mapping

from weft.core.errors import BadRequest, Unsupported
from weft.core.values.media import Media, MediaItem, Modality
from weft.pb import vllm_inference_pb2 as pb

MEDIA = "media"
_MODALITIES: Mapping[int, Modality] = {
    pb.MODALITY_IMAGE: "image",
    pb.MODALITY_VIDEO: "video",
    pb.MODALITY_AUDIO: "audio",
}
REFUSED_SOURCES: Mapping[str, str] = {"features": "this server prepares the files itself"}
# Schemes of the addresses in each field.
_SCHEMES: Mapping[str, tuple[str, ...]] = {"url": ("http:", "https:"), "data_uri": ("data:",)}


def to_inference_media(items: Iterable[pb.MediaItem]) -> Media:
    """Converts the items, in the order of their anchors."""
    return Media(items=[_to_item(f"{MEDIA}[{place}]", item) for place, item in enumerate(items)])


def _to_item(path: str, item: pb.MediaItem) -> MediaItem:
    modality = _MODALITIES.get(item.modality)
    if modality is None:
        raise BadRequest(MEDIA, f"{path}.modality must be IMAGE, VIDEO or AUDIO")
    # The file itself tells its format; a label that contradicts the modality is an error.
    if item.mime_type and not item.mime_type.startswith(f"{modality}/"):
        raise BadRequest(MEDIA, f"{path}.mime_type must begin with {modality}/")
    uuid = item.uuid or None
    match item.WhichOneof("source"):
        case "raw_bytes":
            return MediaItem(modality=modality, data=item.raw_bytes, uuid=uuid)
        case "url" | "data_uri" as source:
            address = getattr(item, source)
            if not address.startswith(_SCHEMES[source]):
                schemes = " or ".join(_SCHEMES[source])
                raise BadRequest(MEDIA, f"{path}.{source} must begin with {schemes}")
            return MediaItem(modality=modality, url=address, uuid=uuid)
        case str(source):
            raise Unsupported(f"{path}.{source} is not supported: {REFUSED_SOURCES[source]}")
    raise BadRequest(MEDIA, f"{path} has no source: set url, data_uri or raw_bytes")
