import pytest
from grpc import StatusCode

from weft.core.errors import BadRequest, Code, EngineDead, Overloaded, WeftError
from weft.rpc.status import MAX_DETAIL_CHARS, to_detail, to_error, to_status


@pytest.mark.parametrize("code", list(Code))
def test_every_code_has_a_status(code: Code):
    """The table is total."""
    assert isinstance(to_status(code), StatusCode)


@pytest.mark.parametrize("code", list(Code))
def test_code_survives_the_round_trip(code: Code):
    """A client raises an error with the code that the server had."""
    assert to_error(to_status(code), "why").code is code


@pytest.mark.parametrize("status", [s for s in StatusCode if s is not StatusCode.OK])
def test_every_status_becomes_an_error(status: StatusCode):
    """Also those that this server never sends."""
    error = to_error(status, "why")

    assert isinstance(error, WeftError)
    assert str(error) == "why"


def test_long_texts_are_cut():
    """A status travels in a header, and clients refuse long ones."""
    assert len(to_detail(Overloaded("x" * 100_000))) == MAX_DETAIL_CHARS


def test_dead_engine_is_unavailable():
    """Gateways take it out of rotation and ask another one."""
    assert to_status(EngineDead.code) is StatusCode.UNAVAILABLE
    assert to_status(BadRequest.code) is StatusCode.INVALID_ARGUMENT
