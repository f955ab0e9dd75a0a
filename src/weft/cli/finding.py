"""The first part of a start: the model is found and checked, and all that its engine must know decided.

What stands before the engine is imported later (`weft.cli.loading`), while the weights are read.
"""

from dataclasses import dataclass

from weft.cli.options import ServeOptions
from weft.compute.load import choose, with_resident_sizes
from weft.core.config import EngineConfig
from weft.engine.configure import resolve
from weft.engine.memory import free_memory_bytes
from weft.model.open import Checkpoint, open_model


@dataclass(frozen=True, slots=True)
class Found:
    """A model that was found, checked and fits; its weights are not read yet."""

    checkpoint: Checkpoint
    config: EngineConfig
    free_bytes: int


def find(model: str, options: ServeOptions) -> Found:
    """Find and check the model; `ConfigError` says what of it, or of the options, cannot be served."""
    engine_options = options.engine_options(model)
    checkpoint = open_model(
        model, revision=options.revision, dtype=options.dtype, runner=options.runner
    )
    checkpoint = with_resident_sizes(checkpoint, choose(engine_options, checkpoint.card))
    free_bytes = free_memory_bytes()
    config = resolve(engine_options, checkpoint.card, free_bytes)
    return Found(checkpoint, config, free_bytes)
