"""Options of the store, as flags of `weft serve`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from weft.core.errors import ConfigError
from weft.core.values.declare import Flag
from weft.web.store.stored_object import StoreLimits

_IN_MEMORY_BYTES = 256 * 2**20
_IN_FILE_BYTES = 10 * 2**30
_IN_MEMORY_S = 24 * 3600.0
_IN_FILE_S = 30 * 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Storage of responses, conversations, files and batches: its place, its bounds, and the time that objects stay."""

    store_file: Annotated[
        Path | None,
        Flag(
            "SQLite file that stores responses, conversations, files and batches, so that they outlive a restart; "
            "the API servers of --api-server-count share it. Default: memory.",
            "API",
        ),
    ] = None
    store_max_bytes: Annotated[
        int | None,
        Flag(
            "Maximum size of all stored objects. Default: 256MiB in memory, 10GiB in --store-file.",
            "API",
            is_size=True,
        ),
    ] = None
    store_max_tenant_bytes: Annotated[
        int | None,
        Flag(
            "Maximum size of the stored objects of each tenant. Default: --store-max-bytes.",
            "API",
            is_size=True,
        ),
    ] = None
    store_ttl: Annotated[
        float | None,
        Flag(
            "How long responses, unchanged conversations and ended batches are stored, such as 12h. Default: 24h in "
            "memory, 720h in --store-file.",
            "API",
            is_duration=True,
        ),
    ] = None
    batch_concurrency: Annotated[
        int,
        Flag(
            "Maximum number of requests of /v1/batches and /v1/messages/batches at once. Each request of a caller "
            "takes one of these places, down to one.",
            "API",
        ),
    ] = 16

    def check(self) -> None:
        """Raises `ConfigError` with the flag's name for a value out of range."""
        for flag, value in (
            ("--store-max-bytes", self.store_max_bytes),
            ("--store-max-tenant-bytes", self.store_max_tenant_bytes),
            ("--store-ttl", self.store_ttl),
            ("--batch-concurrency", self.batch_concurrency),
        ):
            if value is not None and value < 1:
                raise ConfigError(f"{flag} must be at least 1, not {value:g}")

    @property
    def limits(self) -> StoreLimits:
        """The bounds of the store."""
        usual = _IN_MEMORY_BYTES if self.store_file is None else _IN_FILE_BYTES
        return StoreLimits(
            max_bytes=self.store_max_bytes or usual,
            max_tenant_bytes=self.store_max_tenant_bytes,
            max_responses=10_000 if self.store_file is None else 1_000_000,
        )

    @property
    def ttl_s(self) -> float:
        """Seconds after which responses and unchanged conversations are dropped."""
        return self.store_ttl or (_IN_MEMORY_S if self.store_file is None else _IN_FILE_S)
