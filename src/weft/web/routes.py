"""Every endpoint of a server, in one table by API; only `weft.web.page` adds others."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from weft.core.errors import Unsupported
from weft.web.admin import control, engine_calls, loras, models, refused, scaling, tokens, weights
from weft.web.admin.invocations import invocations_endpoint
from weft.web.admin.pages import page_endpoints
from weft.web.admin.probes import probe_endpoints
from weft.web.anthropic import ENDPOINTS as ANTHROPIC
from weft.web.batches.batch_runner import BatchRunner
from weft.web.batches.message_batches import message_batch_endpoints
from weft.web.batches.openai_batches import batch_endpoints
from weft.web.batches.stored_files import file_endpoints
from weft.web.cohere import ENDPOINTS as COHERE
from weft.web.cohere import POOLING as COHERE_POOLING
from weft.web.conversations.conversation_calls import conversation_endpoints
from weft.web.decisions import ENDPOINTS as DECISIONS
from weft.web.http.connections.socket_sessions import SessionLimits, SessionSeries
from weft.web.http.endpoint import Answer, Call, Endpoint
from weft.web.http.state import ServerState
from weft.web.items.conversation_store import Conversations
from weft.web.ollama import ENDPOINTS as OLLAMA
from weft.web.openai import ENDPOINTS as OPENAI
from weft.web.pooling import ENDPOINTS as POOLING
from weft.web.realtime import realtime_endpoint
from weft.web.response_sockets.responses_session import responses_socket
from weft.web.responses import response_endpoints
from weft.web.responses.create import Creation
from weft.web.responses.runs import Runs
from weft.web.responses.store import ResponseLimits
from weft.web.responses.takeover import Takeover
from weft.web.speech import ENDPOINTS as SPEECH
from weft.web.store.database import Store
from weft.web.tokens import ENDPOINTS as TOKENS


def all_endpoints(state: ServerState) -> tuple[Endpoint, ...]:
    """The endpoints of all APIs, and those that describe this server, which has one model."""
    endpoints = api_endpoints(state)
    return (*endpoints, *page_endpoints(state, endpoints))


def api_endpoints(state: ServerState) -> tuple[Endpoint, ...]:
    """The endpoints of all APIs."""
    runs = Runs(state, ResponseLimits())
    runner = BatchRunner(state)
    state.chores += (Takeover(runs).run, runner.run)
    store, limits, series = state.store, SessionLimits(), SessionSeries(state.registry)
    conversations = Conversations(store)
    openai = (
        *OPENAI,
        *response_endpoints(runs, conversations),
        *shared(store, conversation_endpoints(store, conversations)),
    )
    invocations = invocations_endpoint((*openai, *TOKENS, *POOLING))
    sockets = (
        responses_socket(Creation(runs, conversations), limits, series),
        realtime_endpoint(runs, conversations, limits, series=series),
    )
    files = shared(store, (*file_endpoints(store), *batch_endpoints(store, runner)))
    message_batches = shared(store, message_batch_endpoints(store, runner))
    return (
        *group("OpenAI", (*models.ENDPOINTS, *openai, *sockets)),
        *group("Files and batches", files),
        *group("Anthropic", (*ANTHROPIC, *message_batches)),
        *group("Ollama", OLLAMA),
        *group("Cohere", COHERE),
        *group("Decisions", DECISIONS),
        *group("Embeddings and scores", (*POOLING, *COHERE_POOLING)),
        *group("Speech to text", SPEECH),
        *group("Tokens", (*TOKENS, *tokens.ENDPOINTS)),
        *group("SageMaker", (invocations,)),
        *group("Probes", probe_endpoints(state)),
        *group(
            "Control",
            (
                *control.ENDPOINTS,
                *engine_calls.ENDPOINTS,
                *weights.ENDPOINTS,
                *scaling.ENDPOINTS,
                *loras.ENDPOINTS,
            ),
        ),
        *group("Not supported", refused.ENDPOINTS),
    )


def shared(store: Store, endpoints: Iterable[Endpoint]) -> Iterator[Endpoint]:
    """Yields the endpoints of stored objects; they refuse all calls if the next call may reach another store."""
    if not store.is_one_of_several:
        yield from endpoints
        return
    for endpoint in endpoints:
        yield replace(endpoint, handler=_refuse)


async def _refuse(call: Call) -> Answer:
    del call
    raise Unsupported(
        "stored objects are not supported at a server with --api-server-count above 1 without --store-file: its API "
        "servers would share none"
    )


def group(name: str, endpoints: Iterable[Endpoint]) -> Iterator[Endpoint]:
    return (replace(endpoint, group=name) for endpoint in endpoints)
