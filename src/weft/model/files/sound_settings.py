"""Reads the settings of a model of speech: preprocessor_config.json, and special tokens by their names."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from weft.core.errors import ConfigError
from weft.core.values.media import SpeechTokens
from weft.core.values.pictures import MIN_SAMPLES, ItemTokens, SoundEnds, Spectrograms
from weft.model.card import ItemCard, SoundCard
from weft.model.fields import Fields, parse_object, read_bytes, read_fields
from weft.model.picture_settings import PREPROCESSOR, PROCESSOR
from weft.model.spec import ModelSpec
from weft.model.towers.spec import CHUNK_COLUMNS, Projector, TowerSpec

_TOKENIZER = "tokenizer.json"
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
_END, _START, _NO_TIMESTAMPS = "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"
_ENGLISH_VOCABULARY = 51864  # of the models that know English alone, and say so nowhere else
# Settings of the spectrogram, which are the same for all models of this kind.
_FIXED = {"sampling_rate": 16_000, "hop_length": 160, "n_fft": 400, "dither": 0}


def read_sound_card(
    directory: Path, tokenizer: Path, config: Fields, generation: Fields, spec: ModelSpec
) -> SoundCard | None:
    """Returns the facts of a model with a tower of sounds; None for one without."""
    tower = spec.tower
    if tower is None or tower.projector is not Projector.CROSS:
        return None
    _check_processor(directory, tower)
    ids = _special_ids(tokenizer / _TOKENIZER)
    return SoundCard(
        tokens=_tokens(ids, str(tokenizer / _TOKENIZER), config, generation, spec.vocab_size),
        num_mels=tower.num_channels,
        num_columns=2 * tower.num_positions,
    )


def read_hearing_card(directory: Path, spec: ModelSpec) -> ItemCard | None:
    """Returns the facts of a model that takes sounds in prompts, whose rows enter it like those of pictures."""
    tower = spec.tower
    if tower is None or not tower.has_conv_stem or tower.image_token_id is None:
        return None
    _check_processor(directory, tower)
    return ItemCard(
        settings=Spectrograms(
            num_mels=tower.num_channels,
            num_columns=CHUNK_COLUMNS if tower.stem_channels else 2 * tower.num_positions,
            num_joined=tower.merge,
            ends=_ends(tower),
        ),
        tokens=ItemTokens(anchor=tower.image_token_id, placeholder=tower.image_token_id),
        hidden_size=tower.output_size,
        row_size=tower.row_size,
        sees_both_ways=False,
        has_rope_sections=False,
    )


def _ends(tower: TowerSpec) -> SoundEnds:
    if tower.stem_channels:
        return SoundEnds.CHUNKS
    return SoundEnds.CUT if tower.has_short_sounds else SoundEnds.WHOLE


def _check_processor(directory: Path, tower: TowerSpec) -> None:
    """Raises `ConfigError` for settings of the spectrogram that the model's encoder does not have."""
    fields = _read_processor(directory)
    if fields is None:
        return
    wanted: dict[str, float] = {**_FIXED, "feature_size": tower.num_channels}
    if tower.stem_channels:
        wanted |= {"n_window": CHUNK_COLUMNS // 2, "min_length": MIN_SAMPLES}
    else:
        seconds = 2 * tower.num_positions * _FIXED["hop_length"] / _FIXED["sampling_rate"]
        wanted |= {"chunk_length": seconds}
    for key, value in wanted.items():
        if fields.has(key) and fields.values[key] != value:
            fields.refuse(key, f"{value:g}")
    if fields.flag_or("do_normalize", False):
        fields.refuse("do_normalize", "false")


def _read_processor(directory: Path) -> Fields | None:
    whole, path = directory / PROCESSOR, directory / PREPROCESSOR
    if whole.exists():
        part = read_fields(whole).object("feature_extractor")
        if part is not None:
            return part
    return read_fields(path) if path.exists() else None


def _special_ids(path: Path) -> Mapping[str, int]:
    """Returns the added tokens of a tokenizer, by their names."""
    added = parse_object(read_bytes(path), str(path)).get("added_tokens")
    listed: Iterable[object] = added if isinstance(added, list) else ()
    return {
        token["content"]: token["id"]
        for token in listed
        if isinstance(token, dict)
        and isinstance(token.get("content"), str)
        and type(token.get("id")) is int
    }


def _tokens(
    ids: Mapping[str, int], where: str, config: Fields, generation: Fields, vocab_size: int
) -> SpeechTokens:
    def one(*names: str) -> int:
        found = next((ids[name] for name in names if name in ids), None)
        if found is None or not 0 <= found < vocab_size:
            raise ConfigError(f"{where}: speech needs the token {names[0]}, which is missing")
        return found

    no_timestamps = one(_NO_TIMESTAMPS)
    first = ids.get("<|0.00|>", no_timestamps + 1)
    end, start = one(_END), one(_START)
    if not end < start < first or no_timestamps >= first >= vocab_size:
        raise ConfigError(
            f"{where}: ids of special tokens must follow those of text tokens, and ids of timestamps must come last"
        )
    is_multilingual = vocab_size != _ENGLISH_VOCABULARY
    if generation.has("is_multilingual"):
        is_multilingual = generation.flag_or("is_multilingual", True)
    languages = {
        code.group(1): number
        for name, number in ids.items()
        if (code := _LANGUAGE.fullmatch(name)) and start < number < first
    }
    return SpeechTokens(
        end=end,
        start=start,
        previous=one("<|startofprev|>"),
        no_speech=one("<|nospeech|>", "<|nocaptions|>"),
        first_timestamp=first,
        languages=languages if is_multilingual else {},
        transcribe=one("<|transcribe|>") if is_multilingual else None,
        translate=one("<|translate|>") if is_multilingual else None,
        suppressed=_listed("suppress_tokens", config, generation, vocab_size),
        suppressed_first=_listed("begin_suppress_tokens", config, generation, vocab_size),
    )


def _listed(key: str, config: Fields, generation: Fields, vocab_size: int) -> list[int]:
    """Returns the tokens of a list, which is in either file."""
    fields = generation if key in generation.values else config
    value = fields.values.get(key)
    if value is None:
        return []
    is_list = isinstance(value, list) and all(
        type(one) is int and 0 <= one < vocab_size for one in value
    )
    return (
        list(value)
        if isinstance(value, list) and is_list
        else fields.refuse(key, f"a list of token ids under {vocab_size}")
    )
