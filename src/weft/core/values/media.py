"""Media of a prompt: images, videos and audio, each with an anchor token in the prompt.

Media are files, or tensors that a processor outside this server has made from files.
"""

import hashlib
from typing import Any, Literal, get_args

import msgspec

from weft.core.errors import BadRequest
from weft.core.values.unicode import check_text

Modality = Literal["image", "video", "audio"]
MODALITIES: tuple[Modality, ...] = get_args(Modality)
# Words for an item of each modality, in messages.
WORDS: dict[Modality, str] = {"image": "picture", "video": "video", "audio": "sound"}

MAX_UUID_CHARS = 256
MAX_BYTES = 64 * 2**20  # of all items of a prompt together, encoded
FIELD = "media"
TENSORS = "mm_inputs"
PROCESSOR_KWARGS = "mm_processor_kwargs"
_OWNED = "weft-owned:"


class MediaItem(msgspec.Struct, frozen=True, kw_only=True):
    """One media item: the bytes or the URL of a file, or only the `uuid` of an item that the engine has seen before.

    The engine trusts that items with the same `uuid` are equal.
    """

    modality: Modality
    data: bytes | None = None  # encoded file: PNG, WAV, MP4
    url: str | None = None
    uuid: str | None = None


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """An array in row-major order, little-endian; `weft.core.checks.media_tensors` lists the values of `dtype`."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class MediaTensors(msgspec.Struct, frozen=True, kw_only=True):
    """All items of one modality as tensors, made by a processor outside this server, with their tokens in the prompt.

    Item i takes the tokens of `placeholders[i]`, a pair of the first token's position and the number of tokens. If
    there is an `embed_token_id`, the item takes only the tokens with this id among them. The engine trusts that items
    with the same entry in `hashes` are equal.

    In a tensor in `batched`, row i belongs to item i. In a tensor in `flat`, each item has as many rows as another
    tensor says, whose name `flat` gives. All items share any other tensor. Tensors in `on_cpu` are not moved to the
    model's device. Names of absent tensors in these fields have no effect.
    """

    modality: Modality
    tensors: dict[str, Tensor]
    placeholders: list[tuple[int, int]]
    hashes: list[str]
    embed_token_id: int | None = None
    batched: frozenset[str] = frozenset()
    flat: dict[str, str] = {}
    on_cpu: frozenset[str] = frozenset()


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Tenant that media belong to. A tenant that `is_apart` shares no cached results with other tenants."""

    tenant: str
    is_apart: bool = False


class Media(msgspec.Struct, frozen=True, kw_only=True):
    """All media of a prompt, per modality in the order of their anchors, and arguments of the model's processor.

    A prompt has either `items`, or `tensors` with one entry per modality; tensors skip the processor of this server.
    """

    items: list[MediaItem] = []
    processor_kwargs: dict[str, Any] | None = None
    tensors: list[MediaTensors] = []


class MediaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Media that an engine accepts: the maximum number per modality in one prompt, and the anchor token of each
    modality.

    `anchor_ids` lacks modalities without a known anchor. `refusal` is the reason why an engine accepts no pictures,
    although its model could process them.
    """

    max_items: dict[Modality, int]
    refusal: str | None = None
    anchor_ids: dict[Modality, int] = {}


class SpeechConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Speech to text of a model.

    `first_timestamp_id` is the token for second 0, None for a model without timestamps. With `is_only` transcription is
    the model's only task.
    """

    first_timestamp_id: int | None = None
    is_only: bool = False


class SpeechTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of the tokens that a model of speech begins with, and of the times that it writes.

    A prompt is `previous` and what was said before, if anything was, then `start` and, if there are `languages` by
    their codes, a language and a task. All ids from `end` up to `first_timestamp` are special; text has lower ids. The
    token of a time is `first_timestamp` plus its number of steps of 20 ms. Tokens of `suppressed` are never chosen, and
    those of `suppressed_first` not as the first.
    """

    end: int
    start: int
    previous: int
    no_speech: int
    first_timestamp: int
    languages: dict[str, int] = {}
    transcribe: int | None = None
    translate: int | None = None
    suppressed: list[int] = []
    suppressed_first: list[int] = []


class SpeechRules(msgspec.Struct, frozen=True, kw_only=True):
    """Rules for the next token of a transcript; `weft.engine.constraints.times` says what they are.

    The first time is at most `max_first_steps` steps of 20 ms after the beginning.
    """

    end: int
    first_timestamp: int
    suppressed: list[int]
    suppressed_first: list[int]
    max_first_steps: int = 50


def takes(modality: Modality, config: MediaConfig | None) -> bool:
    """True if an engine with this config accepts items of the modality."""
    return config is not None and config.max_items.get(modality, 0) > 0


def takes_any(config: MediaConfig | None) -> bool:
    """True if an engine with this config accepts items of any modality."""
    return any(takes(modality, config) for modality in MODALITIES)


def owned(media: Media, owner: Owner | None, cache_salt: str | None) -> Media:
    """Returns the media with names that no other tenant, and no request with another cache salt, can give to an item
    of its own: neither as a `uuid` nor as an entry of `hashes`.
    """
    tenant = None if owner is None else owner.tenant
    return msgspec.structs.replace(
        media,
        items=[
            item
            if item.uuid is None
            else msgspec.structs.replace(item, uuid=_own_name(item.uuid, tenant, cache_salt))
            for item in media.items
        ],
        tensors=[
            msgspec.structs.replace(
                given, hashes=[_own_name(name, tenant, cache_salt) for name in given.hashes]
            )
            for given in media.tensors
        ],
    )


def media_salt(owner: Owner | None, cache_salt: str | None) -> str | None:
    """Returns the salt of hashes of media: requests of different salts share no results, so that response times tell
    nothing about other callers' media. None for requests that share with all others.
    """
    tenant = owner.tenant if owner is not None and owner.is_apart else None
    if tenant is None and cache_salt is None:
        return None
    return msgspec.json.encode((tenant, cache_salt)).decode()


def _own_name(name: str, tenant: str | None, cache_salt: str | None) -> str:
    # Names without an owner stay as they are, unless they look like one that has an owner.
    if tenant is None and cache_salt is None and not name.startswith(_OWNED):
        return name
    content = msgspec.json.encode((tenant, cache_salt, name))
    return _OWNED + hashlib.sha256(content).hexdigest()


def check_media(media: Media, config: MediaConfig | None) -> None:
    """Raises `BadRequest` for media that an engine with this config does not accept."""
    if config is None:
        raise BadRequest(FIELD, "media: this model reads text only")
    if media.processor_kwargs is not None and not media.items:
        raise BadRequest(PROCESSOR_KWARGS, f"{PROCESSOR_KWARGS} needs media in the prompt")
    if media.items and media.tensors:
        raise BadRequest(TENSORS, f"{TENSORS} cannot be combined with media as files or URLs")
    num_items = dict.fromkeys(MODALITIES, 0)
    for item in media.items:
        _check_item(item)
        num_items[item.modality] += 1
    for given in media.tensors:
        num_items[given.modality] += len(given.placeholders)
    for modality, num in num_items.items():
        most = config.max_items.get(modality, 0)
        if num > most:
            raise BadRequest(
                modality,
                f"{modality}: {config.refusal or 'this model takes none'}"
                if most == 0
                else f"{modality}: at most {most} may be given in one prompt, got {num}",
                num,
            )


def check_anchors(token_ids: list[int], media: Media | None, config: MediaConfig) -> None:
    """Raises `BadRequest` for an anchor token without an item: the model would read the anchor as an ordinary token."""
    if media and media.tensors:
        token_ids = _outside(media.tensors, token_ids)
    for modality, anchor in config.anchor_ids.items():
        num_items = sum(item.modality == modality for item in (media.items if media else ()))
        num_anchors = token_ids.count(anchor)
        if num_anchors > num_items:
            raise BadRequest(
                "prompt",
                f"the prompt has {num_anchors} placeholder tokens {anchor}, one for each {modality}, but "
                f"{num_items} of these are given",
            )


def _outside(tensors: list[MediaTensors], token_ids: list[int]) -> list[int]:
    """Returns the token ids outside of all placeholders."""
    outside: list[int] = []
    end_of_last = 0
    for start, length in sorted(one for given in tensors for one in given.placeholders):
        outside += token_ids[end_of_last:start]
        end_of_last = start + length
    return outside + token_ids[end_of_last:]


def _check_item(item: MediaItem) -> None:
    if item.modality not in MODALITIES:
        raise BadRequest(FIELD, f"media: modality must be one of {', '.join(MODALITIES)}")
    if item.data is not None and item.url is not None:
        raise BadRequest(FIELD, f"{item.modality}: give the bytes or the URL of an item, not both")
    if item.uuid is None and item.data is None and item.url is None:
        raise BadRequest(FIELD, f"{item.modality}: an item needs bytes, a URL or a uuid")
    if item.uuid is not None:
        check_text("uuid", item.uuid)
        if not 1 <= len(item.uuid) <= MAX_UUID_CHARS:
            raise BadRequest(
                "uuid", f"uuid must have 1 to {MAX_UUID_CHARS} characters, got {len(item.uuid)}"
            )
