"""An OpenAI server whose every answer takes a time that is known, in this event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec


@dataclass
class ScriptedServer:
    """Steered by its fields; keeps the bodies and the most requests that were open at a time.

    An answer is `num_messages` messages of `tokens_per_message`, the first after `ttft_s`, each other one
    `gap_s` later. Every `fails_each`th request fails; with `breaks` it does so after its first message.
    """

    ttft_s: float = 0.1
    gap_s: float = 0.05
    num_messages: int = 5
    tokens_per_message: int = 2
    fails_each: int = 0
    breaks: bool = False
    has_usage: bool = True
    on_request: dict[int, Callable[[], None]] = field(default_factory=dict)
    base_url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    num_open: int = 0
    most_open: int = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, then the connection closes."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # the client gave up, or the test is over
        finally:
            writer.close()
            self.tasks.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        if head.startswith("GET"):
            _write(writer, {"data": [{"id": "scripted"}]})
        else:
            size = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
            self.bodies.append(msgspec.json.decode(await reader.readexactly(size)))
            self.on_request.get(len(self.bodies), lambda: None)()
            self.num_open += 1
            self.most_open = max(self.most_open, self.num_open)
            try:
                await self._stream(head, writer)
            finally:
                self.num_open -= 1
        await writer.drain()

    async def _stream(self, head: str, writer: asyncio.StreamWriter) -> None:
        number, body = len(self.bodies), self.bodies[-1]
        is_failing = bool(self.fails_each) and number % self.fails_each == 0
        if is_failing and not self.breaks:
            _write(writer, {"error": {"message": "no room for this one"}}, "503 Busy")
            return
        writer.write(
            b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\r\n"
        )
        is_chat = "/chat/" in head
        if is_chat:
            _event(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        await writer.drain()
        await asyncio.sleep(self.ttft_s)
        for message in range(self.num_messages):
            if message:
                await asyncio.sleep(self.gap_s)
            _event(
                writer, {"choices": [{"delta": {"content": "x "}} if is_chat else {"text": "x "}]}
            )
            await writer.drain()
            if is_failing:
                _event(writer, {"error": {"message": "it broke"}})
                return
        end = {"finish_reason": "length"}
        _event(writer, {"choices": [{"delta": {}, **end} if is_chat else {"text": "", **end}]})
        if self.has_usage:
            prompt = body.get("prompt") or body["messages"][0]["content"]
            num_tokens = self.num_messages * self.tokens_per_message
            usage = {"prompt_tokens": 2 * len(prompt.split()) + 3, "completion_tokens": num_tokens}
            _event(writer, {"choices": [], "usage": usage})
        writer.write(b": a comment\n\ndata: [DONE]\n\n")


@asynccontextmanager
async def scripted(**fields: Any) -> AsyncIterator[ScriptedServer]:
    """A server on a free port."""
    script = ScriptedServer(**fields)
    server = await asyncio.start_server(script.answer, "127.0.0.1", 0)
    async with server:
        script.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield script
        for task in script.tasks:
            task.cancel()
        await asyncio.gather(*script.tasks)


def _event(writer: asyncio.StreamWriter, data: object) -> None:
    writer.write(b"data: " + msgspec.json.encode(data) + b"\n\n")


def _write(writer: asyncio.StreamWriter, data: object, status: str = "200 OK") -> None:
    body = msgspec.json.encode(data)
    writer.write(
        f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    )
    writer.write(body)
