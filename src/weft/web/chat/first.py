"""A stream whose first item is there: what fails before it fails as an answer, with a status of its own."""

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


async def with_first(stream: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Wait for the first item; what is returned yields it and the rest, and owns the stream.

    A generator function could not do this: closed before its first step, it would leave the stream open.
    """
    try:
        first = await anext(stream)
    except BaseException:
        await stream.aclose()
        raise
    return _WithFirst(first, stream)


class _WithFirst(AsyncGenerator[T, None]):
    def __init__(self, first: T, rest: AsyncGenerator[T, None]) -> None:
        self._first: list[T] = [first]
        self._rest = rest

    async def asend(self, value: None) -> T:
        if self._first:
            return self._first.pop()
        return await self._rest.asend(value)

    async def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> T:
        self._first.clear()
        error: Any = typ if val is None else val
        return await self._rest.athrow(error)

    async def aclose(self) -> None:
        self._first.clear()
        await self._rest.aclose()
