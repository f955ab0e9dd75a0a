"""OpenAI's realtime API: a conversation over a WebSocket, in text."""

from dataclasses import replace

from weft.core.errors import BadRequest
from weft.schema.responses import ResponsesBody
from weft.web.http.connections.socket_sessions import SessionCounter, SessionLimits, refuse_plain
from weft.web.http.connections.sockets import Socket
from weft.web.http.endpoint import Access, Call, Endpoint
from weft.web.inference.call import to_model_call
from weft.web.items.conversation_store import Conversations
from weft.web.realtime.realtime_session import RealtimeSession
from weft.web.responses.create import Creation
from weft.web.responses.runs import Runs

_PATH = "/v1/realtime"
_SUBPROTOCOL = "realtime"


class Realtime:
    """The sessions of one server."""

    def __init__(self, runs: Runs, conversations: Conversations, limits: SessionLimits) -> None:
        self._creation = Creation(runs, conversations)
        self._sessions = SessionCounter("realtime", limits)

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint of all sessions."""
        return Endpoint(
            method="GET",
            path=_PATH,
            handler=refuse_plain,
            socket=self.serve,
            summary="A session over a WebSocket: conversation items in, responses out, as events.",
            access=Access.API,
        )

    async def serve(self, call: Call, socket: Socket) -> None:
        """Serves one session."""
        if call.served is None:
            raise BadRequest("model", "sessions are not supported by a server of several models")
        if call.query.get("intent") not in (None, "conversation"):
            raise BadRequest("intent", "intent must be conversation: sound is not supported")
        body = ResponsesBody(input=[], model=call.query.get("model"))
        model_call = await to_model_call(replace(call, body=body))
        with self._sessions.counted():
            await socket.accept(_SUBPROTOCOL)
            limits = self._sessions.limits
            await RealtimeSession(model_call, self._creation, socket, limits).serve()


def realtime_endpoint(runs: Runs, conversations: Conversations, limits: SessionLimits) -> Endpoint:
    """The endpoint of a server's sessions."""
    return Realtime(runs, conversations, limits).endpoint
