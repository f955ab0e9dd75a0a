"""The first part of a start: the model is found and checked, and all that its engine must know decided.

Its tokenizer is read, and what stands before the engine imported, later (`weft.cli.loading`): while the
engine reads the weights.
"""

from dataclasses import dataclass, replace

from weft.cli.options import ServeOptions
from weft.compute.load import choose, with_resident_sizes
from weft.core.config import EngineConfig
from weft.engine.configure import resolve, with_special_ids
from weft.engine.memory import free_memory_bytes
from weft.model.open import Checkpoint, find_model


@dataclass(frozen=True, slots=True)
class Found:
    """A model that was found, checked and fits; its weights are not read yet.

    Before `with_tokenizer` the configuration lacks special tokens: an engine hears of them with requests.
    """

    checkpoint: Checkpoint
    config: EngineConfig
    free_bytes: int

    def with_tokenizer(self) -> "Found":
        """With what the tokenizer says; `ConfigError` says why it does not go with the model."""
        checkpoint = self.checkpoint.with_tokenizer()
        return replace(
            self, checkpoint=checkpoint, config=with_special_ids(self.config, checkpoint.card)
        )


def find(model: str, options: ServeOptions) -> Found:
    """Find and check the model; `ConfigError` says what of it, or of the options, cannot be served."""
    engine_options = options.engine_options(model)
    checkpoint = find_model(
        model, revision=options.revision, dtype=options.dtype, runner=options.runner
    )
    checkpoint = with_resident_sizes(checkpoint, choose(engine_options, checkpoint.card))
    free_bytes = free_memory_bytes()
    config = resolve(engine_options, checkpoint.card, free_bytes)
    return Found(checkpoint, config, free_bytes)
