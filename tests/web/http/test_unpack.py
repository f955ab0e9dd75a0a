"""Compressed bodies: read as what they unpack to, within the bounds of a body that is not."""

import asyncio
import gzip
import json
import zlib

import pytest

from tests.web.http.serving import serving
from weft.core.checks.json_pieces import SLICE_BYTES
from weft.core.errors import BadRequest
from weft.web.http.body import read_body
from weft.web.http.options import HttpOptions
from weft.web.http.unpack import Unpacker

JSON = {"content-type": "application/json"}
BODY = json.dumps({"max_tokens": 2}).encode()
PATH = "/test/chat/completions"
MIB = 2**20


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("GZIP", gzip.compress),
        ("deflate", zlib.compress),
    ],
)
async def test_a_compressed_body_is_what_it_unpacks_to(site, encoding: str, pack):
    """Whoever sent it."""
    headers = {**JSON, "content-encoding": encoding}
    answer = await site.http.post(PATH, content=pack(BODY), headers=headers)
    assert (answer.status_code, len(answer.json()["token_ids"])) == (200, 2)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        BODY,
        gzip.compress(BODY)[:-1],
        gzip.compress(BODY) + b"x",
        gzip.compress(BODY) + gzip.compress(b" "),
        gzip.compress(b"not JSON"),
        gzip.compress(b'{"max_tokens": 2, "max_tokens": 2}'),
        gzip.compress(b"\xff"),
        zlib.compress(BODY),
    ],
    ids=["empty", "plain", "cut", "more", "two", "no JSON", "twice", "no UTF-8", "deflate"],
)
async def test_what_does_not_unpack_to_a_plain_body_is_refused(site, body: bytes):
    """With a sentence; the next caller is served."""
    headers = {**JSON, "content-encoding": "gzip"}
    answer = await site.http.post(PATH, content=body, headers=headers)
    await site.check_canary()
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


async def test_the_limit_is_of_what_a_body_unpacks_to():
    """Some kilobytes of zeros would be gigabytes."""
    bomb = gzip.compress(b'{"x": "' + b"0" * 64 * MIB + b'"}')
    headers = {**JSON, "content-encoding": "gzip"}
    async with serving(max_body_bytes=MIB) as site:
        answer = await site.http.post(PATH, content=bomb, headers=headers)
        whole = gzip.compress(b'{"max_tokens": 2' + b" " * (MIB - 100) + b"}")
        fits = await site.http.post(PATH, content=whole, headers=headers)
    assert len(bomb) < MIB // 8
    assert (answer.status_code, fits.status_code) == (413, 200)


def test_unpacking_gives_others_a_turn():
    """A piece at a time, however much is in a packet; and it stops where the caller does."""
    pieces = Unpacker("gzip").feed(gzip.compress(b"0" * 1000 * MIB, 1))
    assert max(len(piece) for piece, _ in zip(pieces, range(5), strict=False)) <= SLICE_BYTES


async def test_a_body_in_small_packets_is_unpacked():
    """Also a stream's end that comes by itself."""
    packed = gzip.compress(BODY)
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Encoding: gzip\r\n"
    async with serving() as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(
            f"{head}Content-Type: application/json\r\nContent-Length: {len(packed)}\r\n\r\n".encode()
        )
        for at in range(len(packed)):
            writer.write(packed[at : at + 1])
            await writer.drain()
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_an_end_inside_a_stream_is_found():
    """Not before the end of the body, for more may come."""
    unpacker = Unpacker("deflate")
    assert b"".join(unpacker.feed(zlib.compress(BODY)[:-2])) in BODY
    with pytest.raises(BadRequest, match="ends inside its deflate stream"):
        unpacker.end()


async def test_a_form_that_unpacks_to_megabytes_gives_others_a_turn():
    """As JSON does, which is looked at on the way; a form has nothing to be looked at."""
    packet = {"type": "http.request", "body": gzip.compress(b"0" * 8 * MIB), "more_body": False}

    async def receive():
        return packet

    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(count())
    headers = {"content-encoding": "gzip"}
    body = await read_body(receive, headers, HttpOptions(), None, lambda _: None)
    other.cancel()
    assert len(body) == 8 * MIB
    assert turns >= 8 * MIB // SLICE_BYTES
