"""A proxy before a server that keeps every request and how it was answered."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

_OWN_HEADERS = frozenset("host content-length connection accept-encoding transfer-encoding".split())


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request with a body, and its answer."""

    path: str
    body: dict[str, Any]
    status: int
    warning: str | None
    answer: bytes


@contextmanager
def recording(server: str) -> Iterator[tuple[str, list[Exchange]]]:
    """The proxy's address, and what has passed through it so far."""
    seen: list[Exchange] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self._pass_on(self.rfile.read(int(self.headers.get("content-length", 0))))

        def do_GET(self) -> None:
            self._pass_on(b"")

        do_HEAD = do_GET  # noqa: N815

        def _pass_on(self, body: bytes) -> None:
            kept = {k: v for k, v in self.headers.items() if k.lower() not in _OWN_HEADERS}
            place = urlsplit(server).netloc
            with closing(http.client.HTTPConnection(place, timeout=600)) as connection:
                connection.request(self.command, self.path, body, kept)
                answer = connection.getresponse()
                data = answer.read()
            if body:
                warning = answer.getheader("warning")
                seen.append(Exchange(self.path, json.loads(body), answer.status, warning, data))
            self.send_response(answer.status)
            self.send_header("content-type", answer.getheader("content-type") or "")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}", seen
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()
