"""The file of a secret, as transfers and ranks of several machines want one."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

SECRET = b"0123456789abcdef"


@cache
def secret_file() -> str:
    """Of this process of tests, in a directory that ends with it."""
    directory = tempfile.mkdtemp(prefix="weft-test-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = Path(directory, "secret")
    path.touch(mode=0o600)
    path.write_bytes(SECRET)
    return str(path)
