"""A hub on loopback that has one model: its files, as the Hub's client asks for them."""

import hashlib
import importlib
import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import _cache_manager

COMMIT = "c" * 40
_PIECE = 1 << 20


class Hub(BaseHTTPRequestHandler):
    """`files` are those of the model `name`, each MiB of which takes `piece_s`; `discussions` are about it."""

    protocol_version = "HTTP/1.1"
    name: ClassVar[str]
    files: ClassVar[dict[str, Path]]
    piece_s: ClassVar[float]
    discussions: ClassVar[dict[str, object] | None]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith(f"/api/models/{self.name}/tree/"):
            self.send_json([_as_entry(path) for path in self.files.values()])
        elif path == f"/api/models/{self.name}/discussions":
            self.send_json(self.discussions)
        elif path.startswith(f"/api/models/{self.name}"):
            siblings = [{"rfilename": file} for file in self.files]
            self.send_json({"id": self.name, "sha": COMMIT, "siblings": siblings})
        elif path.startswith(f"/{self.name}/resolve/"):
            self.send_file(self.files[path.rpartition("/")[2]])
        else:
            self.send_error(404)

    def send_json(self, value: object) -> None:
        text = json.dumps(value).encode()
        self.send_head(len(text), {"Content-Type": "application/json"})
        self.wfile.write(text)

    def send_file(self, path: Path) -> None:
        etag = hashlib.sha256(path.name.encode()).hexdigest()
        self.send_head(path.stat().st_size, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})
        if self.command == "HEAD":
            return
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                time.sleep(self.piece_s)
                self.wfile.write(piece)

    def send_head(self, length: int, headers: dict[str, str]) -> None:
        self.send_response(200)
        for key, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(key, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def serving_hub(
    name: str,
    files: Iterable[Path],
    *,
    piece_s: float = 0.0,
    discussions: dict[str, object] | None = None,
) -> Iterator[dict[str, str]]:
    """What to set in the environment to ask it."""
    named = {path.name: path for path in files}
    given = {"name": name, "files": named, "piece_s": piece_s, "discussions": discussions}
    one = type("One", (Hub,), given)
    with ThreadingHTTPServer(("127.0.0.1", 0), one) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_OFFLINE": "0"}
        finally:
            server.shutdown()


@contextmanager
def hub_settings(**environment: str) -> Iterator[None]:
    """The Hub's client here as a process with this environment has it, but for the server that it asks.

    It reads the environment when it is imported, and takes a second to import.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        importlib.reload(constants)
        patch.setattr(_cache_manager, "HF_HUB_CACHE", constants.HF_HUB_CACHE)
        try:
            yield
        finally:
            patch.undo()
            importlib.reload(constants)


def _as_entry(path: Path) -> dict[str, object]:
    return {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": "0" * 40}
