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
from weft.core.errors import ConfigError, Unauthenticated
from weft.core.values.types import OutputKind, SamplingParams
from weft.rpc.client import RpcClient
from weft.rpc.connection import Credentials


def handle_interrupts() -> None:
    """Makes Ctrl-C raise KeyboardInterrupt, which cancels the work on the event loop."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def check_address(address: str) -> None:
    """Raises `ConfigError` for a URL."""
    if "://" in address:
        raise ConfigError(
            f"--address must be HOST:PORT of the server's gRPC port (50051 by default), not {address}"
        )


@asynccontextmanager
async def connected(options: ConnectOptions) -> AsyncIterator[RpcClient]:
    """A client of the server at `options.address`."""
    if not options.connect_timeout > 0:
        raise ConfigError(f"--connect-timeout must be above 0, not {options.connect_timeout}")
    check_address(options.address)
    try:
        client = await RpcClient.connect(
            options.address,
            credentials=Credentials(api_key=options.api_key, tls_ca=options.grpc_tls_ca),
            timeout_s=options.connect_timeout,
        )
    except Unauthenticated as error:
        raise wrong_key(options.api_key) from error
    try:
        yield client
    finally:
        await client.close()


def to_sampling_params(
    options: SampleOptions, client: EngineClient, *, max_tokens: int | None
) -> SamplingParams:
    """Sampling parameters: the options, with the model's defaults for unset ones, checked; text is returned as
    deltas.
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
