"""Process of one of several API servers: `python -m weft.cli.serving.api_server FD`; its settings arrive over the
socket FD.

Started by `ApiServers` only. It leaves the terminal's signals to its supervisor, who says when to drain: from the
first moment on, so that what it runs is imported after that.
"""

import signal
import sys
from importlib import import_module


def main() -> int:
    """Serves until the supervisor ends it, or has ended; returns the exit status."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    status: int = import_module("weft.cli.serving.api_serving").serve(int(sys.argv[1]))
    return status


if __name__ == "__main__":
    sys.exit(main())
