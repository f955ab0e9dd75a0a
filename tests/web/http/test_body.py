"""Bodies: what is refused, with which status and parameter, and that the next caller does not notice."""

import asyncio
import gzip
import json
import tracemalloc
from typing import Literal

import msgspec
import pytest

from tests.busy import PATIENCE_S
from tests.web.http.serving import serving, until_closed
from weft.core.checks.json_pieces import SLICE_BYTES
from weft.core.errors import BadRequest
from weft.web.http.body import FREE_BYTES, MAX_PARTS, MAX_VALUES, BodyScan, decode_body
from weft.web.http.problem import HttpError

JSON = {"content-type": "application/json"}


class Inner(msgspec.Struct):
    """A part of a body."""

    x: int = 0


class Body(msgspec.Struct):
    """A body."""

    name: str = ""
    parts: list[Inner] = []
    number: float = 0.0


BAD = {
    "empty": b"",
    "blank": b" \n",
    "null": b"null",
    "array": b"[]",
    "string": b'"{}"',
    "not json": b"hello",
    "cut": b'{"name": "a',
    "trailing": b"{} {}",
    "single quotes": b"{'name': 1}",
    "comment": b"{} // x",
    "bom": b"\xef\xbb\xbf{}",
    "utf-16": '{"name":"a"}'.encode("utf-16"),
    "not utf-8": b'{"name":"\xff"}',
    "not utf-8 in an unknown field": b'{"zzz":"\xff"}',
    "overlong utf-8": b'{"name":"\xc0\xaf"}',
    "lone surrogate": b'{"name":"\\ud800"}',
    "control character": b'{"name":"a\nb"}',
    "nan": b'{"number":NaN}',
    "nan in an unknown field": b'{"zzz":NaN}',
    "infinity": b'{"number":-Infinity}',
    "1e400": b'{"number":1e400}',
    "leading zero": b'{"number":01}',
    "20k deep": b'{"zzz":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "100k deep": b'{"zzz":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    "100k open": b'{"parts":' + b"[" * 100_000,
    "same key": b'{"name":"a","name":"a"}',
    "same key escaped": b'{"name":"a","n\\u0061me":"b"}',
    "same key inside": b'{"zzz":[{"a":1},{"a":1,"b":{"a":1},"a":2}]}',
    "same key after a quote": b'{"a\\"":1,"b":"\\\\","a\\"":2}',
}


def scanned(body: bytes, piece_bytes: int = SLICE_BYTES) -> BodyScan:
    """The scan of a body that comes in pieces of that length."""
    scan = BodyScan()
    for start in range(0, len(body), piece_bytes):
        end = start + piece_bytes
        scan.feed(body[start:end], is_last=end >= len(body))
    return scan


def read(body: bytes, piece_bytes: int = SLICE_BYTES, kind: type = Body) -> object:
    """What a server makes of a body that comes in pieces of that length."""
    return decode_body(body, kind, long_strings=scanned(body, piece_bytes).long_strings)


@pytest.mark.parametrize("piece_bytes", [1, 3, SLICE_BYTES])
@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_what_is_not_plain_json_is_refused(body: bytes, piece_bytes: int):
    """Rows 1 to 4, 19 and 21; however it is cut into pieces."""
    with pytest.raises((BadRequest, HttpError)):
        read(body, piece_bytes)


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        (b'{"name":1}', "name"),
        (b'{"name":true}', "name"),
        (b'{"parts":{}}', "parts"),
        (b'{"parts":[{},{"x":"1"}]}', "parts[1].x"),
        (b'{"parts":[{"x":1.0}]}', "parts[0].x"),
        (b'{"parts":[{"x":true}]}', "parts[0].x"),
        (b'{"number":"1"}', "number"),
    ],
)
def test_the_parameter_at_fault_is_named(body: bytes, parameter: str):
    """Row 39: strict types, and the path to where it is wrong."""
    with pytest.raises(BadRequest) as caught:
        decode_body(body, Body)
    assert caught.value.parameter == parameter


def test_a_refusal_does_not_repeat_megabytes():
    """The decoder's sentence holds the value that it does not know."""

    class Named(msgspec.Struct):
        inner: dict[str, Literal["a"]]

    with pytest.raises(BadRequest) as caught:
        decode_body(b'{"inner":{"x":"' + b"b" * 10_000 + b'"}}', Named)
    assert len(str(caught.value)) < 300
    assert caught.value.parameter == "inner[...]"


class Tagged(msgspec.Struct, tag="tagged"):
    """One of two kinds."""


class Other(msgspec.Struct, tag="other"):
    """The other."""


class Counted(msgspec.Struct):
    """A body without words."""

    name: str
    number: int


class Worded(msgspec.Struct):
    """A body with words, which are Cohere's, OpenAI's and Anthropic's ways to name a choice."""

    name: str
    word: Literal["a", "b"] | None = None
    words: dict[str, Literal["a"]] = {}
    tagged: Tagged | Other | None = None


@pytest.mark.parametrize("piece", [b"a", b"\\u4e2d", "😀".encode()])
@pytest.mark.parametrize(
    ("field", "parameter"),
    [
        (b'"word":%s', "word"),
        (b'"words":{"x":%s}', "words[...]"),
        (b'"tagged":{"type":%s}', "tagged.type"),
    ],
)
def test_a_long_text_in_place_of_a_word_is_never_decoded(field, parameter, piece):
    """The decoder would repeat it in its sentence, which holds the event loop; long texts elsewhere are read."""
    text = b'"' + piece * SLICE_BYTES * 3 + b'"'
    body = b'{"name":%s,%s,"number":1}' % (text, field % text)
    with pytest.raises(BadRequest, match=r"value '\.\.\.'") as caught:
        read(body, kind=Worded)
    assert caught.value.parameter == parameter
    assert len(read(b'{"name":%s,"word":"b"}' % text, kind=Worded).name) >= 3 * SLICE_BYTES
    with pytest.raises(BadRequest, match="Expected `int`"):
        read(b'{"name":%s,"number":%s}' % (text, text), kind=Counted)


def test_a_missing_field_is_named():
    """With the path to the object that lacks it."""

    class Outer(msgspec.Struct):
        inner: Body
        needed: int

    with pytest.raises(BadRequest) as caught:
        decode_body(b'{"inner":{}}', Outer)
    assert caught.value.parameter == "needed"


def test_unknown_fields_are_no_error_of_the_body():
    """Row 20: what becomes of them is for who asked (`test_strictness`)."""
    assert decode_body(b'{"zzz":1}', Body) == Body()


@pytest.mark.parametrize(
    "text", ["{", "}", '"', "\\", ":", '":', "a\u0000b", "é😀", '{"a":1,"a":1}']
)
def test_text_may_hold_anything(text: str):
    """What looks like structure inside a string is none."""
    body = json.dumps({"name": text, text: 1, "parts": []}).encode()
    assert read(body).name == read(body, piece_bytes=1).name == text


LONG = b"a" * SLICE_BYTES
TOO_MUCH = {
    "arrays": b"[" + b"[1]," * MAX_PARTS + b"1]",
    "objects": b"[" + b"{}," * MAX_PARTS + b"{}]",
    "keys": b"{" + b",".join(b'"%d":1' % number for number in range(MAX_PARTS + 1)) + b"}",
    "numbers": b"[" + b"1," * (MAX_VALUES + 1) + b"1]",
    "strings": b"[" + b'"",' * (MAX_VALUES + 1) + b'""]',
    "open arrays": b"[" * (MAX_PARTS + 1),
    "colons": b":" * (MAX_PARTS + 1),
}


@pytest.mark.parametrize("zzz", TOO_MUCH.values(), ids=TOO_MUCH.keys())
def test_a_body_of_too_many_values_is_refused(zzz: bytes):
    """Decoding it would hold up everybody else."""
    with pytest.raises(HttpError, match="more than") as caught:
        read(b'{"zzz":' + zzz + b"}")
    assert caught.value.status == 413


def test_what_looks_like_values_inside_a_text_counts_for_nothing():
    """Prose has commas, and prompts quote programs."""
    text = "[{,:" * MAX_VALUES
    assert read(json.dumps({"name": text}).encode()).name == text


@pytest.mark.parametrize("pad", range(-3, 4))
@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        (b"", b"", "%s"),
        (b"\\\\", b'\\"', '\\%s"'),
        ("é".encode(), "😀".encode(), "é%s😀"),
    ],
    ids=["plain", "escaped", "wide"],
)
def test_a_string_may_lie_across_pieces(before, after, name, pad):
    """Wherever the border falls: in a quote, an escape, a character, before a colon."""
    text = b"a" * (2 * SLICE_BYTES + pad)
    body = b'{"name":"' + before + text + after + b'" , "number" \n: 1}'
    assert read(body).name == name % text.decode()
    ((begin, end),) = scanned(body).long_strings
    assert body[begin:end] == b'"' + before + text + after + b'"'
    with pytest.raises(BadRequest, match="duplicate key"):
        read(body[:-1] + b', "number":2}')


def test_a_key_may_not_be_a_book():
    """Keys are compared with each other, whole."""
    with pytest.raises(BadRequest, match="a key has more than"):
        read(b'{"' + LONG + LONG + b'":1}')
    with pytest.raises(BadRequest, match="a key has more than"):
        read(b'{"' + LONG + LONG + b'"' + LONG.replace(b"a", b" ") + b":1}")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/jsonx"},
        {"content-type": "multipart/form-data; boundary=x"},
        JSON | {"content-encoding": "br"},
        JSON | {"content-encoding": "gzip, gzip"},
    ],
    ids=range(7),
)
async def test_a_body_of_another_kind_is_refused(site, headers):
    """Rows 6 and 10: a page of another origin can send the first ones without asking."""
    body = gzip.compress(b"{}")
    answer = await site.http.post("/test/chat/completions", content=body, headers=headers)
    await site.check_canary()
    assert answer.status_code == 415
    assert answer.json()["error"]["code"] == "unsupported_media_type"


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8"])
async def test_json_is_json_in_any_spelling(site, kind: str):
    """Parameters and capitals mean nothing."""
    answer = await site.http.post(
        "/test/chat/completions", content=b"{}", headers={"content-type": kind}
    )
    assert answer.status_code == 200


async def chunks(number: int, size: int):
    """A body without a length."""
    for _ in range(number):
        yield b" " * size


async def test_a_body_over_the_limit_is_refused():
    """Row 5: by its length and by what has come; one byte less is read."""
    limit = 100_000
    async with serving(max_body_bytes=limit, linger_s=PATIENCE_S) as site:
        url = "/test/chat/completions"
        fits = await site.http.post(url, content=b"{}".ljust(limit), headers=JSON)
        declared = await site.http.post(url, content=b"{}".ljust(limit + 1), headers=JSON)
        streamed = await site.http.post(url, content=chunks(101, 1000), headers=JSON)
        other = await site.http.post("/v1/messages/test", content=chunks(101, 1000), headers=JSON)
        await site.check_canary()
    assert fits.status_code == 200
    assert (declared.status_code, streamed.status_code) == (413, 413)
    assert declared.json()["error"]["code"] == "request_too_large"
    assert other.json()["error"]["type"] == "request_too_large"


async def test_large_bodies_at_once_are_bounded_and_small_ones_still_read():
    """What several hold together is counted: one more is refused soon, and read when there is room again."""
    url, size = "/test/chat/completions", 2**20
    large = b"{}".ljust(size)
    async with serving(max_total_body_bytes=size) as site:
        _, held = await asyncio.open_connection("127.0.0.1", site.port)
        held.write(HUGE % (url.encode(), size) + large[:-1])
        refused = await until_refused(site, url, large)
        small = await site.http.post(url, content=b"{}".ljust(FREE_BYTES), headers=JSON)
        held.close()
        await held.wait_closed()
        read = await until_read(site, url, large)
        again = await site.http.post(url, content=large, headers=JSON)
    assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert small.status_code == 200
    assert (read.status_code, again.status_code) == (200, 200)


def post(site, url: str, body: bytes):
    """The body, sent as JSON."""
    return site.http.post(url, content=body, headers=JSON)


async def until_refused(site, url: str, body: bytes):
    """The answer once the other body has come far enough to leave no room for this one."""
    async with asyncio.timeout(PATIENCE_S):
        while (answer := await post(site, url, body)).status_code == 200:  # noqa: ASYNC110 - nobody is notified
            await asyncio.sleep(0.01)
    assert answer.status_code == 429
    return answer


async def until_read(site, url: str, body: bytes):
    """The answer once the server has seen that the other has left."""
    async with asyncio.timeout(PATIENCE_S):
        while (answer := await post(site, url, body)).status_code == 429:  # noqa: ASYNC110 - nobody is notified
            await asyncio.sleep(0.01)
    return answer


async def test_a_body_over_the_limit_is_never_held():
    """Row 14: what will be refused is counted and dropped."""
    async with serving(max_body_bytes=2**20, linger_s=PATIENCE_S) as site:
        tracemalloc.start()
        answer = await site.http.post(
            "/test/chat/completions", content=chunks(3000, 10_000), headers=JSON
        )
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert answer.status_code == 413
    assert peak < 8 * 2**20


HUGE = (
    b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n"
)


async def test_a_body_that_is_announced_too_large_is_refused_before_it_comes():
    """Nothing of it is waited for, and nothing more is asked for."""
    async with serving(linger_s=2 * PATIENCE_S) as site:
        head = HUGE % (b"/test/chat/completions", 10 * 2**30)
        async with asyncio.timeout(PATIENCE_S):
            answer = await site.exchange(head)
            polite = await site.exchange(head.replace(b"Host", b"Expect: 100-continue\r\nHost"))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert polite.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("path", "status"), [("/test/chat/completions", 413), ("/nowhere", 404), ("/v1/models", 405)]
)
async def test_who_still_sends_sees_the_answer(path: str, status: int):
    """A connection that is reset takes the answer with it, before it is read."""
    size = 16 * 2**20  # more than the system buffers
    async with serving(max_body_bytes=1000, linger_s=PATIENCE_S) as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(HUGE % (path.encode(), size))
        for _ in range(16):
            writer.write(b" " * (size // 16))
            await writer.drain()
        answer = await until_closed(reader)
        writer.close()
        await site.check_canary()
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in answer


async def send_for_ever(writer: asyncio.StreamWriter) -> None:
    """As fast as it is taken."""
    while True:
        writer.write(b" " * 2**16)
        await writer.drain()
        await asyncio.sleep(0)


async def test_a_client_that_never_stops_sending_is_hung_up_on():
    """What nobody reads is dropped for a while, and no longer."""
    async with serving(max_body_bytes=1000, linger_s=0.2) as site:
        _, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(HUGE % (b"/test/chat/completions", 10 * 2**30))
        with pytest.raises(ConnectionError):
            await send_for_ever(writer)
        writer.close()
        await site.check_canary()


async def test_a_slow_body_is_not_waited_for():
    """Row 13: a byte now and then is no progress."""
    async with serving(body_grace_s=1.0) as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(
            b"POST /test/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
            b"Content-Type: application/json\r\n\r\n"
        )

        async def drip() -> None:
            while not reader.at_eof():
                writer.write(b" ")
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        async with asyncio.timeout(PATIENCE_S):
            answer = await until_closed(reader)
        dripping.cancel()
        writer.close()
        await site.check_canary()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in answer


async def test_a_body_that_is_cut_short_leaves_nothing(site):
    """Row 11: nobody is there to be told, and nothing was started."""
    _, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(
        b"POST /test/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
        b"Content-Type: application/json\r\n\r\n{"
    )
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    await site.check_canary()
    assert len(site.engine.calls) == 1


async def test_a_body_of_single_bytes_is_read(site):
    """However it is cut into pieces."""
    answer = await site.http.post(
        "/test/chat/completions", content=chunks_of(b'{"max_tokens": 2}'), headers=JSON
    )
    assert len(answer.json()["token_ids"]) == 2


async def chunks_of(body: bytes):
    """A byte at a time."""
    for byte in body:
        yield bytes([byte])


async def test_the_error_is_in_the_callers_own_form(site):
    """The same mistake, as each API writes it."""
    ours = await site.http.post("/test/chat/completions", json={"max_tokens": "x"})
    theirs = await site.http.post("/v1/messages/test", json={"max_tokens": "x"})
    strict = await site.http.post("/strict", json={"zzz": 1})
    assert ours.status_code == theirs.status_code == strict.status_code == 400
    assert ours.json()["error"] == {
        "message": "Expected `int`, got `str`, at max_tokens",
        "type": "invalid_request_error",
        "param": "max_tokens",
        "code": None,
    }
    assert theirs.json()["error"]["type"] == "invalid_request_error"
    assert strict.json()["error"]["param"] == "zzz"
