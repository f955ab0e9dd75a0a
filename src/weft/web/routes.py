"""Every endpoint of a server, in one table: what is not here is not served, but for `weft.web.page`."""

from weft.web.admin import control, loras, models, refused, tokens
from weft.web.admin.invocations import invocations_endpoint
from weft.web.admin.pages import page_endpoints
from weft.web.admin.probes import probe_endpoints
from weft.web.anthropic import ENDPOINTS as ANTHROPIC
from weft.web.http.endpoint import Endpoint
from weft.web.http.state import ServerState
from weft.web.openai import ENDPOINTS as OPENAI
from weft.web.pooling import ENDPOINTS as POOLING
from weft.web.responses import response_endpoints
from weft.web.responses.runs import Runs
from weft.web.responses.store import ResponseLimits
from weft.web.tokens import ENDPOINTS as TOKENS

API_ENDPOINTS: tuple[Endpoint, ...] = (
    *models.ENDPOINTS,
    *OPENAI,
    *ANTHROPIC,
    *TOKENS,
    *POOLING,
    *tokens.ENDPOINTS,
    *control.ENDPOINTS,
    *loras.ENDPOINTS,
    *refused.ENDPOINTS,
)


def all_endpoints(state: ServerState) -> tuple[Endpoint, ...]:
    """The APIs, and what describes this server."""
    apis = (*API_ENDPOINTS, *response_endpoints(Runs(state, ResponseLimits())))
    endpoints = (*probe_endpoints(state), *apis, invocations_endpoint(API_ENDPOINTS))
    return (*endpoints, *page_endpoints(state, endpoints))
