"""A Hugging Face directory as a `Checkpoint`: configs, tokenizer and headers are read and checked here."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import ConfigError
from weft.model.card import ModelCard
from weft.model.checkpoint import Checkpoint
from weft.model.families import ModelConfigFile, read_config, read_spec
from weft.model.fields import Fields, parse_object, read_bytes, shown
from weft.model.generation import default_sampling_params, eos_token_ids, optional_id
from weft.model.layout import TensorPlan, decoder_layout
from weft.model.quantized import SCALE_SUFFIX, has_int8_weights
from weft.model.safetensors_files import MappedFiles, StoredTensor, find_tensors
from weft.model.spec import DecoderSpec
from weft.model.tokenizer import TokenizerFacts, read_tokenizer, read_tokenizer_files
from weft.model.weights import BYTES_PER_ELEMENT, DTYPES, Tensor, Weights, refuse_values

# Saved by old versions of transformers; computed from the config instead.
_COMPUTED_SUFFIXES = (".rotary_emb.inv_freq", ".self_attn.rotary_emb.inv_freq")
_INT8_NOTICE = (
    "The checkpoint's int8 weights are widened as they are read; --quantization int8 computes with them "
    "as they are, and rounds the head too."
)


@dataclass(frozen=True, slots=True)
class _Opened:
    """What a directory holds, before weights."""

    config: ModelConfigFile
    spec: DecoderSpec
    layout: tuple[TensorPlan, ...]
    stored: Mapping[str, StoredTensor]


def open_directory(path: Path, *, name: str, dtype: str = "auto") -> Checkpoint:
    """Read and check everything of the checkpoint at `path` but the weights themselves."""
    where = str(path / "config.json")
    config = read_config(parse_object(read_bytes(path / "config.json"), where), where)
    spec = read_spec(config)
    files = read_tokenizer_files(path)
    facts = read_tokenizer(files, str(path), spec.vocab_size, config.family.ignored_tokens)
    generation_path = f"{path}/generation_config.json"
    data = files.get("generation_config.json")
    generation = Fields(parse_object(data, generation_path) if data else {}, generation_path)
    opened = _match_tensors(path, config, spec, has_int8_weights(config.fields))
    served = _served_dtype(opened.stored, opened.layout, dtype)
    card = describe(name, config, spec, facts, generation, served)
    if any(stored.dtype == "int8" for stored in opened.stored.values()):
        card = replace(card, notice=_INT8_NOTICE)
    return Checkpoint(
        card,
        spec,
        facts.chat_template,
        files,
        lambda: _load(opened, None if dtype == "auto" else dtype),
    )


def describe(
    name: str,
    config: ModelConfigFile,
    spec: DecoderSpec,
    facts: TokenizerFacts,
    generation: Fields,
    dtype: str,
) -> ModelCard:
    """The card of a decoder."""
    fields, vocab_size = config.fields, spec.vocab_size
    num_parameters = sum(_size(plan.shape) for plan in decoder_layout(spec))
    return ModelCard(
        name=name,
        model_type=config.model_type,
        architectures=config.architectures,
        vocab_size=vocab_size,
        max_position_embeddings=spec.max_position_embeddings,
        eos_token_ids=eos_token_ids(facts.eos_token_id, fields, generation, vocab_size),
        bos_token_id=optional_id(facts.bos_token_id, fields, "bos_token_id", vocab_size),
        pad_token_id=optional_id(facts.pad_token_id, fields, "pad_token_id", vocab_size),
        dtype=dtype,
        default_sampling_params=default_sampling_params(generation),
        num_parameters=num_parameters,
        # The reference runner widens every weight to float32.
        weight_bytes=num_parameters * BYTES_PER_ELEMENT["float32"],
        kv_bytes_per_token=len(spec.layers) * 2 * spec.kv_size * BYTES_PER_ELEMENT["float32"],
        notice=None,
    )


def _size(shape: tuple[int, ...]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product


def _match_tensors(
    path: Path, config: ModelConfigFile, spec: DecoderSpec, has_int8: bool
) -> _Opened:
    """Exactly the tensors that the config asks for must be there, in the shapes it asks for."""
    family, stored = config.family, find_tensors(path)
    prefixes = [p for p in family.prefixes if f"{p}embed_tokens.weight" in stored]
    layout = decoder_layout(
        spec,
        prefix=(prefixes or list(family.prefixes))[0],
        fused_projections=family.fused_projections,
    )
    wanted = {plan.source: plan.source_shape for plan in layout}
    for source in _int8_sources(layout, stored) if has_int8 else ():
        wanted[source + SCALE_SUFFIX] = (wanted[source][0], 1)
    for source, shape in wanted.items():
        if source not in stored:
            raise ConfigError(f"{path}: tensor {source} is missing; config.json asks for it")
        if stored[source].shape != shape:
            raise ConfigError(
                f"{stored[source].path}: tensor {source} has shape {list(stored[source].shape)}; "
                f"config.json asks for {list(shape)}"
            )
        is_int8 = has_int8 and source + SCALE_SUFFIX in wanted
        if stored[source].dtype == "int8" and not is_int8:
            raise ConfigError(
                f"{stored[source].path}: tensor {source} is int8; config.json does not say how to read it"
            )
    ignored = (*family.ignored_tensors, *(("lm_head.",) if spec.tied_head else ()))
    for source in sorted(stored.keys() - wanted.keys()):
        if not source.startswith(ignored) and not source.endswith(_COMPUTED_SUFFIXES):
            raise ConfigError(
                f"{stored[source].path}: tensor {shown(source)} has no place in the model that config.json "
                "describes"
            )
    return _Opened(config, spec, layout, stored)


def _int8_sources(layout: tuple[TensorPlan, ...], stored: Mapping[str, StoredTensor]) -> list[str]:
    """Matrices of linear layers that are stored so; the embedding and the head never are."""
    return [
        plan.source
        for plan in layout
        if plan.name.startswith("layers.")
        and len(plan.shape) == 2
        and plan.source in stored
        and stored[plan.source].dtype == "int8"
    ]


def _served_dtype(
    stored: Mapping[str, StoredTensor], layout: tuple[TensorPlan, ...], dtype: str
) -> str:
    if dtype in DTYPES:
        return dtype
    num_bytes: Counter[str] = Counter()
    for source in {plan.source for plan in layout}:
        if stored[source].dtype != "int8":
            num_bytes[stored[source].dtype] += stored[source].num_bytes
    return num_bytes.most_common(1)[0][0]


def _load(opened: _Opened, dtype: str | None) -> Weights:
    files = MappedFiles()
    whole: dict[str, Tensor] = {}
    for source in {plan.source: None for plan in opened.layout}:
        stored = opened.stored[source]
        if stored.dtype == "int8":
            scales = files.read(opened.stored[source + SCALE_SUFFIX]).float32().reshape(-1)
            origin = f"{stored.path}: tensor {source}{SCALE_SUFFIX}"
            whole[source] = replace(files.read(stored), scales=scales, unchecked=origin)
        else:
            whole[source] = _mapped(files, source, stored, dtype)
    return Weights(
        {
            plan.name: Tensor(
                whole[plan.source].dtype,
                whole[plan.source].data[plan.start : plan.start + plan.shape[0]],
                _scales_of(whole[plan.source], plan),
                whole[plan.source].unchecked,
            )
            for plan in opened.layout
        }
    )


def _scales_of(whole: Tensor, plan: TensorPlan) -> NDArray[np.float32] | None:
    if whole.scales is None:
        return None
    return np.ascontiguousarray(whole.scales[plan.start : plan.start + plan.shape[0]])


def _mapped(files: MappedFiles, name: str, stored: StoredTensor, dtype: str | None) -> Tensor:
    """As it lies in the file, not yet looked at; or checked and rounded where another type is wanted."""
    tensor, origin = files.read(stored), f"{stored.path}: tensor {name}"
    if dtype is None or dtype == tensor.dtype:
        return replace(tensor, unchecked=origin)
    if not tensor.is_finite():
        refuse_values(origin)
    rounded = tensor.rounded_to(dtype)
    if not rounded.is_finite():
        raise ConfigError(f"{origin} does not fit {dtype}; serve it as bfloat16")
    return rounded
