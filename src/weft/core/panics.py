"""Turns panics of Rust libraries into Weft's own errors where such a library is called.

In Python a panic is a `BaseException` but no `Exception`: handlers that end one request would miss it, and handlers
for Ctrl-C would catch it. The library itself is sound after a panic and can serve the next call.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def panics_as(make_error: Callable[[str], Exception]) -> Iterator[None]:
    """Context manager: a panic in the block raises the error that `make_error` makes of the panic's first line."""
    try:
        yield
    except BaseException as error:
        raise_panic(error, make_error)
        raise


def raise_panic(error: BaseException, make_error: Callable[[str], Exception]) -> None:
    """Raises the error for a panic; for `except BaseException` clauses on paths where a context manager costs too
    much.
    """
    # Each Rust library has its own panic class, and none exports it.
    if type(error).__name__ == "PanicException":
        first_line, _, _ = str(error).partition("\n")
        raise make_error(first_line[:200]) from error
