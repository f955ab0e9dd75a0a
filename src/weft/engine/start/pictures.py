"""Decides whether and how an engine processes pictures and sounds of prompts, from flags and the model's files."""

from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import msgspec

from weft.core.config.defaults import DEFAULT_MAX_IMAGES
from weft.core.config.engine import EngineConfig
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.core.extras import how_to_install
from weft.core.values.declare import spelled
from weft.core.values.media import MODALITIES, WORDS, MediaConfig, Modality
from weft.core.values.pictures import ItemPreparer, ItemsConfig
from weft.engine.settings.given import read_json
from weft.engine.start.hearing import with_sounds
from weft.media.limits import MediaSources
from weft.media.preparer import MediaPreparer
from weft.model.card import ItemCard, ModelCard
from weft.text.tokenizer import Tokenizer

_MAX_IMAGES = 1024
_MAX_CACHE_GB = 1024.0
_GIB = 1 << 30
_LIMIT = spelled("limit_mm_per_prompt")
_FIELDS = ("allowed_media_domains", "allowed_local_media_path")


def with_pictures(config: EngineConfig, options: EngineOptions, card: ModelCard) -> EngineConfig:
    """Returns the configuration with its settings for pictures; raises `ConfigError` for flags without effect."""
    given = _given_limits(options)
    num_bytes = _output_bytes(options, card)
    if card.media is None:
        for name in _FIELDS:
            if getattr(options, name):
                raise _of_media(spelled(name), card)
        if any(given.values()):
            raise _of_media(_LIMIT, card)
        return with_sounds(config, card, num_bytes)
    pictures = _config(options, card.media, config, num_bytes)
    most = _max_items(given, pictures, card)
    refusal = _refusal(config, pictures)
    if refusal is not None or not any(most.values()):
        return _with_media(config, MediaConfig(max_items={}, refusal=refusal))
    media = MediaConfig(max_items=most, anchor_ids=pictures.anchors)
    return msgspec.structs.replace(_with_media(config, media), items_config=pictures)


def _of_media(flag: str, card: ModelCard) -> ConfigError:
    return ConfigError(f"{flag} is not supported: {card.name} takes no media; leave it out")


def _output_bytes(options: EngineOptions, card: ModelCard) -> int:
    """Returns the memory in bytes for cached encoder outputs in an engine."""
    size = options.mm_processor_cache_gb
    if not 0 <= size <= _MAX_CACHE_GB:
        raise ConfigError(
            f"{spelled('mm_processor_cache_gb')} must be from 0 to {_MAX_CACHE_GB:g}, not {size:g}"
        )
    has_tower = card.media is not None or card.sounds is not None
    return int(size * _GIB) if has_tower else 0


def tower_memory(options: EngineOptions, card: ModelCard) -> dict[str, int]:
    """Returns the memory in bytes for cached encoder outputs, by its name in error messages."""
    num_bytes = _output_bytes(options, card)
    return {"outputs of the tower": num_bytes} if num_bytes else {}


def open_preparer(config: EngineConfig, tokenizer: Tokenizer) -> ItemPreparer | None:
    """Returns the object that prepares media for the model; None if the engine computes none.

    The object is for use on one event loop.
    """
    if config.items_config is None:
        return None
    encode = partial(tokenizer.encode, add_special_tokens=False)
    return MediaPreparer(config.items_config, encode)


def _config(
    options: EngineOptions, card: ItemCard, config: EngineConfig, num_bytes: int
) -> ItemsConfig:
    domains = tuple(options.allowed_media_domains or ())
    MediaSources.of(domains, options.allowed_local_media_path)  # raises for invalid values
    return ItemsConfig(
        settings=card.settings,
        tokens=card.tokens,
        videos=card.videos,
        domains=domains,
        directory=options.allowed_local_media_path,
        prepared_bytes=num_bytes,
        output_bytes=num_bytes,
        max_step_rows=config.scheduler_config.max_num_batched_tokens,
        hidden_size=card.hidden_size,
        row_size=card.row_size,
        sees_both_ways=card.sees_both_ways,
        has_rope_sections=card.has_rope_sections,
    )


def _with_media(config: EngineConfig, media: MediaConfig) -> EngineConfig:
    model = msgspec.structs.replace(
        config.model_config, is_multimodal_model=bool(media.max_items), media=media
    )
    return msgspec.structs.replace(config, model_config=model)


def _refusal(config: EngineConfig, pictures: ItemsConfig) -> str | None:
    """Returns why an engine with this configuration accepts no media; None if it accepts them."""
    what = " and ".join(f"{WORDS[modality]}s" for modality in pictures.anchors)
    reasons = {
        f"{what} are not supported with --compute gpu yet": config.compute_config is not None
        and config.compute_config.compute == "gpu",
        f"{what} are not supported with --speculative-config": (
            config.scheduler_config.speculation is not None
        ),
        f"{what} are not supported with --kv-transfer-config": (
            config.kv_transfer_config is not None
        ),
        f"pictures need Pillow: {how_to_install('media')}": "image" in pictures.anchors
        and find_spec("PIL") is None,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def _max_items(
    given: Mapping[Modality, int], pictures: ItemsConfig, card: ModelCard
) -> dict[Modality, int]:
    """Returns the maximum number of items per prompt of each modality that the model takes."""
    for modality, count in given.items():
        if count and modality not in pictures.anchors:
            raise ConfigError(
                f"{_LIMIT}: {modality} must be 0 or left out: {card.name} takes {', '.join(pictures.anchors)}"
            )
    return {modality: given.get(modality, DEFAULT_MAX_IMAGES) for modality in pictures.anchors}


def _given_limits(options: EngineOptions) -> dict[Modality, int]:
    """Returns the user's maximum numbers of items per prompt."""
    given = read_json(_LIMIT, options.limit_mm_per_prompt or {}, dict[str, Any])
    counts = {name: _count(name, value) for name, value in given.items()}
    return {modality: counts[modality] for modality in MODALITIES if modality in counts}


def _count(name: str, value: Any) -> int:
    if name not in MODALITIES:
        raise ConfigError(f"{_LIMIT}: {name[:40]!a} is none of {', '.join(MODALITIES)}")
    count = value.get("count") if isinstance(value, Mapping) else value
    if type(count) is not int or not 0 <= count <= _MAX_IMAGES:
        raise ConfigError(f"{_LIMIT}: {name} must be a number from 0 to {_MAX_IMAGES}")
    return count
