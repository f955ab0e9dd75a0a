"""Bytes that are nearly those of a sound file or message, drawn from a seed."""

import random
from collections.abc import Sequence

# Where parsers decide: lengths, signs, ends of texts, and heads of nested values.
_ODD = (
    b"\0", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff" * 8, b'"', b"\\",
    b"[", b"{", b"]", b"}", b",", b":", b"null", b"1e999", b"-1", b"NaN", b"\xed\xa0\x80", b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff", b"\xc0", b"\xc1", b"\xc3", b"\xcb\x7f\xf8\0\0\0\0\0\0", b"\r\n", b"\r\n\r\n",
)  # fmt: skip
_MAX_CHANGES = 6
_MAX_PIECE = 64


def damaged(draw: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds with a few changes, or now and then bytes of nothing at all."""
    if draw.random() < 0.02:
        return draw.randbytes(draw.randrange(_MAX_PIECE))
    data = bytearray(draw.choice(seeds))
    for _ in range(draw.randint(1, _MAX_CHANGES)):
        _change(draw, data, seeds)
    return bytes(data)


def _change(draw: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    # Heads have most of what can be wrong.
    end = min(len(data), 200) if draw.random() < 0.5 else len(data)
    at = draw.randint(0, end)
    length = draw.randrange(_MAX_PIECE) if draw.random() < 0.3 else draw.randrange(3)
    match draw.randrange(6):
        case 0:
            data[at : at + 1] = draw.randbytes(1)
        case 1:
            data[at:at] = draw.choice(_ODD) * draw.choice((1, 1, 1, 40))
        case 2:
            data[at : at + length] = b""
        case 3:
            data[at : at + 4] = draw.choice(_ODD)
        case 4:
            other = draw.choice(seeds)
            start = draw.randint(0, len(other))
            data[at : at + length] = other[start : start + draw.randrange(_MAX_PIECE)]
        case _:
            del data[at:]
