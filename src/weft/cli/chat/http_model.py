"""A model behind an HTTP address: any server that speaks OpenAI's API."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict
from typing import Any

from weft.cli.chat.model_answer import Answer, Messages
from weft.cli.chat.openai_server import AnswerUsage, Chunk, OpenAIServer
from weft.cli.options import ConnectOptions, SampleOptions
from weft.text.parsers.parts import Content, Reasoning


class HttpModel:
    """A `ServedModel`."""

    def __init__(self, server: OpenAIServer, fields: dict[str, Any]) -> None:
        self._server = server
        self._fields = fields

    @classmethod
    async def open(
        cls,
        stack: AsyncExitStack,
        connect: ConnectOptions,
        sample: SampleOptions,
        *,
        thinks: bool | None,
    ) -> "HttpModel":
        """Connects to the server and reads the names of its models. The server checks the parameters."""
        server = await stack.enter_async_context(OpenAIServer.connected(connect))
        fields = given_fields(sample)
        if thinks is not None:
            fields["chat_template_kwargs"] = {"enable_thinking": thinks}
        return cls(server, fields)

    @property
    def name(self) -> str:
        """Name of the served model."""
        return self._server.model

    async def answer(
        self, messages: Messages, answer: Answer
    ) -> AsyncGenerator[Reasoning | Content, None]:
        """Yields the parts of the model's answer to `messages` as they arrive; appends each part to `answer` before it
        is yielded.
        """
        body = {**self._fields, "messages": messages}
        num_first_chars = 0
        async with aclosing(self._server.stream("/chat/completions", body)) as chunks:
            async for chunk in chunks:
                if chunk.usage is not None:
                    _count(answer, chunk.usage)
                for part in _parts(chunk, answer):
                    answer.add(part)
                    if answer.arrive():
                        num_first_chars = len(part.text)
                    yield part
        num_chars = len(answer.content) + len(answer.reasoning)
        # The server counts the tokens of the whole answer; the first message has its share of the characters.
        answer.num_first = round(answer.num_tokens * num_first_chars / max(num_chars, 1))


def given_fields(sample: SampleOptions) -> dict[str, Any]:
    """Returns the fields of a request body for the sampling options that are set."""
    return {name: value for name, value in asdict(sample).items() if value is not None}


def _parts(chunk: Chunk, answer: Answer) -> list[Reasoning | Content]:
    found: list[Reasoning | Content] = []
    for choice in chunk.choices[:1]:
        answer.finish_reason = choice.finish_reason or answer.finish_reason
        delta = choice.delta
        if reasoning := delta.reasoning_content or delta.reasoning:
            found.append(Reasoning(reasoning))
        if delta.content:
            found.append(Content(delta.content))
    return found


def _count(answer: Answer, usage: AnswerUsage) -> None:
    answer.num_prompt_tokens = usage.prompt_tokens
    answer.num_tokens = usage.completion_tokens
    if usage.prompt_tokens_details is not None:
        answer.num_cached_tokens = usage.prompt_tokens_details.cached_tokens or 0
    if usage.completion_tokens_details is not None:
        answer.num_reasoning_tokens = usage.completion_tokens_details.reasoning_tokens or 0
