"""The ids of the requests in flight on this server: refuses duplicates, and tells when all are done."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from weft.core.errors import AlreadyExists


class OpenRequests:
    """Ids in use. One event loop owns it."""

    def __init__(self) -> None:
        self._owner_by_id: dict[str, bytes | None] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids in use now."""
        return tuple(self._owner_by_id)

    def owned(self, request_ids: Iterable[str], owner: bytes | None) -> list[str]:
        """Those of `request_ids` in use that `owner` began."""
        nobody = object()
        return [one for one in request_ids if self._owner_by_id.get(one, nobody) == owner]

    @contextmanager
    def hold(self, request_id: str, owner: bytes | None = None) -> Iterator[None]:
        """Use `request_id` for the length of the block; `AlreadyExists` if it is in use."""
        if request_id in self._owner_by_id:
            raise AlreadyExists(f"request_id {request_id!r} is in use by a request in flight")
        self._owner_by_id[request_id] = owner
        self._idle.clear()
        try:
            yield
        finally:
            del self._owner_by_id[request_id]
            if not self._owner_by_id:
                self._idle.set()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until none is in use; False if that takes longer than `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
