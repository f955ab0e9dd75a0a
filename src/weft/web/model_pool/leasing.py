"""Endpoints whose requests each take their model from the pool: by the body's `model`, or else by `?model=`."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from weft.core.errors import BadRequest, FailedPrecondition
from weft.web.http.endpoint import Access, Answer, Call, Dialect, Endpoint
from weft.web.http.exchange import Exchange
from weft.web.http.options import HttpOptions
from weft.web.http.sse import write_comment
from weft.web.model_pool.model_pool import ModelPool, Report
from weft.web.model_pool.pooled_model import PooledModel
from weft.web.ollama.options import keep_alive_s
from weft.web.served import Served

_QUERY = "model"


class Leasing:
    """Makes endpoints of a server with one model endpoints of a server with several."""

    def __init__(self, pool: ModelPool, options: HttpOptions) -> None:
        self._pool = pool
        self._options = options

    def endpoint(self, one: Endpoint) -> Endpoint:
        """Returns the endpoint with a handler that has its model for as long as the answer takes."""
        if not one.uses_model or one.access in (Access.OPEN, Access.PAGE):
            return one
        take = self._take_wanted if names_model(one) else self._take_ready

        async def handle(call: Call) -> Answer:
            entry, served = await take(one, call)
            exchange = _exchange(call)
            keep_s = keep_alive_s(getattr(call.body, "keep_alive", None))
            exchange.releases.append(partial(self._pool.release, entry, keep_s))
            if one.admit is not None:
                one.admit(served)
            options = self._options
            seen = served.seen_by(
                exchange.tenant,
                salts=options.salt_by_key,
                hides_cached_tokens=options.hide_cached_tokens,
            )
            rest = {name: value for name, value in call.query.items() if name != _QUERY}
            return await one.handler(replace(call, served=seen, query=rest))

        return replace(one, handler=handle, admit=None)

    async def _take_wanted(self, one: Endpoint, call: Call) -> tuple[PooledModel, Served]:
        """Takes the model that the body names, which is started if it is not in memory."""
        entry = self._pool.find(name_in(call.body))
        report: Report | None = None
        if _is_streamed(one, call.body):
            report = partial(write_comment, _exchange(call))
        served = await self._pool.acquire(entry, report, within_s=self._pool.limits.wait_s)
        return entry, served

    async def _take_ready(self, one: Endpoint, call: Call) -> tuple[PooledModel, Served]:
        """Takes the model that the query names, or the default: only if it is in memory."""
        del one
        entry = self._pool.find(call.query.get(_QUERY))
        served = self._pool.take(entry)
        if served is None:
            raise FailedPrecondition(
                f"the model {entry.name} is not in memory; load it with POST /v1/models/load, or choose another "
                "one with ?model=NAME"
            )
        return entry, served


def names_model(one: Endpoint) -> bool:
    """True if bodies of the endpoint name a model."""
    fields = getattr(one.body, "__struct_fields__", None)
    return one.body is not None and (fields is None or "model" in fields)


def name_in(body: Any) -> str | None:
    """Returns the name of the model in a body; None without one. Raises `BadRequest` if it is no text."""
    if not isinstance(body, Mapping):
        name: str | None = body.model
        return name
    given = body.get("model")
    try:
        return None if given is None else msgspec.json.decode(given, type=str)
    except msgspec.DecodeError:
        raise BadRequest("model", "model must be a text") from None


def _is_streamed(one: Endpoint, body: Any) -> bool:
    """True if the answer will be server-sent events; a stream of lines has no comments."""
    has_events = one.event is not None and one.dialect is not Dialect.OLLAMA
    return has_events and getattr(body, "stream", None) is True


def _exchange(call: Call) -> Exchange:
    assert call.exchange is not None, "the server gives it to every call"
    return call.exchange
