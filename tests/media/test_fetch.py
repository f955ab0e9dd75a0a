"""Where media come from, within which limits, and what is refused before a byte is asked for."""

import asyncio
import base64
import os
import socket
from contextlib import asynccontextmanager, suppress

import pytest

from weft.core.errors import BadRequest, ConfigError
from weft.core.values.media import Media, MediaItem
from weft.media.fetch import MediaFetcher
from weft.media.limits import MediaLimits, MediaSources

LIMITS = MediaLimits(max_bytes=1000, timeout_s=0.2)
PATIENT = MediaLimits(max_bytes=1000)


def data_url(data: bytes, kind="image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


async def fetched(*urls: str, domains=(), directory=None, limits=PATIENT) -> list[bytes | None]:
    """The bytes at these addresses."""
    fetcher = MediaFetcher(MediaSources.of(domains, directory, limits))
    try:
        media = await fetcher.fetch(
            Media(items=[MediaItem(modality="image", url=url) for url in urls])
        )
    finally:
        await fetcher.aclose()
    return [item.data for item in media.items]


async def refusal(*urls: str, **sources) -> str:
    """Why these are not fetched."""
    with pytest.raises(BadRequest) as caught:
        await fetched(*urls, **sources)
    assert caught.value.parameter in ("image", "media")
    return str(caught.value)


@asynccontextmanager
async def answering(answer: bytes, *, then_hangs=False):
    """A server on this machine that sends these bytes to whoever connects; its port, and who asked for what."""
    asked: list[bytes] = []
    held = asyncio.Event()

    async def serve(reader, writer):
        with suppress(OSError, asyncio.IncompleteReadError):  # who was refused has gone
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(answer.replace(b"PORT", str(port).encode()))
            if then_hangs:
                await held.wait()
            await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield port, asked
    finally:
        held.set()
        server.close()
        # Connections of clients that have given up may be on their way to `serve` yet.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)


def ok(body: bytes, *headers: str) -> bytes:
    head = "\r\n".join(["HTTP/1.1 200 OK", f"content-length: {len(body)}", *headers])
    return f"{head}\r\n\r\n".encode() + body


# -- data URLs ------------------------------------------------------------------------------------


async def test_data_urls_need_no_leave():
    """They bring their bytes along."""
    assert await fetched(data_url(b"abc"), data_url(b"d")) == [b"abc", b"d"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("data:image/png,abc", "form data:TYPE;base64,DATA"),
        ("data:image/png;base64", "form data:TYPE;base64,DATA"),
        ("data:image/png;base64,%%%", "is not base64"),
        ("data:image/png;base64,", "is empty"),
        ("ftp://host/a.png", "begin with data:"),
        ("no url at all", "begin with data:"),
        ("", "begin with data:"),
    ],
)
async def test_what_is_no_address_is_refused(url, words):
    """With what one looks like."""
    assert words in await refusal(url)


async def test_all_items_share_one_limit():
    """Three of 400 bytes are more than 1000, before the third is decoded."""
    one = data_url(b"x" * 400)
    assert len(await fetched(one, one)) == 2
    assert "200 more bytes are allowed" in await refusal(one, one, one)


async def test_bytes_and_uuids_stay_as_they_are():
    """Nothing is fetched for what is there, or known already."""
    items = [MediaItem(modality="image", data=b"a"), MediaItem(modality="audio", uuid="u")]
    fetcher = MediaFetcher(MediaSources.of((), None))
    assert (await fetcher.fetch(Media(items=items))).items == items


# -- hosts ----------------------------------------------------------------------------------------


async def test_an_allowed_host_is_asked():
    """By its name, with no more than the request needs."""
    async with answering(ok(b"picture")) as (port, asked):
        url = f"http://localhost:{port}/a.png?b=c"
        assert await fetched(url, domains=["localhost"]) == [b"picture"]
    (head,) = asked
    assert head.startswith(b"GET /a.png?b=c HTTP/1.1\r\n")
    assert f"host: localhost:{port}".encode() in head.lower()
    assert b"accept-encoding: identity" in head.lower()
    assert b"authorization" not in head.lower()


@pytest.mark.parametrize("domains", [(), ("example.com",)])
async def test_no_other_host_is_asked(domains):
    """By default none is."""
    async with answering(ok(b"picture")) as (port, asked):
        reason = await refusal(f"http://127.0.0.1:{port}/", domains=domains)
    assert "is not among the hosts" in reason
    assert asked == []


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:99999/", "port of a URL must be 1 to 65535, not 99999"),
        ("http://127.0.0.1:0/", "port of a URL must be 1 to 65535, not 0"),
        ("http://127.0.0.1:x/", "InvalidURL"),
        ("http://127.0.0.1/\udc80", "UnicodeEncodeError"),
        (f"http://{'a' * 64}.com/", "UnicodeError"),
    ],
)
async def test_an_address_that_nobody_can_have_is_refused(url, words):
    """Whatever is wrong with it, that is the caller's to mend."""
    assert words in await refusal(url, domains=["127.0.0.1", f"{'a' * 64}.com"])


async def test_a_name_does_not_lead_to_a_private_address(monkeypatch):
    """Whoever owns an allowed name decides where it points: not into our network."""

    async def look_up(self, host, port, **_options):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    async with answering(ok(b"secret")) as (port, asked):
        monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", look_up)
        url = f"http://example.com:{port}/"
        assert "private address" in await refusal(url, domains=["example.com"])
        assert asked == []
        # One that is named itself may be met.
        assert await fetched(url, domains=["example.com", "127.0.0.1"]) == [b"secret"]


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "::1",
     "fe80::1%eth0", "fd00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "224.0.0.1", "ff02::1",
     "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::1", "2002:a00:1::",
     "::127.0.0.1", "::10.0.0.1", "::", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "fec0::1", "2001:db8::1",
     "2a00::5efe:10.0.0.1", "2a00::200:5efe:10.0.0.1", "198.18.0.1", "240.0.0.1", "255.255.255.255"],
)  # fmt: skip
def test_addresses_that_are_not_public_are_private(address):
    """Loopback, networks of a site, a cloud's metadata, and what maps to them."""
    assert not MediaSources.of(["example.com"], None).allows_address("example.com", address)


def test_public_addresses_may_be_asked():
    """Of either kind."""
    sources = MediaSources.of(["example.com"], None)
    assert sources.allows_address("example.com", "93.184.215.14")
    assert sources.allows_address("example.com", "2606:2800:21f:cb07:6820:80da:af6b:8b2c")
    assert sources.allows_address("example.com", "64:ff9b::5db8:d70e")  # through a translator


@pytest.mark.parametrize("name", ["http://a", "a/b", "a:80", "", "a b", "*", "user@host", "[::1]"])
def test_only_hosts_can_be_allowed(name):
    """What looks like more is a mistake that would allow nothing, or too much."""
    if name == "*":
        assert MediaSources.of([name], None).domains == {"*"}  # the name of no host
        return
    with pytest.raises(ConfigError, match="allowed-media-domains"):
        MediaSources.of([name], None)


async def test_redirects_are_judged_as_requests_are():
    """An allowed host may not send us to another."""
    move = b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/latest\r\n\r\n"
    async with answering(move) as (port, _):
        reason = await refusal(f"http://127.0.0.1:{port}/", domains=["127.0.0.1"])
    assert "'169.254.169.254' is not among the hosts" in reason


async def test_a_circle_of_redirects_ends():
    """After as many as there may be."""
    move = b"HTTP/1.1 302 Found\r\nconnection: close\r\nlocation: http://127.0.0.1:PORT/\r\n\r\n"
    async with answering(move) as (port, asked):
        reason = await refusal(f"http://127.0.0.1:{port}/", domains=["127.0.0.1"])
    assert "redirects more than" in reason
    assert len(asked) == PATIENT.max_redirects + 1


@pytest.mark.parametrize("target", ["file:///etc/passwd", "gopher://127.0.0.1/", "data:,x", ""])
async def test_redirects_stay_with_http(target):
    """Whatever they name."""
    move = f"HTTP/1.1 301 Moved\r\nconnection: close\r\nlocation: {target}\r\n\r\n".encode()
    async with answering(move) as (port, _):
        reason = await refusal(f"http://127.0.0.1:{port}/", domains=["127.0.0.1"])
    assert "must be an http or https URL" in reason or "redirects more than" in reason


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ok(b"x" * 1001), "1000 more bytes are allowed"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000, "1000 more bytes are allowed"),
        (ok(b"x", "content-encoding: gzip"), "compressed"),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "status 404"),
        (b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n", "status 500"),
        (b"HTTP/1.1 206 Partial\r\ncontent-length: 1\r\n\r\nx", "status 206"),
        (b"nonsense\r\n\r\n", "cannot be fetched"),
    ],
)
async def test_answers_that_are_no_item_are_refused(answer, words):
    """However long they would go on."""
    async with answering(answer) as (port, _):
        reason = await refusal(f"http://127.0.0.1:{port}/a", domains=["127.0.0.1"])
    assert words in reason


async def test_a_server_that_stops_sending_is_left():
    """At the time limit."""
    slow = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx"
    async with answering(slow, then_hangs=True) as (port, _):
        reason = await refusal(f"http://127.0.0.1:{port}/a", domains=["127.0.0.1"], limits=LIMITS)
    assert "takes longer than 0.2 s" in reason


async def test_secrets_of_an_address_stay_out_of_messages():
    """Passwords are not taken, and queries are not shown."""
    reason = await refusal("http://user:pass@127.0.0.1/a", domains=["127.0.0.1"])
    assert "must not contain a user name or a password" in reason
    with socket.socket() as bound:  # and nobody listens
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        reason = await refusal(f"http://127.0.0.1:{port}/a?sig=1", domains=["127.0.0.1"])
    assert "cannot be fetched" in reason
    assert "sig" not in reason


# -- files ----------------------------------------------------------------------------------------


async def test_files_below_the_directory_are_read(tmp_path):
    """With escapes in their names, and no others by default."""
    (tmp_path / "a b.png").write_bytes(b"picture")
    url = f"file://{tmp_path}/a%20b.png"
    assert await fetched(url, directory=tmp_path) == [b"picture"]
    assert await fetched(url.replace("file://", "file://localhost"), directory=tmp_path) == [
        b"picture"
    ]
    assert "--allowed-local-media-path" in await refusal(url)


async def test_nothing_else_is_read(tmp_path):
    """Not by ways out, not through links, nor from what is no file; nor is it told apart."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "inside2").write_bytes(b"secret")
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "large").write_bytes(b"x" * 1001)
    os.mkfifo(inside / "pipe")
    (inside / "folder").mkdir()
    for name in (
        "../secret", "%2e%2e/secret", "link", "pipe", "", "missing", "../inside2", "a%00b",
        "folder", "folder/", "\udcff\ud800", "x" * 5000,
    ):  # fmt: skip
        reason = await refusal(f"file://{inside}/{name}", directory=inside)
        assert "is no file below the directory" in reason
    for url in (f"file://host{inside}/x", "file:secret", "file:///dev/zero", "file://[x/"):
        assert "is no file below the directory" in await refusal(url, directory=inside)
    assert "1000 more bytes are allowed" in await refusal(
        f"file://{inside}/large", directory=inside
    )


async def test_what_is_no_file_leaves_no_descriptor_open(tmp_path):
    """A folder is opened before it is seen to be one."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = os.listdir("/proc/self/fd")
    for name in ("folder", "pipe"):
        await refusal(f"file://{tmp_path}/{name}", directory=tmp_path)
    assert os.listdir("/proc/self/fd") == before


def test_the_directory_has_to_be_there(tmp_path):
    """Else nothing could ever be read."""
    with pytest.raises(ConfigError, match="allowed-local-media-path"):
        MediaSources.of((), tmp_path / "missing")
