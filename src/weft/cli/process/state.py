"""Files that outlive a command, each for its owner's eyes alone."""

import os
from pathlib import Path


def state_file(name: str) -> Path:
    """The file of that name in XDG_STATE_HOME/weft, made if it is not there; mode 600. `OSError` if it cannot be."""
    given = os.environ.get("XDG_STATE_HOME", "")
    # What is relative is to be ignored, as the specification of these directories has it.
    home = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    directory = home / "weft"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / name
    descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    try:
        os.fchmod(descriptor, 0o600)  # it may be older than this rule
    finally:
        os.close(descriptor)
    return path
