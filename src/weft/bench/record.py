"""Measurements of one request, and the protocol of servers and engines under load."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol, TypeAlias

# Token ids, a text, or the messages of a conversation.
Content: TypeAlias = list[int] | str | tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt to send, and the number of tokens that its answer shall have."""

    content: Content
    output_len: int


class State(Enum):
    """State of a request at its end. A cancelled request counts neither as completed nor as failed."""

    CANCELLED = auto()
    COMPLETED = auto()
    FAILED = auto()


@dataclass(slots=True)
class Record:
    """Measurements of a request. Times are of `time.perf_counter`, durations in seconds.

    `gaps_s` has the time between each two successive messages with tokens. `latency_s` ends at the last message with
    tokens; later messages, such as the usage, do not count. Token numbers are the server's counts, or the numbers of
    token ids if the protocol sends ids.
    """

    arrived_at: float
    started_at: float = 0.0
    ttft_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    latency_s: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    text: str = ""
    state: State = State.CANCELLED
    error: str = ""
    _last_at: float = 0.0

    def start(self) -> None:
        """Records that the request is sent now."""
        self.started_at = self._last_at = time.perf_counter()

    def take(self) -> None:
        """Records that a message with tokens arrived now."""
        now = time.perf_counter()
        if self.latency_s == 0.0:
            self.ttft_s = now - self.started_at
        else:
            self.gaps_s.append(now - self._last_at)
        self._last_at = now
        self.latency_s = now - self.started_at

    @property
    def has_begun(self) -> bool:
        """True if a message with tokens has arrived."""
        return self.latency_s > 0.0

    @property
    def queue_s(self) -> float:
        """Seconds that the request waited in the client for the concurrency limit."""
        return self.started_at - self.arrived_at

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token: (E2EL - TTFT) / (output tokens - 1); None for an answer of one token."""
        if self.output_tokens < 2:
            return None
        return (self.latency_s - self.ttft_s) / (self.output_tokens - 1)


class Target(Protocol):
    """A server or an engine under load."""

    model: str

    async def send(self, prompt: Prompt, record: Record) -> None:
        """Sends the request and records its measurements in `record` until the answer ends. Raises `WeftError` on
        failure.
        """
