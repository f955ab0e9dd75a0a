"""TLS, and what comes before it is there."""

import asyncio
import ssl
from itertools import cycle
from pathlib import Path

import pytest

from tests.busy import PATIENCE_S, until
from tests.rpc.test_auth import Pair, make_pair
from tests.web.http.serving import serving
from weft.core.errors import ConfigError


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("tls"), "server")


def hello(pair: Pair) -> bytes:
    """What a client says first."""
    sent = ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=pair.cert)
    client = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


async def test_a_handshake_that_nobody_ends_is_ended(pair: Pair):
    """It holds a descriptor, silent or after a hello, half or whole; others are served meanwhile and afterwards."""
    files = {"ssl_certfile": pair.cert, "ssl_keyfile": pair.key}
    async with serving(tls_handshake_timeout_s=3.0, **files) as site:
        trust = ssl.create_default_context(cafile=pair.cert)
        streams = [await asyncio.open_connection("127.0.0.1", site.port) for _ in range(50)]
        for (_, writer), num_bytes in zip(streams, cycle((0, 50, None)), strict=False):
            writer.write(hello(pair)[:num_bytes])
        for _ in range(2):
            reader, writer = await asyncio.open_connection("localhost", site.port, ssl=trust)
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
            writer.close()
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*(reader.read() for reader, _ in streams))
        for _, writer in streams:
            writer.close()


async def answers(port: int, trust: ssl.SSLContext) -> bool:
    """True if a request over a new connection gets 200; False if the server ends the connection."""
    try:
        reader, writer = await asyncio.open_connection("localhost", port, ssl=trust)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
    except (OSError, ssl.SSLError):
        return False
    return answer.startswith(b"HTTP/1.1 200 ")


@pytest.fixture
def client(tmp_path: Path) -> Pair:
    return make_pair(tmp_path, "client")


@pytest.mark.parametrize(
    ("cert_reqs", "without", "with_own", "with_foreign"),
    [
        (None, False, True, False),
        (2, False, True, False),
        (1, True, True, False),
        (0, True, True, True),
    ],
)
async def test_client_certificates_are_requested(
    pair: Pair, client: Pair, tmp_path: Path, cert_reqs, without, with_own, with_foreign
):
    """--ssl-ca-certs alone requires a certificate of this authority; --ssl-cert-reqs makes it optional or useless."""
    foreign = make_pair(tmp_path, "foreign")
    files = {"ssl_certfile": pair.cert, "ssl_keyfile": pair.key, "ssl_ca_certs": client.cert}
    async with serving(ssl_cert_reqs=cert_reqs, **files) as site:
        for shown, is_expected in ((None, without), (client, with_own), (foreign, with_foreign)):
            trust = ssl.create_default_context(cafile=pair.cert)
            if shown is not None:
                trust.load_cert_chain(shown.cert, shown.key)
            assert await answers(site.port, trust) is is_expected


async def test_changed_certificates_are_loaded_while_the_server_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """A broken pair changes nothing; connections after the next good one see the new certificate."""
    used = make_pair(tmp_path, "used")
    new = make_pair(tmp_path, "new")
    old_trust = ssl.create_default_context(cafile=used.cert)
    files = {"ssl_certfile": used.cert, "ssl_keyfile": used.key, "enable_ssl_refresh": True}
    async with serving(**files) as site:
        used.cert.write_text("no certificate")
        await until(lambda: "keeps the old ones" in caplog.text)
        assert await answers(site.port, old_trust)
        used.key.write_bytes(new.key.read_bytes())
        used.cert.write_bytes(new.cert.read_bytes())
        trust = ssl.create_default_context(cafile=new.cert)
        async with asyncio.timeout(PATIENCE_S):
            while not await answers(site.port, trust):  # noqa: ASYNC110 - nobody is notified
                await asyncio.sleep(0.05)
        assert not await answers(site.port, old_trust)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ssl_ca_certs": "cert"}, "TLS needs both --ssl-certfile and --ssl-keyfile"),
        ({"ssl_ciphers": "AES128-SHA"}, "TLS needs both --ssl-certfile and --ssl-keyfile"),
        ({"ssl_cert_reqs": 2}, "TLS needs both --ssl-certfile and --ssl-keyfile"),
        ({"ssl_certfile": "cert", "ssl_keyfile": "key", "ssl_cert_reqs": 1}, "need --ssl-ca-certs"),
        ({"ssl_certfile": "cert", "ssl_keyfile": "key", "ssl_cert_reqs": 3}, "must be 0, 1 or 2, not 3"),
        ({"ssl_certfile": "cert", "ssl_keyfile": "key", "ssl_ciphers": "none such"}, "--ssl-ciphers 'none such'"),
        ({"ssl_certfile": "cert", "ssl_keyfile": "key", "ssl_ca_certs": "key"}, "--ssl-ca-certs .* is not a file of"),
        ({"ssl_certfile": "cert", "ssl_keyfile": "key", "ssl_ca_certs": "gone"}, "--ssl-ca-certs: cannot read"),
    ],
)  # fmt: skip
async def test_unusable_tls_settings_are_refused_by_name(
    pair: Pair, tmp_path: Path, given, message
):
    """At the start, before the model is read."""
    paths = {"cert": pair.cert, "key": pair.key, "gone": tmp_path / "gone"}
    options = {name: paths.get(value, value) for name, value in given.items()}
    with pytest.raises(ConfigError, match=message):
        async with serving(**options):
            pass
