"""Opens both sides of KV transfer as the engine's configuration says."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weft import __version__
from weft.compute.protocols.runner import BlockCopies, HostBlockCopies
from weft.core.config.engine import EngineConfig
from weft.core.errors import ConfigError
from weft.engine.transfer.fetching import KvConsumer
from weft.engine.transfer.lending import KvProducer
from weft.engine.transfer.settings import FLAG, read_secret
from weft.engine.transfer.wire import Identity
from weft.engine.weights.engine_model import EngineModel


@dataclass(frozen=True, slots=True)
class ModelLender:
    """A `Lender` of blocks of the model's pool; uses the runner that the model has when blocks are offered."""

    producer: KvProducer
    model: EngineModel

    def offer(
        self,
        request_id: str,
        block_ids: list[int],
        hashes: list[bytes],
        num_computed: int,
        slot: int | None,
    ) -> dict[str, Any]:
        runner: object = self.model.runner
        assert isinstance(runner, HostBlockCopies)
        return self.producer.offer(request_id, block_ids, hashes, runner, num_computed, slot)

    def share(self, request_id: str) -> dict[str, Any]:
        return self.producer.share(request_id)

    def advance(self, request_id: str, num_computed: int, slot: int | None) -> None:
        self.producer.advance(request_id, num_computed, slot)

    def withdraw(self, request_id: str) -> None:
        self.producer.withdraw(request_id)


def open_transfer(
    config: EngineConfig, model: EngineModel, wake: Callable[[], None]
) -> tuple[ModelLender | None, KvConsumer | None]:
    """Opens the configured lender and consumer; raises `ConfigError` if the model's blocks cannot be transferred."""
    wanted = config.kv_transfer_config
    if wanted is None:
        return None, None
    if config.data_parallel_rank is not None:
        wanted = wanted.of_rank(config.data_parallel_rank)
    secret, identity = read_secret(wanted), _identity(config, model)
    lender = consumer = None
    if wanted.role.lends:
        lender = ModelLender(KvProducer(wanted, secret, identity, wake), model)
    if wanted.role.fetches:
        consumer = KvConsumer(wanted, secret, identity, wake)
    return lender, consumer


def _identity(config: EngineConfig, model: EngineModel) -> Identity:
    copies = block_copies(FLAG, config, model.runner)
    if not isinstance(copies, HostBlockCopies):
        raise ConfigError(f"{FLAG}: this backend's KV pool is not in the host's memory")
    state = [] if copies.state_slots is None else copies.state_slots.block_rows(0)
    return Identity(
        version=__version__,
        model=model.fingerprint(),
        kv_layout=copies.kv_layout,
        block_size=config.cache_config.block_size,
        block_bytes=copies.read_block(0).nbytes,
        state_bytes=sum(row.nbytes for row in state),
    )


def block_copies(flag: str, config: EngineConfig, runner: object) -> BlockCopies:
    """Returns the runner as `BlockCopies`; raises `ConfigError` if its blocks, or its states, cannot be copied."""
    if not isinstance(runner, BlockCopies):
        raise ConfigError(f"{flag}: this backend cannot copy blocks of its KV pool")
    if config.cache_config.states is not None and runner.state_slots is None:
        raise ConfigError(
            f"{flag}: this backend cannot copy the recurrent states that the model keeps"
        )
    return runner
