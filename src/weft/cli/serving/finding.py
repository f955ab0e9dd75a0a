"""First part of a start: finds and checks the model, and decides all settings of its engine.

The second part (`weft.cli.serving.loading`) reads the tokenizer and imports the servers' modules while the engine reads
the weights.
"""

from weft.cli.options import ServeOptions
from weft.engine.start.fit import Fitted, find_and_fit
from weft.model.open import OnBytes


def find(
    model: str,
    options: ServeOptions,
    on_bytes: OnBytes | None = None,
    free_bytes: int | None = None,
) -> Fitted:
    """Finds and checks the model and returns it with the engine's settings. Raises `ConfigError` with the reason if the
    model or the options cannot be served.

    `on_bytes` gets the progress of a download. `free_bytes` is the memory that the model may have; by default what is
    free now.
    """
    return find_and_fit(
        options.engine_options(model),
        on_bytes=on_bytes,
        ranks=options.ranks(),
        free_bytes=free_bytes,
    )
