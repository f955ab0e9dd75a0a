"""Converts panics of Rust libraries into Weft's own errors where such a library is called.

In Python a panic is a `BaseException` but no `Exception`: handlers that end one request would miss the panic, and
handlers for Ctrl-C would catch it. The library itself stays usable after a panic.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def panics_as(make_error: Callable[[str], Exception]) -> Iterator[None]:
    """Context manager: for a panic in the block, raises the error that `make_error` makes of the panic's first line."""
    try:
        yield
    except BaseException as error:
        raise_panic(error, make_error)
        raise


def raise_panic(error: BaseException, make_error: Callable[[str], Exception]) -> None:
    """Raises the error of `make_error` if `error` is a panic of a Rust library; otherwise returns.

    For `except BaseException` clauses on paths where a context manager costs too much.
    """
    # Each Rust library has its own panic class, and no library exports its class.
    if type(error).__name__ == "PanicException":
        first_line, _, _ = str(error).partition("\n")
        raise make_error(first_line[:200]) from error
