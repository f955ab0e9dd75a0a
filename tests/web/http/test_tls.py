"""TLS, and what comes before it is there."""

import asyncio
import ssl
from itertools import cycle

import pytest

from tests.busy import PATIENCE_S
from tests.rpc.test_auth import Pair, make_pair
from tests.web.http.serving import serving


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
