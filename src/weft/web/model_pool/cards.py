"""`/v1/models` of a server with several models: their states, and the calls that load and unload them."""

from collections.abc import Iterator

import msgspec

from weft.core.errors import NotFound
from weft.web.admin.control import control
from weft.web.admin.models import ModelCard
from weft.web.http.endpoint import Answer, Call, Endpoint, endpoint
from weft.web.model_pool.model_pool import ModelPool
from weft.web.model_pool.pooled_model import PooledModel


class PoolCard(ModelCard, frozen=True, kw_only=True):
    """A model name, with the state of the model. `max_model_len` and `size_bytes` are null until its files are
    examined, and `error` is why the last start failed.
    """

    max_model_len: int | None  # type: ignore[assignment]  # unknown before the files are examined
    state: str
    size_bytes: int | None
    is_pinned: bool
    error: str | None


class PoolList(msgspec.Struct, frozen=True, kw_only=True):
    """All names, the default one first. `used_bytes` of `memory_bytes` belong to models."""

    object: str = "list"
    data: list[PoolCard]
    used_bytes: int
    memory_bytes: int


class ModelBody(msgspec.Struct, frozen=True, kw_only=True):
    """The model to load or to unload."""

    model: str


def card_endpoints(pool: ModelPool) -> tuple[Endpoint, ...]:
    """The endpoints of a pool's models."""

    @endpoint("GET /v1/models", answer=PoolList, uses_model=False)
    async def list_all(_call: Call) -> Answer:
        """The names of all models, and which are in memory."""
        cards = [card for entry in pool.entries for card in _cards(entry)]
        return PoolList(
            data=cards, used_bytes=pool.used_bytes, memory_bytes=pool.limits.memory_bytes
        )

    @endpoint("GET /v1/models/{model:path}", answer=PoolCard, uses_model=False)
    async def get(call: Call) -> Answer:
        """Return one model."""
        name = call.path_parameters["model"]
        return _card(pool.find(name), name)

    @control("POST /v1/models/load", PoolCard, body=ModelBody, uses_model=False)
    async def load(call: Call) -> Answer:
        """Load a model, and return when it is ready."""
        entry = pool.find(call.body.model)
        await pool.acquire(entry, within_s=pool.limits.wait_s)
        pool.release(entry)
        return _card(entry, entry.name)

    @control("POST /v1/models/unload", PoolCard, body=ModelBody, uses_model=False)
    async def unload(call: Call) -> Answer:
        """Unload a model once its requests have ended; a later request loads it again."""
        entry = pool.find(call.body.model)
        await pool.unload(entry)
        return _card(entry, entry.name)

    return (list_all, get, load, unload)


def _card(entry: PooledModel, name: str) -> PoolCard:
    found = next((card for card in _cards(entry) if card.id == name), None)
    if found is None:
        raise NotFound(f"The model {name[:64]!a} does not exist", "model")
    return found


def _cards(entry: PooledModel) -> Iterator[PoolCard]:
    facts = entry.facts
    adapters = {} if facts is None else facts.lora_requests
    for name in dict.fromkeys((*entry.source.names, *adapters)):
        adapter = adapters.get(name)
        is_adapter = name in entry.source.adapters or adapter is not None
        yield PoolCard(
            id=name,
            created=entry.source.known_since,
            root=entry.source.model if adapter is None else adapter.lora_path,
            parent=entry.name if is_adapter else None,
            max_model_len=None if facts is None else facts.model_config.max_model_len,
            state=entry.shown_state,
            size_bytes=entry.size_bytes,
            is_pinned=entry.source.is_pinned,
            error=entry.error,
        )
