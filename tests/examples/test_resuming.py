"""`examples/resuming.py` reads a whole answer although its API servers, or a worker behind Envoy, are killed."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import clean_environment, running
from tests.cli.test_api_servers import api_servers
from tests.cli.test_epp_up import Up, line_with, up
from tests.doubles.secret_file import secret_file

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COMMAND = (sys.executable, str(EXAMPLES / "resuming.py"), "--max-tokens", "900")
OVER_GRPC = (sys.executable, str(EXAMPLES / "resuming_grpc.py"), "--max-tokens", "900")


def read_undisturbed(environment: dict[str, str], command: tuple[str, ...] = COMMAND) -> bytes:
    """The output of the example."""
    ended = subprocess.run(
        command, env=environment, check=True, capture_output=True, timeout=PATIENCE_S
    )
    return ended.stdout


def read_disturbed(
    environment: dict[str, str],
    victims: Callable[[], Iterable[psutil.Process]],
    command: tuple[str, ...] = COMMAND,
) -> tuple[bytes, bytes]:
    """Run the example, and kill the victims when its first letter is there; returns its output and its log."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe) as example:
        assert example.stdout is not None
        begun = os.read(example.stdout.fileno(), 1)
        for process in victims():
            process.kill()
        rest, log = example.communicate(timeout=PATIENCE_S)
    assert example.returncode == 0, log
    return begun + rest, log


@pytest.mark.slow
@pytest.mark.timeout(6 * PATIENCE_S)
def test_the_story_is_whole_although_every_api_server_is_killed():
    """The client continues the stream at an API server that has just started, over HTTP and over gRPC. On a busy
    machine the answer may have been there before the kill: then once more.
    """
    flags = ("--api-server-count", "2", "--resume-secret-file", secret_file())
    with running("embedded:tiny", *flags) as server:
        environment = clean_environment(OPENAI_BASE_URL=f"{server.http}/v1")
        undisturbed = read_undisturbed(environment)
        read = [read_disturbed(environment, lambda: api_servers(server))]
        while len(read) < 5 and not read[-1][1]:
            read.append(read_disturbed(environment, lambda: api_servers(server)))
        command = (*OVER_GRPC, server.address)
        over_grpc = read_undisturbed(environment, command)
        others = [read_disturbed(environment, lambda: api_servers(server), command)]
        while len(others) < 5 and not others[-1][1]:
            others.append(read_disturbed(environment, lambda: api_servers(server), command))
    assert {output for output, _ in others} == {over_grpc}
    assert b"is back" in others[-1][1]
    assert {output for output, _ in read} == {undisturbed}
    assert b"[continued]" in read[-1][1]


@pytest.mark.slow
@pytest.mark.timeout(6 * PATIENCE_S)
def test_the_story_is_whole_although_its_worker_behind_envoy_is_killed():
    """The picker sends the rest of the stream to the other worker. The worker that is killed may not be the one that
    answers, or the answer may have been there: then the one that is older now, after the other is back.
    """
    with up(f"--worker-args=--resume-secret-file {secret_file()}", model="embedded:tiny") as stack:
        environment = clean_environment(OPENAI_BASE_URL=f"http://{stack.address}/v1")
        undisturbed = read_undisturbed(environment)
        read = [read_disturbed(environment, lambda: oldest_worker(stack))]
        while len(read) < 6 and not read[-1][1]:
            line_with(stack, "is back")
            read.append(read_disturbed(environment, lambda: oldest_worker(stack)))
    assert {output for output, _ in read} == {undisturbed}
    assert b"[continued]" in read[-1][1]


def oldest_worker(stack: Up) -> list[psutil.Process]:
    """The processes of the worker that was started first."""
    family = psutil.Process(stack.process.pid).children()
    workers = [child for child in family if "serve" in child.cmdline()]
    oldest = min(workers, key=psutil.Process.create_time)
    return [oldest, *oldest.children(recursive=True)]
