"""Settings for servers whose number of engines may change at run time."""

from typing import NoReturn

import msgspec

from weft.core.errors import Unsupported

MAX_DRAIN_S = 86_400.0


class ElasticConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Number of threads that all engines share, and bytes of memory that each additional engine takes."""

    num_threads: int
    engine_bytes: int


def refuse_draining() -> NoReturn:
    """Raises `Unsupported`: the server has one engine, so that its requests cannot continue at another one."""
    reason = "the server has one engine (--data-parallel-size)"
    raise Unsupported(f"drain and undrain are not supported: {reason}")


def refuse_scaling() -> NoReturn:
    """Raises `Unsupported`: the number of this server's engines is fixed."""
    reason = "the engine was started without --enable-elastic-ep"
    raise Unsupported(f"scale_elastic_ep is not supported: {reason}")
