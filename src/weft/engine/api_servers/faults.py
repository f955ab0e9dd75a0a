"""`Fault`: an error in a form that is sent between processes."""

import msgspec

from weft.core import errors
from weft.core.errors import BadRequest, GenerationError, Key, NotFound, RateLimited, WeftError

_KINDS = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, WeftError)
}


class Fault(msgspec.Struct, frozen=True, array_like=True):
    """A `WeftError` as its class name and the parts of its message; True marks a part that is the name of a field."""

    kind: str
    parts: list[tuple[str, bool]]
    parameter: str | None = None
    retry_after_s: float | None = None

    @classmethod
    def of(cls, error: WeftError) -> "Fault":
        """Returns the fault for an error, without the error's cause and the values that it quotes."""
        parts = error.parts if isinstance(error, BadRequest) else (str(error),)
        parameter = error.parameter if isinstance(error, BadRequest | NotFound) else None
        marked = [(str(part), isinstance(part, Key)) for part in parts]
        retry_after_s = error.retry_after_s if isinstance(error, RateLimited) else None
        return cls(type(error).__name__, marked, parameter, retry_after_s)

    def to_error(self) -> WeftError:
        """Returns an error of the fault's class and with its message."""
        parts = [Key(text) if is_key else text for text, is_key in self.parts]
        kind = _KINDS.get(self.kind, GenerationError)
        if issubclass(kind, BadRequest):
            return kind(self.parameter, parts)
        if issubclass(kind, NotFound):
            return kind("".join(parts), self.parameter)
        if issubclass(kind, RateLimited) and self.retry_after_s is not None:
            return kind("".join(parts), self.retry_after_s)
        return kind("".join(parts))
