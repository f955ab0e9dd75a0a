"""gRPC's framing: messages in pieces of any size, and the texts of errors."""

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.epp.server.http2.framing import Deframer, UnreadableMessage, framed, timeout_s, trailers


@given(
    st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(1, 30), min_size=1, max_size=8)
)  # fmt: skip
def test_messages_are_the_same_in_pieces_of_any_size(messages: list[bytes], sizes: list[int]):
    """However the bytes are cut."""
    data = b"".join(map(framed, messages))
    deframer, found, at, number = Deframer(100), [], 0, 0
    while at < len(data):
        size = sizes[number % len(sizes)]
        found += deframer.feed(data[at : at + size])
        at, number = at + size, number + 1
    assert found == messages
    assert deframer.is_between


@pytest.mark.parametrize(
    ("head", "code", "said"),
    [
        (b"\1\0\0\0\1", grpc.StatusCode.UNIMPLEMENTED, "grpc-encoding must be identity"),
        (b"\0\0\0\0\x65", grpc.StatusCode.RESOURCE_EXHAUSTED, "101 bytes; at most 100"),
    ],
)
def test_a_message_that_is_not_taken_is_refused_by_its_head(
    head: bytes, code: grpc.StatusCode, said: str
):
    """Before its bytes are held."""
    with pytest.raises(UnreadableMessage, match=said) as caught:
        list(Deframer(100).feed(head))
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(b"3S", 3.0), (b"250m", 0.25), (b"1H", 3600.0), (b"", None), (b"S", None), (b"123456789S", None), (b"-1S", None)],
)  # fmt: skip
def test_the_time_of_a_call_has_a_unit(text: bytes, seconds: float | None):
    """A header that is no time sets no limit."""
    assert timeout_s({b"grpc-timeout": text}) == seconds


def test_details_of_an_error_are_escaped():
    """As gRPC's trailers ask: what is no printable ASCII, and the percent sign."""
    found = dict(trailers(grpc.StatusCode.INTERNAL, "50% of ü\n"))
    assert found == {b"grpc-status": b"13", b"grpc-message": b"50%25 of %C3%BC%0A"}
