"""`LoraLoader`: the engine's part of LoRA adapters; the front decides which adapters are loaded, and when."""

from pathlib import Path

from weft.compute.backends import backend_of
from weft.compute.protocols.runner import AdapterStore, Runner
from weft.core.config.engine import EngineConfig
from weft.core.errors import ConfigError, NotFound
from weft.engine.ipc.messages import AddLora, Reply
from weft.engine.weights.engine_model import EngineModel
from weft.model.files.stamps import Stamps
from weft.model.lora import CONFIG_FILE, WEIGHTS_FILE, AdapterTargets, read_adapter

# Maximum memory in bytes per byte of the file: bfloat16 is widened to float32, and then packed.
_BYTES_PER_BYTE = 4


class LoraLoader:
    """Loads adapters into the runner. Steps wait during the load, which is short: an adapter is small."""

    def __init__(self, model: EngineModel, config: EngineConfig) -> None:
        self._config, self._limits = config, config.lora_config
        self._model_type = config.model_config.model_type
        self._model = model
        # Adapters by id, also while the engine sleeps: the directory, and the stamps of its files when they were read.
        self.loaded: dict[int, tuple[Path, Stamps]] = {}

    def load(self, command: AddLora) -> Reply:
        """Loads an adapter completely or not at all; the reply has the reason of a failure."""
        path, is_missing = Path(command.path), False
        try:
            # Taken first: a file may change while it is read, and the stamps must belong to the loaded content.
            stamps = Stamps(filter(Path.is_file, (path / CONFIG_FILE, path / WEIGHTS_FILE)))
            self._read(command.lora_id, path, self._adapters(self._model.runner))
        except (ConfigError, NotFound) as error:
            refusal, is_missing = str(error), isinstance(error, NotFound)
        except OSError as error:  # the system refuses to read the path
            refusal = f"{path}: cannot be read ({error.strerror or error})"
        except MemoryError:
            refusal = f"{path}: not enough memory"
        else:
            self.loaded[command.lora_id] = path, stamps
            return Reply(command.call_id)
        return Reply(command.call_id, False, refusal=refusal, is_missing=is_missing)

    def remove(self, lora_id: int) -> None:
        """Removes a loaded adapter."""
        del self.loaded[lora_id]
        if self._model.has_weights:
            self._adapters(self._model.runner).remove_adapter(lora_id)

    def restore(self, runner: Runner | None) -> None:
        """Loads all adapters into a new runner; raises a `ConfigError` that names an adapter whose files have
        changed.
        """
        for lora_id, (path, stamps) in self.loaded.items():
            stamps.check()
            self._read(lora_id, path, self._adapters(runner))

    @staticmethod
    def _adapters(runner: Runner | None) -> AdapterStore:
        assert runner is not None
        adapters = runner.adapters
        assert adapters is not None, "refused when it was chosen"
        return adapters

    def _read(self, lora_id: int, path: Path, adapters: AdapterStore) -> None:
        assert self._limits is not None
        _check_room(path, backend_of(self._config).free_bytes())
        targets = AdapterTargets.of(adapters.spec, self._model_type)
        adapter = read_adapter(path, targets, max_rank=self._limits.max_lora_rank)
        adapters.add_adapter(lora_id, adapter)


def _check_room(path: Path, free: int) -> None:
    """Raises `ConfigError` if memory is short: an adapter with its own embedding and head exceeds the reserved
    memory.
    """
    file = path / WEIGHTS_FILE
    needed = _BYTES_PER_BYTE * file.stat().st_size if file.is_file() else 0
    if needed > free:
        raise ConfigError(
            f"{path}: loading it takes up to {needed:,} bytes of memory, and {free:,} are free"
        )
