"""Every endpoint of a server with several models."""

from collections.abc import Iterator
from dataclasses import replace

from weft.web.admin.pages import page_endpoints
from weft.web.http.endpoint import Endpoint
from weft.web.http.options import HttpOptions
from weft.web.http.state import ServerState
from weft.web.model_pool.cards import card_endpoints
from weft.web.model_pool.leasing import Leasing
from weft.web.model_pool.model_pool import ModelPool
from weft.web.model_pool.ollama_lists import ollama_endpoints, with_unloading
from weft.web.routes import api_endpoints, group


def pool_endpoints(
    state: ServerState, pool: ModelPool, options: HttpOptions
) -> tuple[Endpoint, ...]:
    """The endpoints of a server with one model, whose requests each take their model from the pool; those that
    describe models describe all.
    """
    leasing = Leasing(pool, options)
    endpoints = tuple(
        with_unloading(leasing.endpoint(one), pool)
        for one in _with_cards(api_endpoints(state), pool)
    )
    return (*endpoints, *map(leasing.endpoint, page_endpoints(state, endpoints)))


def _with_cards(endpoints: tuple[Endpoint, ...], pool: ModelPool) -> Iterator[Endpoint]:
    """Yields the endpoints, with those of the pool in the places of theirs."""
    own = {(one.method, one.path): one for one in (*card_endpoints(pool), *ollama_endpoints(pool))}
    for one in endpoints:
        other = own.pop((one.method, one.path), None)
        yield one if other is None else replace(other, group=one.group)
    yield from group("Control", own.values())
