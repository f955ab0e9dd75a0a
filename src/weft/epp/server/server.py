"""The picker's gRPC servers: Envoy's external processor with health, health alone, and how they stop."""

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Any, Final, NoReturn

import grpc

from weft.core.address import join_host_port
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
from weft.epp.server.limits import Held
from weft.epp.server.options import ServerOptions
from weft.epp.server.stream import Exchange, Explain, ProtocolError, Services
from weft.epp.server.stream_metrics import WireMetrics
from weft.wire.ports import ChannelArgs, bind, server_args

log = logging.getLogger("weft.epp")

_HEALTH_INTERVAL_S: Final = 0.25
# A gateway notices that health has turned at its next check; until then requests still come.
_QUIET_S: Final = 1.0
_STOP_GRACE_S: Final = 1.0

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports that the server listens on."""

    grpc: int
    health: int


@dataclass(slots=True, eq=False)
class _Stream:
    """An open stream; what stopping it takes."""

    services: InitVar[Services]
    is_one_too_many: InitVar[bool]
    task: asyncio.Task[Any]
    started: float
    exchange: Exchange = field(init=False)
    is_waiting: bool = False  # for a message or a pick: it can be told to end at once
    is_stopped: bool = False
    is_evicted: bool = False
    was_answered: bool = False
    response_s: float = 0.0  # spent on the response's messages

    def __post_init__(self, services: Services, is_one_too_many: bool) -> None:
        self.exchange = Exchange(
            services, is_one_too_many=is_one_too_many, interrupt=self.interrupt
        )

    def interrupt(self) -> None:
        """End a request that was answered, now or with the message that is being dealt with."""
        self.is_evicted = True
        if self.is_waiting:
            self.task.cancel()

    @property
    def last_word(self) -> ProcessingResponse:
        """Returns the last message of a stream that the picker ends."""
        return self.exchange.evict() if self.is_evicted else self.exchange.shut_down()

    def account(self, metrics: WireMetrics, message_at: float) -> None:
        """A message that came at that time is dealt with."""
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
    """Serves one director. Make, start and stop it on one event loop."""

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
        self._servers: list[grpc.aio.Server] = []
        self._watch: asyncio.Task[None] | None = None

    @property
    def num_streams(self) -> int:
        """Requests in the picker's hands now."""
        return len(self._streams)

    async def start(self) -> Ports:
        """Listen and serve. `ConfigError` if that is impossible."""
        self.health.start()
        options = self._options
        main, health = self._new_server(), self._new_server()
        main.add_generic_rpc_handlers((self._handler(),))
        place, tls = partial(join_host_port, options.host), _credentials(options)
        ports = Ports(
            bind(main, place(options.grpc_port), tls, flag="--grpc-port"),
            # In plain text even beside TLS, which kubelet's probes do not speak.
            bind(health, place(options.grpc_health_port), None, flag="--grpc-health-port"),
        )
        for server in self._servers:
            await server.start()
        self._watch = asyncio.create_task(
            every(_HEALTH_INTERVAL_S, self.health.refresh), name="weft-epp-health"
        )
        return ports

    async def drain(self, timeout_s: float) -> None:
        """Turn health, answer what still comes until it is quiet or time is up, then stop."""
        self.health.drain()
        deadline = time.monotonic() + timeout_s
        self._last_start = max(self._last_start, time.monotonic())
        while time.monotonic() < deadline:
            if not self._streams and time.monotonic() - self._last_start >= _QUIET_S:
                break
            await asyncio.sleep(0.05)
        await self.stop()

    async def stop(self) -> None:
        """End every stream with an answer and stop listening. Idempotent."""
        self._is_stopping = True
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
            self._watch = None
        self.health.drain()
        for stream in self._streams:
            if stream.is_waiting and not stream.exchange.is_answered:
                stream.is_stopped = True
                stream.task.cancel()
        servers, self._servers = self._servers, []
        await asyncio.gather(*(server.stop(_STOP_GRACE_S) for server in servers))
        await self._services.reader.close()

    def _new_server(self) -> grpc.aio.Server:
        server = grpc.aio.server(
            options=_channel_args(self._options),
            maximum_concurrent_rpcs=_max_calls(self._options),
        )
        server.add_generic_rpc_handlers((self.health.handler(),))
        self._servers.append(server)
        return server

    def _handler(self) -> "grpc.GenericRpcHandler[Any, Any]":
        # "Stream in, one out", although many go out: the last answer is what the handler returns, and
        # is then written together with the stream's end. Between the two there must be no gap. A
        # model server that answers at once would fill it, and Envoy drops response bytes that it
        # has sent to a processor which leaves (5 % of the bodies, measured with Envoy 1.40).
        process = grpc.stream_unary_rpc_method_handler(
            self._process,
            request_deserializer=ext_proc.decode,  # answers are encoded by hand: grpc does so only for one answer
        )
        return grpc.method_handlers_generic_handler(ext_proc.SERVICE, {ext_proc.METHOD: process})

    async def _process(self, _requests: object, context: Context) -> bytes:
        """Handles one HTTP request. It is the root of its task: every failure ends here, with an answer."""
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
            code = grpc.StatusCode.CANCELLED  # `_run` aborts with no other
            raise
        except grpc.aio.InternalError as error:
            # Nothing can be written any more: the gateway left, as it does when its client leaves.
            code = grpc.StatusCode.CANCELLED
            raise asyncio.CancelledError from error
        except Exception:  # the root of a stream
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

    async def _run(self, stream: _Stream, context: Context) -> ProcessingResponse:
        """Answer each message; the result is the last answer."""
        exchange = stream.exchange
        while True:
            stream.is_waiting = True
            if stream.is_evicted or (self._is_stopping and not exchange.is_answered):
                return stream.last_word
            message = await context.read()
            if isinstance(message, ext_proc.Undecodable):
                raise ProtocolError("the message is no ProcessingRequest")
            if not isinstance(message, ProcessingRequest):  # the end of the stream
                # Not cleanly: to a gateway that still waits that would mean "carry on".
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


async def _abort(context: Context, code: grpc.StatusCode, message: str) -> NoReturn:
    await context.abort(code, message)
    raise AssertionError("abort() raises")


def _max_calls(options: ServerOptions) -> int:
    # Beyond what gets a proper refusal there is only this.
    return 2 * options.limits.max_streams


def _channel_args(options: ServerOptions) -> ChannelArgs:
    limits = server_args(
        max_calls=_max_calls(options),
        max_streams=_max_calls(options),  # a gateway may need one connection only
        max_receive_bytes=options.max_receive_bytes,
        handshake_timeout_s=options.handshake_timeout_s,
    )
    return [*limits, ("grpc.max_send_message_length", options.max_send_bytes)]


def _credentials(options: ServerOptions) -> grpc.ServerCredentials | None:
    """For TLS; None without. `ConfigError` names the flag."""
    if options.cert_path is not None:
        return from_directory(options.cert_path, reloads=options.enable_cert_reload)
    return self_signed(options.host) if options.is_self_signed else None
