"""The page for who extends Weft names files that there are."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`((?:src|tests|cpp)/[\w./]+|CMakeLists\.txt)`", PAGE)))


@pytest.mark.parametrize("name", NAMED)
def test_what_the_page_names_is_there(name):
    """Whoever moves a file mends the page."""
    assert (ROOT / name).exists()


def test_the_page_names_something():
    """A pattern that finds nothing would hold nothing."""
    assert len(NAMED) > 20
