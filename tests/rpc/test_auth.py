"""Keys and TLS."""

import datetime as dt
import ipaddress
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from tests.doubles.fake_engine import FakeEngine
from tests.rpc.calls import TOKENIZER_FILES, check_canary, refusal, request
from weft.core.errors import ConfigError
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.rpc.methods import METHODS, SERVICE
from weft.rpc.server import RpcOptions, RpcServer

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


@pytest.fixture
async def guarded(engine: FakeEngine) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a server with two keys, and with reflection."""
    options = RpcOptions(port=0, api_keys=("first", "sécond"), reflection=True)
    server = RpcServer(engine, TOKENIZER_FILES, options)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{await server.start()}") as channel:
        yield channel
    await server.stop()


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
    method = METHODS[name]
    make = guarded.unary_stream if method.is_streaming else guarded.unary_unary

    status, detail = await refusal(make(method.path)(b"", metadata=metadata))

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


async def list_services(channel: grpc.aio.Channel, metadata=()) -> set[str]:
    """What reflection names."""
    message = reflection_pb2.ServerReflectionRequest(list_services="")
    call = ServerReflectionStub(channel).ServerReflectionInfo(iter([message]), metadata=metadata)
    return {s.name async for r in call for s in r.list_services_response.service}


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
    assert {SERVICE, "grpc.health.v1.Health"} <= services


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
