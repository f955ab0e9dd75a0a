"""The values between the wire and the picker: what was requested, why it was refused, what the response reported."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

# Of all prompts of a request together. Prefixes are compared by these; the rest is counted.
MAX_COMPARED_TOKENS: Final = 2**20


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt in the form that prefix hashing needs. Exactly one of the first three fields is not None.

    `text` is everything that precedes the answer, in order (tools first, then role and content of
    each message). `token_ids` came tokenised and are hashed as they are; `packed` are such ids as
    little-endian uint32.
    """

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    packed: bytes | None = None
    num_left_out: int = 0  # tokens beyond those that are compared; of a text, estimated


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRequest:
    """A request as its parser understood it. `headers` has lower-case names (gRPC: the metadata)."""

    request_id: str
    path: str
    headers: Mapping[str, str]
    parser: str  # type of the parser that read it
    model: str = ""  # empty where the wire has none (gRPC)
    needs_model: bool = False  # the server wants one: the request's own, or one that is filled in
    prompts: tuple[Prompt, ...] = ()
    cache_salt: str = ""
    is_streaming: bool = False
    max_tokens: int | None = None
    num_body_bytes: int = 0
    body: tuple[bytes, ...] = ()  # as it came, for as long as the request is being placed
    media: tuple[
        str, ...
    ] = ()  # what tells each image, video and sound apart; "" where nothing does
    is_grpc: bool = False
    has_adapter: bool = False  # `model` is a LoRA adapter, and no other name for the base model
    is_schedulable: bool = True  # False: any ready endpoint will do (GET, HealthCheck, ...)


class Drop(StrEnum):
    """Values of the dropped-reason header."""

    SATURATED = "rejected-saturated"
    NO_ENDPOINTS = "rejected-no-endpoints"
    SHUTTING_DOWN = "rejected-shutting-down"
    CANCELLED = "rejected-context-cancelled"
    TTL_EXPIRED = "rejected-ttl-expired"
    EVICTED = "evicted"


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
    """A request that is answered here: the HTTP status, a message, and the dropped reason if any.

    `retry_after_s` says when it may be worth another try.
    """

    def __init__(
        self,
        status: int,
        message: str,
        reason: Drop | None = None,
        *,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.status = status
        self.message = message
        self.reason = reason

    @property
    def word(self) -> str:
        """The status in one word."""
        return _WORDS.get(self.status, "Unknown")


class NotRendered(Exception):
    """The server that renders prompts did not say what the tokens are."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts the response reported; None where it did not."""

    num_prompt_tokens: int | None = None
    num_completion_tokens: int | None = None
    num_cached_tokens: int | None = None
