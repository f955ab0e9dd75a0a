"""What is decided at the start for engines that may become more or fewer."""

import msgspec


class ElasticConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What all engines share, however many there are, and the memory that one more takes."""

    num_threads: int
    engine_bytes: int
