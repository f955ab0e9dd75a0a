"""The first part of a start: the model is found and checked, and all that its engine must know decided.

Its tokenizer is read, and what stands before the engine imported, later (`weft.cli.serving.loading`): while the
engine reads the weights.
"""

from weft.cli.options import ServeOptions
from weft.engine.start.fit import Fitted, find_and_fit
from weft.model.open import OnBytes


def find(model: str, options: ServeOptions, on_bytes: OnBytes | None = None) -> Fitted:
    """Find and check the model; `ConfigError` says what of it, or of the options, cannot be served.

    Bytes of a download are reported to `on_bytes`.
    """
    return find_and_fit(options.engine_options(model), on_bytes=on_bytes, ranks=options.ranks())
