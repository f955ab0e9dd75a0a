"""Keys and TLS."""

import asyncio
import datetime as dt
import ipaddress
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2

from tests.busy import PATIENCE_S
from tests.doubles.fake_engine import FakeEngine
from tests.rpc.calls import (
    TOKENIZER_FILES,
    begin,
    channel_to,
    check_canary,
    refusal,
    request,
)
from weft.core.errors import ConfigError
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.rpc.methods import METHODS, METHODS_BY_SERVICE, SERVICE
from weft.rpc.options import RpcOptions
from weft.rpc.server import RpcServer

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


@pytest.fixture
async def guarded(engine: FakeEngine) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a server with two keys, and with reflection."""
    async with channel_to(engine, api_keys=("first", "sécond"), reflection=True) as channel:
        yield channel


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param((), id="none"),
        pytest.param(bearer("wrong"), id="wrong"),
        pytest.param(bearer(""), id="empty"),
        pytest.param(bearer("first") * 2, id="twice"),
        pytest.param((("authorization", "first"),), id="no scheme"),
        pytest.param((("authorization", "Basic first"),), id="other scheme"),
        pytest.param((("x-authorization", "Bearer first"),), id="other header"),
    ],
)
async def test_every_call_needs_a_key(guarded: grpc.aio.Channel, name: str, metadata):
    """Row 17: whatever is wrong with the key, the answer is the same."""
    status, detail = await refusal(begin(guarded, METHODS[name], metadata=metadata))

    assert status == UNAUTHENTICATED
    assert "authorization: Bearer KEY" in detail


async def test_unknown_paths_are_guarded_too(guarded: grpc.aio.Channel):
    """Default-deny: without a key nobody learns what exists."""
    for path in ("/x.Y/Z", f"/{SERVICE}/Nope", "//grpc.health.v1.Health/Check", "/"):
        assert (await refusal(guarded.unary_unary(path)(b"")))[0] == UNAUTHENTICATED


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_right_key_opens(guarded: grpc.aio.Channel, scheme: str):
    """Schemes have no case."""
    call = VllmEngineStub(guarded).Generate(
        request(), metadata=(("authorization", f"{scheme} first"),)
    )

    assert len([r async for r in call]) == 1


async def test_standard_health_is_open(guarded: grpc.aio.Channel):
    """Orchestrators probe without a key."""
    answer = await HealthStub(guarded).Check(health_pb2.HealthCheckRequest())

    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_empty_key_is_no_key(engine: FakeEngine):
    """An unset variable in a start script must not open the server to everyone."""
    server = RpcServer(engine, TOKENIZER_FILES, RpcOptions(port=0, api_keys=("",)))

    with pytest.raises(ConfigError, match="--api-key"):
        await server.start()


async def reflect(channel: grpc.aio.Channel, package: str, metadata=(), **asked):
    """What reflection of one version answers; both have the same messages."""
    call = channel.stream_stream(
        f"/{package}.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )(iter([reflection_pb2.ServerReflectionRequest(**asked)]), metadata=metadata)
    [answer] = [answer async for answer in call]
    return answer


async def list_services(
    channel: grpc.aio.Channel, metadata=(), package="grpc.reflection.v1alpha"
) -> set[str]:
    """What reflection names."""
    answer = await reflect(channel, package, metadata, list_services="")
    return {service.name for service in answer.list_services_response.service}


async def test_reflection_needs_the_flag_and_a_key(
    guarded: grpc.aio.Channel, channel: grpc.aio.Channel
):
    """Off: UNIMPLEMENTED. On: as guarded as the rest."""
    with pytest.raises(grpc.aio.AioRpcError) as without_flag:
        await list_services(channel)
    with pytest.raises(grpc.aio.AioRpcError) as without_key:
        await list_services(guarded)

    services = await list_services(guarded, bearer("first"))

    assert without_flag.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert without_key.value.code() == UNAUTHENTICATED
    assert {*METHODS_BY_SERVICE, "grpc.health.v1.Health"} <= services


async def test_both_versions_of_reflection_tell_the_same(guarded: grpc.aio.Channel):
    """Tools ask v1 first and older ones know v1alpha only; each can be asked for itself and the other."""
    versions = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
    old, new = [
        await list_services(guarded, bearer("first"), package=version) for version in versions
    ]
    files = []
    for version in versions:
        symbol = f"{version}.ServerReflection"
        answer = await reflect(guarded, versions[0], bearer("first"), file_containing_symbol=symbol)
        [text] = answer.file_descriptor_response.file_descriptor_proto
        files.append(FileDescriptorProto.FromString(text))

    assert old == new
    assert {f"{version}.ServerReflection" for version in versions} <= new
    assert [file.package for file in files] == list(versions)


# -- who may call what ------------------------------------------------------------------------

CONTROL = ("FlushCache", "StartProfile", "StopProfile", "SubscribeKvEvents")
SERVING = sorted(METHODS.keys() - {*CONTROL, "Abort"})
OPENED = "opened"


serving = partial(channel_to, heartbeat_s=0.05)


async def outcome(channel: grpc.aio.Channel, name: str, *keys: str) -> grpc.StatusCode | str:
    """What an empty message to a call comes to, past the keys or not."""
    metadata = [pair for key in keys for pair in bearer(key)]
    method = METHODS[name]
    message = (
        b"\x10\x01" if name == "SubscribeKvEvents" else b""  # load records at once
    )
    make = channel.unary_stream if method.is_streaming else channel.unary_unary
    call = make(method.path)(message, metadata=metadata)
    try:
        await (anext(aiter(call)) if method.is_streaming else call)
    except grpc.aio.AioRpcError as error:
        refused = (UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
        return error.code() if error.code() in refused else OPENED
    finally:
        call.cancel()
    return OPENED


BOTH = MappingProxyType({"api_keys": ("user",), "control_api_keys": ("admin",)})


@pytest.mark.parametrize("name", CONTROL)
async def test_control_needs_a_control_key(engine: FakeEngine, name: str):
    """What reaches beyond the caller's own requests is for holders of a control key, as over HTTP."""
    async with serving(engine, **BOTH) as channel:
        assert await outcome(channel, name) is UNAUTHENTICATED
        assert await outcome(channel, name, "user") is UNAUTHENTICATED
        assert await outcome(channel, name, "admin") == OPENED


@pytest.mark.parametrize("name", CONTROL)
async def test_control_is_off_where_only_api_keys_are_given(engine: FakeEngine, name: str):
    """No key of this server opens it, and the answer says which flag would."""
    async with serving(engine, api_keys=("user",)) as channel:
        assert await outcome(channel, name, "user") is grpc.StatusCode.PERMISSION_DENIED
        _, detail = await refusal(
            channel.unary_unary(METHODS[name].path)(b"", metadata=bearer("user"))
        )
        assert "--control-api-key" in detail


@pytest.mark.parametrize("name", [*CONTROL, *SERVING, "Abort"])
async def test_without_any_key_everything_is_open(engine: FakeEngine, name: str):
    """Gateways and pickers send no key: where the server asks for none they get events and may flush."""
    async with serving(engine) as channel:
        assert await outcome(channel, name) == OPENED


@pytest.mark.parametrize("name", SERVING)
async def test_a_control_key_is_no_api_key(engine: FakeEngine, name: str):
    """As over HTTP: each kind opens its own calls."""
    async with serving(engine, **BOTH) as channel:
        assert await outcome(channel, name, "admin") is UNAUTHENTICATED
        assert await outcome(channel, name, "user") == OPENED


@pytest.mark.parametrize("name", [*SERVING, "Abort"])
async def test_control_keys_alone_leave_requests_open(engine: FakeEngine, name: str):
    """No API key is no check of requests, whatever guards control."""
    async with serving(engine, control_api_keys=("admin",)) as channel:
        assert await outcome(channel, name) == OPENED
        assert await outcome(channel, "FlushCache") is UNAUTHENTICATED


@pytest.mark.parametrize(
    ("own", "other", "is_aborted"),
    [
        pytest.param("user", "user", True, id="the same key"),
        pytest.param("user", "second", False, id="another key"),
        pytest.param("user", "admin", True, id="a control key"),
    ],
)
async def test_abort_ends_what_was_begun_with_the_same_key(
    engine: FakeEngine, own: str, other: str, is_aborted: bool
):
    """An id is easy to guess: another caller's is passed over as if nobody had it."""
    keys = {"api_keys": ("user", "second"), "control_api_keys": ("admin",)}
    async with serving(engine, **keys) as channel:
        stub = VllmEngineStub(channel)
        engine.hold()
        call = stub.Generate(
            request(request_id="mine", stream=True, max_tokens=2), metadata=bearer(own)
        )
        await engine.wait_for_open(1)
        await stub.Abort(pb.AbortRequest(request_ids=["mine"]), metadata=bearer(other))
        await engine.run_freely()
        reasons = {r.complete.finish_reason async for r in call if r.HasField("complete")}

    assert reasons == {"abort" if is_aborted else "length"}


async def test_health_check_is_open_with_the_flag_only(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture
):
    """Gateways send no key with it; the log says so at the start, and which flag opens it."""
    caplog.set_level("INFO", logger="weft.rpc")
    async with serving(engine, api_keys=("user",)) as channel:
        assert await outcome(channel, "HealthCheck") is UNAUTHENTICATED
    assert "--grpc-open-health-check" in caplog.text
    caplog.clear()
    async with serving(engine, api_keys=("user",), open_health_check=True) as channel:
        assert await outcome(channel, "HealthCheck") == OPENED
        assert await outcome(channel, "GetServerInfo") is UNAUTHENTICATED
    assert "--grpc-open-health-check" not in caplog.text


# -- TLS --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pair:
    """A self-signed certificate and its key."""

    cert: Path
    key: Path


def make_pair(folder: Path, name: str) -> Pair:
    """A certificate for localhost that is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    cert = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pair = Pair(folder / f"{name}.crt", folder / f"{name}.key")
    pair.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    pair.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return pair


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """A server's certificate and a client's."""
    folder = tmp_path_factory.mktemp("tls")
    return {name: make_pair(folder, name) for name in ("server", "client")}


async def start(engine: FakeEngine, **options) -> tuple[RpcServer, str]:
    """A running server and its host:port."""
    server = RpcServer(engine, TOKENIZER_FILES, RpcOptions(port=0, **options))
    return server, f"localhost:{await server.start()}"


async def test_tls_encrypts(engine: FakeEngine, pairs: dict[str, Pair]):
    """With a certificate, plaintext is refused and TLS works."""
    pair = pairs["server"]
    server, target = await start(engine, tls_cert=pair.cert, tls_key=pair.key)
    trust = grpc.ssl_channel_credentials(pair.cert.read_bytes())
    async with (
        grpc.aio.secure_channel(target, trust) as secure,
        grpc.aio.insecure_channel(target) as plain,
    ):
        await check_canary(VllmEngineStub(secure))
        status, _ = await refusal(VllmEngineStub(plain).HealthCheck(pb.HealthCheckRequest()))
        assert status == grpc.StatusCode.UNAVAILABLE
    await server.stop()


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "tls"])
async def test_a_handshake_that_nobody_ends_is_ended(
    engine: FakeEngine, pairs: dict[str, Pair], has_tls: bool
):
    """A connection without a handshake holds a descriptor; others are served meanwhile and afterwards."""
    pair = pairs["server"]
    files = {"tls_cert": pair.cert, "tls_key": pair.key} if has_tls else {}
    server, target = await start(engine, handshake_timeout_s=1.0, **files)
    trust = grpc.ssl_channel_credentials(pair.cert.read_bytes())
    streams = [await asyncio.open_connection("127.0.0.1", target.split(":")[1]) for _ in range(50)]
    make = grpc.aio.secure_channel if has_tls else grpc.aio.insecure_channel
    async with make(target, *((trust,) if has_tls else ())) as channel:
        await check_canary(VllmEngineStub(channel))
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(_until_closed(reader) for reader, _ in streams))
        await check_canary(VllmEngineStub(channel))
    for _, writer in streams:
        writer.close()
    await server.stop()


async def _until_closed(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionResetError):
        await reader.read()


async def test_client_certificate_is_asked_for(engine: FakeEngine, pairs: dict[str, Pair]):
    """With a client authority, only its certificates get in."""
    own, peer = pairs["server"], pairs["client"]
    server, target = await start(
        engine, tls_cert=own.cert, tls_key=own.key, tls_client_ca=peer.cert
    )
    root = own.cert.read_bytes()
    known = grpc.ssl_channel_credentials(root, peer.key.read_bytes(), peer.cert.read_bytes())
    async with (
        grpc.aio.secure_channel(target, known) as accepted,
        grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(root)) as anonymous,
    ):
        await check_canary(VllmEngineStub(accepted))
        status, _ = await refusal(VllmEngineStub(anonymous).HealthCheck(pb.HealthCheckRequest()))
        assert status == grpc.StatusCode.UNAVAILABLE
    await server.stop()


async def test_unusable_certificates_are_named(engine: FakeEngine, pairs: dict[str, Pair]):
    """Missing, half given, or not a pair: one sentence with the flag."""
    own, peer = pairs["server"], pairs["client"]
    with pytest.raises(ConfigError, match="both --grpc-tls-cert and --grpc-tls-key"):
        await start(engine, tls_cert=own.cert)
    with pytest.raises(ConfigError, match="both --grpc-tls-cert and --grpc-tls-key"):
        await start(engine, tls_client_ca=own.cert)
    with pytest.raises(ConfigError, match="--grpc-tls-key: cannot read"):
        await start(engine, tls_cert=own.cert, tls_key=own.key.with_name("none"))
    with pytest.raises(ConfigError, match="not a certificate and its key"):
        await start(engine, tls_cert=own.cert, tls_key=peer.key)
    with pytest.raises(ConfigError, match="--grpc-tls-client-ca"):
        await start(engine, tls_cert=own.cert, tls_key=own.key, tls_client_ca=own.key)


async def test_a_tenants_limits_salt_and_count_hold_over_grpc(engine: FakeEngine, tmp_path: Path):
    """As over HTTP: its requests are counted, and have its priority; cached tokens are hidden."""
    rules = {"name": "a", "keys": ["first"], "requests_per_minute": 2, "priority": 5}
    (tmp_path / "keys").write_text(json.dumps({"tenants": [rules]}))
    engine.cached_tokens = 2
    options = {"api_key_file": tmp_path / "keys", "hide_cached_tokens": True}
    async with channel_to(engine, **options) as channel:
        stub = VllmEngineStub(channel)
        for _ in range(2):
            [answer] = [r async for r in stub.Generate(request(), metadata=bearer("first"))]
            assert answer.complete.cached_tokens == 0
        refused = stub.Generate(request(), metadata=bearer("first"))
        status, detail = await refusal(refused)
        assert (status, "2 requests a minute" in detail) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            True,
        )
        assert (await refusal(stub.Generate(request())))[0] == UNAUTHENTICATED
    assert [call["priority"] for call in engine.calls] == [5, 5]
