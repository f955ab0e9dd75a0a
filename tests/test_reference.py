"""docs/reference/ and --help say what the code says."""

from pathlib import Path

import pytest

from tools.make_reference import FILES, PAGES, REFERENCE


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_generated_file_is_current(path: Path):
    """`make docs` writes it; a page that lags behind the code lies to its readers."""
    assert path.read_text(encoding="utf-8") == FILES[path]()


def test_every_page_there_is_generated():
    """A page nobody writes any more would stay for ever."""
    assert {path.name for path in REFERENCE.iterdir()} == set(PAGES)
