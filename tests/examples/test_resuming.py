"""`examples/resuming.py` reads a whole answer although its API servers are killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import Server, clean_environment, running
from tests.cli.test_api_servers import api_servers
from tests.doubles.secret_file import secret_file

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "resuming.py"
COMMAND = (sys.executable, str(EXAMPLE), "--max-tokens", "900")


def read_disturbed(server: Server, environment: dict[str, str]) -> tuple[bytes, bytes]:
    """Run the example, and kill every API server when its first letter is there; returns its output and its log."""
    pipe = subprocess.PIPE
    with subprocess.Popen(COMMAND, env=environment, stdout=pipe, stderr=pipe) as example:
        assert example.stdout is not None
        begun = os.read(example.stdout.fileno(), 1)
        for process in api_servers(server):
            process.kill()
        rest, log = example.communicate(timeout=PATIENCE_S)
    assert example.returncode == 0, log
    return begun + rest, log


@pytest.mark.slow
@pytest.mark.timeout(6 * PATIENCE_S)
def test_the_story_is_whole_although_every_api_server_is_killed():
    """The client continues the stream at an API server that has just started. On a busy machine the answer may have
    been there before the kill: then once more.
    """
    flags = ("--api-server-count", "2", "--resume-secret-file", secret_file(), "--no-grpc")
    with running("embedded:tiny", *flags) as server:
        environment = clean_environment(OPENAI_BASE_URL=f"{server.http}/v1")
        undisturbed = subprocess.run(
            COMMAND, env=environment, check=True, capture_output=True, timeout=PATIENCE_S
        )
        read = [read_disturbed(server, environment)]
        while len(read) < 5 and not read[-1][1]:
            read.append(read_disturbed(server, environment))
    assert {output for output, _ in read} == {undisturbed.stdout}
    assert b"[continued]" in read[-1][1]
