"""`/v1/models`: the names of the served model, and the adapters that requests may name instead."""

import msgspec

from weft.web.http.endpoint import Answer, Call, endpoint
from weft.web.inference.call import resolve_model
from weft.web.served import Served


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model name. `root` is the model that the server was started with, `parent` the base of an adapter."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "weft"
    root: str
    parent: str | None = None
    max_model_len: int
    permission: list[str] = []


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All names, the main one first."""

    object: str = "list"
    data: list[ModelCard]


def _cards(served: Served) -> list[ModelCard]:
    model = served.client.model_config
    base = [
        ModelCard(
            id=name, created=served.started_at, root=model.model, max_model_len=model.max_model_len
        )
        for name in model.served_model_names
    ]
    adapters = [
        ModelCard(
            id=name,
            created=served.started_at,
            root=adapter.lora_path,
            parent=adapter.base_model_name or model.served_model_name,
            max_model_len=model.max_model_len,
        )
        for name, adapter in served.client.lora_requests.items()
    ]
    return [*base, *adapters]


@endpoint("GET /v1/models", answer=ModelList)
async def _list(call: Call) -> Answer:
    """The names the model answers to."""
    return ModelList(data=_cards(call.served))


@endpoint("GET /v1/models/{model:path}", answer=ModelCard)
async def _get(call: Call) -> Answer:
    """Return one model."""
    name, _ = resolve_model(call.served, call.path_parameters["model"])
    return next(card for card in _cards(call.served) if card.id == name)


ENDPOINTS = (_list, _get)
