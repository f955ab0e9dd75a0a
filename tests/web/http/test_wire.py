"""What arrives on a connection: heads that are refused before any handler sees them, and plain HTTP."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.busy import until
from tests.web.http.serving import serving

GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"
POST = (
    b"POST /test/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
)
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
SMUGGLED = {
    "both": POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both the other way": POST
    + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
    "same length twice": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "list of lengths": POST + b"Content-Length: 2, 2\r\n\r\n{}",
    "negative length": POST + b"Content-Length: -2\r\n\r\n{}",
    "signed length": POST + b"Content-Length: +2\r\n\r\n{}",
    "huge length": POST + b"Content-Length: 99999999999999999999999\r\n\r\n{}",
    "zeros": POST + b"Content-Length: " + b"0" * 4301 + b"\r\n\r\n",
    "long length": POST + b"Content-Length: " + b"0" * 18 + b"02\r\n\r\n{}",
    "no host": b"GET /v1/models HTTP/1.1\r\n\r\n",
    "http/0.9": b"GET /v1/models\r\n\r\n",
    "http/0.9 by name": b"GET /v1/models HTTP/0.9\r\nHost: localhost\r\n\r\n",
    "http/2.0 by name": b"GET /v1/models HTTP/2.0\r\nHost: localhost\r\n\r\n",
    "chunk of no size": CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n",
    "chunk of empty size": CHUNKED + b"\r\n{}\r\n0\r\n\r\n",
    "negative chunk": CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n",
    "chunk in words of C": CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n",
    "huge chunk": CHUNKED + b"f" * 17 + b"\r\n{}\r\n0\r\n\r\n",
    "chunk longer than it says": CHUNKED + b"2\r\n{} \r\n0\r\n\r\n",
    "a second chunk of no size": CHUNKED + b"2\r\n{}\r\nzz\r\n",
    "other coding": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "coding twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
    "space before colon": POST + b"Content-Length : 2\r\n\r\n{}",
    "folded": GET + b"X-A: b\r\n c\r\n\r\n",
    "bare newline": b"GET /v1/models HTTP/1.1\nHost: localhost\n\n",
    "two hosts": GET + b"Host: y\r\n\r\n",
    "nul": GET + b"X-A: b\x00c\r\n\r\n",
    "no method": b"/v1/models HTTP/1.1\r\n\r\n",
    "other protocol": b"GET / FTP/1.1\r\n\r\n",
    "not ascii": "GET /é HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
    "connect": b"CONNECT x HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "noise": bytes(range(256)),
}


@pytest.mark.parametrize("data", SMUGGLED.values(), ids=SMUGGLED.keys())
async def test_what_can_be_read_in_two_ways_is_refused(site, data: bytes):
    """Rows 12 and 15: 400, and the connection is closed before anything more of it is read."""
    answer = await site.exchange(data + GET + b"\r\n")
    await site.check_canary()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 4") == 1
    assert b"connection: close" in answer
    assert b"x-request-id: " in answer
    assert b'"type":"invalid_request_error"' in answer


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(GET + b"X-A: " + b"y" * 40_000 + b"\r\n\r\n", id="one large"),
        pytest.param(GET + b"X-A: " + b"y" * 40_000, id="never ends"),
        pytest.param(GET + b"X-A: yyyyyyyyyyyyyyyyyyyyyyyy\r\n" * 1200 + b"\r\n", id="many"),
        pytest.param(b"GET /" + b"y" * 40_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", id="path"),
    ],
)
async def test_a_head_over_the_limit_is_refused(site, data: bytes):
    """Row 7: 431, whether or not it ends."""
    answer = await site.exchange(data)
    await site.check_canary()
    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_a_head_within_the_limit_is_read(site):
    """Cookies and tokens of gateways are long."""
    answer = await site.http.get("/v1/models", headers={"x-a": "y" * 30_000})
    assert answer.status_code == 200


async def test_http_1_0_needs_no_host(site):
    """Its clients never had to say it."""
    answer = await site.exchange(b"GET /v1/models HTTP/1.0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_a_broken_chunk_behind_a_request_that_is_answered_is_no_answer_to_it(site):
    """Two answers to one request would be taken for those of two."""
    whole = POST + b"Content-Length: 2\r\n\r\n{}"
    answer = await site.exchange(whole + CHUNKED + b"zz\r\n")
    await site.check_canary()
    assert b"HTTP/1.1 400 " not in answer


async def test_headers_after_the_body_are_bounded_and_dropped():
    """Nobody reads them, so nobody may be told anything by them."""
    body = b"2\r\n{}\r\n0\r\n"
    head = POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + body
    async with serving(api_keys=("k",)) as site:
        late = await site.exchange(head + b"Authorization: Bearer k\r\n\r\n")
        many = await site.exchange(head + b"X-A: yyyyyyyyyyyyyyyy\r\n" * 3000 + b"\r\n")
    assert late.startswith(b"HTTP/1.1 401 ")
    assert b" 200 OK" not in many


async def test_a_head_that_does_not_come_is_not_waited_for():
    """A connection without a request costs no more than its time; who began one is told."""
    async with serving(head_timeout_s=1.0) as site:
        assert await site.exchange(b"") == b""
        while not (told := await site.exchange(GET)):
            pass  # its time was over before it had come so far as to begin
        assert told.startswith(b"HTTP/1.1 408 ")
        await site.check_canary()


async def test_one_connection_too_many_is_refused():
    """Row 16: 503, and as soon as one is closed the next one is served."""
    async with serving(max_connections=20) as site, AsyncExitStack() as stack:
        writers = []
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", site.port)
            writers.append(writer)
            stack.callback(writer.close)
        open_ones = site.server._connections.connections
        await until(lambda: len(open_ones) == 20)
        answer = await site.exchange(GET + b"\r\n")
        for writer in writers:
            writer.close()
        await until(lambda: not open_ones)
        await site.check_canary()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after" in answer


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/nowhere", 404, None),
        ("GET", "/", 404, None),
        ("GET", "/v1/models/", 200, None),
        ("GET", "/v1/responses/%FF", 404, None),
        ("POST", "/v1/messages/x/nowhere", 404, None),
        ("GET", "/test/chat/completions", 405, "POST"),
        ("GET", "/v1/messages/test", 405, "POST"),
        ("DELETE", "/v1/models", 405, "GET, HEAD"),
        ("BREW", "/v1/models", 400, None),
        ("TRACE", "/v1/models", 405, "GET, HEAD"),
        ("OPTIONS", "/v1/models", 405, "GET, HEAD"),
    ],
)
async def test_unknown_paths_and_methods(
    site, method: str, path: str, status: int, allow: str | None
):
    """Rows 8 and 9: 404 and 405, with what would be right."""
    answer = await site.http.request(method, path)
    await site.check_canary()
    assert answer.status_code == status
    assert answer.headers.get("allow") == allow
    assert ("type" in answer.json()) == path.startswith("/v1/messages")


@pytest.mark.parametrize(
    ("path", "nearest", "is_anthropic"),
    [
        ("/v1/chat/completion", "/v1/chat/completions", False),
        ("/v1/v1/chat/completions", "/v1/chat/completions", False),
        ("/completions", "/v1/completions", False),
        ("/models/", "/v1/models", False),
        ("/v1/responses/resp_1/cance", "/v1/responses/{response_id}/cancel", False),
        ("/v1/message", "/v1/messages", True),
        ("/v1/v1/messages", "/v1/messages", True),
        ("/v1/messages/count_token", "/v1/messages/count_tokens", True),
        ("/" + "%e4" * 9000, None, False),
        ("/v1/messages/" + "x" * 9000, None, True),
    ],
)
async def test_a_path_that_leads_nowhere_is_answered_with_the_nearest(
    site, path: str, nearest: str | None, is_anthropic: bool
):
    """In the form of that one's API, whose client it most likely is that has sent this."""
    answer = await site.http.post(path, json={})
    hint = "" if nearest is None else f"; the nearest is {nearest}"
    said = f"there is nothing at this path{hint}; /docs shows what there is"
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, said)
    assert ("request_id" in answer.json()) == is_anthropic


async def test_head_is_answered_wherever_get_is(site):
    """The same headers, and no body."""
    full = await site.http.get("/v1/models")
    head = await site.http.head("/v1/models")
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == full.headers["content-length"]


@pytest.mark.parametrize(
    ("given", "is_kept"),
    [
        ("abc-1_2:3", True),
        ("y" * 128, True),
        ("y" * 129, False),
        ("a b", False),
        ("é", False),
        ("", False),
    ],
)
async def test_the_callers_id_is_a_label(site, given: str, is_kept: bool):
    """Echoed when it is short and printable; the engine never hears of it."""
    answer = await site.http.post(
        "/test/chat/completions", json={}, headers={"x-request-id": given.encode()}
    )
    assert (answer.headers["x-request-id"] == given) == is_kept
    assert answer.headers["x-request-id"]
    twice = await asyncio.gather(
        *(
            site.http.post("/test/chat/completions", json={}, headers={"x-request-id": "same"})
            for _ in range(5)
        )
    )
    assert {answer.status_code for answer in twice} == {200}


async def test_requests_on_one_connection_are_answered_in_turn(site):
    """Sent together, answered one after the other."""
    answer = await site.exchange(GET + b"\r\n" + GET + b"Connection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.parametrize("query", ["a=1&a=2", "&".join(f"a{n}=1" for n in range(101)), "a=%ff"])
async def test_a_query_is_read_in_one_way_or_refused(site, query: str):
    """No second value for a name, no bytes that are not text."""
    assert (await site.http.get(f"/v1/models?{query}")).status_code == 400
