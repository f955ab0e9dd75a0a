"""A benchmark target with OpenAI's streamed completions or chat completions; records the arrival time of each
message.
"""

import os
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

import msgspec

from weft.bench.options import TargetOptions
from weft.bench.record import Prompt, Record
from weft.bench.targets.http_wire import HttpWire
from weft.core.address import join_host_port
from weft.core.errors import ConfigError, GenerationError
from weft.http.client import Response
from weft.text.tokenizer import Tokenizer

ENDPOINTS = {
    "openai": "/v1/completions",
    "vllm": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
}
DEFAULT_PORT = 8000
_HEADER = re.compile(r"[!#$%&'*+.^`|~\w-]+ *: *[\x20-\x7e]*")
_SHOWN_CHARS = 500
_BROKEN = ("abort", "error")  # finish reasons of failed answers, of vLLM and Weft


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Any = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Chunk)


class HttpTarget:
    """A model on a server with OpenAI's API."""

    def __init__(
        self,
        wire: HttpWire,
        *,
        path: str,
        model: str,
        fields: Mapping[str, Any],
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.model = model
        self._wire = wire
        self._path = path
        self._is_chat = path.endswith("chat/completions")
        self._fields = {
            "model": model,
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        self._tokenizer = tokenizer

    async def send(self, prompt: Prompt, record: Record) -> None:
        """Sends a request and records its measurements. A message counts as tokens if it has text, or if it neither
        begins nor ends the answer.

        vLLM's benchmark counts every message with choices, also the first message with only a role, and the last with
        only a finish reason. Weft leaves these out, so that TTFT is the time of the first token and every gap is
        between tokens.
        """
        body = msgspec.json.encode(self._body(prompt))
        usage: _Usage | None = None
        pieces: list[str] = []
        try:
            async with self._wire.request("POST", self._path, body) as response:
                await _refuse(response)
                async with aclosing(_events(response)) as events:
                    async for event in events:
                        chunk = _DECODER.decode(event)
                        if chunk.error is not None:
                            raise GenerationError(_sentence(chunk.error))
                        usage = chunk.usage or usage
                        if chunk.choices:
                            _take(chunk.choices[0], record, pieces)
        except msgspec.DecodeError as error:
            raise GenerationError(f"an event is not a chunk of this API: {error}") from error
        record.text = "".join(pieces)
        self._count(record, usage)

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        if not self._is_chat:
            if isinstance(prompt.content, tuple):
                raise ConfigError("conversations need --backend openai-chat")
            return {"prompt": prompt.content, "max_tokens": prompt.output_len, **self._fields}
        text = prompt.content
        messages = ({"role": "user", "content": text},) if isinstance(text, str) else text
        return {"messages": messages, "max_completion_tokens": prompt.output_len, **self._fields}

    def _count(self, record: Record, usage: _Usage | None) -> None:
        if not record.has_begun:
            raise GenerationError("the stream ended without an answer")
        if usage is not None:
            record.input_tokens, record.output_tokens = usage.prompt_tokens, usage.completion_tokens
        elif self._tokenizer is not None:
            record.output_tokens = len(
                self._tokenizer.encode(record.text, add_special_tokens=False)
            )
        else:
            raise GenerationError(
                "the server reports no token counts (usage); give --tokenizer to count them here"
            )


def open_wire(options: TargetOptions) -> HttpWire:
    """Returns connections to the server without a limit on their number, so that only the flags limit the load."""
    headers = {"content-type": "application/json", "accept": "*/*"}
    key = options.api_key or os.environ.get("OPENAI_API_KEY")
    if key:
        headers["authorization"] = f"Bearer {key}"
    for pair in options.header:
        name, sign, value = pair.partition("=")
        if not (sign and _HEADER.fullmatch(f"{name}: {value}")):
            raise ConfigError(f"--header {pair}: must be KEY=VALUE")
        headers[name.strip().lower()] = value.strip()
    place = join_host_port(options.host, options.port or DEFAULT_PORT)
    return HttpWire(options.base_url or f"http://{place}", headers, is_insecure=options.insecure)


async def first_model(wire: HttpWire) -> str:
    """Returns the first name in the server's list of models."""
    async with wire.request("GET", "/v1/models") as response:
        await _refuse(response)
        body = await response.read()
    try:
        return str(msgspec.json.decode(body)["data"][0]["id"])
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError("the server lists no model at /v1/models; give --model") from error


def _take(choice: _Choice, record: Record, pieces: list[str]) -> None:
    delta = choice.delta or _Delta()
    text = choice.text or "".join(
        filter(None, (delta.reasoning, delta.reasoning_content, delta.content))
    )
    if choice.finish_reason in _BROKEN:
        raise GenerationError("the server aborted the answer")
    begins, ends = delta.role is not None, choice.finish_reason is not None
    if text or delta.tool_calls or not (begins or ends) or (ends and not record.has_begun):
        record.take()
        pieces.append(text)


async def _events(response: Response) -> AsyncGenerator[bytes, None]:
    """Yields the data of each event except the last, which only marks the end."""
    rest = b""
    async for data in response.pieces():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                event = line[5:].strip()
                if event != b"[DONE]":
                    yield event


async def _refuse(response: Response) -> None:
    if response.status == HTTPStatus.OK:
        return
    text = (await response.read()).decode(errors="replace")
    try:
        found: Any = msgspec.json.decode(text)
    except msgspec.DecodeError:
        found = text
    raise GenerationError(f"HTTP {response.status}: {_sentence(found)}")


def _sentence(found: Any) -> str:
    """Returns the message of an error object in the format of any kind of server."""
    while isinstance(found, dict) and (inner := found.get("error") or found.get("message")):
        found = inner
    return str(found)[:_SHOWN_CHARS]
