"""Options of a server with several models."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from weft.core.values.declare import Flag

_GROUP = "Several models"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """The models besides those of the command line, and the limits of all; each field is the flag of `weft serve` with
    the same name.
    """

    models: Annotated[
        str | None,
        Flag(
            'Models with their own settings, as JSON: {"NAME": {"model": MODEL, "quantization": "int8", "pinned": '
            'true, "idle": "10m"}}; in a configuration file, one table for each model. Settings are flags of '
            "--help=Model, Memory, Scheduling and API.",
            _GROUP,
            is_json=True,
        ),
    ] = None
    model_dir: Annotated[
        Path | None,
        Flag("Serve every checkpoint and GGUF file below this directory, by its name.", _GROUP),
    ] = None
    models_memory: Annotated[
        int | None,
        Flag(
            "Maximum memory of all loaded models together, such as 12GiB. Models are unloaded to make room for "
            "others. Default: 80 % of the free memory.",
            _GROUP,
            is_size=True,
        ),
    ] = None
    models_wait: Annotated[
        float,
        Flag(
            "Time that a request waits for its model to load, before it is refused with status 503.",
            _GROUP,
            is_duration=True,
        ),
    ] = 120.0
    models_min_stay: Annotated[
        float,
        Flag(
            "Minimum time that a model stays in memory, even while requests wait for other models.",
            _GROUP,
            is_duration=True,
        ),
    ] = 10.0
    models_idle: Annotated[
        float | None,
        Flag(
            "Unload a model after this time without requests. Default: when others need its memory.",
            _GROUP,
            is_duration=True,
        ),
    ] = None
