"""`--resume-secret-file`: streams over HTTP that continue at an equal server."""

from collections.abc import Sequence
from typing import Protocol

from weft.cli.arguments.flags import pick
from weft.cli.options import ServeOptions
from weft.core.errors import ConfigError
from weft.core.values.types import LoRARequest
from weft.engine.transfer.settings import read_secret_file
from weft.web.http.endpoint import Endpoint
from weft.web.http.options import HttpOptions
from weft.web.http.state import ServerState
from weft.web.resuming.resumable import ResumingServer, resumable

_FLAG = "--resume-secret-file"


class HasFingerprint(Protocol):
    """Says which servers give equal answers."""

    async def fingerprint(self, lora: LoRARequest | None) -> str:
        """Returns the present fingerprint for requests with this adapter; empty if it is unknown."""


def read_resume_secret(options: ServeOptions) -> bytes | None:
    """Returns the secret of --resume-secret-file; None without the flag. Raises `ConfigError` for an invalid file."""
    path = pick(options, HttpOptions).resume_secret_file
    if path is None:
        return None
    if not options.http:
        raise ConfigError(f"{_FLAG} and --no-http exclude each other: streams over HTTP continue")
    return read_secret_file(_FLAG, str(path))


def with_resuming(
    endpoints: Sequence[Endpoint], state: ServerState, secret: bytes, prints: HasFingerprint
) -> tuple[Endpoint, ...]:
    """Returns the endpoints, whose streams can be continued."""
    return tuple(
        resumable(endpoints, ResumingServer.of(secret, prints.fingerprint, state.registry))
    )
