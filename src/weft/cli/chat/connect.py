"""Code shared by the terminal clients: the connection to the server, and sampling parameters."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict

import msgspec

from weft.cli.arguments.settings import wrong_key
from weft.cli.options import ConnectOptions, SampleOptions
from weft.core.checks.validate import validate_params
from weft.core.client import EngineClient
from weft.core.errors import ConfigError, Unauthenticated, Unavailable
from weft.core.values.types import OutputKind, SamplingParams
from weft.rpc.client import RpcClient
from weft.rpc.connection import Credentials, Unreachable

_GRPC = "grpc://"


def handle_interrupts() -> None:
    """Makes Ctrl-C raise KeyboardInterrupt, which cancels the work on the event loop."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def is_http(address: str) -> bool:
    """True for the address of a server's HTTP port, False for that of its gRPC port."""
    return address.startswith(("http://", "https://"))


def check_address(address: str) -> None:
    """Raises `ConfigError` if the address is a URL whose scheme is not grpc, http or https."""
    if "://" in address and not is_http(address) and not address.startswith(_GRPC):
        raise ConfigError(
            "--address must be HOST:PORT or grpc://HOST:PORT of a gRPC port, or http(s)://HOST:PORT of an HTTP port, "
            f"not {address}"
        )


def check_connect_timeout(options: ConnectOptions) -> None:
    """Raises `ConfigError` unless the --connect-timeout is positive."""
    if not options.connect_timeout > 0:
        raise ConfigError(f"--connect-timeout must be above 0, not {options.connect_timeout}")


def nobody_answers(address: str) -> Unavailable:
    """Returns the client's error for an address where no server listens."""
    kind = "HTTP" if is_http(address) else "gRPC"
    return Unavailable(
        f"no {kind} server answers at {address}; start one with `weft serve MODEL`, or name another with --address"
    )


@asynccontextmanager
async def connected(options: ConnectOptions) -> AsyncIterator[RpcClient]:
    """Yields a client that is connected to the gRPC server at `options.address`; closes the client afterwards."""
    check_connect_timeout(options)
    check_address(options.address)
    if options.model is not None:
        raise ConfigError("--model needs an HTTP --address: a gRPC port serves one model")
    try:
        client = await RpcClient.connect(
            options.address.removeprefix(_GRPC),
            credentials=Credentials(api_key=options.api_key, tls_ca=options.grpc_tls_ca),
            timeout_s=options.connect_timeout,
        )
    except Unauthenticated as error:
        raise wrong_key(options.api_key) from error
    except Unreachable:
        raise nobody_answers(options.address) from None
    try:
        yield client
    finally:
        await client.close()


def to_sampling_params(
    options: SampleOptions, client: EngineClient, *, max_tokens: int | None
) -> SamplingParams:
    """Returns the checked sampling parameters of a request: the given options, and the model's defaults for the others.
    The text is returned as deltas.
    """
    defaults = client.model_config.default_sampling_params
    known = {
        name: value for name, value in defaults.items() if name in SamplingParams.__struct_fields__
    }
    chosen = {name: value for name, value in asdict(options).items() if value is not None}
    merged = {"max_tokens": max_tokens, **known, **chosen, "output_kind": OutputKind.DELTA}
    params = msgspec.convert(merged, SamplingParams)
    validate_params(params, client.info.limits)
    return params
