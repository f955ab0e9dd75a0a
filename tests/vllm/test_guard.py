"""What ends engines when the process that has started them is gone; with a sleeper for an engine."""

import subprocess
import sys

import psutil
import pytest

from tests.busy import PATIENCE_S
from weft.vllm.guard import EngineGuard

HOLDER = (
    "import sys; from weft.vllm.guard import EngineGuard; guard = EngineGuard([int(sys.argv[1])]); "
    "print(guard._shell.pid, flush=True); sys.stdin.read()"
)


@pytest.fixture
def sleeper():
    """Ends by itself only after all tests."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_an_engine_ends_with_a_front_that_is_killed(sleeper):
    """And so does what has waited for that."""
    command = [sys.executable, "-c", HOLDER, str(sleeper.pid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as front:
        assert front.stdout is not None
        guard = psutil.Process(int(front.stdout.readline()))
        front.kill()
        assert sleeper.wait(timeout=PATIENCE_S) == -9
        guard.wait(timeout=PATIENCE_S)


def test_a_guard_that_is_closed_ends_nothing(sleeper):
    """As the ids may be others' by then."""
    guard = EngineGuard([sleeper.pid])
    shell = guard._shell
    guard.close()
    guard.close()
    assert shell is not None
    assert shell.returncode == -9
    assert sleeper.poll() is None
    EngineGuard(()).close()
