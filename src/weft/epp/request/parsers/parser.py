"""The `Parser` protocol, its input, and the error text for malformed requests."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar

from weft.epp.request.values import InferenceRequest, Refused

_SLASHES = re.compile("//+")
MAX_TOKEN_ID = 2**32 - 1  # ids are hashed as 32 bits


class Dialect(Enum):
    """How responses to a parser's requests report usage."""

    NONE = "none"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    VLLM_GRPC = "vllm-grpc"
    SGLANG = "sglang"
    VERTEX = "vertex"


class Reads(Enum):
    """How much of a request a parser needs before routing."""

    BODY = "body"  # all of it
    HEADERS = "headers"  # the body is no business of the picker's, and passes through as it comes
    NOTHING = "nothing"  # nor are the headers: any endpoint will do


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request as it came in."""

    path: str  # without the query, and without a slash at the end
    headers: Mapping[str, str]
    request_id: str
    is_grpc: bool
    body: bytes = b""
    max_body_bytes: int = 64 * 2**20  # also of what a compressed body unpacks to
    # What may take longer than a few milliseconds to read is refused (413)
    is_on_loop: bool = False

    @property
    def is_json(self) -> bool:
        """True if the content type is JSON or absent."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        return kind in {"", "application/json"} or kind.endswith("+json")

    def to_request(self, parser: str) -> InferenceRequest:
        """Returns the request as far as it is known without its body."""
        return InferenceRequest(
            request_id=self.request_id,
            path=self.path,
            headers=self.headers,
            parser=parser,
            num_body_bytes=len(self.body),
            is_grpc=self.is_grpc,
        )


def path_of(target: str) -> str:
    """The path of a request's target, by which a parser claims it. Several slashes are one."""
    return _SLASHES.sub("/", target.partition("?")[0]).rstrip("/") or "/"


class Parser(ABC):
    """Reads one dialect."""

    type: ClassVar[str]  # its name in a configuration
    # Ends of the paths it claims, on whole segments; one that begins with "/" is a whole path. None: whatever is left.
    suffixes: ClassVar[tuple[str, ...]] = ()
    dialect: ClassVar[Dialect]  # how responses report usage
    model_header: ClassVar[str | None] = None  # that names the model, where bodies do not

    def reads(self, _path: str) -> Reads:
        """Returns how much of a request to this path the parser needs."""
        return Reads.BODY

    @abstractmethod
    def parse(self, call: Call) -> InferenceRequest:
        """The request. Raises `Refused` with status 400 when that cannot be read."""

    def rename(self, call: Call, _model: str) -> bytes:
        """The body of a parsed call with another model in it; as it is, where it names none."""
        return call.body


def malformed(message: str) -> Refused:
    """The client can fix this; the message says what was wrong."""
    return Refused(400, message)


def unscheduled(call: Call, parser: str) -> InferenceRequest:
    """Any endpoint will do."""
    return replace(call.to_request(parser), is_schedulable=False)
