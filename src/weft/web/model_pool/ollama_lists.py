"""Ollama's API for several models: the lists of models, `/api/show`, and requests that only unload a model."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from weft.core.errors import BadRequest
from weft.schema.ollama import (
    OllamaDetails,
    OllamaModel,
    OllamaModels,
    OllamaShowBody,
    OllamaShown,
    Timings,
)
from weft.web.http.endpoint import Answer, Call, Dialect, Endpoint, endpoint
from weft.web.model_pool.model_pool import ModelPool
from weft.web.model_pool.pooled_model import ModelState, PooledModel
from weft.web.ollama.chat import chat_answer, create_chat
from weft.web.ollama.generate import create_text, text_answer
from weft.web.ollama.models import models_of, shown
from weft.web.ollama.options import keep_alive_s
from weft.web.ollama.writer import Piece, to_text

_ANSWERS: Mapping[str, Callable[[Any, Piece], Answer]] = {
    create_chat.path: chat_answer,
    create_text.path: text_answer,
}
_PROMPTS = ("messages", "prompt", "images")
_NEVER = "0001-01-01T00:00:00Z"  # Ollama's time of a model that does not expire


def ollama_endpoints(pool: ModelPool) -> tuple[Endpoint, ...]:
    """The endpoints that describe a pool's models, in Ollama's words."""

    @endpoint("GET /api/tags", dialect=Dialect.OLLAMA, answer=OllamaModels, uses_model=False)
    async def list_models(_call: Call) -> Answer:
        """List the names that requests may give, in Ollama's words"""
        return OllamaModels(models=[model for entry in pool.entries for model in _models(entry)])

    @endpoint("GET /api/ps", dialect=Dialect.OLLAMA, answer=OllamaModels, uses_model=False)
    async def list_running(_call: Call) -> Answer:
        """List the models in memory, in Ollama's words"""
        running = (entry for entry in pool.entries if entry.served is not None)
        models = [
            msgspec.structs.replace(model, expires_at=_expires_at(entry))
            for entry in running
            for model in _models(entry)
        ]
        return OllamaModels(models=models)

    @endpoint(
        "POST /api/show",
        dialect=Dialect.OLLAMA,
        body=OllamaShowBody,
        example={"verbose": False},
        answer=OllamaShown,
        uses_model=False,
    )
    async def show_model(call: Call) -> Answer:
        """Show the facts of a model, in Ollama's words"""
        body: OllamaShowBody = call.body
        name = body.model or body.name
        if not name:
            raise BadRequest("model", "model is missing")
        return shown(await pool.examine(pool.find(name)))

    return (list_models, list_running, show_model)


def with_unloading(one: Endpoint, pool: ModelPool) -> Endpoint:
    """Returns the endpoint, which takes a request without a prompt and with `keep_alive` 0 as one to unload the
    model.
    """
    to_answer = _ANSWERS.get(one.path)
    if to_answer is None:
        return one

    async def handle(call: Call) -> Answer:
        body: Any = call.body
        has_prompt = any(getattr(body, name, None) for name in _PROMPTS)
        if has_prompt or keep_alive_s(body.keep_alive) != 0:
            return await one.handler(call)
        pool.expire(pool.find(body.model))
        return to_answer(body, Piece(end=Timings(done_reason="unload")))

    return replace(one, handler=handle)


def _models(entry: PooledModel) -> Iterator[OllamaModel]:
    """The names of a model; without details if its files were not examined yet."""
    if entry.facts is not None:
        yield from models_of(entry.facts)
        return
    for name in entry.source.names:
        yield OllamaModel(
            name=name,
            model=name,
            modified_at=to_text(entry.source.known_since),
            digest="",
            details=OllamaDetails(format="", family="", families=[], quantization_level=""),
            context_length=0,
        )


def _expires_at(entry: PooledModel) -> str:
    keep_s = entry.keep_alive_s
    if (
        keep_s is None
        or keep_s < 0
        or entry.source.is_pinned
        or entry.state is not ModelState.READY
    ):
        return _NEVER
    return (datetime.now(UTC) + timedelta(seconds=keep_s)).isoformat()
