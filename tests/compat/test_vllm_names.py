"""weft-vllm: programs that import vLLM's names run on Weft."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.busy import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM itself is installed")
def test_a_program_for_vllm_runs():
    """Engines for event loops, several of them, arguments of command lines, and every module that programs name."""
    paths = (str(ROOT / "compat" / "vllm"), os.environ.get("PYTHONPATH", ""))
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "compat" / "vllm_program.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("ok\n")
