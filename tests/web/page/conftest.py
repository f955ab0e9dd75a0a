from collections.abc import Iterator

import pytest

from tests.web.page.browser import Browser, browsing


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser
