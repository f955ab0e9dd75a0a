"""What orchestrators ask: is it alive, is it ready, how far has the start come. Open to anybody."""

import msgspec
from starlette.responses import Response

from weft.web.http.endpoint import Access, Answer, Call, Endpoint, Handler
from weft.web.http.state import ServerState


class Startup(msgspec.Struct, frozen=True, kw_only=True):
    """`fraction` is 0 to 1 and 1 when the server is ready; `elapsed` is in seconds."""

    phase: str
    fraction: float
    elapsed: float


def probe_endpoints(state: ServerState) -> tuple[Endpoint, ...]:
    """The probes of one server."""

    async def live(_call: Call) -> Answer:
        return Response()

    async def ready(_call: Call) -> Answer:
        await state.check_health()
        return Response()

    async def startup(_call: Call) -> Answer:
        return Startup(
            phase=state.phase, fraction=state.fraction, elapsed=round(state.elapsed_s, 3)
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
        probe("/health", ready, "200 if a request would be answered now, 503 if not."),
        probe("/ping", ready, "The same, as SageMaker asks."),
        probe("/ping", ready, "The same, as SageMaker asks.", "POST"),
        probe("/livez", live, "200 as long as the process answers."),
        probe(
            "/readyz", ready, "200 once requests are answered; 503 before, and when shutting down."
        ),
        probe("/startupz", startup, "How far the start has come; always 200."),
    )
