"""An ext_proc stream: takes the gateway's messages about one HTTP request and returns answers, without sockets.

The body is collected until the parser can read it, the director picks an endpoint, and the request continues. Then the
stream ends, unless a plugin or metric needs the response.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from enum import Enum, auto

from weft.core.headers import DESTINATION, REQUEST_ID, control_headers
from weft.core.observe.log import REQUEST
from weft.epp.decision.tickets import Decision, Ending
from weft.epp.request.parsers.parser import Call, Dialect, Parser, Reads, to_call
from weft.epp.request.values import Drop, InferenceRequest, Refused
from weft.epp.server import ext_proc
from weft.epp.server.ext_proc import ProcessingRequest, ProcessingResponse
from weft.epp.server.streams.modes import Modes, read_modes
from weft.epp.server.streams.request_body import RequestBody
from weft.epp.server.streams.response_phase import Followed, ResponsePhase, has_reason_to_follow
from weft.epp.server.streams.services import Services
from weft.epp.server.streams.spans import RequestSpan, note_decision

# Maximum number of headers that are read of a request with too many; the protocol's own come first.
_MAX_REFUSED_HEADERS = 64

_Answers = Iterator[ProcessingResponse] | Coroutine[None, None, Iterator[ProcessingResponse]]


class ProtocolError(Exception):
    """Error: the gateway sent a message out of order."""


class Phase(Enum):
    """The messages that a stream expects next."""

    START = auto()  # expects the request headers
    GATHER = auto()  # expects the request body, and buffers it
    PASS = auto()  # expects the request body, and passes it on unread
    RESPONSE = auto()  # the decision was sent; expects the response
    DONE = auto()


class Exchange:
    """State of one stream.

    `receive` returns the answers to each message. With `is_one_too_many`, the request is refused once the client's
    protocol is known. `interrupt` is called when a followed request is evicted: the stream must end with `evict`.
    """

    def __init__(
        self,
        services: Services,
        *,
        is_one_too_many: bool = False,
        interrupt: Callable[[], None] | None = None,
    ) -> None:
        self._services = services
        self._interrupt = interrupt
        self._is_one_too_many = is_one_too_many
        self._phase = Phase.START
        self._headers: Mapping[str, str] = {}
        self._subset: tuple[str, ...] | None = None
        self._call = Call(path="", headers={}, request_id="", is_grpc=False)
        self._parser: Parser | None = None
        self._body = RequestBody(services.held, services.limits.max_body_bytes)
        self._dropped: list[str] = []  # headers to remove, because their values are no longer right
        self._modes = Modes()
        self._is_counted = False  # True once the director has counted the request or its refusal
        self._response: ResponsePhase | None = None
        self._span: RequestSpan | None = None

    @property
    def is_done(self) -> bool:
        """True if no further message has to be sent, so that the stream can be closed."""
        return self._phase is Phase.DONE

    @property
    def is_answered(self) -> bool:
        """True if the request was routed or refused."""
        return self._phase in {Phase.PASS, Phase.RESPONSE, Phase.DONE}

    @property
    def may_stop(self) -> bool:
        """True if the picker can end the stream between two messages: the request can still be refused, or its
        response goes on without the picker and loses nothing.
        """
        if not self.is_answered:
            return True
        response = self._response
        is_whole = response is not None and not response.holds_bytes
        return self._phase is Phase.RESPONSE and self._modes.is_retained and is_whole

    def receive(self, message: ProcessingRequest) -> Awaitable[Iterator[ProcessingResponse]]:
        """Returns the answers to one message, in order. A refusal is always the last answer.

        The message is not referenced during waits, because thousands of requests may wait.
        """
        try:
            return self._completed(self._on_message(message))
        except Refused as refused:
            return self._completed(iter((self.refuse(refused),)))

    def _on_message(self, message: ProcessingRequest) -> _Answers:
        match message.WhichOneof("request"):
            case "request_headers":
                return self._on_headers(message)
            case "request_body":
                return self._on_body(message)
            case "request_trailers":
                return self._on_trailers()
            case None:
                raise ProtocolError("the message is empty, or of a kind that is not known here")
            case kind:
                return self._on_response(kind, message)

    async def _completed(self, answers: _Answers) -> Iterator[ProcessingResponse]:
        if isinstance(answers, Iterator):
            return answers
        try:
            return await answers
        except Refused as refused:
            return iter((self.refuse(refused),))

    def refuse(self, refused: Refused) -> ProcessingResponse:
        """Returns the refusal that ends this stream."""
        self._body.release()
        self._phase = Phase.DONE
        if not self._is_counted:
            self._services.metrics.refused(refused)
        if self._span is not None:
            self._span.refused(refused)
        return ext_proc.refusal(refused, is_grpc=self._call.is_grpc)

    def shut_down(self) -> ProcessingResponse:
        """Returns the answer that ends the stream when the picker shuts down."""
        if not self.is_answered:
            return self.refuse(Refused(503, "the picker is shutting down", Drop.SHUTTING_DOWN))
        if self._response is not None:
            self._response.abandon(Ending.UNFOLLOWED)
        self._phase = Phase.DONE
        return ext_proc.nothing()

    def evict(self) -> ProcessingResponse:
        """Returns the answer that ends a routed request because flow control evicted it."""
        if self._response is not None:
            self._response.abandon(Ending.EVICTED)
        self._is_counted = True  # counted as the end of a response
        return self.refuse(Refused(429, "request evicted by flow control", Drop.EVICTED))

    def close(self) -> None:
        """Records the end of the stream. If the stream ends early, plugins that follow the response are notified."""
        self._body.release()
        is_cut = self._phase is not Phase.DONE
        self._phase = Phase.DONE
        if self._response is not None:
            self._response.abandon()
        if self._span is not None:
            self._span.end(is_cut=is_cut)

    # ---- The request ---------------------------------------------------------------------------------

    def _on_headers(self, message: ProcessingRequest) -> _Answers:
        if self._phase is not Phase.START:
            raise ProtocolError("request headers came twice")
        limit = self._services.limits.max_header_bytes
        is_too_large = ext_proc.headers_size(message.request_headers) > limit
        self._read_opening(message, _MAX_REFUSED_HEADERS if is_too_large else None)
        if self._is_one_too_many:
            most = self._services.limits.max_streams
            raise Refused(503, f"the picker takes {most} requests at once; try again")
        if is_too_large:
            raise Refused(431, f"the request's headers are larger than {limit} bytes")
        self._subset = ext_proc.read_subset(message.metadata_context)
        self._modes = read_modes(message)
        if message.request_headers.end_of_stream:
            return self._route_anywhere(Phase.DONE)
        parser = self._services.parsers.find(self._call.path)
        if parser is None:
            raise Refused(400, f"no parser claims the path {self._call.path}")
        self._parser = parser
        match parser.reads(self._call.path):
            case Reads.NOTHING:
                return self._route_anywhere(Phase.PASS)
            case Reads.HEADERS:
                return self._schedule_at_once(parser)
            case Reads.BODY:
                self._phase = Phase.GATHER
                self._body.check_size(ext_proc.announced_length(self._headers))
                return iter((ext_proc.held_headers(),) if self._modes.is_held else ())

    def _read_opening(self, message: ProcessingRequest, most: int | None) -> None:
        """Handles the first message, so that even a refusal is in the client's protocol."""
        self._headers = ext_proc.read_headers(message.request_headers, most)
        self._call = to_call(self._headers, self._services.limits.max_body_bytes)
        REQUEST.set((self._call.request_id, self._headers.get("traceparent")))
        if self._services.tracer is not None:
            self._span = RequestSpan(self._services.tracer, self._call)

    async def _schedule_at_once(self, parser: Parser) -> Iterator[ProcessingResponse]:
        request = parser.parse(self._call)
        decision = await self._pick(request)
        return self._route(request, decision, parser.dialect, Phase.PASS)

    def _on_body(self, message: ProcessingRequest) -> _Answers:
        piece = message.request_body
        if self._phase is Phase.PASS:
            if piece.end_of_stream:
                self._end_request()
            if self._modes.is_held:
                return iter((ext_proc.held_body(),))
            return ext_proc.request_body((piece.body,), is_last=piece.end_of_stream)
        if self._phase is Phase.RESPONSE and piece.end_of_stream and not piece.body:
            return iter(())  # Envoy 1.35 to 1.37 may send the end of a body above 1 MB twice
        self._buffer(piece.body)
        if not (piece.end_of_stream or self._modes.is_held):
            return iter(())
        return self._schedule(is_last=piece.end_of_stream)

    def _on_trailers(self) -> _Answers:
        if self._phase is Phase.PASS:
            self._end_request()
            return iter((ext_proc.request_trailers(),))
        if self._phase is not Phase.GATHER:
            raise ProtocolError("request trailers came out of order")
        return self._schedule(is_last=False)

    def _buffer(self, data: bytes) -> None:
        if self._phase is not Phase.GATHER:
            raise ProtocolError("a piece of the request's body came out of order")
        self._body.add(data)

    async def _schedule(self, *, is_last: bool) -> Iterator[ProcessingResponse]:
        """Parses the complete request, picks an endpoint, and lets the request continue."""
        assert self._parser is not None
        reader = self._services.reader
        body = self._body.pieces
        request = await reader.read(self._parser, self._call, body)
        if not request.is_schedulable:
            decision = self._pick_any(request.store)
        else:
            decision = await self._pick(request)
        renamed = None
        if decision.rewritten_model is not None and decision.rewritten_model != request.model:
            body = renamed = await self._renamed(decision, decision.rewritten_model, body)
            if not self._call.is_grpc:
                self._dropped.append("content-encoding")  # the unpacked body is passed on
            elif (name := self._parser.model_header) is not None:
                decision = decision.with_header(name, decision.rewritten_model)
        head = self._route(request, decision, self._parser.dialect, Phase.PASS)
        if self._modes.is_held:
            self._body.release()
            if is_last:
                self._end_request()
            is_sized = "content-length" in self._headers
            return iter((ext_proc.with_held_body(next(head), renamed, is_sized=is_sized),))
        self._end_request()
        return self._in_order(head, body, is_last=is_last)

    async def _renamed(
        self, decision: Decision, model: str, body: Sequence[bytes]
    ) -> Sequence[bytes]:
        """The body with another model name. It replaces the received, perhaps compressed, body in memory."""
        assert self._parser is not None
        ending = Ending.DISCONNECTED
        is_renamed = False
        try:
            renamed = await self._services.reader.renamed(self._parser, self._call, body, model)
            self._body.replace(renamed)
            is_renamed = True
        except Refused:
            ending = Ending.ERROR
            raise
        finally:  # counted also if it is not passed on because its client has disconnected
            if not is_renamed and decision.ticket is not None and decision.tracks_response:
                self._services.director.on_end(decision.ticket, ending)
        return renamed

    def _in_order(
        self, head: Iterator[ProcessingResponse], body: Sequence[bytes], *, is_last: bool
    ) -> Iterator[ProcessingResponse]:
        """Yields headers, body, trailers, in Envoy's order. The body stays in memory until Envoy has received it."""
        yield from head
        yield from ext_proc.request_body(body, is_last=is_last)
        self._body.release()
        if not is_last:
            yield ext_proc.request_trailers()

    async def _pick(self, request: InferenceRequest) -> Decision:
        if self._span is None:
            return await self._pick_in_time(request)
        with self._span.picking(request) as span:
            decision = await self._pick_in_time(request)
            note_decision(span, request, decision)
            return decision

    async def _pick_in_time(self, request: InferenceRequest) -> Decision:
        limit_s = self._services.limits.max_pick_s + self._services.director.max_wait_s
        try:
            async with asyncio.timeout(limit_s if math.isfinite(limit_s) else None):
                return await self._services.director.pick(request, self._subset)
        except Refused:
            self._is_counted = True
            raise
        except TimeoutError as error:
            raise Refused(503, f"no endpoint was chosen within {limit_s:g} s") from error

    def _route_anywhere(self, phase: Phase) -> Iterator[ProcessingResponse]:
        """Routes calls that are not inference to any endpoint: model lists, health checks, calls without a prompt."""
        decision = self._pick_any(self._call.store)
        self._phase = phase
        return iter((self._head(decision, is_followed=False),))

    def _pick_any(self, store: str) -> Decision:
        pick = self._services.director.pick_any
        return Decision(endpoints=(pick(self._subset, is_grpc=self._call.is_grpc, store=store),))

    def _route(
        self, request: InferenceRequest, decision: Decision, dialect: Dialect, phase: Phase
    ) -> Iterator[ProcessingResponse]:
        if self._services.explain is not None:
            decision = decision.explained(self._services.explain(request.request_id))
        is_followed, ticket = False, decision.ticket
        if (
            ticket is not None
            and self._modes.can_follow
            and has_reason_to_follow(request, decision)
        ):
            is_followed = True
            ticket.revoke = self._interrupt
            followed = Followed(
                path=request.path,
                model=request.model,
                is_grpc=request.is_grpc,
                decision=decision,
                ticket=ticket,
                dialect=dialect,
            )
            self._response = self._follow(followed)
        elif ticket is not None and decision.tracks_response:
            # The gateway does not send responses to the picker: all that is counted until the response ends, ends
            # now.
            self._services.director.on_end(ticket, Ending.NATURAL)
        self._phase = phase
        return iter((self._head(decision, is_followed=is_followed),))

    def _head(self, decision: Decision, *, is_followed: bool) -> ProcessingResponse:
        destination = ",".join(decision.endpoints)
        added = {**decision.set_headers, DESTINATION: destination}
        if self._span is not None:
            added |= self._span.headers
        if REQUEST_ID not in self._headers:
            added[REQUEST_ID] = self._call.request_id
        removed = control_headers(name for name in self._headers if name not in added)
        removed += [name for name in self._dropped if name in self._headers]
        if is_followed and not self._call.is_grpc and "accept-encoding" in self._headers:
            # A compressed response can neither be read nor have its model renamed.
            removed.append("accept-encoding")
        return ext_proc.request_headers(
            added, removed, {**decision.metadata, DESTINATION: destination}
        )

    def _end_request(self) -> None:
        """Ends the request phase, and also the stream if the response is not followed."""
        stays = self._response is not None and not self._response.is_finished
        self._phase = Phase.RESPONSE if stays else Phase.DONE

    # ---- The response --------------------------------------------------------------------------------

    def _on_response(self, kind: str, message: ProcessingRequest) -> Iterator[ProcessingResponse]:
        """Handles a response, which may begin before the request ends: an early refusal, or a bidirectional call."""
        if self._response is None:
            self._response = self._follow(None)
        match kind:
            case "response_headers":
                answers = self._response.on_headers(message)
            case "response_body":
                answers = self._response.on_body(message)
            case _:
                answers = self._response.on_trailers(message)
        return self._until_finished(answers, self._response)

    def _follow(self, followed: Followed | None) -> ResponsePhase:
        return ResponsePhase(self._services.director, followed, is_retained=self._modes.is_retained)

    def _until_finished(
        self, answers: Iterator[ProcessingResponse], response: ResponsePhase
    ) -> Iterator[ProcessingResponse]:
        yield from answers
        if response.is_finished:
            self._body.release()
            self._phase = Phase.DONE
