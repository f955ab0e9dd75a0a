"""`resolve_pooler`: how a pooling model pools, from its files and the user's options."""

from weft.core.config import EngineOptions, PoolerConfig
from weft.core.errors import ConfigError
from weft.core.pooler_options import PoolerOptions
from weft.core.types import PoolingKind
from weft.engine.given import read_json
from weft.model.card import ModelCard
from weft.model.pooling import PoolingSpec

_KINDS = (PoolingKind.CLS, PoolingKind.LAST, PoolingKind.MEAN)


def resolve_pooler(options: EngineOptions, card: ModelCard) -> PoolerConfig | None:
    """Decide everything that was left open; None for a model that generates text."""
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
        kinds["embed"] = _kind(given.pooling_type)
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
        enable_chunked_processing=given.enable_chunked_processing,
        max_embed_len=given.max_embed_len,
    )


def _check_embeds(spec: PoolingSpec, name: str, card: ModelCard) -> None:
    if spec.head is not None:
        raise ConfigError(f"--pooler-config {name} is for embeddings, and {card.name} classifies")


def _kind(name: str) -> PoolingKind:
    if name.lower() not in _KINDS:
        allowed = ", ".join(kind.upper() for kind in _KINDS)
        raise ConfigError(f"--pooler-config pooling_type is {name!a}; it must be one of {allowed}")
    return PoolingKind(name.lower())
