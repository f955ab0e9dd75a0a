"""The response phase of a request: passes the response on, and reports its tokens, usage and end to the director."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from weft.core.headers import WENT_INTO_RESPONSE
from weft.epp.decision.director import Director
from weft.epp.decision.tickets import Decision, Ending, Ticket
from weft.epp.request.parsers.parser import Dialect
from weft.epp.request.readers import NoReader, Reader, open_reader
from weft.epp.request.rename import Rename
from weft.epp.request.values import InferenceRequest
from weft.epp.server import ext_proc
from weft.epp.server.ext_proc import ProcessingRequest, ProcessingResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A routed request whose response is followed. The object has no reference to the request's body, so that the body
    is freed.
    """

    path: str
    model: str
    is_grpc: bool
    decision: Decision
    ticket: Ticket
    dialect: Dialect


def has_reason_to_follow(request: InferenceRequest, decision: Decision) -> bool:
    """True if a plugin or metric needs the response, or the response must be changed."""
    return (
        decision.tracks_response
        or bool(decision.response_headers)
        or (decision.rewritten_model is not None and bool(request.model))
    )


class ResponsePhase:
    """The response of one request. Without `followed`, it is passed on unread.

    `is_retained` is True if the gateway keeps each piece of the body until the piece is answered.
    """

    def __init__(
        self, listener: Director, followed: Followed | None, *, is_retained: bool = False
    ) -> None:
        self._listener = listener
        self._followed = followed
        self._is_retained = is_retained
        self._reader: Reader = NoReader()
        self._rename: Rename | None = None
        self._has_begun = False
        self._num_bytes = 0
        self._ending = Ending.NATURAL
        self.is_finished = False

    def on_headers(self, message: ProcessingRequest) -> Iterator[ProcessingResponse]:
        """Reads the status, chooses the reader of the body, and yields the message with the headers for the client."""
        headers = ext_proc.read_headers(message.response_headers)
        status = _to_status(headers.get(":status", ""))
        followed = self._followed
        added: dict[str, str] = {WENT_INTO_RESPONSE: "true"}
        if followed is not None:
            self._open(followed, headers, status)
            added |= followed.decision.response_headers
            added |= self._listener.on_response_headers(followed.ticket, status)
        answer = ext_proc.response_headers(added)
        if message.response_headers.end_of_stream:
            self._note_grpc_status(headers)
            ext_proc.add_metadata(answer, self._end())
        yield answer

    def on_body(self, message: ProcessingRequest) -> Iterator[ProcessingResponse]:
        """Yields the messages that pass a part of the body on, and reads the token usage in it."""
        body, is_last = message.response_body.body, message.response_body.end_of_stream
        followed = self._followed
        if followed is not None:
            self._num_bytes += len(body)
            self._reader.feed(body)
            if self._has_begun:
                if body:
                    self._listener.on_piece(followed.ticket)
            elif self._reader.has_output:
                self._has_begun = True
                self._listener.on_first_token(followed.ticket)
        is_renamed = self._rename is not None
        if self._rename is not None:
            body = self._rename.feed(body) + (self._rename.flush() if is_last else b"")
        metadata = self._end() if is_last else None
        if self._is_retained:
            yield ext_proc.retained_response_body(body if is_renamed else None, metadata)
        else:
            yield from ext_proc.response_body(body, is_last=is_last, metadata=metadata)

    @property
    def holds_bytes(self) -> bool:
        """True if bytes of the response are held back, because a model name may continue in the next piece."""
        return self._rename is not None and not self._rename.is_empty

    def on_trailers(self, message: ProcessingRequest) -> Iterator[ProcessingResponse]:
        """Handles the end of a gRPC response."""
        if self._rename is not None and not self._is_retained:
            yield from ext_proc.response_body(self._rename.flush(), is_last=False)
        self._note_grpc_status(ext_proc.read_trailers(message.response_trailers))
        yield ext_proc.response_trailers(self._end())

    def abandon(self, ending: Ending = Ending.DISCONNECTED) -> None:
        """Ends the response early: the client or the gateway has disconnected, or the picker evicts the request."""
        if not self.is_finished:
            self._ending = ending
            self._end()

    def _open(self, followed: Followed, headers: Mapping[str, str], status: int) -> None:
        if status != 200:
            self._ending = Ending.ERROR
            return
        self._reader = open_reader(
            followed.dialect,
            followed.path,
            headers.get("content-type", ""),
            headers.get("grpc-encoding", "identity"),
        )
        served, requested = followed.decision.rewritten_model, followed.model
        is_plain = headers.get("content-encoding", "identity") == "identity"
        is_renamed = (
            served is not None and requested and served != requested
        )  # a request without a model name sees the served name
        if served is not None and is_renamed and is_plain and not followed.is_grpc:
            self._rename = Rename(served, requested)

    def _note_grpc_status(self, headers: Mapping[str, str]) -> None:
        if headers.get("grpc-status", "0") != "0":
            self._ending = Ending.ERROR

    def _end(self) -> Mapping[str, Any] | None:
        self.is_finished = True
        followed, self._followed = self._followed, None
        if followed is None:
            return None
        self._listener.on_size(followed.ticket, self._num_bytes)
        usage = self._reader.usage()
        if usage is not None:
            self._listener.on_usage(followed.ticket, usage)
        return self._listener.on_end(followed.ticket, self._ending)


def _to_status(text: str) -> int:
    return int(text) if len(text) == 3 and text.isascii() and text.isdigit() else 0
