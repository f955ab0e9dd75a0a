"""Where tools keep what they download and build, once for all clones."""

import os
from pathlib import Path

# TOOLS_CACHE_HOME is what tests say, whose XDG_CACHE_HOME is a directory of their own.
_HOME = os.environ.get("TOOLS_CACHE_HOME") or os.environ.get("XDG_CACHE_HOME")
HOME = Path(_HOME or Path.home() / ".cache")
