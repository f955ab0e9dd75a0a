"""Converts vLLM's errors to Weft's by the names of their classes, without side effects."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from weft.core.errors import (
    BadRequest,
    DeadlineExceeded,
    EngineDead,
    FailedPrecondition,
    GenerationError,
    NotFound,
    Overloaded,
    Unavailable,
    Unsupported,
    WeftError,
)

# vLLM raises a bare Exception for a failed call; these texts mean that the operator has not enabled the feature.
_NOT_SET_UP = ("not enabled", "not configured", "not initialized", "must be enabled")

_LATE = "timed out"  # in the text of a call whose workers did not answer
_UNKNOWN = "has no attribute"  # in the text of a call to a method that vLLM's workers lack
_OF_WORKER = re.compile(r"Worker failed with error '(.*)', please check", re.DOTALL)


def _bad_request(error: BaseException, parameter: str | None) -> WeftError:
    named = getattr(error, "parameter", None) or parameter
    text = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
    return BadRequest(named, text if named is None or named in text else f"{named}: {text}")


def _generation_error(error: BaseException, parameter: str | None) -> WeftError:
    cause = error.__cause__
    if cause is None or isinstance(cause, type(error)):
        return GenerationError(str(error) or type(error).__name__)
    return to_weft_error(cause, parameter)


# The first class of the error's MRO that is in the table decides.
TABLE: Mapping[str, Callable[[BaseException, str | None], WeftError]] = {
    "EngineDeadError": lambda _error, _parameter: EngineDead(),
    "EngineGenerateError": _generation_error,
    "VLLMNotFoundError": lambda error, parameter: NotFound(str(error), parameter),
    "QueueOverflowError": lambda error, _parameter: Overloaded(str(error)),
    "MaxQueuedTokensError": lambda error, _parameter: Overloaded(str(error)),
    "ProfilerAlreadyActiveError": lambda error, _parameter: FailedPrecondition(str(error)),
    "RetryableRequestError": lambda error, _parameter: Unavailable(str(error)),
    "VLLMClientError": _bad_request,
    "TimeoutError": lambda error, _parameter: DeadlineExceeded(str(error) or "too late"),
    "NotImplementedError": lambda error, _parameter: Unsupported(str(error) or "not implemented"),
    "ImportError": lambda error, _parameter: Unsupported(f"this server lacks a package: {error}"),
    "ValueError": _bad_request,
    "TypeError": _bad_request,
}


def to_weft_error(error: BaseException, parameter: str | None = None) -> WeftError:
    """Returns the error for the caller. `parameter` names the invalid field if vLLM does not."""
    if isinstance(error, WeftError):
        return error
    for kind in type(error).__mro__:
        if kind.__name__ in TABLE:
            return TABLE[kind.__name__](error, parameter)
    text = str(error) or type(error).__name__
    if parameter is not None and _UNKNOWN in text:
        return BadRequest(parameter, f"{parameter}: {text}")
    if parameter == "lora_path" and (found := _OF_WORKER.search(text)):
        return BadRequest(
            parameter, f"{parameter}: {found[1]}"
        )  # raised for an adapter whose files are invalid
    if _LATE in text:
        return DeadlineExceeded(text)
    if any(words in text for words in _NOT_SET_UP):
        return FailedPrecondition(text)
    return GenerationError(text)


@contextmanager
def translated(parameter: str | None = None) -> Iterator[None]:
    """Converts an error of vLLM inside the `with` block to an error of Weft, and raises it."""
    try:
        yield
    except WeftError:
        raise
    except Exception as error:  # vLLM's exceptions have no common base class
        raise to_weft_error(error, parameter) from error


@contextmanager
def decoding(parameter: str) -> Iterator[None]:
    """Converts an error inside the `with` block to a `BadRequest` about `parameter`, and raises it."""
    try:
        with translated(parameter):
            yield
    except BadRequest as error:
        if str(error).startswith(f"{parameter}:"):
            raise
        raise BadRequest(parameter, f"{parameter}: {error}") from error
    except GenerationError as error:  # any exception of a library that vLLM uses to read media
        raise BadRequest(parameter, f"{parameter}: the data is not in a known format") from error
