"""A conversation with a served model: its messages, and the sampling parameters of all its requests."""

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

from weft.cli.chat.attachments import Said
from weft.cli.chat.connect import is_http
from weft.cli.chat.grpc_model import GrpcModel
from weft.cli.chat.http_model import HttpModel
from weft.cli.chat.model_answer import Answer, Messages, ServedModel
from weft.cli.options import ConnectOptions, SampleOptions
from weft.text.parsers.parts import Content, Reasoning


class Conversation:
    """A conversation. `messages` are in the format of OpenAI's API, without the `system` message; `last` is the answer
    of the last turn.
    """

    def __init__(self, served: ServedModel, *, system: str | None) -> None:
        self.system = system
        self.messages: Messages = []
        self.last = Answer()
        self._served = served

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
        """Connects to the server with the protocol of the address. Raises an error for invalid parameters."""
        kind = HttpModel if is_http(connect.address) else GrpcModel
        served: ServedModel = await kind.open(stack, connect, sample, thinks=thinks)
        return cls(served, system=system)

    @property
    def model(self) -> str:
        """Name of the served model."""
        return self._served.name

    @property
    def all_messages(self) -> Messages:
        """The messages, the system message first if there is one."""
        return self._with_system(self.messages)

    def clear(self) -> None:
        """Removes all messages but the system message."""
        self.messages = []
        self.last = Answer()

    def say(self, said: Said) -> AsyncGenerator[Reasoning | Content, None]:
        """Yields the parts of the answer to the message `said`. Closing the generator aborts the answer. The message
        and the answer are appended to the conversation; a stopped answer up to its last part. A message without an
        answer is not appended.
        """
        return self._answer(self.messages, said)

    def say_again(self) -> AsyncGenerator[Reasoning | Content, None]:
        """Generates another answer to the last message, which replaces the earlier one."""
        *earlier, question, _ = self.messages
        return self._answer(earlier, question["content"])

    def _with_system(self, messages: Messages) -> Messages:
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return first + messages

    async def _answer(
        self, earlier: Messages, said: Said
    ) -> AsyncGenerator[Reasoning | Content, None]:
        question = {"role": "user", "content": said}
        self.last = answer = Answer(began_at=time.monotonic())
        messages = self._with_system([*earlier, question])
        try:
            async with aclosing(self._served.answer(messages, answer)) as parts:
                async for part in parts:
                    yield part
        finally:
            answer.ended_at = time.monotonic()
            if answer.content:
                reply = {"role": "assistant", "content": answer.content}
                self.messages = [*earlier, question, reply]
