"""`EngineModel`: the model with which an engine computes; its memory can be released and restored.

No other object may hold the runner: its memory is freed with the last reference.
"""

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import xxhash

from weft.compute.backends import backend_of, load_model
from weft.compute.native import trim_heap
from weft.compute.pooler import Pooler
from weft.compute.protocols.backend import PackedFile
from weft.compute.protocols.runner import RoutingRunner, Runner, ThreadedRunner, TimedRunner
from weft.compute.rope import inverse_frequencies
from weft.core.config.engine import EngineConfig
from weft.core.errors import ConfigError
from weft.engine.ipc.weight_files import PackedWeights
from weft.engine.weights.draft_model import DraftModel
from weft.engine.weights.packed_cache import PackedCache, copied
from weft.engine.weights.weight_store import WeightStore
from weft.model.files.checkpoint import Checkpoint
from weft.model.files.stamps import Stamps, content_digest
from weft.model.spec import EchoSpec, ModelSpec, RopeSpec

DISCARD = 2  # sleep level after which the weights are read from disk, whether changed or not


class EngineModel:
    """The model of an engine, owned by one thread. Without a checkpoint the model cannot be loaded again or sleep."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        pooler: Pooler | None = None,
        checkpoint: Checkpoint | None = None,
        stamps: Stamps | None = None,
        store: WeightStore | None = None,
    ) -> None:
        self._config = config
        self.draft: DraftModel | None = None  # set by the caller of `load`
        self.runner: Runner | None = runner  # None while weights are absent
        self.pooler = pooler
        self.checkpoint = checkpoint  # the files of the weights
        # Stamps of the files that the weights were loaded from; None if they were not loaded from files.
        self._stamps: Stamps | None = stamps or Stamps(())
        self._store = store
        self._unlike = secrets.token_hex(16)
        self._packed: PackedCache | None = None
        self.counts_experts = bool(self.expert_loads())
        self._has_kv = False
        self.is_kv_wanted = True
        self.sleep_level = 0  # level of the current sleep; 0 while the weights are loaded

    @classmethod
    def load(
        cls,
        config: EngineConfig,
        checkpoint: Checkpoint,
        report: Callable[[int], None] = lambda num_elements: None,
        store: WeightStore | None = None,
        packed: PackedCache | None = None,
    ) -> "EngineModel":
        """Reads the weights. Raises `ConfigError` if they cannot be served; `watched` describes `report`."""
        stamps = Stamps(checkpoint.weight_files)  # first: a file may change while it is read
        watched = checkpoint.watched(report)

        def load(file: PackedFile | None) -> tuple[Runner, Pooler | None]:
            return _load_through(packed, watched, config, file)

        if store is None:
            model = cls(config, *load(None), checkpoint, stamps)
        else:
            identity = _identity(config, checkpoint)
            model = cls(config, *store.load(load, identity), checkpoint, stamps, store)
            model._stamps = stamps if store.has(identity) else None
        model._packed = packed
        return model

    @property
    def has_weights(self) -> bool:
        """True if the weights are in memory."""
        return self.runner is not None

    @property
    def is_resident(self) -> bool:
        """True if weights and KV pool are in memory: a step can be computed."""
        return self.runner is not None and self._has_kv

    def sleep_refusal(self, level: int) -> str | None:
        """Returns why the memory that a sleep of this level frees could not be restored; None if it could."""
        if self.checkpoint is None or self.checkpoint.find_again is None:
            return (
                "sleep needs a model that can be loaded again: this one was handed over in memory"
            )
        if level < DISCARD and self._stamps is None and self.runner is not None:
            return "the weights were sent through shared memory, and no file has them: use level 2"
        return None

    def identity(self) -> str | None:
        """Returns a text that distinguishes these weights from others, across processes; None if there is no such text.

        Raises `ConfigError` if a file has changed since it was loaded.
        """
        if self.checkpoint is None or self._stamps is None:
            return None
        self._stamps.check()
        return _identity(self._config, self.checkpoint)

    def fingerprint(self) -> str:
        """Returns a digest of the content of all weight files; equal weights on another machine have the same digest.

        Weights of a weight update have a random fingerprint. Raises `ConfigError` if a file has changed since it was
        loaded.
        """
        parts = self.fingerprint_parts()
        if parts is None:
            return self._unlike
        rules, paths = parts
        return content_digest(rules, paths)

    def fingerprint_parts(self) -> tuple[str, list[Path]] | None:
        """Returns a digest of what decides on the model's numbers besides its weight files, and these files; None for
        weights that are in no file. Raises `ConfigError` if a file has changed since it was loaded.
        """
        if self._stamps is None:
            return None
        self._stamps.check()
        model, compute = self._config.model_config, self._config.compute_config
        if self.checkpoint is None:
            return "", []
        files = self.checkpoint.weight_files
        # A model with random weights has no files: its name determines the weights.
        name = "" if files else model.model
        how = compute and (compute.quantization, compute.kv_cache_dtype)
        digest = xxhash.xxh3_128(repr((name, self.checkpoint.spec, model.dtype, how)).encode())
        # For some models the context length changes the rotary frequencies.
        for rope in _ropes(self.checkpoint.spec):
            digest.update(inverse_frequencies(rope, model.max_model_len).tobytes())
        return digest.hexdigest(), list(files)

    def part_seconds(self) -> dict[str, float]:
        """Returns the seconds that the runner spent on each part of its steps; empty if they are not measured."""
        runner: object = self.runner
        return runner.seconds() if isinstance(runner, TimedRunner) else {}

    def expert_loads(self) -> list[list[int]]:
        """Returns token counts by MoE layer and expert; empty if the runner does not count them or is absent."""
        runner: object = self.runner
        return runner.expert_loads() if isinstance(runner, RoutingRunner) else []

    def expert_balance(self) -> tuple[float, float]:
        """Returns the tokens of the mean and of the busiest expert (see `RoutingRunner`); zeros if the runner is
        absent.
        """
        runner: object = self.runner
        return runner.expert_balance() if isinstance(runner, RoutingRunner) else (0.0, 0.0)

    def use_threads(self, num_threads: int) -> None:
        """Sets the number of threads, now and after a sleep."""
        assert self._config.compute_config is not None
        compute = msgspec.structs.replace(self._config.compute_config, num_threads=num_threads)
        self._config = msgspec.structs.replace(self._config, compute_config=compute)
        runner: object = self.runner
        if isinstance(runner, ThreadedRunner):
            runner.set_num_threads(num_threads)
        if self.draft is not None:
            self.draft.use_threads(num_threads)

    def allocate_kv(self) -> None:
        """Allocates the KV pools of the model and of the draft model."""
        cache = self._config.cache_config
        assert self.runner is not None
        self._allocate(self.runner)
        if self.draft is not None:  # draft models have no state slots
            self.draft.allocate_kv(num_blocks=cache.num_blocks, block_size=cache.block_size)
        self._has_kv = True

    def _allocate(self, runner: Runner) -> None:
        cache = self._config.cache_config
        runner.allocate_kv(
            num_blocks=cache.num_blocks,
            block_size=cache.block_size,
            num_state_slots=cache.num_state_slots,
        )

    def release(self, level: int) -> None:
        """Returns the memory of weights and KV pool to the system."""
        assert self.sleep_refusal(level) is None
        self._stop_keeping()
        self.runner, self._has_kv, self.is_kv_wanted = None, False, False
        self.sleep_level = max(self.sleep_level, level)
        if self._store is not None:
            self._store.leave()
            if level == DISCARD:
                self._store.read_anew()
        if self.draft is not None:
            self.draft.release()
        trim_heap()

    def restore_kv(self) -> None:
        """Allocates the KV pool again, if it is wanted and the weights are present."""
        if self.is_kv_wanted and self.runner is not None and not self._has_kv:
            self.allocate_kv()

    def restore_weights(self) -> bool:
        """Loads the absent weights; returns True if they may differ from the former ones.

        Raises `ConfigError` or `MemoryError`, and then nothing has changed.
        """
        assert self.checkpoint is not None
        is_anew = self.sleep_level == DISCARD
        checkpoint, stamps = self.checkpoint, self._stamps
        if is_anew:
            checkpoint = _find_again(checkpoint)
            stamps = Stamps(checkpoint.weight_files)
        assert stamps is not None, "it sleeps"
        stamps.check()
        if self.draft is not None:
            self.draft.restore_weights()
        try:
            runner, pooler = self._load(checkpoint, stamps, self._packed)
        except BaseException:
            if self.draft is not None:
                self.draft.release()
            raise
        self.checkpoint, self._stamps, self.sleep_level = checkpoint, stamps, 0
        self.runner, self.pooler = runner, pooler
        return is_anew

    def replace_weights(
        self,
        checkpoint: Checkpoint,
        *,
        is_lasting: bool,
        restore: Callable[[Runner], None],
        packed: PackedWeights | None = None,
    ) -> None:
        """Replaces the weights by other weights of the same model; `restore` loads the adapters into the new runner.

        `is_lasting` means that the files will still exist after a sleep. Nothing changes until all weights are loaded,
        nor after an error: there is memory for both copies, or a `ConfigError` is raised. If several engines share
        weights, `packed` is the location of the new weights, which this engine or another engine packs.
        """
        self._stop_keeping()
        if self._store is None or packed is None:
            self._replace_weights(checkpoint, is_lasting, restore)
            return
        former = self._store.move(packed)
        try:
            self._replace_weights(checkpoint, is_lasting, restore)
        except BaseException:
            self._store.leave()
            self._store.move(former)
            raise
        self._store.leave(former)

    def _replace_weights(
        self, checkpoint: Checkpoint, is_lasting: bool, restore: Callable[[Runner], None]
    ) -> None:
        stamps = Stamps(checkpoint.weight_files) if is_lasting else None
        runner, pooler = self._load(checkpoint, stamps)
        restore(runner)
        if self._has_kv:
            self._allocate(runner)
        if stamps is not None:
            stamps.check()  # the files did not change while they were read
            self.checkpoint = checkpoint
        self.runner, self.pooler, self._stamps = runner, pooler, stamps
        trim_heap()

    def _stop_keeping(self) -> None:
        if self._packed is not None:
            self._packed.stop()

    def _load(
        self, checkpoint: Checkpoint, stamps: Stamps | None, packed: PackedCache | None = None
    ) -> tuple[Runner, Pooler | None]:
        def load(file: PackedFile | None = None) -> tuple[Runner, Pooler | None]:
            if file is None or not file.is_published:
                self._check_room(checkpoint)
            return _load_through(packed, checkpoint, self._config, file)

        if self._store is None:
            return load()
        identity = None if stamps is None else _identity(self._config, checkpoint)
        return self._store.load(load, identity)

    def _check_room(self, checkpoint: Checkpoint) -> None:
        """Raises `ConfigError` if there is too little free memory for a second copy of the weights.

        The check comes first because pages of a pool and of packed weights are allocated only when they are written,
        which is too late to refuse.
        """
        assert self._config.compute_config is not None
        backend = backend_of(self._config)
        needed = backend.sized(checkpoint, self._config.compute_config).card.weight_bytes
        free = backend.free_bytes()
        if needed > free:
            raise ConfigError(f"the weights take {needed:,} bytes of memory, and {free:,} are free")


def _load_through(
    packed: PackedCache | None,
    checkpoint: Checkpoint,
    config: EngineConfig,
    file: PackedFile | None,
) -> tuple[Runner, Pooler | None]:
    """Loads the model; uses packed weights from the cache if it has them."""

    def load(stored: PackedFile | None) -> tuple[Runner, Pooler | None]:
        if stored is None:
            return load_model(checkpoint, config, file)
        return load_model(checkpoint, config, stored if file is None else copied(stored, file))

    if packed is None or (file is not None and file.is_published):
        return load(None)
    return packed.load(checkpoint, config, load)


def _identity(config: EngineConfig, checkpoint: Checkpoint) -> str:
    stats = [(path.name, path.stat()) for path in checkpoint.weight_files]
    files = [(name, found.st_size, found.st_mtime_ns) for name, found in stats]
    model, compute = config.model_config, config.compute_config
    return repr(
        (model.model, model.dtype, compute and compute.quantization, checkpoint.spec, files)
    )


def _ropes(spec: ModelSpec | EchoSpec) -> list[RopeSpec]:
    layers = spec.layers if isinstance(spec, ModelSpec) else ()
    return list(dict.fromkeys(layer.rope for layer in layers if layer.rope is not None))


def _find_again(former: Checkpoint) -> Checkpoint:
    assert former.find_again is not None
    found = former.find_again()
    if (found.spec, found.card.pooling) != (former.spec, former.card.pooling):
        raise ConfigError(f"{found.card.name} is another model now; restart the server to serve it")
    return replace(found, find_again=former.find_again)  # for the next sleep
