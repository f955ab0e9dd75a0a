"""Clients as people install them, each in an environment of its own, against one `weft serve`."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.running import clean_environment, running
from tests.clients.environments import COMPATIBLE, ENVIRONMENTS, Environment
from tests.web.mcp.tool_server import tool_serving

# What of each script is run; a part that a script does not have is passed over.
PARTS = ("chat", "stream", "tools", "streamed_tools", "tool_runner", "forced_tools", "schema", "errors",
         "responses", "stored_responses", "response_sockets", "conversations", "batches", "decisions",
         "server_tools", "realtime", "embeddings")  # fmt: skip

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def addresses():
    """Those of a server that generates, and calls a server of tools, and of one that embeds."""
    argv = ("embedded:tiny", "--served-model-name", "tiny", "--no-grpc")
    with (
        tool_serving() as (tools, _),
        running(*argv, "--tool-server", f"station={tools}") as generating,
        running(*argv, "--runner", "pooling") as embedding,
    ):
        yield generating.http, embedding.http


@pytest.mark.timeout(900)  # the first time, an environment is made
@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda environment: environment.name)
def test_every_client_gets_what_it_asks_for(environment: Environment, addresses: tuple[str, str]):
    """Answers, streams, tools with their results fed back, schemas, errors and vectors, as it has them."""
    if environment.missing is not None:
        pytest.skip(f"{environment.missing} is not installed")
    environment.make()
    ended = subprocess.run(
        [*environment.command(), *addresses, *PARTS],
        capture_output=True,
        text=True,
        timeout=300,
        env=clean_environment(**environment.variables),
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told
    assert [f"{part}: {how}" for part, how in told.items() if how != "ok"] == []


@pytest.mark.timeout(900)
def test_weft_vllm_does_not_take_the_place_of_vllm():
    """Neither installed nor imported where vLLM itself is."""
    environment = next(one for one in ENVIRONMENTS if one.has_weft)
    environment.make()
    where = [environment.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip())
    other = site / "vllm-0.32.0.dist-info"
    other.mkdir(exist_ok=True)
    try:
        (other / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
        for command in (
            [*environment.pip_install, "--no-deps", COMPATIBLE],
            [str(environment.python), "-c", "import vllm"],
        ):
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            assert ended.returncode != 0
            assert "vLLM itself is installed" in ended.stderr
    finally:
        shutil.rmtree(other)
