"""`DraftModel`: a draft model, or an MTP head of the served model, which can be released and loaded again."""

import msgspec

from weft.compute.backends import load_runner
from weft.compute.protocols.backend import PackedFile
from weft.compute.protocols.runner import Runner, ThreadedRunner
from weft.core.config.engine import ComputeConfig, EngineConfig
from weft.core.config.file_overrides import NO_OVERRIDES, FileOverrides
from weft.core.config.speculation import DraftModelConfig
from weft.core.errors import ConfigError
from weft.engine.ipc.weight_files import PackedWeights
from weft.engine.settings.speculation import FLAG
from weft.engine.weights.weight_store import WeightStore
from weft.model.files.checkpoint import Checkpoint
from weft.model.open import find_model


class DraftModel:
    """A draft model, owned by the engine's thread. Its KV pool has the same block numbers as the engine's pool."""

    def __init__(
        self,
        config: DraftModelConfig,
        compute: ComputeConfig,
        store: WeightStore | None,
        overrides: FileOverrides = NO_OVERRIDES,
    ) -> None:
        self.config = config
        self._overrides = overrides
        self._compute = compute
        self._store = store
        try:
            found = self._find()
            self._spec = found.spec
            self.runner: Runner | None = self._load(found)  # None while weights are absent
        except ConfigError as error:
            raise ConfigError(f"{FLAG}: {error}") from error

    @classmethod
    def load(cls, config: EngineConfig, packed: PackedWeights | None = None) -> "DraftModel | None":
        """Reads the draft model's weights; returns None without a draft model.

        `packed` is the location of weights that several engines share.
        """
        speculation, compute = config.scheduler_config.speculation, config.compute_config
        if speculation is None or speculation.draft is None:
            return None
        assert compute is not None, "it computes elsewhere"
        draft = speculation.draft
        compute = msgspec.structs.replace(compute, quantization=draft.quantization)
        overrides = config.model_config.file_overrides if draft.is_mtp else NO_OVERRIDES
        return cls(draft, compute, None if packed is None else WeightStore(packed), overrides)

    def use_threads(self, num_threads: int) -> None:
        """Sets the number of threads, now and after a sleep."""
        self._compute = msgspec.structs.replace(self._compute, num_threads=num_threads)
        runner: object = self.runner
        if isinstance(runner, ThreadedRunner):
            runner.set_num_threads(num_threads)

    def allocate_kv(self, *, num_blocks: int, block_size: int) -> None:
        """Allocates the draft model's KV pool."""
        assert self.runner is not None
        self.runner.allocate_kv(num_blocks=num_blocks, block_size=block_size)

    def release(self) -> None:
        """Frees the draft model's weights and KV pool."""
        self.runner = None
        if self._store is not None:
            self._store.leave()

    def restore_weights(self) -> None:
        """Loads the absent weights again, from the files that the model's name refers to now."""
        found = self._find()
        if found.spec != self._spec:
            raise ConfigError(
                f"the draft model {found.card.name} has changed on disk; restart the server to draft with it"
            )
        self.runner = self._load(found)

    def _find(self) -> Checkpoint:
        config = self.config
        found = find_model(
            config.model,
            revision=config.revision,
            dtype=config.load_dtype,
            runner="generate",
            overrides=self._overrides,
        )
        if not config.is_mtp:
            return found
        if found.find_mtp is None:
            raise ConfigError(f"{config.model} has no layers for multi-token prediction any more")
        return found.find_mtp()

    def _load(self, checkpoint: Checkpoint) -> Runner:
        def load(file: PackedFile | None = None) -> Runner:
            return load_runner(checkpoint, self._compute, self.config.max_model_len, file)

        return load() if self._store is None else self._store.load(load, None)
