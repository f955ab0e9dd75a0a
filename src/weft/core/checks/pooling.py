"""Checks of pooling parameters; every API uses these."""

import msgspec

from weft.core.checks.validate import Limits, validate_truncation
from weft.core.config.engine import PoolerConfig
from weft.core.errors import BadRequest, Unsupported
from weft.core.values.types import OutputKind, PoolingParams

_DEFAULT_TASKS = ("token_embed", "token_classify")
_FORMER_TASKS = {"score": "classify", "encode": "token_embed or token_classify"}
_EMBEDDING_FIELDS = ("dimensions", "normalize")
_SCORE_FIELDS = ("use_activation",)


def validate_pooling(
    params: PoolingParams, pooler: PoolerConfig | None, limits: Limits
) -> PoolingParams:
    """Returns `params` with `task` filled in; raises a `BadRequest` that names the invalid field.

    Raises `Unsupported` if `pooler` is None, because the model generates text and cannot pool hidden states.
    """
    if pooler is None:
        raise Unsupported("encode is not supported by this model: it generates text")
    if not isinstance(params, PoolingParams):
        raise BadRequest("pooling_params", "pooling_params must be PoolingParams")
    task = _task(params.task, pooler.tasks)
    _check_fields(params, task)
    _check_dimensions(params.dimensions, pooler)
    if params.truncate_prompt_tokens is not None:
        validate_truncation(params.truncate_prompt_tokens, limits)
    if params.output_kind != OutputKind.FINAL_ONLY:
        raise BadRequest("output_kind", "output_kind must be final_only: pooling has one output")
    return msgspec.structs.replace(params, task=task)


def _task(requested: object, offered: tuple[str, ...]) -> str:
    supported = f"this model supports {', '.join(offered)}"
    if requested is None:
        for task in _DEFAULT_TASKS:
            if task in offered:
                return task
        raise BadRequest("task", f"task must be given; {supported}")
    if isinstance(requested, str) and requested in _FORMER_TASKS:
        raise BadRequest(
            "task", f"task {requested} is now called {_FORMER_TASKS[requested]}; {supported}"
        )
    if not isinstance(requested, str) or requested not in offered:
        raise BadRequest("task", f"task {ascii(requested)[:40]} is not supported; {supported}")
    return requested


def _check_fields(params: PoolingParams, task: str) -> None:
    is_embedding = task in ("embed", "token_embed")
    for name in _SCORE_FIELDS if is_embedding else _EMBEDDING_FIELDS:
        if getattr(params, name) is not None:
            allowed = _EMBEDDING_FIELDS if is_embedding else _SCORE_FIELDS
            raise BadRequest(
                name, f"{name} is not allowed for task {task}, which allows {', '.join(allowed)}"
            )
    for name in ("normalize", "use_activation", "skip_reading_prefix_cache"):
        if not isinstance(getattr(params, name), bool | None):
            raise BadRequest(name, f"{name} must be true or false")


def _check_dimensions(dimensions: object, pooler: PoolerConfig) -> None:
    """Checks the requested length of embeddings; the model's own length is always allowed."""
    if dimensions is None:
        return
    if type(dimensions) is not int:
        raise BadRequest(
            "dimensions", f"dimensions must be an integer, got {ascii(dimensions)[:40]}"
        )
    if dimensions == pooler.embedding_size:
        return
    if not pooler.is_matryoshka:
        raise BadRequest(
            "dimensions",
            "this model does not support Matryoshka embeddings: dimensions must be absent, or the length of "
            f"its embeddings, got {dimensions}",
            dimensions,
        )
    if not 1 <= dimensions <= pooler.embedding_size:
        raise BadRequest(
            "dimensions",
            f"this model only supports dimensions in range [1, {pooler.embedding_size}], "
            f"got {dimensions}",
            dimensions,
        )
    if pooler.dimensions and dimensions not in pooler.dimensions:
        raise BadRequest(
            "dimensions",
            f"this model only supports Matryoshka dimensions {list(pooler.dimensions)}, "
            f"got {dimensions}",
            dimensions,
        )
