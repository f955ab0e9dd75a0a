"""`make site`: every page has its place, links lead somewhere, and nothing comes from elsewhere."""

import http.server
import threading
import tomllib
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.web.page.browser import NEEDS_CHROMIUM, Browser, browsing
from tools.make_site import ROOT, build, faults, files_of_site, pages, settings

NEEDS_ZENSICAL = pytest.mark.skipif(
    find_spec("zensical") is None, reason="needs Zensical: `make site` installs it"
)
PAGE = """<html><body><h1 id="top">A</h1>
<a href="other.html">there</a> <a href="other.html#place">too</a> <a href="https://example.com">elsewhere</a> {}
</body></html>"""
# What an input of the search shows, from its shadow tree.
SEARCH = "[...document.querySelectorAll('*')].find((one) => one.shadowRoot?.querySelector('input'))?.shadowRoot"


def test_every_page_stands_in_the_navigation_once():
    """One that is nowhere is found by nobody; a new page of docs/ is a how-to until a line says otherwise."""
    listed = [page for group in pages(ROOT).values() for page in group]
    assert len(listed) == len(set(listed))
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")} <= set(
        listed
    )


def test_the_settings_hold_the_navigation():
    """As the generator reads them: headings with their pages, by their titles."""
    project = tomllib.loads(settings(ROOT))["project"]
    headings = {name: below for entry in project["nav"] for name, below in entry.items()}
    assert headings["Start"] == "README.md"
    assert {"The first minute": "docs/first-minute.md"} in headings["Tutorial"]
    assert {"Errors": "docs/reference/errors.md"} in headings["Reference"]
    assert project["theme"]["font"] is False


def test_files_that_pages_link_to_are_part_of_the_site():
    """Links out of docs/ lead to the same file in both places."""
    assert {"deploy/envoy.yaml", "LICENSE", "examples/tools.py"} <= files_of_site(ROOT)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ('<a href="missing.html">', "missing.html leads nowhere"),
        ('<a href="other.html#missing">', "other.html#missing has no such place"),
        ('<a href="#missing">', "#missing has no such place"),
        ('<img src="missing.png">', "missing.png leads nowhere"),
        ('<script src="https://example.com/a.js"></script>', "from elsewhere"),
        ('<link rel="stylesheet" href="//example.com/a.css">', "from elsewhere"),
        ('<img src="http://example.com/a.png">', "from elsewhere"),
    ],
)
def test_what_is_wrong_with_a_page_is_found(tmp_path: Path, wrong: str, words: str):
    """Each by its page and address; a link to elsewhere is none of it."""
    (tmp_path / "other.html").write_text('<h1 id="place">B</h1>')
    (tmp_path / "page.html").write_text(PAGE.format(""))
    assert list(faults(tmp_path)) == []
    (tmp_path / "page.html").write_text(PAGE.format(wrong))
    (found,) = faults(tmp_path)
    assert found.startswith("page.html: ")
    assert words in found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole of it, with nothing wrong."""
    place = tmp_path_factory.mktemp("site")
    assert build(ROOT, place) == []
    return place / "site"


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where a plain server of files has it."""
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.mark.slow
@NEEDS_ZENSICAL
@pytest.mark.parametrize(
    ("link", "named"),
    [("missing.md", "missing"), ("other.md#missing", "#missing"), ("docs/", "docs/")],
)
def test_a_broken_link_ends_the_build(tmp_path: Path, link: str, named: str):
    """To a page that is not there, to a place that its page does not have, and to a directory."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "other.md").write_text("# Other\n")
    (tmp_path / "README.md").write_text(f"# A\n\n[one](other.md) [two]({link})\n")
    (found,) = build(tmp_path, tmp_path / "build")
    assert named in found


@pytest.mark.slow
@NEEDS_ZENSICAL
@NEEDS_CHROMIUM
@pytest.mark.parametrize("way", ["over HTTP", "as files"])
def test_the_search_works_without_a_network(site: Path, address: str, window: Browser, way: str):
    """Opened as files too, where browsers start no worker; whatever was loaded is the site's own."""
    base = address if way == "over HTTP" else f"file://{site}"
    window.open(f"{base}/docs/picker.html")
    window.click(".md-search__button")
    window.until(SEARCH)
    window.run(
        f"const field = {SEARCH}.querySelector('input'); field.value = arguments[0];"
        "field.dispatchEvent(new Event('input', {bubbles: true}))",
        "preempt",
    )
    assert window.until(f"{SEARCH}.querySelectorAll('ol li').length")
    loaded = window.run("return performance.getEntriesByType('resource').map((one) => one.name)")
    assert [name for name in loaded if not name.startswith(base)] == []
    assert window.complaints() == []


@pytest.mark.slow
@NEEDS_ZENSICAL
@NEEDS_CHROMIUM
@pytest.mark.parametrize(("preferred", "scheme"), [("light", "default"), ("dark", "slate")])
def test_colours_are_those_that_a_reader_prefers(
    address: str, window: Browser, preferred: str, scheme: str
):
    """As the system says, until a button says otherwise."""
    window.set_scheme(preferred)
    window.open(f"{address}/index.html")
    assert window.until("document.body.dataset.mdColorScheme") == scheme
