"""How a client reaches a server, and with which keys."""

from pathlib import Path

import pytest

from tests.doubles.fake_engine import FakeEngine, reference_tokens
from tests.rpc.calls import PROMPT, served
from tests.rpc.test_client import TOKENIZER_FILES, collect, failure
from weft.core.errors import ConfigError, Unauthenticated, Unavailable, Unsupported
from weft.rpc.client import RpcClient
from weft.rpc.connection import Credentials


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
