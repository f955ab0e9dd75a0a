"""A picker that dies with requests in its hands: who holds their bodies, Envoy or it, decides what becomes of them."""

import asyncio
from contextlib import suppress

import pytest

from tests.busy import PATIENCE_S, until
from tests.e2e import scenes
from tests.e2e.scenes import CHAT, scene


class Relay:
    """What Envoy takes for the picker, and which dies without a word."""

    def __init__(self) -> None:
        self._picker_port = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def start(self, picker_port: int) -> int:
        self._picker_port = picker_port
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward, back = await asyncio.open_connection("127.0.0.1", self._picker_port)
        self._writers += [writer, back]
        await asyncio.gather(_copy(reader, back), _copy(onward, writer))

    def die(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.mark.parametrize(
    ("buffered_bytes", "status"), [(None, 500), (scenes.MAX_BODY_BYTES, 200)], ids=["streamed", "buffered"]
)  # fmt: skip
async def test_what_a_dead_picker_held(
    buffered_bytes: int | None, status: int, monkeypatch: pytest.MonkeyPatch
):
    """Lost with it, or sent on to a worker, once each, as if there had been no picker."""
    monkeypatch.setattr(scenes, "buffered_bytes", buffered_bytes)
    relay = Relay()
    async with scene(through=relay.start) as here:
        here.director.delay_s = PATIENCE_S
        waiting = [asyncio.create_task(here.post()) for _ in range(5)]
        await until(lambda: len(here.director.requests) == 5)
        relay.die()
        answers = await asyncio.gather(*waiting)
        assert [answer.status_code for answer in answers] == [status] * 5
        seen = [one.body for worker in here.http for one in worker.seen]
        assert seen == ([CHAT] * 5 if status == 200 else [])


async def test_a_body_that_envoy_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch):
    """413 in OpenAI's form; the largest that it can arrives whole."""
    monkeypatch.setattr(scenes, "buffered_bytes", 2**17)
    async with scene() as here:
        answer = await here.post(CHAT + b" " * 2**17)
        assert answer.status_code == 413
        assert answer.json()["error"]["type"] == "invalid_request_error"
        body = CHAT + b" " * (2**17 - len(CHAT) - 2**12)
        assert (await here.post(body)).json()["size"] == len(body)
