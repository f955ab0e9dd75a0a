"""Compressed bodies and frames: what they cost, and what is refused of them."""

import gzip
import time
import zlib

import pytest

from weft.epp.request.parsers.payload import MAX_STREAMS, inflate, unpack
from weft.epp.request.values import Refused

EMPTY = gzip.compress(b"")
PLAIN = bytes(range(256)) * 400
LIMIT = 64 * 2**20


def seconds_of(data: bytes) -> float:
    """CPU time until it is refused."""
    started = time.thread_time()
    with pytest.raises(Refused, match="more than 1024 gzip streams"):
        inflate(data, "gzip", LIMIT)
    return time.thread_time() - started


def test_empty_members_cost_no_more_in_a_larger_body():
    """Each used to copy all that followed it: twice the body took four times as long."""
    count = 2 * MAX_STREAMS
    small = min(seconds_of(EMPTY * count) for _ in range(3))
    large = min(seconds_of(EMPTY * count * 64) for _ in range(3))
    assert large < 8 * small


def test_members_that_are_many_are_refused_in_a_frame_as_well():
    """gRPC's messages are unpacked by the same rule."""
    with pytest.raises(
        Refused, match="invalid gRPC payload: more than 1024 gzip streams"
    ) as caught:
        unpack(EMPTY * (MAX_STREAMS + 1), "gzip", LIMIT)
    assert caught.value.status == 400


def test_as_many_members_as_are_allowed_are_one_body():
    """As bgzip and concatenated files write them."""
    data = b"".join(gzip.compress(b"%d;" % i) for i in range(MAX_STREAMS))
    assert inflate(data, "gzip", LIMIT) == b"".join(b"%d;" % i for i in range(MAX_STREAMS))


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("num_copies", [1, 2, 40])
def test_streams_in_a_row_are_one_body(encoding: str, num_copies: int):
    """Wherever the pieces in which they are read are cut."""
    one = gzip.compress(PLAIN) if encoding == "gzip" else zlib.compress(PLAIN, 0)
    assert inflate(one * num_copies, encoding, LIMIT) == PLAIN * num_copies


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "ends early"),
        (gzip.compress(PLAIN)[:-1], "ends early"),
        (gzip.compress(PLAIN) + b"more", "not gzip"),
        (b"plain text", "not gzip"),
    ],
)
def test_what_is_no_stream_is_refused(data: bytes, words: str):
    """With the reason."""
    with pytest.raises(Refused, match=words) as caught:
        inflate(data, "gzip", LIMIT)
    assert caught.value.status == 400


def test_a_body_stops_growing_at_its_bound():
    """Over all its members together."""
    assert inflate(gzip.compress(bytes(100)) * 3, "gzip", 300) == bytes(300)
    with pytest.raises(Refused, match="more than 299 bytes") as caught:
        inflate(gzip.compress(bytes(100)) * 3, "gzip", 299)
    assert caught.value.status == 413
