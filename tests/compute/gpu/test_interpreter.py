"""Runs `interpreted*.py`, whose tests need kernels that Triton's interpreter runs: in processes that begin so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_HALF = "(llama or mistral or qwen or smollm or phi3 or granite)"
GROUPS = (
    ("interpreted.py", f"logits and {_HALF}"),
    ("interpreted.py", f"logits and not {_HALF}"),
    ("interpreted.py", "bits or slots or wanted or given or blocks_are"),
    ("interpreted.py", "choices"),
    ("interpreted.py", "engine or drafts or widened"),
    ("interpreted_formats.py", ""),
    ("interpreted_experts.py", ""),
)


@pytest.mark.slow
@pytest.mark.parametrize(("file", "group"), GROUPS)
def test_kernels_give_in_the_interpreter_what_they_are_to_give(file, group):
    """Where Triton is missing this fails, and says so: the test group of pyproject.toml has it on Linux."""
    path = Path(__file__).with_name(file)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", group, str(path)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-10_000:] + result.stderr[-2_000:]
