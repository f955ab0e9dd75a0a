"""Process of one API server: `python -m weft.cli.serving.api_server FD`. Only `ApiServers` starts it; its settings
arrive over the socket with the descriptor FD.

The process ignores the terminal's signals, because the supervisor process says when to drain. The signals are set
before other modules are imported, so that none arrives during the imports.
"""

import signal
import sys
from importlib import import_module


def main() -> int:
    """Serves until the supervisor process stops this server or has itself ended; returns the exit status."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    status: int = import_module("weft.cli.serving.api_serving").serve(int(sys.argv[1]))
    return status


if __name__ == "__main__":
    sys.exit(main())
