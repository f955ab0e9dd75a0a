"""Media of a prompt: images, videos and sound, which stand where its tokens have anchors.

Other kinds of input are tensors that somebody else has made of them; those would stand beside `items`.
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

from weft.core.errors import BadRequest
from weft.core.unicode import check_text

Modality = Literal["image", "video", "audio"]
MODALITIES: tuple[Modality, ...] = get_args(Modality)

MAX_UUID_CHARS = 256
FIELD = "media"
PROCESSOR_KWARGS = "mm_processor_kwargs"


class MediaItem(msgspec.Struct, frozen=True, kw_only=True):
    """One of them: a file's bytes, or where it is; or only the `uuid` under which the engine has seen it before.

    With a `uuid` the engine trusts that the same one is the same item.
    """

    modality: Modality
    data: bytes | None = None  # encoded: PNG, WAV, MP4
    url: str | None = None
    uuid: str | None = None


class Media(msgspec.Struct, frozen=True, kw_only=True):
    """All of a prompt, those of each modality in the order of their anchors; and arguments of the model's processor."""

    items: list[MediaItem] = []
    processor_kwargs: dict[str, Any] | None = None


class MediaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine takes: how many of each modality in one prompt, and the token that is each one's anchor.

    A modality without a known anchor is not in `anchor_ids`.
    """

    max_items: dict[Modality, int]
    anchor_ids: dict[Modality, int] = {}


class SpeechConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a model makes text of speech: the token of second 0, if it has such, and whether it does nothing else."""

    first_timestamp_id: int | None = None
    is_only: bool = False


def takes(modality: Modality, config: MediaConfig | None) -> bool:
    """Whether an engine with this config takes any of a modality."""
    return config is not None and config.max_items.get(modality, 0) > 0


def check_media(media: Media, config: MediaConfig | None) -> None:
    """Raise `BadRequest` for what an engine with this config does not take."""
    if config is None:
        raise BadRequest(FIELD, "media: this model reads text only")
    if media.processor_kwargs is not None and not media.items:
        raise BadRequest(PROCESSOR_KWARGS, f"{PROCESSOR_KWARGS} needs media in the prompt")
    num_items = dict.fromkeys(MODALITIES, 0)
    for item in media.items:
        _check_item(item)
        num_items[item.modality] += 1
    for modality, num in num_items.items():
        most = config.max_items.get(modality, 0)
        if num > most:
            raise BadRequest(
                modality,
                f"{modality}: this model takes none"
                if most == 0
                else f"{modality}: at most {most} may be given in one prompt, got {num}",
                num,
            )


def check_anchors(token_ids: list[int], media: Media | None, config: MediaConfig) -> None:
    """Raise `BadRequest` for an anchor at which nothing stands: the model would read it as a word."""
    for modality, anchor in config.anchor_ids.items():
        num_items = sum(item.modality == modality for item in (media.items if media else ()))
        num_anchors = token_ids.count(anchor)
        if num_anchors > num_items:
            raise BadRequest(
                "prompt",
                f"the prompt has {num_anchors} tokens {anchor}, at each of which one {modality} is to stand, "
                f"and {num_items} of these are given",
            )


def count_by_modality(media: Media) -> Mapping[Modality, int]:
    """How many there are of those that there are."""
    found: dict[Modality, int] = {}
    for item in media.items:
        found[item.modality] = found.get(item.modality, 0) + 1
    return found


def _check_item(item: MediaItem) -> None:
    if item.modality not in MODALITIES:
        raise BadRequest(FIELD, f"media: a modality is one of {', '.join(MODALITIES)}")
    if item.data is not None and item.url is not None:
        raise BadRequest(FIELD, f"{item.modality}: give its bytes or its URL, not both")
    if item.uuid is None and item.data is None and item.url is None:
        raise BadRequest(FIELD, f"{item.modality}: it has neither bytes nor a URL nor a uuid")
    if item.uuid is not None:
        check_text("uuid", item.uuid)
        if not 1 <= len(item.uuid) <= MAX_UUID_CHARS:
            raise BadRequest(
                "uuid", f"uuid takes 1 to {MAX_UUID_CHARS} characters, got {len(item.uuid)}"
            )
