"""What the terminal clients share: reaching the server, sampling parameters, streaming text."""

import signal
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict
from typing import Any

import msgspec

from weft.cli.options import ConnectOptions, SampleOptions
from weft.core.client import EngineClient
from weft.core.errors import ConfigError, Unauthenticated
from weft.core.types import OutputKind, PromptType, SamplingParams
from weft.rpc.client import RpcClient
from weft.rpc.connection import Credentials


def handle_interrupts() -> None:
    """Make Ctrl-C a KeyboardInterrupt, which cancels what runs on the event loop."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@asynccontextmanager
async def connected(options: ConnectOptions) -> AsyncIterator[RpcClient]:
    """A client of the server at `options.address`."""
    if not options.connect_timeout > 0:
        raise ConfigError(f"--connect-timeout must be above 0, not {options.connect_timeout}")
    if "://" in options.address:
        raise ConfigError(
            f"--address must be HOST:PORT of the server's gRPC port (50051 by default), not {options.address}"
        )
    try:
        client = await RpcClient.connect(
            options.address,
            credentials=Credentials(api_key=options.api_key, tls_ca=options.grpc_tls_ca),
            timeout_s=options.connect_timeout,
        )
    except Unauthenticated as error:
        which = "a key" if options.api_key is None else "another key"
        raise Unauthenticated(f"the server needs {which}: --api-key KEY or WEFT_API_KEY") from error
    try:
        yield client
    finally:
        await client.close()


def to_sampling_params(
    options: SampleOptions, defaults: dict[str, Any], *, max_tokens: int | None
) -> SamplingParams:
    """The options over the model's own defaults; text comes in deltas."""
    known = {
        name: value for name, value in defaults.items() if name in SamplingParams.__struct_fields__
    }
    chosen = {name: value for name, value in asdict(options).items() if value is not None}
    merged = {"max_tokens": max_tokens, **known, **chosen, "output_kind": OutputKind.DELTA}
    return msgspec.convert(merged, SamplingParams)


async def stream_text(
    client: EngineClient, prompt: PromptType, params: SamplingParams
) -> AsyncGenerator[str, None]:
    """The pieces of one answer as they come. Closing the generator aborts the request."""
    outputs = client.generate(prompt, params, f"cli-{uuid.uuid4().hex}")
    async with aclosing(outputs):
        async for output in outputs:
            for answer in output.outputs:
                if answer.text:
                    yield answer.text
