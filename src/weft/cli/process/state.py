"""Files that a command leaves for later runs, readable only by their owner."""

import os
from pathlib import Path


def state_file(name: str) -> Path:
    """Returns the path of the file `name` in XDG_STATE_HOME/weft, which is created with mode 600 if it is missing.
    Raises `OSError`.
    """
    given = os.environ.get("XDG_STATE_HOME", "")
    # A relative path is ignored: the XDG Base Directory specification says so.
    home = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    directory = home / "weft"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / name
    descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    try:
        os.fchmod(descriptor, 0o600)  # an existing file may have other permissions
    finally:
        os.close(descriptor)
    return path
