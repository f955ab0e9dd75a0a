"""Directories of what can be made again, each for its owner's eyes alone."""

import os
import stat
from pathlib import Path


def cache_directory(name: str) -> Path | None:
    """XDG_CACHE_HOME/weft/NAME, made or not; None for a user without a home."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    # What is relative is to be ignored, as the specification of these directories has it.
    try:
        home = Path(given) if os.path.isabs(given) else Path("~/.cache").expanduser()
    except RuntimeError:
        return None
    return home / "weft" / name


def is_ours_alone(found: os.stat_result) -> bool:
    """Whether that is a file which only this user could have written."""
    is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
    return is_ours and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
