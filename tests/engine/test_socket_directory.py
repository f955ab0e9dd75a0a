"""Directories of sockets: what a killed process leaves goes at the next start."""

import os
import subprocess
import sys

import pytest

from weft.engine.front.socket_directory import SocketDirectory

HOLD = """
import os
from weft.engine.front.socket_directory import SocketDirectory
directory = SocketDirectory()
print(directory.path, flush=True)
os.read(0, 1)
"""


@pytest.fixture
def held(tmp_path, monkeypatch):
    """A process that has a directory, below a place of our own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    process.path = process.stdout.readline().decode().strip()
    yield process
    process.kill()
    process.communicate()


def test_what_a_killed_process_leaves_is_removed_by_the_next(held):
    """With its sockets; and the new directory stays."""
    os.mkfifo(f"{held.path}/commands")
    held.kill()
    held.wait()
    assert os.path.isdir(held.path)
    directory = SocketDirectory()
    assert not os.path.exists(held.path)
    assert directory.path.is_dir()
    directory.remove()
    directory.remove()
    assert not directory.path.exists()


def test_what_another_process_has_stays(held, tmp_path):
    """As long as it lives; and so does what has no lock, which may be another program's."""
    other = tmp_path / "weft-other"
    other.mkdir()
    (tmp_path / "weft-file").touch()
    (tmp_path / "weft-link").symlink_to(held.path)
    first, second = SocketDirectory(), SocketDirectory()
    names = {path.name for path in tmp_path.iterdir()}
    assert {"weft-other", "weft-file", "weft-link", first.path.name, second.path.name} < names
    assert os.path.isdir(held.path)
    first.remove()
    second.remove()
