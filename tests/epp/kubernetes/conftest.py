from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.doubles.api_server import ApiServerDouble
from tests.epp.kubernetes.cluster import point_at
from tests.ports import free_port


@pytest_asyncio.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServerDouble]:
    """An API server that clients find by their environment."""
    server = ApiServerDouble(port=free_port())  # at which it comes back
    await server.start()
    point_at(server, tmp_path, monkeypatch)
    yield server
    await server.stop()
