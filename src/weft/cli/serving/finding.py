"""The first part of a start: finds and checks the model, and decides all settings that its engine needs.

The tokenizer is read, and the servers' modules are imported, later (`weft.cli.serving.loading`), while the engine
reads the weights.
"""

from weft.cli.options import ServeOptions
from weft.engine.start.fit import Fitted, find_and_fit
from weft.model.open import OnBytes


def find(model: str, options: ServeOptions, on_bytes: OnBytes | None = None) -> Fitted:
    """Finds and checks the model; raises `ConfigError` with the reason if the model or the options cannot be served.

    Download progress is reported to `on_bytes`.
    """
    return find_and_fit(options.engine_options(model), on_bytes=on_bytes, ranks=options.ranks())
