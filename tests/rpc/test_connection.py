"""How a client reaches a server, and with which keys."""

import asyncio
from pathlib import Path

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import RequestReceived

from tests.doubles.fake_engine import FakeEngine, reference_tokens
from tests.rpc.calls import PROMPT, served
from tests.rpc.test_client import TOKENIZER_FILES, collect, failure
from weft.core.errors import ConfigError, EngineLost, Unauthenticated, Unavailable, Unsupported
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.client import RpcClient
from weft.rpc.connection import Connection, Credentials
from weft.rpc.methods import FINGERPRINT_METADATA


async def test_control_calls_bring_the_control_key(engine: FakeEngine):
    """Each kind of key goes with the calls that it opens."""
    keys = {"api_keys": ("user",), "control_api_keys": ("admin",)}
    async with served(engine, TOKENIZER_FILES, **keys) as target:
        both = Credentials(api_key="user", control_api_key="admin")
        client = await RpcClient.connect(target, credentials=both)
        user = await RpcClient.connect(target, credentials=Credentials(api_key="user"))

        assert await client.reset_prefix_cache()
        with pytest.raises(Unauthenticated):
            await user.reset_prefix_cache()

        await client.close()
        await user.close()


async def test_server_without_tokenizer_takes_token_ids(engine: FakeEngine):
    """Text needs a tokenizer, and says so; ids do not."""
    async with served(engine, {}) as target:
        client = await RpcClient.connect(target)

        outputs = await collect(client, detokenize=False)
        error = await failure(client, "text")
        await client.close()

    assert outputs[-1].outputs[0].token_ids == reference_tokens(PROMPT, 3)
    assert outputs[-1].outputs[0].text == ""
    assert isinstance(error, Unsupported)
    assert "detokenize=False" in str(error)


async def test_key_is_sent_with_every_call(engine: FakeEngine):
    """A wrong one is Unauthenticated at once."""
    async with served(engine, TOKENIZER_FILES, api_keys=("k",)) as target:
        with pytest.raises(Unauthenticated):
            await RpcClient.connect(target)
        client = await RpcClient.connect(target, credentials=Credentials(api_key="k"))

        assert (await collect(client))[-1].is_finished
        await client.close()


async def test_nobody_there_is_said_in_one_sentence():
    """Unavailable with the address, within the time given."""
    with pytest.raises(Unavailable, match=r"no gRPC server answers at 127\.0\.0\.1:1"):
        await RpcClient.connect("127.0.0.1:1", timeout_s=0.2)


async def test_unreadable_authority_is_named(tmp_path: Path):
    """Before anything is sent."""
    with pytest.raises(ConfigError, match="cannot read the certificate"):
        await RpcClient.connect(
            "localhost:1", credentials=Credentials(tls_ca=tmp_path / "none.pem")
        )


class ResettingServer(asyncio.Protocol):
    """Answers a call with one empty message, and resets it when told, as a proxy does whose server was killed."""

    def __init__(self):
        self.closed = asyncio.Event()
        self._http2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))

    def connection_made(self, transport):
        self.transport = transport
        self._http2.initiate_connection()
        self._send()

    def connection_lost(self, error):
        self.closed.set()

    def data_received(self, data):
        for event in self._http2.receive_data(data):
            if isinstance(event, RequestReceived):
                self._stream_id = event.stream_id
                headers = [(":status", "200"), ("content-type", "application/grpc")]
                self._http2.send_headers(self._stream_id, [*headers, (FINGERPRINT_METADATA, "f")])
                self._http2.send_data(self._stream_id, bytes(5))
        self._send()

    def reset(self):
        self._http2.reset_stream(self._stream_id, ErrorCodes.INTERNAL_ERROR)
        self._send()

    def _send(self):
        self.transport.write(self._http2.data_to_send())


async def test_a_stream_that_a_proxy_resets_is_lost_and_can_be_continued():
    """Envoy resets the streams of a worker that was killed; there is no status then."""
    proxy = ResettingServer()
    listening = await asyncio.get_running_loop().create_server(lambda: proxy, "127.0.0.1", 0)
    async with listening:
        connection = Connection(f"127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        responses = connection.stream("Generate", pb.GenerateRequest())
        try:
            await anext(responses)
            proxy.reset()
            with pytest.raises(EngineLost, match="has reset the call") as lost:
                await anext(responses)
        finally:
            await connection.close()
            proxy.transport.abort()
            await proxy.closed.wait()
    assert lost.value.fingerprint == "f"
