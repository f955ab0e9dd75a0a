"""Which calls are answered without a key, from a list that was written by hand."""

import grpc

from tests.doubles.fake_engine import FakeEngine
from tests.rpc.calls import ALL_CALLS, channel_to

# By hand, and not from what the server thinks: who opens another one has to say so here too.
OPEN = {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"}
CALLS = [
    *(method.path for method in ALL_CALLS),
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/nobody.Knows/This",
]


async def is_refused(channel: grpc.aio.Channel, path: str) -> bool:
    """Whether a call without a key gets nothing but the word that it needs one."""
    # One request, sent with the call: of a stream, a request that is written after the refusal has come is an
    # error of its own to grpc.aio, which shows that as INTERNAL in place of the server's status.
    call = channel.unary_stream(path)(b"")
    try:
        await call.read()
    except grpc.aio.AioRpcError as error:
        return error.code() is grpc.StatusCode.UNAUTHENTICATED
    finally:
        call.cancel()
    return False


async def test_these_calls_are_open_and_no_others():
    """Without a key: the standard health service, which orchestrators ask."""
    async with channel_to(FakeEngine(), api_keys=("key",), reflection=True) as channel:
        found = {path for path in CALLS if not await is_refused(channel, path)}
    assert found == OPEN
    assert len(CALLS) == 40
