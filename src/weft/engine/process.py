"""The engine's child process: `python -m weft.engine.process`, configuration on stdin.

Started by `Child` only. It leaves the terminal's signals to the front, which drains and then says
`Stop`: from the first moment on, so that what it runs is imported after that.
"""

import signal
import sys
from importlib import import_module


def main() -> int:
    """Run one engine until it is told to stop. The exit status is 0 only then."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    status: int = import_module("weft.engine.run").run()
    return status


if __name__ == "__main__":
    sys.exit(main())
