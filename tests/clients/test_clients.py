"""Clients as people install them, each in an environment of its own, against one `weft serve`."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.running import clean_environment, running
from tests.clients.environments import ENVIRONMENTS, Environment

# What of each script is run; a part that a script does not have is passed over.
PARTS = ("chat", "stream", "tools", "streamed_tools", "forced_tools", "schema", "errors", "responses",
         "embeddings")  # fmt: skip

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def addresses():
    """Those of a server that generates, and of one that embeds."""
    argv = ("embedded:tiny", "--served-model-name", "tiny", "--no-grpc")
    with running(*argv) as generating, running(*argv, "--runner", "pooling") as embedding:
        yield generating.http, embedding.http


@pytest.mark.timeout(900)  # the first time, an environment is made
@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda environment: environment.name)
def test_every_client_gets_what_it_asks_for(environment: Environment, addresses: tuple[str, str]):
    """Answers, streams, tools with their results fed back, schemas, errors and vectors, as it has them."""
    environment.make()
    script = Path(__file__).parent / environment.script
    ended = subprocess.run(
        [environment.python, script, *addresses, *PARTS],
        capture_output=True,
        text=True,
        timeout=300,
        env=clean_environment(PYTHONPATH=""),
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told
    assert [f"{part}: {how}" for part, how in told.items() if how != "ok"] == []
