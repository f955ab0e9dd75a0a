"""What is decided at the start for engines that may become more or fewer."""

from typing import NoReturn

import msgspec

from weft.core.errors import Unsupported

MAX_DRAIN_S = 86_400.0


class ElasticConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What all engines share, however many there are, and the memory that one more takes."""

    num_threads: int
    engine_bytes: int


def refuse_scaling() -> NoReturn:
    """Of an engine, or of several, whose number is fixed."""
    reason = "the engine was started without --enable-elastic-ep"
    raise Unsupported(f"scale_elastic_ep is not supported: {reason}")
