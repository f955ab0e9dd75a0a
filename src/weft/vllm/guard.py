"""`EngineGuard`: ends vLLM's engine processes if this process is killed: otherwise they would run on and keep their
memory.
"""

import subprocess
from collections.abc import Sequence

import psutil

# The shell waits until the other end of the pipe is closed, which happens however its owner dies.
_SCRIPT = 'read -r _; kill -9 "$@"'
_ENGINE = "EngineCore"  # in the names of vLLM's engine processes; their workers end with them


class EngineGuard:
    """A shell process that kills the engine processes with these ids when this process ends. `close` stops it without
    killing.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._shell = None
        if pids:
            self._shell = subprocess.Popen(  # noqa: S603 - numbers
                ["/bin/sh", "-c", _SCRIPT, "sh", *map(str, pids)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # the process must not get Ctrl-C
            )

    def close(self) -> None:
        """Stops the shell process: the engines have ended, and other processes may get their ids. May be called more
        than once.
        """
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.kill()
            shell.communicate()


def guard_engines() -> EngineGuard:
    """Starts a guard of all engine processes that this process has started; some are its grandchildren."""
    found = psutil.Process().children(recursive=True)
    return EngineGuard([process.pid for process in found if _ENGINE in process.name()])
