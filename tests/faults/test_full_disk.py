"""A server whose directory for temporary files cannot be used any more, as on a disk that is full or fails."""

import tempfile
from pathlib import Path

import httpx2
import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import SMALL, running
from tests.faults.watching import until


@pytest.mark.slow
def test_an_engine_that_gets_no_directory_is_tried_again():
    """Another engine answers meanwhile, and the health says that one is missing."""
    body = {"prompt": "a", "max_tokens": 2}
    with tempfile.TemporaryDirectory() as parent:
        used, away = Path(parent, "tmp"), Path(parent, "away")
        used.mkdir()
        with (
            running(SMALL, "--data-parallel-size", "2", TMPDIR=str(used)) as server,
            httpx2.Client(base_url=server.http, timeout=PATIENCE_S) as client,
        ):
            used.rename(away)
            server.front.children()[0].kill()
            server.read_log_until("no directory for the engine's sockets can be made there")
            assert client.get("/health").text == "degraded"
            assert client.post("/v1/completions", json=body).status_code == 200
            away.rename(used)
            until(lambda: client.get("/health").text != "degraded")
            assert client.post("/v1/completions", json=body).status_code == 200
            assert len(server.front.children()) == 2
