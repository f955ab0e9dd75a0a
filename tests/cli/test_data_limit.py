"""A limit of memory that no start fits is a sentence, and not the end of the process in native code."""

import os
import subprocess
import sys

import pytest

from tests.busy import PATIENCE_S
from weft.cli.process.limits import use_no_tokenizer_threads

SERVE = """
import resource, sys
resource.setrlimit(resource.{1}, ({0}, {0}))
from weft.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("kind", "num_mib", "way"),
    [
        ("RLIMIT_DATA", 40, "ulimit -d"),
        ("RLIMIT_DATA", 130, "ulimit -d"),
        ("RLIMIT_AS", 300, "ulimit -v"),
    ],
)
def test_a_limit_below_what_a_start_takes_is_refused(kind, num_mib, way):
    """OpenBLAS, ZeroMQ and others abort or crash where they get no memory."""
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            SERVE.format(num_mib << 20, kind),
            "serve",
            "embedded:tiny",
            "--no-grpc",
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == 2, result.stderr
    [line] = result.stderr.splitlines()
    assert line.startswith(f"error: this process may use {num_mib} MiB of memory; at least ")
    assert way in line


@pytest.mark.parametrize(("given", "expected"), [(None, "false"), ("true", "true")])
def test_the_tokenizers_library_starts_no_threads_unless_the_user_wants_them(
    monkeypatch, given, expected
):
    """Without memory for its threads it would refuse every later text too."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", given or "")
    if given is None:
        monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    use_no_tokenizer_threads()
    assert os.environ["TOKENIZERS_PARALLELISM"] == expected
