"""A server behind a proxy that keeps its prefix in paths."""

import httpx2
import pytest

from tests.busy import PATIENCE_S
from tests.web.http.serving import serving
from weft.core.errors import ConfigError


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/", "/page/app.js", "/docs"])
async def test_a_path_is_served_with_and_without_the_prefix(path):
    """The same response, whether the proxy removes the prefix or not."""
    async with (
        serving(root_path="/llm/a", has_page=True) as site,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{site.port}", timeout=PATIENCE_S) as client,
    ):
        plain, below = [await client.get(start + path) for start in ("", "/llm/a")]
    assert plain.status_code == 200
    assert (below.status_code, below.content) == (plain.status_code, plain.content)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/llm", 307), ("/llm?a=b", 307), ("/llmv1/models", 404), ("/llm/llm/v1/models", 404), ("/x/llm/health", 404)],
)  # fmt: skip
async def test_only_a_whole_prefix_counts(path, status):
    """Relative addresses of the page need the slash at its end."""
    async with (
        serving(root_path="/llm") as site,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{site.port}", timeout=PATIENCE_S) as client,
    ):
        answer = await client.get(path)
    assert answer.status_code == status
    assert answer.headers.get("location") == ("/llm/" if status == 307 else None)


async def test_keys_are_needed_below_the_prefix_too():
    """The prefix opens no path."""
    async with (
        serving(root_path="/llm", api_keys=("secret",)) as site,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{site.port}", timeout=PATIENCE_S) as client,
    ):
        statuses = [
            (await client.get(path)).status_code for path in ("/llm/v1/models", "/llm/health")
        ]
    assert statuses == [401, 200]


@pytest.mark.parametrize("prefix", ["", "/", "llm", "/llm/", "/a//b", "/a%20b"])
async def test_an_invalid_prefix_is_refused(prefix):
    """At the start, with an example."""
    with pytest.raises(ConfigError, match="--root-path"):
        async with serving(root_path=prefix):
            pass
