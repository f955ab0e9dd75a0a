"""OpenAI's realtime API: a conversation over a WebSocket, with sounds of the client and answers in text."""

from dataclasses import replace

from weft.core.errors import BadRequest
from weft.schema.responses import ResponsesBody
from weft.web.http.connections.socket_sessions import (
    SessionCounter,
    SessionLimits,
    SessionSeries,
    refuse_plain,
)
from weft.web.http.connections.sockets import Socket
from weft.web.http.endpoint import Access, Call, Endpoint
from weft.web.inference.call import ModelCall, to_model_call
from weft.web.items.conversation_store import Conversations
from weft.web.realtime.realtime_session import (
    CONVERSATION,
    TRANSCRIPTION,
    RealtimeSession,
    can_be,
)
from weft.web.realtime.sounds import SoundLimits, SoundRoom
from weft.web.responses.create import Creation
from weft.web.responses.runs import Runs

_PATH = "/v1/realtime"
_SUBPROTOCOL = "realtime"
_SOUNDS = SoundLimits()


class Realtime:
    """The sessions of one server."""

    def __init__(self, creation: Creation, sessions: SessionCounter, sounds: SoundLimits) -> None:
        self._room = SoundRoom(sounds)
        self._creation = creation
        self._sessions = sessions

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint of all sessions."""
        return Endpoint(
            method="GET",
            path=_PATH,
            handler=refuse_plain,
            socket=self.serve,
            summary="A session over a WebSocket: texts and sounds in, responses or transcripts out, as events.",
            access=Access.API,
        )

    async def serve(self, call: Call, socket: Socket) -> None:
        """Serves one session."""
        if call.served is None:
            raise BadRequest("model", "sessions are not supported by a server of several models")
        body = ResponsesBody(input=[], model=call.query.get("model"))
        model_call = await to_model_call(replace(call, body=body))
        kind = _kind_of(model_call)
        with self._sessions.counted():
            await socket.accept(_SUBPROTOCOL)
            limits = self._sessions.limits
            await RealtimeSession(
                model_call, self._creation, socket, limits, self._room, kind
            ).serve()


def _kind_of(call: ModelCall) -> str:
    """The type of a new session. A model that only transcribes has no sessions of another type."""
    intent = call.query.get("intent")
    kinds = {None: CONVERSATION, "conversation": CONVERSATION, "transcription": TRANSCRIPTION}
    if intent not in kinds:
        raise BadRequest("intent", "intent must be conversation or transcription")
    kind = kinds[intent]
    if intent is not None and not can_be(call, kind):
        raise BadRequest("intent", f"intent {intent} is not supported by this model")
    return kind if can_be(call, kind) else TRANSCRIPTION


def realtime_endpoint(
    runs: Runs,
    conversations: Conversations,
    limits: SessionLimits,
    sounds: SoundLimits = _SOUNDS,
    series: SessionSeries | None = None,
) -> Endpoint:
    """The endpoint of a server's sessions, which are counted in `series`."""
    sessions = SessionCounter("realtime", limits, _PATH, series)
    return Realtime(Creation(runs, conversations), sessions, sounds).endpoint
