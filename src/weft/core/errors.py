"""One hierarchy of errors; each class has a `Code`, and each wire owns one table from `Code` to status."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import ClassVar, Self


class Code(Enum):
    """What went wrong, in terms no wire owns. Every wire maps all of these (a test asserts it)."""

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
    """Base of every error that Weft raises on purpose; its text may be shown to the caller."""

    code = Code.INTERNAL


class Key(str):
    """A field's name inside a message, where an API that calls the field otherwise finds it."""

    __slots__ = ()


class BadRequest(WeftError, ValueError):
    """The caller can fix this; the message says what was wrong and what is allowed.

    It is one text, or parts whose `Key`s name fields. `parameter` is the field at fault, and `api_code` is what APIs
    call the case. A `ValueError` too, so that callers written for other engines catch it.
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
        """The message as it was given."""
        return self._parts

    def renamed(self, names: Mapping[str, str]) -> Self:
        """The same error for an API that has `names` of its own for some fields."""
        parts = [names.get(part, part) if isinstance(part, Key) else part for part in self._parts]
        parameter = None if self.parameter is None else names.get(self.parameter, self.parameter)
        return type(self)(parameter, parts, self.value)


class ContextLengthExceeded(BadRequest):
    """The prompt, or prompt and output together, do not fit the model's context."""

    api_code = "context_length_exceeded"


class NotFound(WeftError):
    """A model, adapter or request that this server does not have; `parameter` is what named it."""

    code = Code.NOT_FOUND

    def __init__(self, message: str = "", parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class AlreadyExists(WeftError):
    """A request id that is already in use by an open request."""

    code = Code.ALREADY_EXISTS


class Unauthenticated(WeftError):
    """No key, or a wrong one."""

    code = Code.UNAUTHENTICATED


class Forbidden(WeftError):
    """What no key opens on this server."""

    code = Code.FORBIDDEN


class FailedPrecondition(WeftError):
    """Right in itself, but not in the engine's present state."""

    code = Code.PRECONDITION


class Overloaded(WeftError):
    """A limit on queued requests or tokens is reached; the same call may succeed later."""

    code = Code.OVERLOADED


class RateLimited(Overloaded):
    """A limit of the caller's key is reached; `retry_after_s` is when it no longer is."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(WeftError):
    """The caller's deadline passed before the work was done."""

    code = Code.DEADLINE


class Unavailable(WeftError):
    """The server is shutting down or not ready; another one may answer."""

    code = Code.UNAVAILABLE


class EngineDead(Unavailable):
    """The engine stopped for good; nothing sent to it will be answered."""

    def __init__(self, message: str = "the engine has stopped; restart the server") -> None:
        super().__init__(message)


class Unsupported(WeftError):
    """Understood, but not offered by this build or this model; the message names it."""

    code = Code.UNSUPPORTED


class GenerationError(WeftError):
    """One request failed inside the engine; the others are not affected."""

    code = Code.INTERNAL


class ConfigError(WeftError):
    """A flag, setting or checkpoint that cannot be served; one line says what, where and what is allowed."""

    code = Code.INVALID
