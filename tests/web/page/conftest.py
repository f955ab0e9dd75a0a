from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from tests.cli.running import Server, running
from tests.web.http.serving import serving
from tests.web.page.browser import KEY, Browser, browsing, open_page
from weft.web.page import assets


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


@pytest.fixture(scope="module")
def page_files() -> Iterator[str]:
    """The address of a server that has the page's files, sent as ours are, and no model."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Files) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _Files(BaseHTTPRequestHandler):
    """Answers with a file of the page; at any other path with an empty page."""

    def do_GET(self) -> None:
        name = self.path.removeprefix("/page/")
        is_file = name in assets.PAGES
        data = assets.read(name)[0] if is_file else b"<!doctype html><title>empty</title>"
        self.send_response(200)
        for header, value in assets.HEADERS.items():
            self.send_header(header, value)
        self.send_header("content-type", assets.content_type(name if is_file else "empty.html"))
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Keeps the test's output clean."""
