"""Probes for orchestrators: liveness, readiness, start progress. They need no API key."""

import msgspec
from starlette.responses import Response

from weft.core.observe.progress import Loading
from weft.web.http.endpoint import Access, Answer, Call, Endpoint, Handler
from weft.web.http.state import ServerState


class Startup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`fraction` is 0 to 1 and 1 when the server is ready; `elapsed` is in seconds.

    `loading` is of a download, or of the weights.
    """

    phase: str
    fraction: float
    elapsed: float
    loading: Loading | None = None


def probe_endpoints(state: ServerState) -> tuple[Endpoint, ...]:
    """The probes of one server."""

    async def live(_call: Call) -> Answer:
        return Response()

    async def ready(_call: Call) -> Answer:
        return Response(await state.check_health())

    async def startup(_call: Call) -> Answer:
        progress = state.progress
        return Startup(
            phase=progress.phase,
            fraction=round(progress.fraction, 4),
            elapsed=round(progress.elapsed_s, 3),
            loading=progress.loading,
        )

    def probe(path: str, handler: Handler, summary: str, method: str = "GET") -> Endpoint:
        return Endpoint(
            method=method,
            path=path,
            handler=handler,
            summary=summary,
            access=Access.OPEN,
            answer=Startup if handler is startup else None,
        )

    return (
        probe(
            "/health",
            ready,
            '200 if the server can answer a request now, 503 if not. The body is "degraded" while some of several '
            "engines are absent; a server with several models returns their states.",
        ),
        probe("/ping", ready, "As /health, at the path that SageMaker polls."),
        probe("/ping", ready, "As /health, at the path that SageMaker polls.", "POST"),
        probe("/livez", live, "200 as long as the process answers."),
        probe(
            "/readyz", ready, "200 once requests are answered; 503 before, and when shutting down."
        ),
        probe("/startupz", startup, "Progress of the start; always 200."),
    )
