"""A conversation with a served model: its messages, and the parameters of further requests."""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any

from weft.cli.chat.connect import connected, to_sampling_params
from weft.cli.options import ConnectOptions, SampleOptions
from weft.core.errors import ConfigError
from weft.core.values.types import RequestOptions, SamplingParams
from weft.model.tokenizers.templates import read_chat_template
from weft.text.parsers.parts import Content, Reasoning
from weft.text.parsers.table import choose_reasoning_parser
from weft.text.templates.chat import ChatTemplate
from weft.text.tokenizer import open_tokenizer
from weft.web.chat.run import run_turn
from weft.web.chat.turn import Began, Ended, Turn, TurnDelta
from weft.web.options import ApiOptions
from weft.web.served import Served


@dataclass(slots=True)
class Answer:
    """An answer so far. Times are of `time.monotonic`; `first_at` is the time of the first token."""

    content: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_tokens: int = 0
    num_reasoning_tokens: int = 0
    began_at: float = 0.0
    first_at: float = 0.0
    ended_at: float = 0.0

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second after the first token; None if there is only one."""
        passed_s = self.ended_at - self.first_at
        return (self.num_tokens - 1) / passed_s if self.num_tokens > 1 and passed_s > 0 else None


class Conversation:
    """`messages` are those of OpenAI's API, the `system` message apart; `last` is the answer of the last turn."""

    def __init__(
        self, served: Served, params: SamplingParams, *, system: str | None, thinks: bool | None
    ) -> None:
        self.system = system
        self.messages: list[dict[str, str]] = []
        self.last = Answer()
        self._served = served
        self._params = params
        self._kwargs: dict[str, Any] = {} if thinks is None else {"enable_thinking": thinks}

    @classmethod
    async def open(
        cls,
        stack: AsyncExitStack,
        connect: ConnectOptions,
        sample: SampleOptions,
        *,
        system: str | None,
        thinks: bool | None,
    ) -> "Conversation":
        """Connects to the server and reads the model's properties; refuses invalid parameters."""
        client = await stack.enter_async_context(connected(connect))
        params = to_sampling_params(sample, client, max_tokens=None)
        files = await client.get_tokenizer_files()
        name = client.model_config.served_model_name
        source = read_chat_template(files, name)
        if source is None:
            raise ConfigError(f"{name} has no chat template; use weft complete")
        tokenizer = open_tokenizer(files, name)
        served = Served(
            client=client,
            tokenizer=tokenizer,
            chat_template=stack.enter_context(ChatTemplate(source, tokenizer.special_tokens)),
            started_at=int(time.time()),
            options=ApiOptions(reasoning_parser=choose_reasoning_parser(source)),
        )
        return cls(served, params, system=system, thinks=thinks)

    @property
    def model(self) -> str:
        """Name of the served model."""
        return self._served.client.model_config.served_model_name

    @property
    def all_messages(self) -> list[dict[str, str]]:
        """With the system message."""
        return self._with_system(self.messages)

    def clear(self) -> None:
        """Clears the conversation; the system message stays."""
        self.messages = []
        self.last = Answer()

    def say(self, text: str) -> AsyncGenerator[Reasoning | Content, None]:
        """Yields the answer to `text` in pieces. Closing the generator aborts the answer. The message and the answer
        become part of the conversation: a stopped answer up to its last piece, a message without an answer not at
        all.
        """
        return self._answer(self.messages, text)

    def say_again(self) -> AsyncGenerator[Reasoning | Content, None]:
        """Generates another answer to the last message, which replaces the earlier one."""
        *earlier, question, _ = self.messages
        return self._answer(earlier, question["content"])

    def _with_system(self, messages: list[dict[str, str]]) -> list[dict[str, str]]:
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return first + messages

    async def _answer(
        self, earlier: list[dict[str, str]], text: str
    ) -> AsyncGenerator[Reasoning | Content, None]:
        question = {"role": "user", "content": text}
        turn = Turn(
            options=RequestOptions(request_id=f"cli-{uuid.uuid4().hex}"),
            messages=self._with_system([*earlier, question]),
            params=self._params,
            template_kwargs=self._kwargs,
        )
        self.last = answer = Answer(began_at=time.monotonic())
        try:
            async with aclosing(run_turn(self._served, turn)) as events:
                async for event in events:
                    match event:
                        case Began():
                            answer.num_prompt_tokens = len(event.prompt_token_ids)
                        case TurnDelta():
                            for part in _parts(answer, event):
                                yield part
                        case Ended():
                            answer.num_cached_tokens = event.num_cached_tokens
        finally:
            answer.ended_at = time.monotonic()
            if answer.content:
                said = {"role": "assistant", "content": answer.content}
                self.messages = [*earlier, question, said]


def _parts(answer: Answer, delta: TurnDelta) -> list[Reasoning | Content]:
    """The texts of a delta, which is added to the answer."""
    answer.first_at = answer.first_at or time.monotonic()
    answer.num_tokens += len(delta.token_ids)
    answer.num_reasoning_tokens += delta.num_reasoning_tokens
    answer.finish_reason = delta.finish_reason or answer.finish_reason
    parts = [part for part in delta.parts if isinstance(part, Reasoning | Content)]
    for part in parts:
        if isinstance(part, Reasoning):
            answer.reasoning += part.text
        else:
            answer.content += part.text
    return parts
