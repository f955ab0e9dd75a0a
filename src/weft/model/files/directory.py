"""Opens a Hugging Face directory as a `Checkpoint`: reads and checks configs, tokenizer and tensor headers."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from weft.core.config.file_overrides import NO_OVERRIDES, FileOverrides
from weft.core.errors import ConfigError
from weft.core.values.types import PoolingKind
from weft.model.card import AdapterBytes, ModelCard
from weft.model.families.decoders import ModelConfigFile, read_config, read_spec, with_tower
from weft.model.families.encoder_families import (
    ENCODER_FAMILIES,
    EncoderConfig,
    read_encoder_config,
    read_encoder_spec,
    read_head,
)
from weft.model.families.mtp import has_mtp, mtp_names, mtp_spec
from weft.model.fields import Fields, parse_object, read_bytes
from weft.model.files.checkpoint import Checkpoint, TokenizerPart
from weft.model.files.family_tensors import match_decoder, match_encoder
from weft.model.files.layout import decoder_layout
from weft.model.files.match import Matched, match_tensors
from weft.model.files.safetensors_files import find_tensors
from weft.model.files.sound_settings import read_hearing_card, read_sound_card
from weft.model.files.tensor_plan import TensorPlan
from weft.model.files.tower_layout import tower_layout
from weft.model.generation import (
    default_sampling_params,
    eos_token_ids,
    max_new_tokens,
    optional_id,
)
from weft.model.overrides import check_weight_format, read_generation
from weft.model.picture_settings import read_picture_card
from weft.model.pooling import (
    HeadSpec,
    PoolingSpec,
    is_embedder,
    read_embedding,
    read_labels,
    read_scale,
)
from weft.model.quantized.config import stored_method, with_quantization
from weft.model.spec import ModelSpec
from weft.model.tokenizers.tokenizer import UnreadFiles, read_tokenizer, read_tokenizer_files
from weft.model.weights import BYTES_PER_ELEMENT


@dataclass(frozen=True, slots=True)
class _Source:
    """A checkpoint whose files are consistent. An encoder has no `generation`, and may have no special tokens.

    `find_mtp` finds the head for multi-token prediction, if the model has one.
    """

    config: ModelConfigFile | EncoderConfig
    spec: ModelSpec
    pooling: PoolingSpec | None
    matched: Matched
    generation: Fields | None
    find_mtp: "Callable[[], _Source] | None" = None


def open_directory(
    path: Path,
    *,
    name: str,
    dtype: str = "auto",
    runner: str = "auto",
    is_own: bool = False,
    overrides: FileOverrides = NO_OVERRIDES,
) -> Checkpoint:
    """Reads and checks all files of the checkpoint at `path` except its tokenizer and the values of its weights.

    `runner` is "generate", "pooling" or, for the task in the files, "auto". `is_own` says that the files are part of
    Weft's package. `overrides.tokenizer` must be a directory.
    """
    where = str(path / "config.json")
    if not Path(where).exists() and (files := sorted(path.glob("*.gguf"))):
        raise ConfigError(f"{path}: has no config.json; for GGUF name the file, such as {files[0]}")
    values = with_quantization(parse_object(read_bytes(path / "config.json"), where), path)
    if overrides.hf_overrides:
        values, where = {**values, **overrides.hf_overrides}, f"{where} with --hf-overrides"
    check_weight_format(name, overrides, "safetensors", *stored_method(Fields(values, where)))
    if Fields(values, where).text("model_type") in ENCODER_FAMILIES:
        found = _find_encoder(path, read_encoder_config(values, where), runner)
    else:
        found = _find_decoder(
            path,
            read_config(values, where),
            read_generation(UnreadFiles(path), str(path), overrides),
            runner,
        )
    return _checkpoint(path, found, name=name, dtype=dtype, is_own=is_own, overrides=overrides)


def _checkpoint(
    path: Path,
    found: _Source,
    *,
    name: str,
    dtype: str,
    is_own: bool,
    overrides: FileOverrides,
) -> Checkpoint:
    def find_mtp() -> Checkpoint:
        assert found.find_mtp is not None
        head = _checkpoint(
            path, found.find_mtp(), name=name, dtype=dtype, is_own=is_own, overrides=overrides
        )
        return replace(head, card=replace(head.card, dtype=card.dtype))

    tokenizer_path = path if overrides.tokenizer is None else Path(overrides.tokenizer)
    config, spec, matched = found.config, found.spec, found.matched
    card = describe(name, config, spec, found.generation, matched.served_dtype(dtype))
    if not spec.is_causal:  # an encoder's parameters include its classifier
        card = _with_parameters(card, matched.num_parameters)
    if matched.format is not None and matched.rounded:
        card = replace(card, notice=matched.format.notice)
    if spec.tower is not None:
        generation = found.generation or Fields({}, name)
        sounds = read_sound_card(path, tokenizer_path, config.fields, generation, spec)
        read = read_hearing_card if spec.tower.has_conv_stem else read_picture_card
        media = read(path, spec)
        card = replace(card, media=media, sounds=sounds)
    groups = matched.groups
    if groups:
        card = replace(card, stored_bits=next(iter(groups.values())).bits)
    return Checkpoint(
        replace(card, pooling=found.pooling),
        spec,
        UnreadFiles(tokenizer_path),
        lambda: matched.load(None if dtype == "auto" else dtype),
        lambda: read_part(
            read_tokenizer_files(tokenizer_path, is_own=is_own and tokenizer_path == path),
            str(tokenizer_path),
            config,
            found.generation,
            spec.vocab_size,
        ),
        weight_files=matched.files,
        groups=groups,
        needed=matched.needed,
        find_mtp=None if found.find_mtp is None else find_mtp,
        load_from=lambda stored: replace(matched, stored={**matched.stored, **stored}).load(
            None if dtype == "auto" else dtype
        ),
    )


def _find_decoder(path: Path, config: ModelConfigFile, generation: Fields, runner: str) -> _Source:
    spec = read_spec(config)
    pooling = _decoder_pooling(path, config, spec.hidden_size, runner)
    if pooling is not None and spec.embed_size is not None:
        raise ConfigError(
            f"{config.fields.where}: word_embed_proj_dim {spec.embed_size} other than hidden_size is not "
            "implemented for --runner pooling"
        )
    spec = replace(spec, has_head=pooling is None)
    stored, row = find_tensors(path), config.family.tower
    if pooling is None and row is not None and row.find(stored) is not None:
        spec = with_tower(config, spec)
    elif row is not None and row.section is None:
        raise ConfigError(
            f"{path}: {config.architectures[0]} can be served only for speech, and the tensors of its encoder "
            "are missing"
        )
    matched = match_decoder(path, config, spec, pooling, stored)
    return _Source(config, spec, pooling, matched, generation, _mtp(path, config, spec, matched))


def _mtp(
    path: Path, config: ModelConfigFile, spec: ModelSpec, matched: Matched
) -> Callable[[], _Source] | None:
    names, stored, num_layers = config.family.names, matched.stored, len(spec.layers)
    if not spec.has_head or not has_mtp(names, stored, num_layers):
        return None

    def find() -> _Source:
        named = replace(
            config,
            family=replace(config.family, names=mtp_names(names, stored, num_layers, str(path))),
        )
        head = mtp_spec(spec)
        layout = decoder_layout(head, named.family.names, prefix="")
        found = match_tensors(path, layout, stored, lambda source: True, quantized=matched.format)
        return _Source(named, head, None, found, None)

    return find


def _find_encoder(path: Path, config: EncoderConfig, runner: str) -> _Source:
    if runner == "generate":
        raise ConfigError(
            f"{config.fields.where}: {config.architectures[0]} cannot generate; it is for --runner pooling"
        )
    spec = read_encoder_spec(config)
    head = read_head(config, spec)
    embedding = read_embedding(path, config.fields, spec.hidden_size, PoolingKind.CLS)
    pooling = embedding if head is None else replace(embedding, head=head)
    return _Source(config, spec, pooling, match_encoder(path, config, spec, pooling), None)


def read_part(
    files: Mapping[str, bytes],
    where: str,
    config: ModelConfigFile | EncoderConfig,
    generation: Fields | None,
    vocab_size: int,
) -> TokenizerPart:
    """Returns the checked tokenizer, and the special tokens that the tokenizer and the configs name."""
    fields = config.fields
    facts = read_tokenizer(files, where, vocab_size)
    if generation is not None:
        eos = eos_token_ids(facts.eos_token_id, fields, generation, vocab_size)
    else:  # an encoder generates nothing, so it may lack an end-of-sequence token
        one = optional_id(facts.eos_token_id, fields, "eos_token_id", vocab_size)
        eos = () if one is None else (one,)
    return TokenizerPart(
        tokenizer_files=files,
        eos_token_ids=eos,
        bos_token_id=optional_id(facts.bos_token_id, fields, "bos_token_id", vocab_size),
        pad_token_id=optional_id(facts.pad_token_id, fields, "pad_token_id", vocab_size),
        chat_template=facts.chat_template,
        parsed_tokenizer=facts.parsed_tokenizer,
    )


def _decoder_pooling(
    path: Path, config: ModelConfigFile, hidden_size: int, runner: str
) -> PoolingSpec | None:
    """Returns the pooling of a decoder; None if the decoder generates text."""
    is_headless = config.task != "ForCausalLM"
    if runner == "generate" and is_headless:
        raise ConfigError(
            f"{config.fields.where}: {config.architectures[0]} has no head to generate with; it is "
            "for --runner pooling"
        )
    if not is_headless and (runner == "generate" or (runner == "auto" and not is_embedder(path))):
        return None
    if config.task == "ForSequenceClassification":
        return _classification(config, hidden_size)
    return read_embedding(path, config.fields, hidden_size, PoolingKind.LAST)


def _classification(config: ModelConfigFile, hidden_size: int) -> PoolingSpec:
    labels = read_labels(config.fields)
    head = HeadSpec(
        kind=PoolingKind.LAST,
        labels=labels,
        scale=read_scale(config.fields, len(labels)),
        has_bias=False,
    )
    return PoolingSpec(hidden_size=hidden_size, kind=PoolingKind.LAST, normalize=False, head=head)


def describe(
    name: str,
    config: ModelConfigFile | EncoderConfig,
    spec: ModelSpec,
    generation: Fields | None,
    dtype: str,
) -> ModelCard:
    """Returns the card of a model, without facts of its tokenizer; the sizes are those of the reference runner."""
    card = ModelCard(
        name=name,
        model_type=config.model_type,
        architectures=config.architectures,
        vocab_size=spec.vocab_size,
        max_position_embeddings=spec.max_position_embeddings,
        eos_token_ids=(),
        bos_token_id=None,
        pad_token_id=None,
        dtype=dtype,
        default_sampling_params=default_sampling_params(generation or Fields({}, name)),
        max_new_tokens=max_new_tokens(generation or Fields({}, name)),
        num_parameters=0,
        weight_bytes=0,
        kv_bytes_per_token=0,
        notice=None,
        is_causal=spec.is_causal,
    )
    if isinstance(config, EncoderConfig):
        return card
    layout = decoder_layout(spec, config.family.names)
    if spec.tower is not None and config.family.tower is not None:
        layout += tower_layout(spec.tower, config.family.tower, ())
    num_parameters = sum(math.prod(plan.shape) for plan in layout)
    return replace(
        _with_parameters(card, num_parameters),
        num_idle_parameters=spec.num_idle_parameters,
        keeps_latents=spec.latent is not None,
        # Inputs of single layers are made from token ids, which embeddings do not have.
        embedding_size=None if spec.per_layer_size else spec.hidden_size,
        kv_bytes_per_token=spec.kv_elements * BYTES_PER_ELEMENT["float32"],
        state_bytes_per_block=spec.state_size * BYTES_PER_ELEMENT["float32"],
        state_bytes_per_slot=spec.slot_size * BYTES_PER_ELEMENT["float32"],
        adapter=_adapter_bytes(spec, layout),
    )


def _with_parameters(card: ModelCard, num_parameters: int) -> ModelCard:
    """Returns the card with this number of parameters, and the reference runner's memory: four bytes per parameter."""
    num_bytes = num_parameters * BYTES_PER_ELEMENT["float32"]
    return replace(card, num_parameters=num_parameters, weight_bytes=num_bytes)


def _adapter_bytes(spec: ModelSpec, layout: tuple[TensorPlan, ...]) -> AdapterBytes:
    """Returns the memory of adapters in the reference runner, where each matrix's adapter is computed alone."""
    size = sum(sum(plan.shape) for plan in layout if plan.takes_adapters)
    if spec.tied_head:
        size += spec.vocab_size + spec.hidden_size  # of the head
    return AdapterBytes((size * BYTES_PER_ELEMENT["float32"], 0, 0), 16)
