"""docs/reference/ says what the code says."""

import pytest

from tools.make_reference import PAGES, REFERENCE


@pytest.mark.parametrize("name", PAGES)
def test_a_reference_page_is_current(name: str):
    """`make docs` writes it; a page that lags behind the code lies to its readers."""
    assert (REFERENCE / name).read_text(encoding="utf-8") == PAGES[name]()


def test_every_page_there_is_generated():
    """A page nobody writes any more would stay for ever."""
    assert {path.name for path in REFERENCE.iterdir()} == set(PAGES)
