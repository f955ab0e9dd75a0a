"""`LoraLoader`: the engine's side of LoRA adapters; the front decides which are loaded, and when."""

from pathlib import Path

from weft.compute.backends import backend_of
from weft.compute.runner import Runner
from weft.core.config import EngineConfig
from weft.core.errors import ConfigError, NotFound
from weft.engine.messages import AddLora, Reply
from weft.model.lora import WEIGHTS_FILE, AdapterTargets, read_adapter

# Bytes taken for a byte of the file, at most: bfloat16 is widened, and packed from that.
_BYTES_PER_BYTE = 4


class LoraLoader:
    """Loads into the runner. Steps wait meanwhile: an adapter is small beside the model."""

    def __init__(self, runner: Runner, config: EngineConfig) -> None:
        self._config, self._limits = config, config.lora_config
        self._model_type = config.model_config.model_type
        self._adapters = runner.adapters
        assert self._limits is None or self._adapters is not None, "refused when it was chosen"
        self.num_loaded = 0

    def load(self, command: AddLora) -> Reply:
        """Load an adapter, whole or not at all; what is wrong with it is in the answer."""
        assert self._limits is not None
        assert self._adapters is not None
        path, is_missing = Path(command.path), False
        try:
            _check_room(path, backend_of(self._config).free_bytes())
            targets = AdapterTargets.of(self._adapters.spec, self._model_type)
            adapter = read_adapter(path, targets, max_rank=self._limits.max_lora_rank)
            self._adapters.add_adapter(command.lora_id, adapter)
        except (ConfigError, NotFound) as error:
            refusal, is_missing = str(error), isinstance(error, NotFound)
        except OSError as error:  # a path that the system refuses to look at
            refusal = f"{path}: cannot be read ({error.strerror or error})"
        except MemoryError:
            refusal = f"{path}: the memory does not suffice"
        else:
            self.num_loaded += 1
            return Reply(command.call_id)
        return Reply(command.call_id, False, refusal=refusal, is_missing=is_missing)

    def remove(self, lora_id: int) -> None:
        """Forget a loaded adapter."""
        assert self._adapters is not None
        self._adapters.remove_adapter(lora_id)
        self.num_loaded -= 1


def _check_room(path: Path, free: int) -> None:
    """An adapter with an embedding and a head of its own is larger than what is reserved for it."""
    file = path / WEIGHTS_FILE
    needed = _BYTES_PER_BYTE * file.stat().st_size if file.is_file() else 0
    if needed > free:
        raise ConfigError(
            f"{path}: loading it takes up to {needed:,} bytes of memory, and {free:,} are free"
        )
