"""Extracts media from the messages of a turn, in the forms of OpenAI's chat and vLLM; placeholders remain."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from weft.core.values.media import Media, MediaItem, Modality
from weft.text.content import PartTypes, Place, Placeholder, read_part

Message: TypeAlias = Mapping[str, Any]


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Address of a media item, which may be a `data:` URL. `detail` is OpenAI's level of detail."""

    url: str
    detail: str | None = None


class Sound(msgspec.Struct, frozen=True, kw_only=True):
    """Audio in base64; `format` is the file format, such as wav."""

    data: str
    format: str


class ImagePart(msgspec.Struct, frozen=True, kw_only=True):
    """An image; with only a `uuid`, an image that the engine has received before."""

    image_url: Address | str | None = None
    uuid: str | None = None
    type: str | None = None


class VideoPart(msgspec.Struct, frozen=True, kw_only=True):
    """A video."""

    video_url: Address | str | None = None
    uuid: str | None = None
    type: str | None = None


class AudioPart(msgspec.Struct, frozen=True, kw_only=True):
    """Sound at an address."""

    audio_url: Address | str | None = None
    uuid: str | None = None
    type: str | None = None


class InputAudioPart(msgspec.Struct, frozen=True, kw_only=True):
    """Audio in the body, in OpenAI's form."""

    input_audio: Sound | None = None
    uuid: str | None = None
    type: str | None = None


MediaPart: TypeAlias = ImagePart | VideoPart | AudioPart | InputAudioPart
_MODALITIES: Mapping[type[MediaPart], Modality] = {
    ImagePart: "image",
    VideoPart: "video",
    AudioPart: "audio",
    InputAudioPart: "audio",
}
PARTS: PartTypes[MediaPart] = PartTypes(
    structs={
        "image_url": ImagePart,
        "video_url": VideoPart,
        "audio_url": AudioPart,
        "input_audio": InputAudioPart,
    },
    if_unknown="{part}: parts of type {type!a} are not taken; there are text, {types}",
    if_malformed="{placed_error}",
)
_DETAILS = (None, "auto", "high", "original")
# vLLM's other types and forms of media parts, which are refused.
_NOT_TAKEN = frozenset("image_embeds audio_embeds image_pil video audio image input_image".split())


def take_media(
    messages: Sequence[Message], processor_kwargs: Mapping[str, Any] | None
) -> tuple[Sequence[Message], Media | None]:
    """The messages with placeholders instead of media, and the media in order; None if there are none."""
    items: list[MediaItem] = []
    bare = [_without_media(message, position, items) for position, message in enumerate(messages)]
    if not items and processor_kwargs is None:
        return messages, None
    kwargs = None if processor_kwargs is None else dict(processor_kwargs)
    return bare, Media(items=items, processor_kwargs=kwargs)


def _without_media(message: Message, position: int, items: list[MediaItem]) -> Message:
    content: object = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list | tuple):
        return message
    place = Place("messages", f"messages[{position}].content")
    parts = [_part(part, place[at], items) for at, part in enumerate(content)]
    return {**message, "content": parts}


def _part(given: object, place: Place, items: list[MediaItem]) -> object:
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind not in PARTS.structs and kind not in _NOT_TAKEN:
        return given
    part = read_part(given, PARTS, place)
    modality = _MODALITIES[type(part)]
    items.append(MediaItem(modality=modality, url=_url(part, place), uuid=part.uuid))
    return Placeholder(modality)


def _url(part: MediaPart, place: Place) -> str | None:
    """The URL; None if only a `uuid` is given."""
    if isinstance(part, InputAudioPart):
        sound = part.input_audio
        if sound is not None and not sound.format.isalnum():
            raise place.error(
                ".input_audio.format must be the name of an audio format, such as wav"
            )
        url = None if sound is None else f"data:audio/{sound.format};base64,{sound.data}"
    else:
        url = _address(part, place)
    if not url and part.uuid is None:
        raise place.error(" has neither an address nor a uuid")
    return url or None


def _address(part: ImagePart | VideoPart | AudioPart, place: Place) -> str | None:
    address: Address | str | None
    match part:
        case ImagePart():
            address = part.image_url
        case VideoPart():
            address = part.video_url
        case AudioPart():
            address = part.audio_url
    if not isinstance(address, Address):
        return address
    if address.detail not in _DETAILS:
        raise place.error(
            ".image_url.detail must be absent, auto, high or original: the model's processor "
            "decides on the resolution; mm_processor_kwargs may change it"
        )
    return address.url
