"""The answer to a message with its token counts and times, and the protocol of a model behind gRPC or HTTP."""

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from weft.text.parsers.parts import Content, Reasoning

# A server joins tokens that it generates quickly, and messages may wait for this process: a shorter time says
# nothing about the speed.
_MIN_MEASURED_S = 0.1

Messages: TypeAlias = list[dict[str, Any]]


@dataclass(slots=True)
class Answer:
    """An answer, as far as it has arrived. Times are of `time.monotonic`; `first_at` and `last_at` are the times of the
    first and the last message with tokens. `num_first` is the number of tokens in the first message.
    """

    content: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_tokens: int = 0
    num_reasoning_tokens: int = 0
    num_first: int = 0
    began_at: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    ended_at: float = 0.0

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second after the first message with tokens. If the last message arrives within 0.1 s of the first,
        the speed is that of the whole request.
        """
        passed_s = self.last_at - self.first_at
        if passed_s >= _MIN_MEASURED_S:
            return (self.num_tokens - self.num_first) / passed_s
        whole_s = self.ended_at - self.began_at
        return self.num_tokens / whole_s if self.num_tokens and whole_s > 0 else None

    def arrive(self) -> bool:
        """Records the arrival time of a message with tokens; returns True for the first such message."""
        self.last_at = time.monotonic()
        is_first = not self.first_at
        self.first_at = self.first_at or self.last_at
        return is_first

    def add(self, part: Reasoning | Content) -> None:
        """Appends a part of the reasoning or the content."""
        if isinstance(part, Reasoning):
            self.reasoning += part.text
        else:
            self.content += part.text


class ServedModel(Protocol):
    """A model on a server that answers the messages of a conversation."""

    @property
    def name(self) -> str:
        """Name of the served model."""
        ...

    def answer(
        self, messages: Messages, answer: Answer
    ) -> AsyncGenerator[Reasoning | Content, None]:
        """Yields the parts of the model's answer to `messages` as they arrive; appends each part to `answer` before it
        is yielded.
        """
        ...
