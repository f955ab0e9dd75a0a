"""`LoraLoader`: the engine's side of LoRA adapters; the front decides which are loaded, and when."""

from pathlib import Path

from weft.compute.runner import AdapterRunner, Runner
from weft.core.config import EngineConfig
from weft.core.errors import ConfigError, NotFound
from weft.engine.messages import AddLora, Reply
from weft.model.lora import AdapterTargets, read_adapter


class LoraLoader:
    """Loads into the runner. Steps wait meanwhile: an adapter is small beside the model."""

    def __init__(self, runner: Runner, config: EngineConfig) -> None:
        self._limits = config.lora_config
        self._model_type = config.model_config.model_type
        self._runner = runner if isinstance(runner, AdapterRunner) else None
        assert self._limits is None or self._runner is not None, "refused when it was chosen"

    def load(self, command: AddLora) -> Reply:
        """Load an adapter, whole or not at all; what is wrong with it is in the answer."""
        assert self._limits is not None
        assert self._runner is not None
        try:
            targets = AdapterTargets.of(self._runner.spec, self._model_type)
            adapter = read_adapter(Path(command.path), targets, max_rank=self._limits.max_lora_rank)
        except (ConfigError, NotFound) as error:
            is_missing = isinstance(error, NotFound)
            return Reply(command.call_id, False, refusal=str(error), is_missing=is_missing)
        except MemoryError:
            return Reply(
                command.call_id, False, refusal=f"{command.path}: the memory does not suffice"
            )
        self._runner.add_adapter(command.lora_id, adapter)
        return Reply(command.call_id)

    def remove(self, lora_id: int) -> None:
        """Forget a loaded adapter."""
        assert self._runner is not None
        self._runner.remove_adapter(lora_id)
