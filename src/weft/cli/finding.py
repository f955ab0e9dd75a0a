"""The first part of a start: the model is found and checked, and all that its engine must know decided.

Its tokenizer is read, and what stands before the engine imported, later (`weft.cli.loading`): while the
engine reads the weights.
"""

from weft.cli.options import ServeOptions
from weft.engine.fit import Fitted, fit
from weft.model.open import find_model
from weft.model.overrides import read_overrides


def find(model: str, options: ServeOptions) -> Fitted:
    """Find and check the model; `ConfigError` says what of it, or of the options, cannot be served."""
    engine = options.engine_options(model)
    checkpoint = find_model(
        model,
        revision=engine.revision,
        dtype=engine.dtype,
        runner=engine.runner,
        overrides=read_overrides(engine),
    )
    return fit(checkpoint, engine)
