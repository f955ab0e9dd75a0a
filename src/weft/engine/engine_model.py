"""`EngineModel`: what an engine computes with, in memory or able to come back.

Nobody else may hold the runner: its memory goes with the last who does.
"""

from weft.compute.backends import backend_of, load_model
from weft.compute.native import trim_heap
from weft.compute.pooler import Pooler
from weft.compute.runner import Runner
from weft.core.config import EngineConfig
from weft.core.errors import ConfigError
from weft.model.checkpoint import Checkpoint
from weft.model.stamps import Stamps

DISCARD = 2  # the level of sleep from which the weights that are on disk come back, new or old


class EngineModel:
    """One thread owns it. Without a checkpoint it cannot be loaded again, and so never sleeps."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        pooler: Pooler | None = None,
        checkpoint: Checkpoint | None = None,
        stamps: Stamps | None = None,
    ) -> None:
        self._config = config
        self.runner: Runner | None = runner  # None while weights are absent
        self.pooler = pooler
        self._checkpoint = checkpoint
        self._stamps = stamps or Stamps(())
        self._has_kv = False
        self.is_kv_wanted = True
        self.sleep_level = 0  # from which the weights have still to come back

    @classmethod
    def load(cls, config: EngineConfig, checkpoint: Checkpoint) -> "EngineModel":
        """Read the weights. A `ConfigError` says why they cannot be served."""
        stamps = Stamps(checkpoint.weight_files)  # first: a file may change while it is read
        runner, pooler = load_model(checkpoint, config)
        return cls(config, runner, pooler, checkpoint, stamps)

    @property
    def has_weights(self) -> bool:
        """Whether there is a runner."""
        return self.runner is not None

    @property
    def is_resident(self) -> bool:
        """Whether weights and KV pool are there: a step can be computed."""
        return self.runner is not None and self._has_kv

    @property
    def can_sleep(self) -> bool:
        """Whether it can be loaded again."""
        return self._checkpoint is not None and self._checkpoint.find_again is not None

    def allocate_kv(self) -> None:
        """Make the pool."""
        cache = self._config.cache_config
        assert self.runner is not None
        self.runner.allocate_kv(num_blocks=cache.num_blocks, block_size=cache.block_size)
        self._has_kv = True

    def release(self, level: int) -> None:
        """Give the memory of weights and KV pool back to the system."""
        assert self.can_sleep
        self.runner, self._has_kv, self.is_kv_wanted = None, False, False
        self.sleep_level = max(self.sleep_level, level)
        trim_heap()

    def restore_kv(self) -> None:
        """Make the pool again, if it is wanted and there are weights to fill it."""
        if self.is_kv_wanted and self.runner is not None and not self._has_kv:
            self.allocate_kv()

    def restore_weights(self) -> bool:
        """Load the weights, which are absent; whether they may be others than before.

        Raises `ConfigError` or `MemoryError`, and nothing has changed then.
        """
        assert self._checkpoint is not None
        is_anew = self.sleep_level == DISCARD
        checkpoint, stamps = self._checkpoint, self._stamps
        if is_anew:
            checkpoint = _find_again(checkpoint)
            stamps = Stamps(checkpoint.weight_files)
        stamps.check()
        self._check_room(checkpoint)
        runner, pooler = load_model(checkpoint, self._config)
        self._checkpoint, self._stamps, self.sleep_level = checkpoint, stamps, 0
        self.runner, self.pooler = runner, pooler
        return is_anew

    def _check_room(self, checkpoint: Checkpoint) -> None:
        """The pages of a pool and of packed weights are taken when written: too late to refuse."""
        assert self._config.compute_config is not None
        backend = backend_of(self._config)
        needed = backend.sized(checkpoint, self._config.compute_config).card.weight_bytes
        free = backend.free_bytes()
        if needed > free:
            raise ConfigError(f"the weights take {needed:,} bytes of memory, and {free:,} are free")


def _find_again(former: Checkpoint) -> Checkpoint:
    assert former.find_again is not None
    found = former.find_again()
    if (found.spec, found.card.pooling) != (former.spec, former.card.pooling):
        raise ConfigError(f"{found.card.name} is another model now; restart the server to serve it")
    return found
