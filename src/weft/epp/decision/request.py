"""The values between the wire and the picker: what was asked, what was decided, why it was refused."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, in the form prefix hashing needs. Exactly one of the two is not None.

    `text` is everything that precedes the answer, in order (tools first, then role and content of
    each message). `token_ids` came tokenised and are hashed as they are.
    """

    text: str | None = None
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRequest:
    """A request as its parser understood it. `headers` has lower-case names (gRPC: the metadata)."""

    request_id: str
    path: str
    headers: Mapping[str, str]
    parser: str  # type of the parser that read it
    model: str = ""  # empty where the wire has none (gRPC)
    prompts: tuple[Prompt, ...] = ()
    cache_salt: str = ""
    is_streaming: bool = False
    max_tokens: int | None = None
    num_body_bytes: int = 0
    num_media: int = 0  # images, videos and sounds among the prompts
    is_grpc: bool = False
    has_adapter: bool = False  # `model` is a LoRA adapter, and no other name for the base model
    is_schedulable: bool = True  # False: any ready endpoint will do (GET, HealthCheck, ...)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Where a request goes. Addresses are "host:port", IPv6 in brackets."""

    endpoints: tuple[str, ...]  # the destination first; more only when a picker was told to
    set_headers: Mapping[str, str] = field(default_factory=dict)  # for the model server
    response_headers: Mapping[str, str] = field(default_factory=dict)  # for the client
    metadata: Mapping[str, Any] = field(
        default_factory=dict
    )  # in dynamic metadata, under "envoy.lb"
    rewritten_model: str | None = None  # the body must name this model instead
    tracks_response: bool = False  # some plugin or metric needs the response phase
    ticket: object = None  # the director's own; comes back with the response's events


class Drop(StrEnum):
    """Values of the dropped-reason header."""

    SATURATED = "rejected-saturated"
    NO_ENDPOINTS = "rejected-no-endpoints"
    SHUTTING_DOWN = "rejected-shutting-down"
    CANCELLED = "rejected-context-cancelled"


# HTTP status to the word for it, in bodies and metrics.
_WORDS: Final = MappingProxyType({
    400: "BadRequest",
    404: "NotFound",
    412: "PreconditionFailed",
    413: "PayloadTooLarge",
    415: "UnsupportedMediaType",
    429: "ResourceExhausted",
    431: "BadRequest",
    500: "Internal",
    503: "ServiceUnavailable",
    504: "Timeout",
})  # fmt: skip


class Refused(Exception):
    """A request that is answered here: the HTTP status, a message, and the dropped reason if any."""

    def __init__(self, status: int, message: str, reason: Drop | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason

    @property
    def word(self) -> str:
        """The status in one word."""
        return _WORDS.get(self.status, "Unknown")


class Ending(StrEnum):
    """How the response phase ended."""

    NATURAL = "natural"
    DISCONNECTED = "client-disconnected"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts the response told; None where it did not."""

    num_prompt_tokens: int | None = None
    num_completion_tokens: int | None = None
    num_cached_tokens: int | None = None
