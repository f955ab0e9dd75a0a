"""The hierarchy of errors. Each class has a `Code`; each API protocol has one table from `Code` to status."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Self


class Code(Enum):
    """Kind of an error, independent of any API protocol.

    Every protocol maps each code to a status (a test asserts this).
    """

    INVALID = "invalid"
    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    PRECONDITION = "precondition"
    OVERLOADED = "overloaded"
    DEADLINE = "deadline"
    UNAVAILABLE = "unavailable"
    UNSUPPORTED = "unsupported"
    INTERNAL = "internal"


class WeftError(Exception):
    """Base class of all errors that Weft raises on purpose; the caller may see the text."""

    code = Code.INTERNAL


class Key(str):
    """Name of a field within an error message, so that an API with another name for the field can replace the name."""

    __slots__ = ()


class BadRequest(WeftError, ValueError):
    """A request that the caller can correct; the message says what is wrong and what is allowed.

    The message is one text, or several parts, of which each `Key` names a field. `parameter` is the invalid field, and
    `api_code` is the error code in the APIs. The class is also a `ValueError`, so that callers written for other
    engines catch it.
    """

    code = Code.INVALID
    api_code: ClassVar[str | None] = None

    def __init__(
        self, parameter: str | None, message: str | Sequence[str], value: object = None
    ) -> None:
        self._parts = (message,) if isinstance(message, str) else tuple(message)
        super().__init__("".join(self._parts))
        self.parameter = parameter
        self.value = value

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the message, as the constructor received them."""
        return self._parts

    def renamed(self, names: Mapping[str, str]) -> Self:
        """Returns the same error with other names of fields, for an API that has its own names."""
        parts = [names.get(part, part) if isinstance(part, Key) else part for part in self._parts]
        parameter = None if self.parameter is None else names.get(self.parameter, self.parameter)
        return type(self)(parameter, parts, self.value)


class ContextLengthExceeded(BadRequest):
    """The prompt, or prompt and answer together, are longer than the model's context length."""

    api_code = "context_length_exceeded"


class NotFound(WeftError):
    """A model, adapter or request that this server does not have; `parameter` is the field that named it."""

    code = Code.NOT_FOUND

    def __init__(self, message: str = "", parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class AlreadyExists(WeftError):
    """A request id that a running request already uses."""

    code = Code.ALREADY_EXISTS


class Unauthenticated(WeftError):
    """A missing or wrong API key."""

    code = Code.UNAUTHENTICATED


class Forbidden(WeftError):
    """A call that this server allows to no caller, whatever the API key."""

    code = Code.FORBIDDEN


class FailedPrecondition(WeftError):
    """A valid call that the engine's current state does not allow."""

    code = Code.PRECONDITION


class Overloaded(WeftError):
    """A limit on queued requests or tokens is reached; the same request may succeed later."""

    code = Code.OVERLOADED


class RateLimited(Overloaded):
    """A rate limit of the caller's API key is reached; a retry may succeed after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(WeftError):
    """The caller's deadline passed before the request was done."""

    code = Code.DEADLINE


class Unavailable(WeftError):
    """The server is shutting down or not ready; another server may answer."""

    code = Code.UNAVAILABLE


class ModelLoading(Unavailable):
    """The model of the request is not in memory yet; a retry may succeed after `retry_after_s` seconds."""

    def __init__(self, message: str = "", retry_after_s: float = 5.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ModelNotStarted(WeftError):
    """The model of the request cannot be started; requests for other models are answered."""

    code = Code.INTERNAL


class EngineDead(Unavailable):
    """The engine stopped for good; it answers no further request."""

    def __init__(self, message: str = "the engine has stopped; restart the server") -> None:
        super().__init__(message)


class EngineLost(EngineDead):
    """The engine ended while it ran a request, which another engine can continue.

    An engine of another server must have this `fingerprint`; empty for the engines of one group.
    """

    def __init__(self, message: str, fingerprint: str = "") -> None:
        super().__init__(message)
        self.fingerprint = fingerprint


class EngineDrained(EngineLost):
    """The engine gives up a request, which another engine continues. No failure: the request is not to blame.

    `lent` are the KV transfer parameters with which that engine fetches the request's blocks; None if it computes them.
    """

    def __init__(
        self, message: str, fingerprint: str = "", lent: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message, fingerprint)
        self.lent = lent


class Unsupported(WeftError):
    """A valid request that this build or this model does not offer; the message names the feature."""

    code = Code.UNSUPPORTED


class GenerationError(WeftError):
    """A failure of one request inside the engine; other requests are not affected."""

    code = Code.INTERNAL


class ConfigError(WeftError):
    """A flag, setting or checkpoint that cannot be served; one line says what is wrong, where, and what is allowed."""

    code = Code.INVALID


def for_want_of_memory(error: BaseException) -> Unavailable | None:
    """Returns the error of a request for which the system had no memory or no thread; None for another error."""
    is_no_thread = isinstance(error, RuntimeError) and str(error) == "can't start new thread"
    if is_no_thread or isinstance(error, MemoryError):
        return Unavailable(
            "the server has no memory or thread for this request; send it again later"
        )
    return None
