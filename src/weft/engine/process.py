"""The engine's child process: `python -m weft.engine.process FD`.

The configuration comes on stdin; heartbeats are answered on the file descriptor FD. Only `EngineChild` starts this
process. It ignores terminal signals from the first moment, because the front handles them, drains and sends `Stop`.
Therefore the main module is imported only after the signals are ignored.
"""

import signal
import sys
from importlib import import_module


def main() -> int:
    """Runs one engine until `Stop`; the exit status is 0 only after `Stop`."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    status: int = import_module("weft.engine.process_main").run(int(sys.argv[1]))
    return status


if __name__ == "__main__":
    sys.exit(main())
