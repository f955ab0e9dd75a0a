"""Small model servers: real sockets, real protocols, nothing behind them. Each records what came."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineServicer, add_VllmEngineServicer_to_server

LOAD = b"""\
vllm:num_requests_waiting 0
vllm:num_requests_running 0
vllm:kv_cache_usage_perc 0
"""


@dataclass(slots=True)
class Seen:
    """One request as the server got it."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class HttpWorker:
    """Echoes the size of each body; streams where `stream` is in it."""

    address: str = ""
    seen: list[Seen] = field(default_factory=list)
    delay_s: float = 0.0
    num_events: int = 5
    pages: dict[str, tuple[int, bytes]] = field(default_factory=dict)  # what else a GET finds
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)  # streams wait before their end
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # a client left in mid-stream

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Requests of one connection, one after another."""
        try:
            while await self._serve_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone.set()
        finally:
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
            if name
        }
        body = await _read_body(reader, headers)
        path = first.split()[1]
        if path in self.pages:
            status, text = self.pages[path]
            writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(text)))
            writer.write(text)
            return True
        if path != "/health":  # which Envoy asks for all the time
            self.seen.append(Seen(path, headers, body))
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if body:  # a GET is answered always: it may ask for health
            await self.may_answer.wait()
        if b'"stream":true' in body:
            await self._stream(writer)
        else:
            answer = (
                b'{"id":"1","model":"m","worker":"%s","size":%d,"usage":{"prompt_tokens":7,'
                b'"completion_tokens":3}}' % (self.address.encode(), len(body))
            )
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n" % len(answer) + answer
            )
        await writer.drain()
        return True

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for number in range(self.num_events):
            write_chunk(writer, b'data: {"model":"m","n":%d}\n\n' % number)
            await writer.drain()
            await asyncio.sleep(0.005)
        await self.may_end.wait()
        write_chunk(
            writer, b'data: {"model":"m","usage":{"prompt_tokens":7,"completion_tokens":5}}\n\n'
        )
        write_chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")


def write_chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    """One chunk of a body whose length is not said before."""
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    if headers.get("transfer-encoding") != "chunked":
        return b""
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return body


@asynccontextmanager
async def http_worker(host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[HttpWorker]:
    """A running HTTP worker."""
    worker = HttpWorker()
    worker.may_answer.set()
    worker.may_end.set()
    server = await asyncio.start_server(worker.serve, host, port)
    worker.address = f"{host}:{server.sockets[0].getsockname()[1]}"
    try:
        yield worker
    finally:
        server.close()
        with suppress(Exception):
            server.close_clients()  # Python 3.13


class FakePod:
    """Answers at its own address; while it ends it says so at `/health`, and serves on."""

    def __init__(self, name: str, ip: str, port: int) -> None:
        self.name, self.ip, self.port = name, ip, port
        self.worker = HttpWorker(f"{ip}:{port}", delay_s=0.01)
        self.worker.pages = {"/health": (200, b"ok"), "/metrics": (200, LOAD)}
        self.worker.may_answer.set()
        self.worker.may_end.set()
        self.gone_at = float("inf")
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.ip, self.port)

    def drain(self) -> None:
        self.worker.pages["/health"] = (503, b"ending")

    def stop(self) -> None:
        """Nobody listens any more, and what was open is cut."""
        self.gone_at = time.monotonic()
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self.worker.serve(reader, writer)
        finally:
            self._writers.discard(writer)


class GrpcWorker(VllmEngineServicer):
    """Answers Generate and Embed with its own port as the token."""

    def __init__(self) -> None:
        self.address = ""
        self.port = 0
        self.requests: list[pb.GenerateRequest | pb.EmbedRequest] = []
        self.metadata: list[dict[str, str]] = []
        self.num_tokens = 5
        self.delay_s = 0.0
        self.was_cancelled = asyncio.Event()

    async def Generate(self, request, context):  # noqa: N802
        """The port, `num_tokens` times."""
        self._note(request, context)
        try:
            ids = [self.port] * self.num_tokens
            for token_id in ids if request.stream else ():
                chunk = pb.GenerateStreamChunk(
                    token_ids=[token_id], prompt_tokens=10, completion_tokens=1
                )
                yield pb.GenerateResponse(chunk=chunk)
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
            complete = pb.GenerateComplete(
                output_ids=ids,
                finish_reason="length",
                prompt_tokens=10,
                completion_tokens=len(ids),
                cached_tokens=4,
            )
            yield pb.GenerateResponse(complete=complete)
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise

    async def Embed(self, request, context):  # noqa: N802
        """A vector of one element."""
        self._note(request, context)
        size = len(request.tokenized.input_ids)
        return pb.EmbedResponse(embedding=[float(self.port)], prompt_tokens=size, embedding_dim=1)

    async def GetModelInfo(self, request, context):  # noqa: N802
        """The port, as a path."""
        self._note(request, context)
        return pb.GetModelInfoResponse(model_path=str(self.port))

    def _note(self, request, context) -> None:
        self.requests.append(request)
        self.metadata.append({key: str(value) for key, value in context.invocation_metadata()})


@asynccontextmanager
async def grpc_worker(host: str = "127.0.0.1") -> AsyncIterator[GrpcWorker]:
    """A running gRPC worker."""
    worker = GrpcWorker()
    server = grpc.aio.server()
    add_VllmEngineServicer_to_server(worker, server)
    health = health_aio.HealthServicer()
    await health.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    worker.port = server.add_insecure_port(f"{host}:0")
    worker.address = f"{host}:{worker.port}"
    await server.start()
    try:
        yield worker
    finally:
        await server.stop(0)
