"""A Hugging Face directory as a `Checkpoint`: configs, tokenizer and headers are read and checked here."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from weft.core.errors import ConfigError
from weft.core.types import PoolingKind
from weft.model.card import AdapterBytes, ModelCard
from weft.model.checkpoint import Checkpoint, TokenizerPart
from weft.model.encoders.directory import open_encoder
from weft.model.encoders.families import ENCODER_FAMILIES
from weft.model.families import ModelConfigFile, read_config, read_spec
from weft.model.fields import Fields, parse_object, read_bytes
from weft.model.generation import default_sampling_params, eos_token_ids, optional_id
from weft.model.layout import TensorPlan, decoder_layout
from weft.model.match import Matched, match_tensors
from weft.model.pooling import (
    HeadSpec,
    PoolingSpec,
    is_embedder,
    read_embedding,
    read_labels,
    read_scale,
)
from weft.model.quantized.config import read_quantization
from weft.model.safetensors_files import find_tensors
from weft.model.spec import DecoderSpec
from weft.model.tokenizer import UnreadFiles, read_tokenizer, read_tokenizer_files
from weft.model.weights import BYTES_PER_ELEMENT

# Saved by old versions of transformers; computed from the config instead.
_COMPUTED_SUFFIXES = (".rotary_emb.inv_freq", ".self_attn.rotary_emb.inv_freq")


def open_directory(
    path: Path, *, name: str, dtype: str = "auto", runner: str = "auto"
) -> Checkpoint:
    """Read and check everything of the checkpoint at `path` but its tokenizer and the weights themselves.

    `runner` is "generate", "pooling" or, for what the files say, "auto".
    """
    where = str(path / "config.json")
    values = parse_object(read_bytes(path / "config.json"), where)
    if values.get("model_type") in ENCODER_FAMILIES:
        return open_encoder(path, values, name, dtype, runner)
    config = read_config(values, where)
    spec = read_spec(config)
    pooling = _pooling(path, config, spec.hidden_size, runner)
    spec = replace(spec, has_head=pooling is None)
    files = UnreadFiles(path)
    generation = read_generation(files, str(path))
    matched = _match(path, config, spec, pooling)
    card = describe(name, config, spec, generation, matched.served_dtype(dtype))
    if matched.format is not None and matched.rounded:
        card = replace(card, notice=matched.format.notice)
    return Checkpoint(
        replace(card, pooling=pooling),
        spec,
        files,
        lambda: matched.load(None if dtype == "auto" else dtype),
        lambda: read_part(
            read_tokenizer_files(path), str(path), config, generation, spec.vocab_size
        ),
    )


def read_generation(files: Mapping[str, bytes], where: str) -> Fields:
    """generation_config.json, empty if there is none."""
    path = f"{where}/generation_config.json"
    data = files.get("generation_config.json")
    return Fields(parse_object(data, path) if data else {}, path)


def read_part(
    files: Mapping[str, bytes],
    where: str,
    config: ModelConfigFile,
    generation: Fields,
    vocab_size: int,
) -> TokenizerPart:
    """The tokenizer of a decoder, checked, and what it and the configs say of special tokens."""
    fields = config.fields
    facts = read_tokenizer(files, where, vocab_size, config.family.ignored_tokens)
    return TokenizerPart(
        tokenizer_files=files,
        eos_token_ids=eos_token_ids(facts.eos_token_id, fields, generation, vocab_size),
        bos_token_id=optional_id(facts.bos_token_id, fields, "bos_token_id", vocab_size),
        pad_token_id=optional_id(facts.pad_token_id, fields, "pad_token_id", vocab_size),
        chat_template=facts.chat_template,
        parsed_tokenizer=facts.parsed_tokenizer,
    )


def _pooling(
    path: Path, config: ModelConfigFile, hidden_size: int, runner: str
) -> PoolingSpec | None:
    """What the decoder makes of hidden states; None where it generates text."""
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
    config: ModelConfigFile,
    spec: DecoderSpec,
    generation: Fields,
    dtype: str,
) -> ModelCard:
    """The card of a decoder, without what its tokenizer says."""
    num_parameters = sum(math.prod(plan.shape) for plan in decoder_layout(spec))
    return ModelCard(
        name=name,
        model_type=config.model_type,
        architectures=config.architectures,
        vocab_size=spec.vocab_size,
        max_position_embeddings=spec.max_position_embeddings,
        eos_token_ids=(),
        bos_token_id=None,
        pad_token_id=None,
        dtype=dtype,
        default_sampling_params=default_sampling_params(generation),
        num_parameters=num_parameters,
        # The reference runner widens every weight to float32.
        weight_bytes=num_parameters * BYTES_PER_ELEMENT["float32"],
        kv_bytes_per_token=len(spec.layers) * 2 * spec.kv_size * BYTES_PER_ELEMENT["float32"],
        notice=None,
        adapter=_adapter_bytes(spec),
    )


def _adapter_bytes(spec: DecoderSpec) -> AdapterBytes:
    """In the reference each matrix's adapter is by itself."""
    plans = [plan for plan in decoder_layout(spec) if len(plan.shape) == 2]
    size = sum(sum(plan.shape) for plan in plans)
    if spec.tied_head:
        size += spec.vocab_size + spec.hidden_size  # of the head
    return AdapterBytes((size * BYTES_PER_ELEMENT["float32"], 0, 0), 16)


def _match(
    path: Path, config: ModelConfigFile, spec: DecoderSpec, pooling: PoolingSpec | None
) -> Matched:
    quantized = read_quantization(
        config.fields
    )  # first: it may say what a file's strange types mean
    family, stored = config.family, find_tensors(path)
    # A model that was saved without its head has no prefix.
    known = family.prefixes if spec.has_head else (*family.prefixes, "")
    prefixes = [p for p in known if f"{p}embed_tokens.weight" in stored]
    layout = decoder_layout(
        spec,
        prefix=(prefixes or list(known))[0],
        fused_projections=family.fused_projections,
    )
    if pooling is not None and pooling.head is not None:
        hidden, labels = spec.hidden_size, len(pooling.head.labels)
        layout += (TensorPlan("head.labels", "score.weight", (labels, hidden), 0, labels),)
    is_headless = spec.tied_head or not spec.has_head
    ignored = (*family.ignored_tensors, *(("lm_head.",) if is_headless else ()))
    return match_tensors(
        path,
        layout,
        stored,
        lambda source: source.startswith(ignored) or source.endswith(_COMPUTED_SUFFIXES),
        quantized=quantized,
    )
