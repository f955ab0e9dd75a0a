"""Directories for caches that can be rebuilt, readable by their owner alone."""

import os
import stat
from pathlib import Path


def cache_directory(name: str) -> Path | None:
    """Returns XDG_CACHE_HOME/weft/NAME, which may not exist yet; None for a user without a home directory."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    # A relative path is ignored: the XDG Base Directory specification says so.
    try:
        home = Path(given) if os.path.isabs(given) else Path("~/.cache").expanduser()
    except RuntimeError:
        return None
    return home / "weft" / name


def is_ours_alone(found: os.stat_result) -> bool:
    """True for a regular file that this user owns and no other user may write."""
    is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
    return is_ours and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
