"""Where tools keep what they download and build, once for all clones; and how they do it."""

import os
import subprocess
from pathlib import Path

# TOOLS_CACHE_HOME is what tests say, whose XDG_CACHE_HOME is a directory of their own.
_HOME = os.environ.get("TOOLS_CACHE_HOME") or os.environ.get("XDG_CACHE_HOME")
HOME = Path(_HOME or Path.home() / ".cache")


def run(*words: str | Path, cwd: Path, **environment: str) -> None:
    """A command that must succeed; what it says is shown."""
    print("+", *words, flush=True)
    subprocess.run([*map(str, words)], cwd=cwd, env={**os.environ, **environment}, check=True)


def unpack_debs(directory: Path) -> None:
    """Debian's packages that lie there, in their place, and not installed."""
    for package in [*directory.glob("*.deb")]:
        run("dpkg-deb", "-x", package, directory, cwd=directory)
        package.unlink()
