"""`ModelConfig` of an engine: from the options and the model's card, with pooling."""

from weft.core.config.defaults import DEFAULTS
from weft.core.config.engine import (
    ModelConfig,
    PoolerConfig,
)
from weft.core.config.engine_options import EngineOptions
from weft.core.config.pooler_options import PoolerOptions
from weft.core.errors import ConfigError
from weft.core.values.logprobs import LogprobsMode
from weft.core.values.types import PoolingKind
from weft.engine.settings.given import read_json
from weft.model.card import ModelCard
from weft.model.overrides import read_overrides
from weft.model.pooling import PoolingSpec

_POOLING_KINDS = (PoolingKind.CLS, PoolingKind.LAST, PoolingKind.MEAN)


def to_model_config(options: EngineOptions, card: ModelCard, max_model_len: int) -> ModelConfig:
    names = tuple(options.served_model_name or (options.model,))
    if not all(name.strip() for name in names):
        raise ConfigError("--served-model-name must not be empty")
    if options.max_logprobs < -1:
        raise ConfigError(f"--max-logprobs must be at least -1, not {options.max_logprobs}")
    if options.logprobs_mode not in list(LogprobsMode):
        raise ConfigError(
            f'--logprobs-mode "{options.logprobs_mode}" is unknown; '
            f"choose from {', '.join(LogprobsMode)}"
        )
    packed_bytes = options.packed_cache_bytes
    if packed_bytes is not None and packed_bytes < 0:
        raise ConfigError(f"--packed-cache-bytes must be at least 0, not {packed_bytes}")
    is_unlimited = options.max_logprobs == -1
    return ModelConfig(
        model=options.model,
        served_model_names=names,
        model_type=card.model_type,
        architectures=card.architectures,
        dtype=card.dtype,
        vocab_size=card.vocab_size,
        max_model_len=max_model_len,
        eos_token_ids=card.eos_token_ids,
        bos_token_id=card.bos_token_id,
        pad_token_id=card.pad_token_id,
        default_sampling_params=dict(card.default_sampling_params),
        max_new_tokens=card.max_new_tokens,
        max_logprobs=card.vocab_size
        if is_unlimited
        else min(options.max_logprobs, card.vocab_size),
        logprobs_mode=LogprobsMode(options.logprobs_mode),
        revision=options.revision,
        load_dtype=options.dtype,
        packed_cache_bytes=DEFAULTS["packed_cache_bytes"] if packed_bytes is None else packed_bytes,
        file_overrides=read_overrides(options),
        runner_type="generate" if card.pooling is None else "pooling",
    )


def to_pooler_config(options: EngineOptions, card: ModelCard) -> PoolerConfig | None:
    """Returns the pooling settings with open ones decided; None for a model that generates text."""
    if card.pooling is None:
        if options.pooler_config is not None:
            raise ConfigError(
                f"--pooler-config is for pooling models, and {card.name} generates text"
            )
        return None
    config = {} if options.pooler_config is None else options.pooler_config
    given = read_json("--pooler-config", config, PoolerOptions)
    spec = card.pooling
    kinds = spec.kinds
    if given.pooling_type is not None:
        _check_embeds(spec, "pooling_type", card)
        kinds["embed"] = _pooling_kind(given.pooling_type)
    if given.normalize is not None:
        _check_embeds(spec, "normalize", card)
    if given.max_embed_len is not None and (
        given.max_embed_len < 1 or not given.enable_chunked_processing
    ):
        raise ConfigError(
            f"--pooler-config max_embed_len is {given.max_embed_len}; it must be at least 1, and goes "
            "with enable_chunked_processing"
        )
    if given.enable_chunked_processing:
        _check_embeds(spec, "enable_chunked_processing", card)
    return PoolerConfig(
        kinds=kinds,
        normalize=spec.normalize if given.normalize is None else given.normalize,
        embedding_size=spec.hidden_size,
        is_matryoshka=spec.is_matryoshka,
        dimensions=spec.dimensions,
        labels=() if spec.head is None else spec.head.labels,
        lowercases=spec.lowercases,
        prompt=spec.prompt,
        prompts=dict(spec.prompts),
        enable_chunked_processing=given.enable_chunked_processing,
        max_embed_len=given.max_embed_len,
    )


def _check_embeds(spec: PoolingSpec, name: str, card: ModelCard) -> None:
    if spec.head is not None:
        raise ConfigError(f"--pooler-config {name} is for embeddings, and {card.name} classifies")


def _pooling_kind(name: str) -> PoolingKind:
    if name.lower() not in _POOLING_KINDS:
        allowed = ", ".join(kind.upper() for kind in _POOLING_KINDS)
        raise ConfigError(f"--pooler-config pooling_type is {name!a}; it must be one of {allowed}")
    return PoolingKind(name.lower())
