"""An HTTP server over a `FakeEngine` on a port of the system's choosing, with endpoints made for tests."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx2
import msgspec
from prometheus_client import CollectorRegistry

from tests.busy import PATIENCE_S
from tests.doubles.fake_engine import FakeEngine
from weft.core.values.types import OutputKind, SamplingParams
from weft.model.embedded.byte_tokenizer import tokenizer_files
from weft.text.templates.chat import ChatTemplate
from weft.text.tokenizer import Tokenizer
from weft.web.admin.probes import probe_endpoints
from weft.web.http.endpoint import Access, Answer, Call, Dialect, Endpoint, Events
from weft.web.http.options import HttpOptions
from weft.web.http.server import HttpServer
from weft.web.http.sse import DONE, data_event
from weft.web.http.state import ServerState
from weft.web.page.files import DOCS, PAGES
from weft.web.routes import all_endpoints
from weft.web.served import Served

PROMPT = [10, 11, 12]


class GenerateBody(msgspec.Struct, kw_only=True):
    """What the test endpoint takes."""

    max_tokens: int = 3
    stream: bool = False


class Generated(msgspec.Struct):
    """What it answers, and what each event holds."""

    token_ids: list[int]


async def generate(call: Call) -> Answer:
    """Tokens from the engine, in one piece or as they come."""
    source = _tokens(call)
    if call.body.stream:
        return Events(_events(source))
    async with aclosing(source):
        return Generated([token_id async for ids in source for token_id in ids])


async def _tokens(call: Call) -> AsyncGenerator[list[int], None]:
    params = SamplingParams(
        max_tokens=call.body.max_tokens, output_kind=OutputKind.DELTA, ignore_eos=True
    )
    outputs = call.served.client.generate(PROMPT, params, call.request_id)
    async with aclosing(outputs):
        async for output in outputs:
            yield output.outputs[0].token_ids


async def _events(source: AsyncGenerator[list[int], None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(source):
        async for ids in source:
            yield data_event(Generated(ids))
    yield DONE


def raising(error: Exception) -> Callable[[Call], Any]:
    """A handler that fails."""

    async def handler(_call: Call) -> Answer:
        raise error

    return handler


def post(path: str, handler: Callable[[Call], Any], **fields: Any) -> Endpoint:
    """An endpoint for tests."""
    return Endpoint(
        method="POST",
        path=path,
        handler=handler,
        summary="For tests.",
        **{"body": GenerateBody, "answer": Generated, **fields},
    )


def make_state() -> ServerState:
    """The state of a server that starts now, with no series but its own."""
    return ServerState(CollectorRegistry(), time.monotonic())


GENERATE = (
    post("/test/chat/completions", generate),
    post("/v1/messages/test", generate, dialect=Dialect.ANTHROPIC),
    post("/strict", generate, is_strict=True),
    post("/control", generate, access=Access.CONTROL),
)


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """All that comes, also when what was still being sent has the connection reset at the end."""
    answer = bytearray()
    with suppress(ConnectionResetError):
        while chunk := await reader.read(2**16):
            answer += chunk
    return bytes(answer)


@dataclass(frozen=True, slots=True)
class Site:
    """A server that runs, and a client of it."""

    server: HttpServer
    port: int
    engine: FakeEngine
    http: httpx2.AsyncClient

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    async def exchange(self, data: bytes) -> bytes:
        """What a connection answers to `data` until it is closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            async with asyncio.timeout(PATIENCE_S):
                return await until_closed(reader)
        finally:
            writer.close()

    async def check_canary(self) -> None:
        """Somebody else is served as if nothing had been."""
        answer = await self.http.post("/test/chat/completions", json={})
        assert answer.status_code == 200
        assert len(answer.json()["token_ids"]) == 3
        assert (await self.http.get("/health")).status_code == 200


@asynccontextmanager
async def serving(
    *endpoints: Endpoint,
    is_open: bool = True,
    has_page: bool = False,
    headers: dict[str, str] | None = None,
    engine: FakeEngine | None = None,
    **options: Any,
) -> AsyncIterator[Site]:
    """A server with the usual endpoints, `GENERATE` and `endpoints`; the page at / is apart from those."""
    engine = engine or FakeEngine()
    tokenizer = Tokenizer.from_files(tokenizer_files(512, "<|endoftext|>"))
    template = ChatTemplate("{% for m in messages %}{{ m.content }};{% endfor %}", {})
    served = Served(client=engine, tokenizer=tokenizer, chat_template=template, started_at=1)
    state = make_state()
    open_to_all = (*probe_endpoints(state), *(PAGES if has_page else DOCS))
    server = HttpServer(state, HttpOptions(port=0, **options), open_to_all)
    port = await server.start()
    if is_open:
        server.open(served, (*all_endpoints(state), *GENERATE, *endpoints))
    try:
        async with httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=PATIENCE_S
        ) as http:
            yield Site(server, port, engine, http)
    finally:
        await server.stop()
        template.close()
