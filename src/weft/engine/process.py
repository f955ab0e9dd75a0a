"""The engine's child process: `python -m weft.engine.process FD`; configuration on stdin, heartbeats answered on
FD.

Started by `EngineChild` only. It ignores terminal signals from the first moment: the front handles them, drains and
sends `Stop`. So the main module is imported after that.
"""

import signal
import sys
from importlib import import_module


def main() -> int:
    """Runs one engine until `Stop`; only then the exit status is 0."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    status: int = import_module("weft.engine.process_main").run(int(sys.argv[1]))
    return status


if __name__ == "__main__":
    sys.exit(main())
