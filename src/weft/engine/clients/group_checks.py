"""Checks of a group before an engine joins: the memory for it, and its weights."""

from weft.compute.backends import backend_of
from weft.core.config.engine import EngineConfig
from weft.core.errors import ConfigError, FailedPrecondition
from weft.core.observe.readable import format_bytes
from weft.engine.front.client import FrontClient


class OtherWeights(ConfigError):
    """A restarted engine would have other weights than before."""


class WeightsIdentity:
    """Identity of weights that the engines of this machine read from files, each for itself.

    `note` takes the identity of an engine, and `check` compares that of a restarted engine.
    """

    def __init__(self) -> None:
        self._identity: str | None = None

    async def note(self, client: FrontClient) -> None:
        """Takes the weights of an engine for those of all."""
        self._identity = await _identity_of(client)

    async def check(self, client: FrontClient) -> None:
        """Raises `OtherWeights` if an engine has other weights."""
        if self._identity is not None and self._identity != await _identity_of(client):
            raise OtherWeights("the model's files have changed since the engine was started")


async def _identity_of(client: FrontClient) -> str:
    [identity] = await client.collective_rpc("weights_identity")
    return str(identity)


def check_room(config: EngineConfig, num_new: int) -> None:
    """Raises `FailedPrecondition` if threads or memory do not suffice for more engines."""
    elastic, size = config.elastic_config, config.data_parallel_size
    assert elastic is not None
    if elastic.num_threads < size:
        raise FailedPrecondition(
            f"{size} engines need at least {size} threads, but --num-threads is {elastic.num_threads}"
        )
    needed, free = num_new * elastic.engine_bytes, backend_of(config).free_bytes()
    if needed > free:
        raise FailedPrecondition(
            f"{size} engines need {format_bytes(needed)} more memory, {format_bytes(elastic.engine_bytes)} for each "
            f"new engine, but only {format_bytes(free)} are free; a smaller --kv-cache-bytes reduces this"
        )
