"""Values that the protocols and the picker share: parsed requests, refusals, and reported usage."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

# Maximum number of tokens compared, for all prompts of a request together; further tokens are only counted.
MAX_COMPARED_TOKENS: Final = 2**20


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt in the form that prefix hashing needs.

    Exactly one of the first three fields is not None. `text` is everything before the answer, in order (tools first,
    then role and content of each message). `token_ids` were sent by the client and are hashed unchanged; `packed` are
    such ids as little-endian uint32.
    """

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    packed: bytes | None = None
    num_left_out: int = 0  # number of tokens that are not compared; estimated for text


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRequest:
    """A parsed request. `headers` has lower-case names (for gRPC: the metadata)."""

    request_id: str
    path: str
    headers: Mapping[str, str]
    parser: str  # type name of the parser
    model: str = ""  # empty if the protocol has no model name (gRPC)
    needs_model: bool = False  # True if the server needs a model name: the request's, or a default
    prompts: tuple[Prompt, ...] = ()
    cache_salt: str = ""
    is_streaming: bool = False
    max_tokens: int | None = None
    num_body_bytes: int = 0
    body: tuple[bytes, ...] = ()  # the body as received, kept until the request is scheduled
    media: tuple[str, ...] = ()  # hash of each image, video and sound; empty string if unknown
    is_grpc: bool = False
    has_adapter: bool = False  # True if `model` names a LoRA adapter, not the base model
    # Name of the store of the objects that the request names; empty if it names none.
    store: str = ""
    is_schedulable: bool = True  # False: any ready endpoint can serve it (GET, HealthCheck, ...)


class Drop(StrEnum):
    """Values of the header that gives the reason for a dropped request."""

    SATURATED = "rejected-saturated"
    NO_ENDPOINTS = "rejected-no-endpoints"
    SHUTTING_DOWN = "rejected-shutting-down"
    CANCELLED = "rejected-context-cancelled"
    TTL_EXPIRED = "rejected-ttl-expired"
    EVICTED = "evicted"


# Error word of each HTTP status, in bodies and metrics.
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
    """Error: the picker answers the request itself, with an HTTP status, a message, and the reason of the drop, if any.

    `retry_after_s` suggests when to retry.
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
        """The error type of the status, as written in bodies and metrics."""
        return _WORDS.get(self.status, "Unknown")


class NotRendered(Exception):
    """Error: the render server did not return token ids."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts that the response reported; a count that it did not report is None."""

    num_prompt_tokens: int | None = None
    num_completion_tokens: int | None = None
    num_cached_tokens: int | None = None
