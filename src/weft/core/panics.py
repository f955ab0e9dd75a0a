"""Panics of Rust libraries, made errors of ours where such a library is called.

Python sees a panic as an exception that is no `Exception`: what ends a request would not see it, and what
looks for Ctrl-C would. The library itself is sound afterwards, and serves the next call.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def panics_as(make_error: Callable[[str], Exception]) -> Iterator[None]:
    """In this block a panic raises what `make_error` makes of its first line."""
    try:
        yield
    except BaseException as error:
        raise_panic(error, make_error)
        raise


def raise_panic(error: BaseException, make_error: Callable[[str], Exception]) -> None:
    """The same where a block is entered for every request: for its `except BaseException`."""
    # Every such library has a class of its own, and none exports it.
    if type(error).__name__ == "PanicException":
        first_line, _, _ = str(error).partition("\n")
        raise make_error(first_line[:200]) from error
