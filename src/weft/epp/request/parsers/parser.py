"""The `Parser` protocol, its input, and the error for malformed requests."""

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar

from weft.core.checks.object_ids import store_of
from weft.core.headers import REQUEST_ID, is_grpc
from weft.epp.request.values import InferenceRequest, Refused

_SLASHES = re.compile("//+")
_MAX_REQUEST_ID = 256
MAX_TOKEN_ID = 2**32 - 1  # ids are hashed as 32 bits


class Dialect(Enum):
    """Format in which responses report token usage."""

    NONE = "none"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    VLLM_GRPC = "vllm-grpc"
    SGLANG_GRPC = "sglang-grpc"
    TRTLLM_GRPC = "trtllm-grpc"
    SGLANG = "sglang"
    VERTEX = "vertex"


class Reads(Enum):
    """Parts of a request that a parser needs before routing."""

    BODY = "body"  # headers and body
    HEADERS = "headers"  # headers only: the body is passed on unread
    NOTHING = "nothing"  # neither: any endpoint can serve the request


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request as received."""

    path: str  # without the query and a final slash
    headers: Mapping[str, str]
    request_id: str
    is_grpc: bool
    body: bytes = b""
    store: str = ""  # named by an id in the path or the query
    max_body_bytes: int = 64 * 2**20  # also limits the unpacked size of a compressed body
    # True on the event loop: bodies that take more than a few milliseconds to read are refused (413)
    is_on_loop: bool = False

    @property
    def is_json(self) -> bool:
        """True if the content type is JSON or absent."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        return kind in {"", "application/json"} or kind.endswith("+json")

    def to_request(self, parser: str) -> InferenceRequest:
        """Returns a request without the values that only the body provides."""
        return InferenceRequest(
            request_id=self.request_id,
            path=self.path,
            headers=self.headers,
            parser=parser,
            num_body_bytes=len(self.body),
            is_grpc=self.is_grpc,
            store=self.store,
        )


def path_of(target: str) -> str:
    """Returns the path of a request target, with repeated slashes merged. Parsers are chosen by this path."""
    return _SLASHES.sub("/", target.partition("?")[0]).rstrip("/") or "/"


def to_call(headers: Mapping[str, str], max_body_bytes: int) -> Call:
    """Returns the call with these headers, without its body. A call without a request id gets one."""
    return Call(
        path=path_of(headers.get(":path", "/")),
        headers=headers,
        request_id=headers.get(REQUEST_ID, "")[:_MAX_REQUEST_ID] or uuid.uuid4().hex,
        is_grpc=is_grpc(headers.get("content-type", "")),
        store=store_of(headers.get(":path", "")),
        max_body_bytes=max_body_bytes,
    )


class Parser(ABC):
    """Parser of the requests of one API."""

    type: ClassVar[str]  # type name in configurations
    # Endings of paths that this parser claims, in whole segments; an entry that begins with "/" is a whole path.
    # None: all paths that no other parser claims.
    suffixes: ClassVar[tuple[str, ...]] = ()
    dialect: ClassVar[Dialect]  # how responses report token usage
    model_header: ClassVar[str | None] = None  # header with the model name, if bodies have none

    def reads(self, _path: str) -> Reads:
        """Returns how much of a request to this path the parser needs."""
        return Reads.BODY

    @abstractmethod
    def parse(self, call: Call) -> InferenceRequest:
        """Returns the request. Raises `Refused` with status 400 if the request cannot be parsed."""

    def rename(self, call: Call, _model: str) -> bytes:
        """Returns the body of a parsed request with another model name; unchanged if the API's bodies have no model
        name.
        """
        return call.body


def malformed(message: str) -> Refused:
    """Returns the error for a malformed request; `message` says what is wrong."""
    return Refused(400, message)


def unscheduled(call: Call, parser: str) -> InferenceRequest:
    """Returns a request that any endpoint can serve."""
    return replace(call.to_request(parser), is_schedulable=False)
