"""Settings for a number of engines that may change while they run."""

from typing import NoReturn

import msgspec

from weft.core.errors import Unsupported

MAX_DRAIN_S = 86_400.0


class ElasticConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Number of threads that all engines share, and the memory in bytes that one more engine takes."""

    num_threads: int
    engine_bytes: int


def refuse_scaling() -> NoReturn:
    """Raises `Unsupported`: the number of engines is fixed."""
    reason = "the engine was started without --enable-elastic-ep"
    raise Unsupported(f"scale_elastic_ep is not supported: {reason}")
