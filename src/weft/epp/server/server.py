"""The picker's gRPC servers and their shutdown: the external processor for Envoy with health checks, and a server for
health checks alone.
"""

import asyncio
import logging
import ssl
import time
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from typing import Any, Final, NoReturn

import grpc

from weft.core.aio.tasks import every
from weft.core.observe.tracing import Tracer
from weft.epp.decision.director import Director
from weft.epp.metrics.series import PickerMetrics
from weft.epp.request.parsers.table import ParserTable
from weft.epp.request.values import Refused
from weft.epp.server import ext_proc
from weft.epp.server.body_reader import BodyReader
from weft.epp.server.certificate import from_directory, self_signed
from weft.epp.server.ext_proc import ProcessingRequest, ProcessingResponse
from weft.epp.server.health import ALONE, PickerHealth, Standing
from weft.epp.server.http2.gateway_connection import CallLimits
from weft.epp.server.http2.grpc_server import GrpcServer
from weft.epp.server.http2.rpc import Rpc
from weft.epp.server.limits import Held
from weft.epp.server.options import ServerOptions
from weft.epp.server.streams.services import Explain, Services
from weft.epp.server.streams.stream import Exchange, ProtocolError
from weft.epp.server.streams.stream_metrics import WireMetrics

log = logging.getLogger("weft.epp")

_HEALTH_INTERVAL_S: Final = 0.25
# A gateway notices the changed health at its next check; until then it still sends requests.
_QUIET_S: Final = 1.0
_STOP_GRACE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports on which the server listens."""

    grpc: int
    health: int


@dataclass(slots=True, eq=False)
class _Stream:
    """An open ext_proc stream, with the state that is needed to end it."""

    services: InitVar[Services]
    is_one_too_many: InitVar[bool]
    task: asyncio.Task[Any]
    started: float
    exchange: Exchange = field(init=False)
    # True while the stream waits for a message or a decision, so it can be ended at once.
    is_waiting: bool = False
    is_stopped: bool = False
    is_evicted: bool = False
    was_answered: bool = False
    response_s: float = 0.0  # processing time of the response's messages

    def __post_init__(self, services: Services, is_one_too_many: bool) -> None:
        self.exchange = Exchange(
            services, is_one_too_many=is_one_too_many, interrupt=self.interrupt
        )

    def interrupt(self) -> None:
        """Ends the stream of an evicted request: at once if the stream waits for a message, otherwise after the message
        that is being handled.
        """
        self.is_evicted = True
        if self.is_waiting:
            self.task.cancel()

    @property
    def last_word(self) -> ProcessingResponse:
        """The last message of a stream that the picker ends."""
        return self.exchange.evict() if self.is_evicted else self.exchange.shut_down()

    def account(self, metrics: WireMetrics, message_at: float) -> None:
        """Records the processing time of a message that arrived at `message_at`."""
        now = time.monotonic()
        if self.was_answered:
            self.response_s += now - message_at
        elif self.exchange.is_answered:
            self.was_answered = True
            metrics.answered(now - self.started)


@dataclass(frozen=True, slots=True)
class Observers:
    """Receivers of request records: the decision ring, `/metrics`, and a trace collector."""

    explain: Explain | None = None
    metrics: PickerMetrics = field(default_factory=PickerMetrics)
    tracer: Tracer | None = None


class PickerServer:
    """gRPC servers of one director. Created, started and stopped on one event loop."""

    def __init__(
        self,
        director: Director,
        parsers: tuple[str, ...],
        options: ServerOptions,
        observers: Observers | None = None,
        standing: Standing = ALONE,
    ) -> None:
        observers = observers or Observers()
        self._options = options
        limits = options.limits
        self._metrics = WireMetrics(observers.metrics, measures_streams=options.measures_streams)
        self._services = Services(
            director,
            ParserTable(parsers),
            limits,
            Held(limits.max_held_bytes),
            self._metrics,
            BodyReader(),
            observers.explain,
            observers.tracer,
        )
        self.health = PickerHealth(lambda: director.is_ready, standing)
        self._streams: set[_Stream] = set()
        self._last_start = 0.0
        self._is_stopping = False
        self._servers: list[GrpcServer] = []
        self._watch: asyncio.Task[None] | None = None

    @property
    def num_streams(self) -> int:
        """Number of open streams, one per request."""
        return len(self._streams)

    async def start(self) -> Ports:
        """Listens and serves. Raises `ConfigError` if a port cannot be bound."""
        self.health.start()
        options = self._options
        main, health = self._new_server(), self._new_server()
        main.add(self._handler())
        ports = Ports(
            await main.start(options.host, options.grpc_port, _tls(options), flag="--grpc-port"),
            # Plain text even if TLS is on: kubelet's probes do not use TLS here.
            await health.start(
                options.host, options.grpc_health_port, None, flag="--grpc-health-port"
            ),
        )
        self._watch = asyncio.create_task(
            every(_HEALTH_INTERVAL_S, self.health.refresh), name="weft-epp-health"
        )
        return ports

    async def drain(self, timeout_s: float) -> None:
        """Reports the picker as unhealthy, answers further requests until none arrive or `timeout_s` has passed, then
        stops.
        """
        self.health.drain()
        deadline = time.monotonic() + timeout_s
        self._last_start = max(self._last_start, time.monotonic())
        while time.monotonic() < deadline:
            if not self._streams and time.monotonic() - self._last_start >= _QUIET_S:
                break
            await asyncio.sleep(0.05)
        await self.stop()

    async def stop(self) -> None:
        """Ends every stream with a last message and stops listening. May be called more than once.

        A response that is followed goes on without the picker if the gateway keeps what the picker has not answered
        (`STREAMED`). From other gateways, a picker that leaves would take bytes of the response with it unnoticed (a
        tenth of the streams under load, measured with Envoy 1.40), so these responses are cut after a second.
        """
        self._is_stopping = True
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
            self._watch = None
        self.health.drain()
        for stream in self._streams:
            if stream.is_waiting and stream.exchange.may_stop:
                stream.is_stopped = True
                stream.task.cancel()
        servers, self._servers = self._servers, []
        await asyncio.gather(*(server.stop(_STOP_GRACE_S) for server in servers))
        await self._services.reader.close()

    def _new_server(self) -> GrpcServer:
        options = self._options
        server = GrpcServer(
            CallLimits(
                # Above the number of streams, so that further streams get a proper refusal.
                max_calls=2 * options.limits.max_streams,
                max_receive_bytes=options.max_receive_bytes,
                max_send_bytes=options.max_send_bytes,
                handshake_timeout_s=options.handshake_timeout_s,
            )
        )
        server.add(self.health.handler())
        self._servers.append(server)
        return server

    def _handler(self) -> "grpc.GenericRpcHandler[Any, Any]":
        # Declared as "stream in, one out", although several messages are sent: then the server writes the last one,
        # which the handler returns, together with the end of the stream. With a gap between the two, Envoy drops
        # response bytes that it has already sent to a processor that leaves (5 % of the bodies of fast model servers,
        # measured with Envoy 1.40).
        process = grpc.stream_unary_rpc_method_handler(
            self._process,
            # Messages are encoded by this code.
            request_deserializer=ext_proc.decode,
        )
        return grpc.method_handlers_generic_handler(ext_proc.SERVICE, {ext_proc.METHOD: process})

    async def _process(self, _requests: object, context: Rpc) -> bytes:
        """Handles the stream of one HTTP request. Every failure is caught here and becomes an answer."""
        task = asyncio.current_task()
        assert task is not None
        is_full = len(self._streams) >= self._options.limits.max_streams
        self._last_start = started = time.monotonic()
        stream = _Stream(self._services, is_full, task, started)
        self._streams.add(stream)
        self._metrics.opened()
        code = grpc.StatusCode.OK
        try:
            return ext_proc.encode(await self._run(stream, context))
        except asyncio.CancelledError:
            if not (stream.is_stopped or stream.is_evicted):
                code = grpc.StatusCode.CANCELLED
                raise
            task.uncancel()
            return ext_proc.encode(stream.last_word)
        except ProtocolError as error:
            code = grpc.StatusCode.INVALID_ARGUMENT
            return await _abort(context, code, str(error))
        except grpc.aio.AbortError:
            code = grpc.StatusCode.CANCELLED  # `_run` aborts with no other status
            raise
        except Exception:  # top of a stream: the error is logged
            log.exception("a request failed inside the picker")
            if stream.exchange.is_answered:
                code = grpc.StatusCode.INTERNAL
                return await _abort(context, code, "the picker failed")
            return ext_proc.encode(stream.exchange.refuse(Refused(500, "the picker failed")))
        finally:
            stream.exchange.close()
            self._streams.discard(stream)
            self._measure(stream, code)

    def _measure(self, stream: _Stream, code: grpc.StatusCode) -> None:
        if stream.response_s:
            self._metrics.followed(stream.response_s)
        self._metrics.ended(time.monotonic() - stream.started, code)

    async def _run(self, stream: _Stream, context: Rpc) -> ProcessingResponse:
        """Answers each message of a stream; returns the last answer."""
        exchange = stream.exchange
        while True:
            stream.is_waiting = True
            if stream.is_evicted or (self._is_stopping and exchange.may_stop):
                return stream.last_word
            message = await context.read()
            if isinstance(message, ext_proc.Undecodable):
                raise ProtocolError("the message is no ProcessingRequest")
            if not isinstance(message, ProcessingRequest):  # the stream has ended
                # Not a normal end: to a waiting gateway, that would mean "continue".
                return await _abort(context, grpc.StatusCode.CANCELLED, "the request ended early")
            message_at = time.monotonic()
            pending = exchange.receive(message)
            del message
            answers = await pending
            stream.is_waiting = False
            last = None
            for answer in answers:
                if last is not None:
                    await context.write(ext_proc.encode(last))
                last = answer
            stream.account(self._metrics, message_at)
            if last is not None:
                if exchange.is_done:
                    return last
                await context.write(ext_proc.encode(last))


async def _abort(context: Rpc, code: grpc.StatusCode, message: str) -> NoReturn:
    await context.abort(code, message)
    raise AssertionError("abort() raises")


def _tls(options: ServerOptions) -> ssl.SSLContext | None:
    """Returns the TLS context; None without TLS. Raises a `ConfigError` that names the flag."""
    if options.cert_path is not None:
        return from_directory(options.cert_path, reloads=options.enable_cert_reload)
    return self_signed(options.host) if options.is_self_signed else None
