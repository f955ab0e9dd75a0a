"""A Hugging Face directory that holds an encoder, as a `Checkpoint`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from weft.core.errors import ConfigError
from weft.core.types import PoolingKind
from weft.model.card import ModelCard
from weft.model.checkpoint import Checkpoint, TokenizerPart
from weft.model.encoders.families import (
    EncoderConfig,
    read_encoder_config,
    read_encoder_spec,
    read_head,
)
from weft.model.encoders.layout import encoder_layout
from weft.model.encoders.spec import EncoderSpec
from weft.model.generation import optional_id
from weft.model.match import Matched, match_tensors
from weft.model.pooling import PoolingSpec, read_embedding
from weft.model.safetensors_files import find_tensors
from weft.model.tokenizer import UnreadFiles, read_tokenizer, read_tokenizer_files
from weft.model.weights import BYTES_PER_ELEMENT

# As the first releases of BERT named the numbers of a norm.
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def open_encoder(
    path: Path,
    values: Mapping[str, object],
    name: str,
    dtype: str,
    runner: str,
) -> Checkpoint:
    """Read and check everything of the checkpoint at `path` but its tokenizer and the weights themselves."""
    config = read_encoder_config(values, str(path / "config.json"))
    if runner == "generate":
        raise ConfigError(
            f"{config.fields.where}: {config.architectures[0]} cannot generate; it is for --runner pooling"
        )
    spec = read_encoder_spec(config)
    pooling = _pooling(path, config, spec)
    matched = _match(path, config, spec, pooling)
    card = replace(
        _card(name, config, spec),
        dtype=matched.served_dtype(dtype),
        num_parameters=matched.num_parameters,
        weight_bytes=matched.num_parameters * BYTES_PER_ELEMENT["float32"],
        pooling=pooling,
    )
    return Checkpoint(
        card,
        spec,
        UnreadFiles(path),
        lambda: matched.load(None if dtype == "auto" else dtype),
        lambda: _read_part(path, config, spec.vocab_size),
    )


def _read_part(path: Path, config: EncoderConfig, vocab_size: int) -> TokenizerPart:
    files, fields = read_tokenizer_files(path), config.fields
    facts = read_tokenizer(files, str(path), vocab_size, frozenset())
    eos = optional_id(facts.eos_token_id, fields, "eos_token_id", vocab_size)
    return TokenizerPart(
        tokenizer_files=files,
        eos_token_ids=() if eos is None else (eos,),
        bos_token_id=optional_id(facts.bos_token_id, fields, "bos_token_id", vocab_size),
        pad_token_id=optional_id(facts.pad_token_id, fields, "pad_token_id", vocab_size),
        chat_template=facts.chat_template,
        parsed_tokenizer=facts.parsed_tokenizer,
    )


def _pooling(path: Path, config: EncoderConfig, spec: EncoderSpec) -> PoolingSpec:
    head = read_head(config, spec)
    embedding = read_embedding(path, config.fields, spec.hidden_size, PoolingKind.CLS)
    return embedding if head is None else replace(embedding, head=head)


def _match(path: Path, config: EncoderConfig, spec: EncoderSpec, pooling: PoolingSpec) -> Matched:
    stored = {_usual(name): tensor for name, tensor in find_tensors(path).items()}
    family = config.family
    layout = encoder_layout(
        config.model_type, family.names, family.prefix, spec, pooling.head, stored.keys()
    )
    return match_tensors(
        path, layout.plans, stored, lambda source: source.startswith(layout.ignored)
    )


def _usual(name: str) -> str:
    for old, new in _OLD_NAMES.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _card(name: str, config: EncoderConfig, spec: EncoderSpec) -> ModelCard:
    """All that the config says; sizes are of the tensors."""
    return ModelCard(
        name=name,
        model_type=config.model_type,
        architectures=config.architectures,
        vocab_size=spec.vocab_size,
        max_position_embeddings=spec.max_position_embeddings,
        eos_token_ids=(),
        bos_token_id=None,
        pad_token_id=None,
        dtype="float32",
        default_sampling_params=MappingProxyType({}),
        num_parameters=0,
        weight_bytes=0,
        kv_bytes_per_token=0,
        notice=None,
        is_causal=False,
    )
