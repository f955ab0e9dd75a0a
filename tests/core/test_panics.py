"""Panics of Rust libraries end what caused them, and nothing else."""

import pytest

from weft.core.errors import BadRequest
from weft.core.panics import panics_as


class PanicException(BaseException):
    """As every library made with PyO3 has one of its own."""


def refusal(reason: str) -> BadRequest:
    """What a caller is told."""
    return BadRequest("prompt", f"it gave up: {reason}")


def test_a_panic_becomes_an_error_of_ours():
    """With its first line, and never with a text of any length."""
    with pytest.raises(BadRequest, match=r"^it gave up: over$"), panics_as(refusal):
        raise PanicException("over\nstack backtrace: 0x1234")
    with pytest.raises(BadRequest) as caught, panics_as(refusal):
        raise PanicException("x" * 10_000)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_everything_else_passes(error):
    """Ctrl-C is no panic."""
    with pytest.raises(error), panics_as(refusal):
        raise error
