"""`EngineGuard`: ends vLLM's engine processes if this process dies. A killed process cannot do that, and the engines
would keep their memory.
"""

import subprocess
from collections.abc import Sequence

import psutil

# The shell waits until the other end of the pipe is closed, which happens however its owner dies.
_SCRIPT = 'read -r _; kill -9 "$@"'
_ENGINE = "EngineCore"  # in the names of vLLM's engine processes; their workers end with them


class EngineGuard:
    """A shell process that waits, until `close`, to end the engines with these process ids."""

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
        """Stops guarding: the engines have ended, and their ids may be reused. Idempotent."""
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.kill()
            shell.communicate()


def guard_engines() -> EngineGuard:
    """Guards all engines that this process has started; some are its grandchildren."""
    found = psutil.Process().children(recursive=True)
    return EngineGuard([process.pid for process in found if _ENGINE in process.name()])
