"""A limit of memory that no start fits is a sentence, and not the end of the process in native code."""

import subprocess
import sys

import pytest

from tests.busy import PATIENCE_S

SERVE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, ({0}, {0}))
from weft.cli.main import main
main()
"""


@pytest.mark.parametrize("num_mib", [40, 80, 130])
def test_a_limit_below_what_a_start_takes_is_refused(num_mib):
    """OpenBLAS, ZeroMQ and others abort or crash where they get no memory."""
    result = subprocess.run(
        [sys.executable, "-c", SERVE.format(num_mib << 20), "serve", "embedded:tiny", "--no-grpc"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == 2, result.stderr
    [line] = result.stderr.splitlines()
    assert line.startswith(f"error: this process may use {num_mib} MiB of memory; at least ")
    assert "ulimit -d" in line
