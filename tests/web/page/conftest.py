from collections.abc import Iterator

import pytest

from tests.cli.running import Server, running
from tests.web.http.serving import serving
from tests.web.page.browser import KEY, Browser, browsing, open_page


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """What is on the page has been computed; its key is `KEY`."""
    with running("embedded:tiny", "--no-grpc", "--api-key", KEY) as server:
        yield server


@pytest.fixture
def page(server: Server, window: Browser) -> Iterator[Browser]:
    """The page with a key, and no conversation; nothing may have been blocked or have failed in it."""
    open_page(window, server.http, KEY)
    yield window
    assert window.complaints() == []


@pytest.fixture
async def paged():
    """A server of the page before an engine that does as it is told."""
    async with serving(has_page=True) as site:
        yield site
