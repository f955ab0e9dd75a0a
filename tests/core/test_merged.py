"""Several streams made one: order within each, errors, early leaving."""

import asyncio
from contextlib import aclosing

import pytest

from weft.core.aio.merged import merged


class Source:
    """A stream that notes how far it was read and whether it was closed."""

    def __init__(self, items, error=None):
        self.items, self.error = items, error
        self.num_read = 0
        self.is_closed = False

    async def run(self):
        """Its items, then its error."""
        try:
            for item in self.items:
                self.num_read += 1
                yield item
                await asyncio.sleep(0)
            if self.error is not None:
                raise self.error
        finally:
            self.is_closed = True


@pytest.mark.parametrize("num_streams", [1, 2, 5])
async def test_nothing_is_lost_or_reordered(num_streams):
    """Each stream's items come in its own order, marked with its position."""
    sources = [Source(range(7)) for _ in range(num_streams)]
    found = [item async for item in merged([source.run() for source in sources])]
    for position in range(num_streams):
        assert [item for place, item in found if place == position] == list(range(7))
    assert all(source.is_closed for source in sources)


@pytest.mark.parametrize("num_streams", [1, 3])
async def test_the_first_error_ends_all(num_streams):
    """It is raised as it is, and the others are closed."""
    endless = [Source(range(10**9)) for _ in range(num_streams - 1)]
    sources = [*endless, Source([1], ValueError("mine"))]
    with pytest.raises(ValueError, match="mine"):
        async for _ in merged([source.run() for source in sources]):
            pass
    assert all(source.is_closed for source in sources)


@pytest.mark.parametrize("num_streams", [1, 3])
async def test_leaving_early_closes_all(num_streams):
    """Whoever stops reading stops the work."""
    sources = [Source(range(10**9)) for _ in range(num_streams)]
    async with aclosing(merged([source.run() for source in sources])) as items:
        await anext(items)
    assert all(source.is_closed for source in sources if source.num_read)


async def test_a_slow_reader_holds_the_streams_back():
    """Of each at most one item waits, and one more is on its way."""
    sources = [Source(range(10**9)) for _ in range(3)]
    async with aclosing(merged([source.run() for source in sources])) as items:
        await anext(items)
        for _ in range(50):
            await asyncio.sleep(0)
        assert all(source.num_read <= 3 for source in sources)
