"""The engine's child process: `python -m weft.engine.process FD`, configuration on stdin, beats answered at FD.

Started by `EngineChild` only. It leaves the terminal's signals to the front, which drains and then sends
`Stop`: from the first moment on, so that what it runs is imported after that.
"""

import signal
import sys
from importlib import import_module


def main() -> int:
    """Run one engine until `Stop`. The exit status is 0 only then."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    status: int = import_module("weft.engine.process_main").run(int(sys.argv[1]))
    return status


if __name__ == "__main__":
    sys.exit(main())
